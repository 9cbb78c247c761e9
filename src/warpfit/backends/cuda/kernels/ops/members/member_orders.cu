// Computes: an epoch's orders of the rows, one of each member, as epoch_order.cu: of each batch the
//           rows of all members, one member after the other; the last batch may be shorter.
// Layout:   orders (members num_rows,) int64, num_rows at most 2^31; keys (members, 8).
// Launch:   grid (ceil(num_rows / 256), members), block 256; no shared memory; no defines.
// Numerics: exact; the same rows as every other backend's.
// Cost:     8 members num_rows bytes; some 100 integer operations a row and walk.
// Reference: member_orders of backends/numpy/members.py; permutation.py.
#include "base/permutation.cuh"

extern "C" __global__ void __launch_bounds__(256)
    member_orders(int64* orders, const uint32* keys, unsigned num_rows, int bits,
                  unsigned batch_size) {
    take_turn();
    const uint32 position = blockIdx.x * blockDim.x + threadIdx.x;
    if (position >= num_rows) return;
    const int64 num_members = gridDim.y, member = blockIdx.y;
    uint32 own[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) own[i] = keys[member * 8 + i];
    const uint32 in_batch = position % batch_size, first = position - in_batch;
    const uint32 size = min(batch_size, num_rows - first);
    orders[num_members * first + member * size + in_batch] =
        permuted(position, num_rows, bits, own);
}
