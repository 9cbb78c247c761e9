// Computes: mask = 0 with probability p, else scale; y = x · mask. Unit u of row r of the batch,
//           which first_row rows precede, is kept if word u % 4 of philox((step, layer, r, u // 4),
//           key) is at least threshold.
// Layout:   x, y, mask (num_rows, num_units) contiguous, of any alignment.
// Launch:   2-D blocks: x over groups of 4 units, y over rows; the grid likewise, each taking
//           strides of its size; no shared memory; define DTYPE.
// Numerics: scale is rounded to DTYPE; y is the product of what x and mask hold.
// Cost:     3 · sizeof DTYPE bytes and some 25 integer operations an element.
// Reference: dropout_forward of backends/numpy/dropout.py.
#include "base/group.cuh"
#include "base/philox.cuh"
#include "base/scalar.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

constexpr int W = 4;

extern "C" __global__ void __launch_bounds__(256)
    dropout_forward(const T* __restrict__ x, T* __restrict__ y, T* __restrict__ mask,
                    int64 num_rows, int64 num_units, int64 first_row, Scalar step, unsigned layer,
                    unsigned key0, unsigned key1, uint64 threshold, double scale, int wide) {
    take_turn();
    const uint32 number = static_cast<uint32>(read(step));
    const T kept = store<T>(static_cast<Acc>(scale));
    const int64 num_groups = (num_units + W - 1) / W;
    const int64 row_step = static_cast<int64>(gridDim.y) * blockDim.y;
    const int64 group_step = static_cast<int64>(gridDim.x) * blockDim.x;
    for (int64 row = static_cast<int64>(blockIdx.y) * blockDim.y + threadIdx.y; row < num_rows;
         row += row_step) {
        const int64 start = row * num_units;
        for (int64 group = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
             group < num_groups; group += group_step) {
            const int64 at = group * W;
            const Group<T, W> values = load_group<W>(x + start, at, num_units, wide);
            const uint32 place = static_cast<uint32>(first_row + row);
            const Words words =
                philox({{number, layer, place, static_cast<uint32>(group)}}, key0, key1);
            Group<T, W> masks;
            Group<T, W> products;
#pragma unroll
            for (int e = 0; e < W; ++e) {
                masks.element[e] = words.word[e] >= threshold ? kept : T{};
                products.element[e] = store<T>(load(values.element[e]) * load(masks.element[e]));
            }
            store_group<W>(mask + start, at, num_units, wide, masks);
            store_group<W>(y + start, at, num_units, wide, products);
        }
    }
}
