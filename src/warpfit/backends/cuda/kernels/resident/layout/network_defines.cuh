// The layers of a network, as the host writes them down: lists of widths, activations and their settings, and dropouts.
//
// Users: all kernels that take rows through several layers, narrow_step.cu among them. Defines LAYERS, WIDTHS, ACTIVATIONS,
// SLOPES; DROPOUTS where a kernel knows them.
#pragma once

#include "ops/activation/activation.cuh"

__device__ constexpr int up(int size, int unit) { return (size + unit - 1) / unit * unit; }

// Widths of the features and of each layer's units, and what follows each layer.
constexpr int SIZES[] = {WIDTHS};
constexpr Activation ACTIVATION_OF[] = {ACTIVATIONS};
constexpr float SLOPE_OF[] = {SLOPES};
#ifdef DROPOUTS
constexpr bool HAS_DROPOUT[] = {DROPOUTS};
#else
constexpr bool HAS_DROPOUT[LAYERS] = {};
#endif

constexpr int OUTPUTS = SIZES[LAYERS];
