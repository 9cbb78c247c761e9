// Each block leaves a number for the last one to come, and each but the first one for the one
// before it.
//
// Layout:   left and sums (blocks,), arrivals (1,), marks (blocks, 2).
// Defines:  FENCES (0 or 1).
#include "ptx/ptx.cuh"

extern "C" __global__ void late(int* left, int* sums, unsigned* arrivals, unsigned* marks) {
    const unsigned block = blockIdx.x, count = gridDim.x;
    left[block] = block + 1;
    store_relaxed(marks + 2 * block, block + 7);
    if (FENCES) __threadfence();
    store_relaxed(marks + 2 * block + 1, 1U);
    if (atomicAdd(arrivals, 1U) == count - 1) {
        if (FENCES) __threadfence();
        for (unsigned i = 0; i < count; ++i) sums[0] += left[i];
    }
    if (block + 1 == count) return;
    while (load_relaxed(marks + 2 * block + 3) != 1U) let_others_run();
    sums[1 + block] = load_relaxed(marks + 2 * block + 2);
}
