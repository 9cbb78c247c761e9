// Blocks that are all resident leave each other a number, `steps` times, and replace it by the sum
// over the blocks, plus the own block's number. They take turns by a counter, which begins at
// `first`.
#include "resident/exchange/grid_turns.cuh"

extern "C" __global__ void turns(unsigned* target, unsigned* places, unsigned* turn, unsigned first,
                                 int steps) {
    const unsigned count = gridDim.x;
    unsigned own = blockIdx.x, arrivals = first;
    for (int step = 0; step < steps; ++step) {
        unsigned* now = places + step % 2 * count;
        if (threadIdx.x == 0) now[blockIdx.x] = own;
        arrive(turn);
        wait_for(turn, arrivals += count);
        own = blockIdx.x;
        for (unsigned i = 0; i < count; ++i) own += load_relaxed(now + i);
    }
    if (threadIdx.x == 0) target[blockIdx.x] = own;
}
