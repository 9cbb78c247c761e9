// Computes: order[i] = the row at position i of an epoch: a keyed bijection on 0..num_rows-1, by a
//           Feistel network of 8 rounds on `bits` bits with cycle walking.
// Layout:   order (num_rows,) int64, num_rows at most 2^31; the round keys come as arguments.
// Launch:   grid-stride over 1-D blocks of any size; no shared memory; no defines.
// Numerics: exact; the same rows as every other backend's.
// Cost:     8 · num_rows bytes; some 100 integer operations a row and walk, of which there are
//           fewer than 2 on average (more below 129 rows, as the network has at least 8 bits).
// Reference: epoch_order of backends/numpy/arrays.py; permutation.py.
#include "base/permutation.cuh"

extern "C" __global__ void epoch_order(int64* order, unsigned num_rows, int bits, unsigned key0,
                                       unsigned key1, unsigned key2, unsigned key3, unsigned key4,
                                       unsigned key5, unsigned key6, unsigned key7) {
    take_turn();
    const uint32 keys[8] = {key0, key1, key2, key3, key4, key5, key6, key7};
    const uint32 step = gridDim.x * blockDim.x;
    for (uint32 i = blockIdx.x * blockDim.x + threadIdx.x; i < num_rows; i += step) {
        order[i] = permuted(i, num_rows, bits, keys);
    }
}
