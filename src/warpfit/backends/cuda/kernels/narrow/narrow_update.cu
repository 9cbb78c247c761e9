// Computes:  for each of up to 16 parameters w ← the optimizer's step with the gradient scale · Σ
//            over blocks, and its 16-bit copy.
// Layout:    gradients (num_blocks, num_gradients) float32, as narrow_step.cu leaves them; those of
//            a parameter begin at `first` in each row. Parameters and their optimizer state
//            float32, copies of DTYPE, all contiguous.
// Launch:    1-D grid, a block of 256 threads for every 256 / ADDERS gradients; no dynamic shared
//            memory. Defines ADDERS, DTYPE, RULE (a Step of ops/optim/update_rules.cuh), its SLOTS.
// Numerics:  float32: each of ADDERS threads adds up every ADDERS-th block's, in their order, and
//            then their sums in theirs.
// Cost:      4 num_blocks bytes a parameter, and 10 and 8 for each slot.
// Reference: the rule of backends/update_rules.py.
#include "base/reduce.cuh"
#include "ops/optim/update_rules.cuh"

using T = DTYPE;
using Rule = RULE<float, SLOTS>;

constexpr int MOST_PARTS = 16;
constexpr int THREADS = 256, COLUMNS = THREADS / ADDERS;

struct NarrowPart {
    float* values;
    T* copies;
    float* slots[2];
    int first, size;
};

struct NarrowParts {
    int64 count;
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
    narrow_update(const __grid_constant__ NarrowParts list, const float* gradients, int num_blocks,
                  int num_gradients, double scale, Scalar first, Scalar second, Scalar third,
                  Scalar fourth, Scalar fifth, Scalar sixth) {
    take_turn();
    __shared__ float sums[ADDERS][COLUMNS];
    const int column = threadIdx.x % COLUMNS, adder = threadIdx.x / COLUMNS;
    const int own = blockIdx.x * COLUMNS + column;
    float sum = 0;
    if (own < num_gradients) {
#pragma unroll 8
        for (int block = adder; block < num_blocks; block += ADDERS) {
            sum += gradients[static_cast<int64>(block) * num_gradients + own];
        }
    }
    if (ADDERS > 1) {
        sums[adder][column] = sum;
        __syncthreads();
        if (adder != 0) return;
#pragma unroll
        for (int i = 1; i < ADDERS; ++i) sum += sums[i][column];
    }
    const Rule rule(first, second, third, fourth, fifth, sixth);
    for (int i = 0; i < list.count; ++i) {
        const NarrowPart& part = list.parts[i];
        const int idx = own - part.first;
        if (idx >= 0 && idx < part.size) update(part, idx, rule, static_cast<float>(scale) * sum);
    }
}
