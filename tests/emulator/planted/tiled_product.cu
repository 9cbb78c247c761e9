// C = A B in tiles of 16 x 16: barriers, two-dimensional threads, static shared memory of a
// template.
#include "base/types.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

template <int TILE>
__device__ Acc dot(const T* a, const T* b, int m, int n, int k, int row, int column) {
    __shared__ Acc tile_a[TILE][TILE], tile_b[TILE][TILE];
    Acc sum = 0;
    for (int start = 0; start < k; start += TILE) {
        const int across = start + threadIdx.x, down = start + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] =
            row < m && across < k ? load(a[row * k + across]) : Acc(0);
        tile_b[threadIdx.y][threadIdx.x] =
            down < k && column < n ? load(b[down * n + column]) : Acc(0);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
        __syncthreads();
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(256)
    tiled_product(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, int m, int n,
                  int k) {
    const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    const Acc sum = dot<16>(a, b, m, n, k, row, column);
    if (row < m && column < n) c[row * n + column] = store<T>(sum);
}
