// Every shuffle, vote and counting barrier once; thread t writes the results to column t of
// `words`, `wide`.
#include "base/types.cuh"

extern "C" __global__ void collectives(int64* words, double* wide, const float* values) {
    const int t = threadIdx.x, n = blockDim.x;
    const unsigned all = 0xffffffffu;
    int row = 0;
    words[n * row++ + t] = __shfl_sync(all, t, 3);
    words[n * row++ + t] = __shfl_sync(all, 10 * t, t + 5, 8);
    words[n * row++ + t] = __shfl_up_sync(all, static_cast<unsigned>(t), 2);
    words[n * row++ + t] = __shfl_up_sync(all, t, 3, 8);
    words[n * row++ + t] = __shfl_down_sync(all, static_cast<int64>(t) << 40, 1);
    words[n * row++ + t] = __shfl_down_sync(all, t, 3, 4);
    words[n * row++ + t] = __shfl_xor_sync(all, t, 9);
    words[n * row++ + t] = __shfl_xor_sync(all, t, 5, 4);
    words[n * row++ + t] = __ballot_sync(all, t % 3 == 0);
    words[n * row++ + t] = __any_sync(all, t == 40);
    words[n * row++ + t] = __all_sync(all, t < 32);
    words[n * row++ + t] = __activemask();
    words[n * row++ + t] = __reduce_add_sync(all, t);
    words[n * row++ + t] = __reduce_min_sync(all, t - 50);
    words[n * row++ + t] = __reduce_max_sync(all, static_cast<unsigned>(t));
    words[n * row++ + t] = __syncthreads_count(t % 5 == 0);
    words[n * row++ + t] = __syncthreads_or(t == 63);
    words[n * row++ + t] = __syncthreads_and(t != 63);
    wide[t] = __shfl_xor_sync(all, 0.5 + t, 1);
    float sum = values[t];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(all, sum, distance);
    wide[n + t] = sum;
    __syncwarp();
}
