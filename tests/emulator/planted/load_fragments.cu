// ldmatrix of four 8 x 8 matrices that lie one after another; each lane writes its registers.
// `skew` bytes put the rows out of alignment.
#include "base/types.cuh"

extern "C" __global__ void load_fragments(const uint16* matrices, unsigned* registers, int skew) {
    __shared__ __align__(16) uint16 tile[4 * 64 + 8];
    const int lane = threadIdx.x;
    for (int i = lane; i < 4 * 64; i += 32) tile[i] = matrices[i];
    __syncthreads();
    const unsigned char* row = reinterpret_cast<const unsigned char*>(tile + 8 * lane) + skew;
    unsigned r[8];
    ldmatrix_x4(r[0], r[1], r[2], r[3], row);
    ldmatrix_x4_trans(r[4], r[5], r[6], r[7], row);
    for (int i = 0; i < 8; ++i) registers[8 * lane + i] = r[i];
}
