// What each block of rows adds to the gradients of what is a member's own: sums over its rows.
#pragma once

#include "base/types.cuh"

// A block's numbers: of each layer UNITS sums of gradients, then as many of gradients times sums;
// of each output UNITS; of each input one.
struct PartialSizes {
    int num_layers, num_inputs, num_outputs;

    __device__ int of_layer(int layer) const { return 2 * layer * UNITS; }
    __device__ int of_output(int output) const { return (2 * num_layers + output) * UNITS; }
    __device__ int of_inputs() const { return of_output(num_outputs); }
    __device__ int64 count() const { return (of_inputs() + num_inputs + 3) / 4 * 4; }
};
