// Copies words through two shared buffers with cp.async, a group of PIECE words a thread at a time,
// the next group in flight while one is written. From `valid` on, zeros. WAIT = 0 leaves the wait
// out; `skew` words break the alignment.
#include "base/types.cuh"

constexpr int THREADS = 32;

__device__ void copy_piece(unsigned* shared, const unsigned* global, bool valid) {
#if PIECE == 4
    copy_async_16(shared, global, valid);
#elif PIECE == 2
    copy_async_8(shared, global, valid);
#else
    copy_async_4(shared, global, valid);
#endif
}

__device__ void stage(unsigned* buffer, const unsigned* source, int start, int n, int valid,
                      int skew) {
    const int own = start + PIECE * threadIdx.x;
    if (start < n) copy_piece(buffer + PIECE * threadIdx.x, source + own + skew, own < valid);
    copy_async_commit();
}

extern "C" __global__ void staged_copy(unsigned* target, const unsigned* source, int n, int valid,
                                       int skew) {
    __shared__ __align__(16) unsigned buffers[2][THREADS * PIECE];
    constexpr int STEP = THREADS * PIECE;
    stage(buffers[0], source, 0, n, valid, skew);
    for (int start = 0, i = 0; start < n; start += STEP, i ^= 1) {
        stage(buffers[i ^ 1], source, start + STEP, n, valid, skew);
#if WAIT
        copy_async_wait<1>();
#endif
        __syncthreads();
        for (int word = threadIdx.x; word < STEP; word += THREADS)
            target[start + word] = buffers[i][STEP - 1 - word];
        __syncthreads();
    }
}
