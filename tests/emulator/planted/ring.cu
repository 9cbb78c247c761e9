// Doubles numbers in a ring of STAGES buffers: warp 0 copies them in with cp.async, warp 1 writes
// them out, and barriers of shared memory keep them apart. PIECE words a lane and a step. Mistakes,
// one for each value of BUG:
enum Bug {
    NONE,
    NO_WAIT,
    ARRIVES_FIRST,
    WRONG_PARITY,
    TOO_MANY,
    NOT_MADE,
    MADE_TWICE,
    OVERWRITTEN,
    MISALIGNED,
    NOT_SHARED,
    NO_PARITY,
    NO_THREADS,
    LATE_COPIES,
    READS_LATE
};
#include "base/types.cuh"

constexpr int STAGES = 3, PIECE = 4, STEP = 32 * PIECE;

struct Ring {
    alignas(16) float buffers[STAGES][STEP];
    unsigned long long full[STAGES], empty[STAGES];
};

__device__ void wait_for_phase(unsigned long long* barrier, unsigned parity) {
    while (!mbarrier_test(barrier, parity)) {
    }
}

__device__ void produce(Ring& ring, const float* source, int steps) {
    for (int step = 0; step < steps; ++step) {
        const int stage = step % STAGES;
        const unsigned parity = step / STAGES % 2;
        wait_for_phase(&ring.empty[stage], BUG == WRONG_PARITY ? parity : parity ^ 1);
        const int i = PIECE * threadIdx.x;
        if (BUG == ARRIVES_FIRST) copy_async_arrive(&ring.full[stage]);
        copy_async_16(&ring.buffers[stage][i], source + step * STEP + i, true);
        if (BUG != ARRIVES_FIRST) copy_async_arrive(&ring.full[stage]);
        if (BUG == LATE_COPIES) copy_async_arrive(&ring.full[stage]);
    }
}

__device__ void consume(Ring& ring, float* target, int steps) {
    for (int step = 0; step < steps; ++step) {
        const int stage = step % STAGES;
        const unsigned parity = step / STAGES % 2;
        if (BUG != NO_WAIT)
            wait_for_phase(&ring.full[stage], BUG == NO_PARITY ? 2 + parity : parity);
        if (BUG == READS_LATE) mbarrier_arrive(&ring.empty[stage]);
        for (int i = threadIdx.x % 32; i < STEP; i += 32)
            target[step * STEP + i] = 2 * ring.buffers[stage][STEP - 1 - i];
        if (BUG == OVERWRITTEN) ring.empty[stage] = step;
        if (BUG != READS_LATE) mbarrier_arrive(&ring.empty[stage]);
        if (BUG == TOO_MANY) mbarrier_arrive(&ring.empty[stage]);
    }
}

extern "C" __global__ void __launch_bounds__(64)
    ring(float* target, const float* source, int steps) {
    DYNAMIC_SHARED(Ring, shared);
    const int made = BUG == NOT_MADE ? STAGES - 1 : STAGES;
    if (threadIdx.x < made) {
        mbarrier_init(&shared->full[threadIdx.x], BUG == NO_THREADS ? 0 : 32);
        mbarrier_init(&shared->empty[threadIdx.x], 32);
        if (BUG == MADE_TWICE) mbarrier_init(&shared->empty[threadIdx.x], 32);
    }
    __syncthreads();
    if (BUG == MISALIGNED)
        mbarrier_arrive(
            reinterpret_cast<unsigned long long*>(reinterpret_cast<char*>(shared->full) + 4));
    if (BUG == NOT_SHARED) mbarrier_arrive(reinterpret_cast<unsigned long long*>(target));
    if (threadIdx.x < 32)
        produce(*shared, source, steps);
    else
        consume(*shared, target, steps);
}
