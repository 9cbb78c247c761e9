// The layers of a network as the host writes them down: defines LAYERS, and lists of WIDTHS,
// ACTIVATIONS, SLOPES and, where a kernel knows them, DROPOUTS. Values only.
// Users: layer_stack.cuh, narrow_layers.cuh, small_network.cuh.
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
