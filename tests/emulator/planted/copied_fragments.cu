// ldmatrix of four 8 x 8 matrices of which the last one comes by a bulk copy, and is not used: with
// WAIT 0 nobody waits for it before.
#include "ptx/barriers.cuh"

extern "C" __global__ void copied_fragments(const uint16* matrices, unsigned* registers) {
    __shared__ __align__(16) uint16 tile[4 * 64];
    __shared__ Barrier full;
    const int lane = threadIdx.x;
    for (int i = lane; i < 3 * 64; i += 32) tile[i] = matrices[i];
    if (lane == 0) {
        mbarrier_init(&full, 1);
        mbarrier_expect(&full, 128);
        copy_bulk(tile + 3 * 64, matrices + 3 * 64, 128, &full);
    }
    __syncthreads();
    if (WAIT) wait(full, 0);
    unsigned r[4];
    ldmatrix_x4(r[0], r[1], r[2], r[3], tile + 8 * lane);
    if (!WAIT) wait(full, 0);
    for (int i = 0; i < 3; ++i) registers[3 * lane + i] = r[i];
}
