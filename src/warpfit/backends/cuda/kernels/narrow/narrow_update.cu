// Computes:  for each of up to 16 parameters w ← the optimizer's step with the gradient scale · Σ
//            over blocks, and its 16-bit copy.
// Layout:    up to 8 arrays of gradients (num_blocks, num_gradients) float32, as narrow_step.cu and
//            the gradients of convolutions' weights leave them; those of a parameter begin at
//            column `first` - COLUMNS first_block of each row of one of them, COLUMNS being 256 /
//            ADDERS. Parameters and their optimizer state float32, copies of DTYPE, all contiguous.
// Launch:    1-D grid, from first_block on a block of 256 threads for every COLUMNS gradients of an
//            array; no dynamic shared memory. Defines ADDERS, DTYPE, RULE (a Step of
//            ops/optim/update_rules.cuh) and its SLOTS.
// Numerics:  float32: each of ADDERS threads adds up every ADDERS-th block's, in their order, and
//            then their sums in theirs.
// Cost:      4 num_blocks bytes a parameter, and 10 and 8 for each slot.
// Reference: the rule of backends/update_rules.py.
#include "base/reduce.cuh"
#include "ops/optim/update_rules.cuh"

using T = DTYPE;
using Rule = RULE<float, SLOTS>;

constexpr int MOST_ARRAYS = 8, MOST_PARTS = 16;
constexpr int THREADS = 256, COLUMNS = THREADS / ADDERS;

struct NarrowPart {
    float* values;
    T* copies;
    float* slots[2];
    int first, size;
};

struct NarrowGradients {
    const float* numbers;
    int num_blocks, num_gradients, first_block, unused;
};

struct NarrowParts {
    int num_arrays, num_parts;
    NarrowGradients arrays[MOST_ARRAYS];
    NarrowPart parts[MOST_PARTS];
};

__device__ inline void update(const NarrowPart& part, int idx, const Rule& rule, float gradient) {
    float value = part.values[idx], slots[2];
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) slots[s] = part.slots[s][idx];
    rule.apply(value, gradient, slots);
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) part.slots[s][idx] = slots[s];
    part.values[idx] = value;
    part.copies[idx] = store<T>(value);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    narrow_update(const __grid_constant__ NarrowParts list, double scale, Scalar first,
                  Scalar second, Scalar third, Scalar fourth, Scalar fifth, Scalar sixth) {
    take_turn();
    __shared__ float sums[ADDERS][COLUMNS];
    const int lane = threadIdx.x % COLUMNS, adder = threadIdx.x / COLUMNS;
    int array = list.num_arrays - 1;
    while (list.arrays[array].first_block > static_cast<int>(blockIdx.x)) --array;
    const NarrowGradients gradients = list.arrays[array];
    const int column = (blockIdx.x - gradients.first_block) * COLUMNS + lane;
    float sum = 0;
    if (column < gradients.num_gradients) {
#pragma unroll 8
        for (int block = adder; block < gradients.num_blocks; block += ADDERS) {
            sum += gradients.numbers[static_cast<int64>(block) * gradients.num_gradients + column];
        }
    }
    if (ADDERS > 1) {
        sums[adder][lane] = sum;
        __syncthreads();
        if (adder != 0) return;
#pragma unroll
        for (int i = 1; i < ADDERS; ++i) sum += sums[i][lane];
    }
    const Rule rule(first, second, third, fourth, fifth, sixth);
    for (int i = 0; i < list.num_parts; ++i) {
        const NarrowPart& part = list.parts[i];
        const int idx = blockIdx.x * COLUMNS + lane - part.first;
        if (idx >= 0 && idx < part.size) update(part, idx, rule, static_cast<float>(scale) * sum);
    }
}
