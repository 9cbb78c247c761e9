// Blocks that are all resident send each other a number a thread through memory, `steps` times, and
// replace it by the sum over the blocks, plus the own block's number, which static shared memory
// keeps. Two places take turns: whoever sends for step s + 2 has all of step s + 1, which others
// sent when they had read step s. Mistakes, one for each value of BUG:
enum Bug { NONE, SILENT, ONE_PLACE };
#include "base/types.cuh"

constexpr int THREADS = 32;

__device__ unsigned receive(const uint4* place, unsigned step) {
    uint4 words = load_relaxed(place);
    while (words.w != step) {
        let_others_run();
        words = load_relaxed(place);
    }
    return words.x;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    together(unsigned* target, uint4* places, int steps) {
    __shared__ unsigned number[THREADS];
    number[threadIdx.x] = blockIdx.x;
    unsigned own = threadIdx.x;
    for (int step = 1; step <= steps; ++step) {
        uint4* now = places + (BUG == ONE_PLACE ? 0 : step % 2) * gridDim.x * THREADS;
        if (BUG != SILENT || blockIdx.x != 1)
            store_relaxed(&now[blockIdx.x * THREADS + threadIdx.x],
                          uint4{own, 0, 0, static_cast<unsigned>(step)});
        unsigned sum = number[threadIdx.x];
        for (unsigned i = 0; i < gridDim.x; ++i)
            sum += receive(&now[i * THREADS + threadIdx.x], step);
        own = sum;
    }
    target[blockIdx.x * THREADS + threadIdx.x] = own;
}
