// Computes: target = source, rounded to DTYPE, for every tensor of a list.
// Layout:   list 0 the targets (DTYPE), list 1 the sources (SOURCE) of a TensorList, contiguous.
// Launch:   blocks of 256 threads as the list says; no shared memory; defines SOURCE, DTYPE (float
//   types).
// Numerics: rounds to the nearest even.
// Cost:     sizeof SOURCE + sizeof DTYPE bytes an element.
// Reference: cast_into of backends/numpy/arrays.py.
#include "base/tensors.cuh"

using Source = SOURCE;
using T = DTYPE;

// Elements that a thread takes at once: sixteen bytes of the wider type.
constexpr int W = 16 / (sizeof(Source) > sizeof(T) ? sizeof(Source) : sizeof(T));

extern "C" __global__ void __launch_bounds__(256)
    cast_into(const __grid_constant__ TensorList list) {
    take_turn();
    constexpr int64 TILE = TENSOR_TILE<T>;
    const TensorEntry& entry = list.entries[tensor_of_block(list, blockIdx.x)];
    T* target = reinterpret_cast<T*>(entry.pointers[0]);
    const Source* source = reinterpret_cast<const Source*>(entry.pointers[1]);
    const bool wide = is_aligned(target) && is_aligned(source);
    const int64 begin = (blockIdx.x - entry.first_block) * list.tiles_per_block * TILE;
    const int64 end = min(entry.size, begin + list.tiles_per_block * TILE);
    for (int64 at = begin + threadIdx.x * W; at < end; at += TENSOR_THREADS * W) {
        const Group<Source, W> from = load_group<W>(source, at, end, wide);
        Group<T, W> to;
#pragma unroll
        for (int e = 0; e < W; ++e) to.element[e] = store<T>(load(from.element[e]));
        store_group<W>(target, at, end, wide, to);
    }
}
