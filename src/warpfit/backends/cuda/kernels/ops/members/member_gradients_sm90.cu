// Computes:  the gradients of all that layers of an ensemble have, from the parts that
//            member_weights_sm90.cu and member_layers_backward_sm90.cu leave.
// Layout:    of weights (num_inputs, UNITS), their parts as in member_weights.cuh; of scales and
//            biases (members, units), heads (members, UNITS, outputs) and their biases (members,
//            outputs), their parts as in member_partials.cuh; dy (members, rows, outputs); all
//            float32.
// Launch:    grid: tiles times BLOCK_N / 8 blocks for weights, and then for each member one for
//            every 256 numbers and a last one; block 256; no dynamic shared memory.
//            Defines: UNITS (128, 256 or 512), BOUNDED_WAITS.
// Numerics:  float32 sums in the order of blocks; of a head's biases by a tree.
// Cost:      512 BLOCK_N bytes of each block and tile, and of each block of rows 4 count().
// Reference: linear_backward of backends/numpy/dense.py, member_relu_backward of members.py.
#include "base/reduce.cuh"
#include "ops/members/member_partials.cuh"
#include "ops/members/member_weights.cuh"

// Of a layer, (members, units) each; the next scale's may be null.
struct OwnVectors {
    const float *scale, *bias, *next_scale;
    float *dscale, *dbias, *dnext_scale;
};

struct MemberGradients {
    OwnVectors layers[MOST_LAYERS];
    float *dscale_in, *dhead, *dhead_bias;
    int num_members, num_rows, num_blocks;  // of a member
    PartialSizes sizes;
};

__device__ inline void sum_weights(const WeightList& list, const float4* partials, int idx) {
    const int number = idx / FOURS, four = idx % FOURS;
    const int first = number * list.units_of_tile / list.units_of_block,
              last = ((number + 1) * list.units_of_tile - 1) / list.units_of_block;
    const float4* from = partials + four * WORKERS + threadIdx.x;
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
    const int row = tile.row + 16 * warp + lane / 4, col = tile.col + 8 * four + lane % 4 * 2;
    float* to = layer.gradient + static_cast<int64>(row) * UNITS + col;
    if (row < layer.num_inputs) *reinterpret_cast<float2*>(to) = {sum.x, sum.y};
    if (row + 8 < layer.num_inputs) *reinterpret_cast<float2*>(to + 8 * UNITS) = {sum.z, sum.w};
}

// A number of a member's partials, summed over its blocks.
__device__ inline float over_blocks(const MemberGradients& own, const float* of_member, int at) {
    const int64 step = own.sizes.count();
    float sum = 0;
#pragma unroll 4
    for (int block = 0; block < own.num_blocks; ++block) sum += of_member[block * step + at];
    return sum;
}

__device__ inline void finish_unit(const MemberGradients& own, int member, int layer, int unit,
                                   float sum, float product) {
    const OwnVectors& vectors = own.layers[layer];
    const int64 at = static_cast<int64>(member) * UNITS + unit;
    const float next = vectors.next_scale ? vectors.next_scale[at] : 1.0f;
    vectors.dscale[at] = next * product;
    vectors.dbias[at] = next * sum;
    if (vectors.dnext_scale)
        vectors.dnext_scale[at] = vectors.scale[at] * product + vectors.bias[at] * sum;
}

// A number of a member: of each layer its units, of each output too, then inputs.
__device__ inline void finish_number(const MemberGradients& own, int member, const float* of_member,
                                     int idx) {
    const PartialSizes& sizes = own.sizes;
    const int of_layers = sizes.num_layers * UNITS, of_heads = sizes.num_outputs * UNITS;
    if (idx < of_layers) {
        const int layer = idx / UNITS, unit = idx % UNITS, at = sizes.of_layer(layer) + unit;
        const float sum = over_blocks(own, of_member, at),
                    product = over_blocks(own, of_member, at + UNITS);
        finish_unit(own, member, layer, unit, sum, product);
    } else if (idx < of_layers + of_heads) {
        const int output = (idx - of_layers) / UNITS, unit = idx % UNITS;
        const int64 at = static_cast<int64>(member) * UNITS + unit;
        own.dhead[at * sizes.num_outputs + output] =
            over_blocks(own, of_member, sizes.of_output(output) + unit);
    } else if (idx < of_layers + of_heads + sizes.num_inputs) {
        const int input = idx - of_layers - of_heads;
        own.dscale_in[static_cast<int64>(member) * sizes.num_inputs + input] =
            over_blocks(own, of_member, sizes.of_inputs() + input);
    }
}

__device__ inline void sum_outputs(const MemberGradients& own, int member, const float* dy) {
    const int count = own.sizes.num_outputs, lane = threadIdx.x % WARP;
    dy += static_cast<int64>(member) * own.num_rows * count;
    for (int output = threadIdx.x / WARP; output < count; output += WORKERS / WARP) {
        float sum = 0;
#pragma unroll 8
        for (int row = lane; row < own.num_rows; row += WARP) sum += dy[row * count + output];
        sum = reduce_warp<Sum>(sum);
        if (lane == 0) own.dhead_bias[member * count + output] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(WORKERS)
    member_gradients_sm90(const __grid_constant__ WeightList list,
                          const __grid_constant__ MemberGradients own, const float4* weights,
                          const float* partials, const float* dy) {
    take_turn();
    const int of_weights = list.num_tiles * FOURS;
    if (blockIdx.x < of_weights) {
        sum_weights(list, weights, blockIdx.x);
        return;
    }
    const int of_member = (static_cast<int>(gridDim.x) - of_weights) / own.num_members;
    const int idx = blockIdx.x - of_weights, member = idx / of_member, part = idx % of_member;
    if (part == of_member - 1) {
        sum_outputs(own, member, dy);
    } else {
        const int64 first = static_cast<int64>(member) * own.num_blocks * own.sizes.count();
        finish_number(own, member, partials + first, part * WORKERS + threadIdx.x);
    }
}
