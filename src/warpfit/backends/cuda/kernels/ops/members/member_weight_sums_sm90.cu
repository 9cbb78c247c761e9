// Computes:  the gradients of all layers' shared weights, from the parts that
//            member_weights_sm90.cu leaves.
// Layout:    gradients (num_inputs, UNITS) float32; partials as in member_weights.cuh.
// Launch:    grid (tiles, BLOCK_N / 8), block 256; no shared memory. Defines: UNITS (128, 256 or
//            512), BOUNDED_WAITS.
// Numerics:  float32 sums in the order of blocks.
// Cost:      512 BLOCK_N bytes of each block and tile.
// Reference: linear_backward of backends/numpy/dense.py.
#include "ops/members/member_weights.cuh"

extern "C" __global__ void __launch_bounds__(WORKERS)
    member_weight_sums_sm90(const __grid_constant__ WeightList list, const float4* partials) {
    take_turn();
    const int number = blockIdx.x;
    const int first = number * list.units_of_tile / list.units_of_block,
              last = ((number + 1) * list.units_of_tile - 1) / list.units_of_block;
    const float4* from = partials + blockIdx.y * WORKERS + threadIdx.x;
    float4 sum = {0, 0, 0, 0};
#pragma unroll 4
    for (int block = first; block <= last; ++block) {
        const float4 part = from[slot_of(block, number)];
        sum.x += part.x;
        sum.y += part.y;
        sum.z += part.z;
        sum.w += part.w;
    }
    const WeightTile tile(list, number);
    const WeightLayer& layer = list.layers[tile.layer];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = tile.row + 16 * warp + lane / 4, col = tile.col + 8 * blockIdx.y + lane % 4 * 2;
    float* to = layer.gradient + static_cast<int64>(row) * UNITS + col;
    if (row < layer.num_inputs) *reinterpret_cast<float2*>(to) = {sum.x, sum.y};
    if (row + 8 < layer.num_inputs) *reinterpret_cast<float2*>(to + 8 * UNITS) = {sum.z, sum.w};
}
