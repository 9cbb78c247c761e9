// Computes:  the gradients of all that layers of an ensemble have, from the parts that
//            member_weights_sm90.cu and member_layers_backward_sm90.cu leave; or, with moments,
//            Adam's step by them, of which biases have no decay, and the 16-bit copies of weights.
// Layout:    of weights (num_inputs, UNITS), their parts as in member_weights.cuh; of scales and
//            biases (members, units), heads (members, UNITS, outputs) and their biases (members,
//            outputs), their parts as in member_partials.cuh; dy (members, rows, outputs); all
//            float32 but copies.
// Launch:    grid: tiles times BLOCK_N / 8 blocks for weights, and then for each member one for
//            every 256 numbers and a last one; block 256; no dynamic shared memory. Defines: UNITS
//            (128, 256 or 512).
// Numerics:  float32 sums in the order of blocks; of a head's biases by a tree; the step in
//            float32.
// Cost:      512 BLOCK_N bytes of each block and tile, and of each block of rows 4 count(); of each
//            parameter 4 bytes, or 26.
// Reference: linear_backward of backends/numpy/dense.py, member_relu_backward of members.py, the
//            rule of backends/update_rules.py.
#include "base/reduce.cuh"
#include "ops/members/member_partials.cuh"
#include "ops/members/member_weights.cuh"
#include "ops/optim/update_rules.cuh"

using Step = AdamStep<float, 2>;

// A parameter with its moments, or two side by side, loaded before the gradient is known: memory is
// waited for once.
template <class Numbers>
struct Parameter {
    Numbers value, moments[2];
};

// Where gradients go: to an array of theirs, or, with moments, into parameters.
struct Target {
    float* numbers;
    float* moments[2];
    T* copies;  // of parameters, or null

    template <class Numbers>
    __device__ Parameter<Numbers> load(int64 at) const {
        if (!moments[0]) return {};
        return {place<Numbers>(numbers, at),
                {place<Numbers>(moments[0], at), place<Numbers>(moments[1], at)}};
    }

    __device__ void take(int64 at, Parameter<float> own, float gradient, const Step& step) const {
        if (moments[0]) {
            step.apply(own.value, gradient, own.moments);
            moments[0][at] = own.moments[0];
            moments[1][at] = own.moments[1];
        }
        numbers[at] = moments[0] ? own.value : gradient;
    }

    __device__ void take(int64 at, Parameter<float2> own, float2 gradient, const Step& step) const {
        if (moments[0]) {
            float slots[2][2] = {{own.moments[0].x, own.moments[1].x},
                                 {own.moments[0].y, own.moments[1].y}};
            step.apply(own.value.x, gradient.x, slots[0]);
            step.apply(own.value.y, gradient.y, slots[1]);
            place<float2>(moments[0], at) = {slots[0][0], slots[1][0]};
            place<float2>(moments[1], at) = {slots[0][1], slots[1][1]};
            *reinterpret_cast<unsigned*>(copies + at) = packed<T>(own.value.x, own.value.y);
        }
        place<float2>(numbers, at) = moments[0] ? own.value : gradient;
    }

    template <class Numbers>
    __device__ static Numbers& place(float* array, int64 at) {
        return *reinterpret_cast<Numbers*>(array + at);
    }
};

// Of a layer; vectors are (members, units) each, the next scale's may be null.
struct LayerTargets {
    const float *scale, *bias, *next_scale;
    Target weight, of_scale, of_bias, of_next_scale;
};

struct MemberGradients {
    LayerTargets layers[MOST_LAYERS];
    Target scale_in, head, head_bias;
    int num_members, num_rows, num_blocks;  // of a member
    PartialSizes sizes;
};

__device__ inline void sum_weights(const WeightList& list, const MemberGradients& own,
                                   const float4* partials, int idx, const Step& step) {
    const int number = idx / FOURS, four = idx % FOURS;
    const WeightTile tile(list, number);
    const Target& target = own.layers[tile.layer].weight;
    const int num_inputs = list.layers[tile.layer].num_inputs;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = tile.row + 16 * warp + lane / 4, col = tile.col + 8 * four + lane % 4 * 2;
    const int64 at = static_cast<int64>(row) * UNITS + col, below = at + 8 * UNITS;
    const bool has_row = row < num_inputs, has_below = row + 8 < num_inputs;
    Parameter<float2> upper = {}, lower = {};
    if (has_row) upper = target.load<float2>(at);
    if (has_below) lower = target.load<float2>(below);
    const int first = number * list.units_of_tile / list.units_of_block,
              last = ((number + 1) * list.units_of_tile - 1) / list.units_of_block;
    const float4* from = partials + four * WORKERS + threadIdx.x;
    float4 sum = {0, 0, 0, 0};
#pragma unroll 8
    for (int block = first; block <= last; ++block) {
        const float4 part = from[slot_of(block, number)];
        sum.x += part.x;
        sum.y += part.y;
        sum.z += part.z;
        sum.w += part.w;
    }
    if (has_row) target.take(at, upper, {sum.x, sum.y}, step);
    if (has_below) target.take(below, lower, {sum.z, sum.w}, step);
}

// The steps of what decays, and of what does not.
struct Steps {
    Step decaying, lasting;

    __device__ explicit Steps(const Step& step) : decaying(step), lasting(step) {
        lasting.shrink = 1;
    }
};

// A number of a member's partials, summed over its blocks.
__device__ inline float over_blocks(const MemberGradients& own, const float* of_member, int at) {
    const int64 step = own.sizes.count();
    float sum = 0;
#pragma unroll 4
    for (int block = 0; block < own.num_blocks; ++block) sum += of_member[block * step + at];
    return sum;
}

// A unit of a layer.
__device__ inline void finish_unit(const MemberGradients& own, int member, const float* of_member,
                                   int idx, const Steps& steps) {
    const int number = idx / UNITS, unit = idx % UNITS;
    const LayerTargets& layer = own.layers[number];
    const int64 at = static_cast<int64>(member) * UNITS + unit;
    const auto of_scale = layer.of_scale.load<float>(at), of_bias = layer.of_bias.load<float>(at);
    Parameter<float> of_next = {};
    float next = 1;
    if (layer.next_scale) {
        next = layer.next_scale[at];
        of_next = layer.of_next_scale.load<float>(at);
    }
    const float scale = layer.scale[at], bias = layer.bias[at];
    const int of_sums = own.sizes.of_layer(number) + unit;
    const float sum = over_blocks(own, of_member, of_sums),
                product = over_blocks(own, of_member, of_sums + UNITS);
    layer.of_scale.take(at, of_scale, next * product, steps.decaying);
    layer.of_bias.take(at, of_bias, next * sum, steps.lasting);
    if (layer.next_scale)
        layer.of_next_scale.take(at, of_next, scale * product + bias * sum, steps.decaying);
}

// A number of a member: of each layer its units, of each output too, then inputs.
__device__ inline void finish_number(const MemberGradients& own, int member, const float* of_member,
                                     int idx, const Steps& steps) {
    const PartialSizes& sizes = own.sizes;
    const int of_layers = sizes.num_layers * UNITS, of_heads = sizes.num_outputs * UNITS;
    if (idx < of_layers) return finish_unit(own, member, of_member, idx, steps);
    const bool is_head = idx < of_layers + of_heads;
    const int input = idx - of_layers - of_heads;
    if (!is_head && input >= sizes.num_inputs) return;
    const Target& target = is_head ? own.head : own.scale_in;
    const int output = (idx - of_layers) / UNITS, unit = idx % UNITS;
    const int64 of_unit = static_cast<int64>(member) * UNITS + unit,
                at = is_head ? of_unit * sizes.num_outputs + output
                             : static_cast<int64>(member) * sizes.num_inputs + input;
    const auto parameter = target.load<float>(at);
    const int of_sums = is_head ? sizes.of_output(output) + unit : sizes.of_inputs() + input;
    target.take(at, parameter, over_blocks(own, of_member, of_sums), steps.decaying);
}

__device__ inline void sum_outputs(const MemberGradients& own, int member, const float* dy,
                                   const Steps& steps) {
    const int count = own.sizes.num_outputs, lane = threadIdx.x % WARP;
    dy += static_cast<int64>(member) * own.num_rows * count;
    for (int output = threadIdx.x / WARP; output < count; output += WORKERS / WARP) {
        float sum = 0;
#pragma unroll 8
        for (int row = lane; row < own.num_rows; row += WARP) sum += dy[row * count + output];
        sum = reduce_warp<Sum>(sum);
        if (lane != 0) continue;
        const int at = member * count + output;
        own.head_bias.take(at, own.head_bias.load<float>(at), sum, steps.lasting);
    }
}

extern "C" __global__ void __launch_bounds__(WORKERS)
    member_gradients_sm90(const __grid_constant__ WeightList list,
                          const __grid_constant__ MemberGradients own, const float4* weights,
                          const float* partials, const float* dy, Scalar first, Scalar second,
                          Scalar third, Scalar fourth, Scalar fifth, Scalar sixth) {
    take_turn();
    const Steps steps(Step(first, second, third, fourth, fifth, sixth));
    const int of_weights = list.num_tiles * FOURS;
    if (blockIdx.x < of_weights) {
        sum_weights(list, own, weights, blockIdx.x, steps.decaying);
        return;
    }
    const int of_member = (static_cast<int>(gridDim.x) - of_weights) / own.num_members;
    const int idx = blockIdx.x - of_weights, member = idx / of_member, part = idx % of_member;
    if (part == of_member - 1) {
        sum_outputs(own, member, dy, steps);
    } else {
        const int64 before = static_cast<int64>(member) * own.num_blocks * own.sizes.count();
        finish_number(own, member, partials + before, part * WORKERS + threadIdx.x, steps);
    }
}
