// Computes: out[n][i] = bounds[n] · (2u - 1), the initial value i of a parameter of network n; u is
//           word i % 4 of philox((tensor, 0, 0, i / 4), keys[n]), without its lowest 8 bits, ·
//           2^-32.
// Layout:   keys (networks, 2), bounds (networks,), out of rows of `stride` numbers, from each of
//           which `size` are written.
// Launch:   1-D blocks of any size, x in strides of the grid over groups of 4 numbers, y over
//           networks likewise; no shared memory; no defines.
// Numerics: float64, rounded to the nearest even once each by the product and by float32: the bits
//           of NumPy. All other steps are exact.
// Cost:     4 bytes, some 25 integer operations and 2 of float64 a number.
// Reference: initial_values of nn/init.py.
#include "base/block.cuh"
#include "base/philox.cuh"

extern "C" __global__ void initial_values(const uint32* keys, const double* bounds, float* out,
                                          int64 stride, int64 size, unsigned tensor,
                                          int num_networks) {
    take_turn();
    const int64 num_groups = (size + 3) / 4;
    const int64 step = static_cast<int64>(gridDim.x) * blockDim.x;
    for (int n = blockIdx.y; n < num_networks; n += gridDim.y) {
        const uint32 key0 = keys[2 * n];
        const uint32 key1 = keys[2 * n + 1];
        const double bound = bounds[n];
        float* const own = out + n * stride;
        for (int64 group = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
             group < num_groups; group += step) {
            const Words words = philox({{tensor, 0, 0, static_cast<uint32>(group)}}, key0, key1);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (group * 4 + e < size) {
                    const double uniform = static_cast<double>(words.word[e] >> 8) / 16777216.0;
                    own[group * 4 + e] = static_cast<float>(bound * (2.0 * uniform - 1.0));
                }
            }
        }
    }
}
