// Computes: y = relu(z · scale + bias) · mask · next_scale, and kept = whether neither relu nor
//           mask is 0; of member e, unit i of its (M, N) is kept by mask if word i % 16, of 16
//           bits, of philox64((1 + i / 16, first_member + e, layer, step), key) is at least
//           threshold.
// Layout:   z, y, kept (E, size) with size = M num_units; scale, bias, next_scale (E, num_units);
//           all contiguous. A thread takes 16 units, which one counter decides.
// Launch:   grid (ceil(size / 2048), E), block 128; define DTYPE. `wide` promises arrays aligned to
//           16 bytes and num_units a multiple of 16.
// Numerics: in float, double for float64; one rounding of y.
// Cost:     2 sizeof DTYPE + 1 bytes and some 20 integer operations an element.
// Reference: member_relu_forward of backends/numpy/members.py.
#include "base/group.cuh"
#include "base/philox64.cuh"
#include "base/scalar.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

constexpr int UNITS = 16;
constexpr int W = 4;

extern "C" __global__ void __launch_bounds__(128)
    member_relu_forward(const T* __restrict__ z, const T* __restrict__ scale,
                        const T* __restrict__ bias, const T* __restrict__ next_scale,
                        T* __restrict__ y, bool* __restrict__ kept, int64 size, int num_units,
                        Scalar step, unsigned first_member, unsigned layer,
                        const __grid_constant__ RoundKeys keys, unsigned threshold, double of_kept,
                        int wide) {
    take_turn();
    const int64 group = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64 first = group * UNITS;
    if (first >= size) return;
    const int64 member = blockIdx.y;
    z += member * size;
    y += member * size;
    kept += member * size;
    const int64 units = member * num_units;
    const Acc factor = static_cast<Acc>(of_kept);
    LongWords words = {{~uint64(0), ~uint64(0), ~uint64(0), ~uint64(0)}};
    if (threshold != 0) {
        words =
            philox64({{1 + static_cast<uint64>(group), first_member + static_cast<uint64>(member),
                       layer, static_cast<uint64>(read(step))}},
                     keys);
    }
    int unit = static_cast<int>(first % num_units);
#pragma unroll
    for (int part = 0; part < UNITS / W; ++part) {
        const int64 at = first + part * W;
        const Group<T, W> values = load_group<W>(z, at, size, wide);
        Group<T, W> results;
        Group<bool, W> are_kept;
#pragma unroll
        for (int e = 0; e < W; ++e) {
            const Acc value =
                load(values.element[e]) * load(scale[units + unit]) + load(bias[units + unit]);
            const unsigned word = static_cast<unsigned>(words.word[part] >> 16 * e) & 0xFFFFu;
            const bool is_kept = value > Acc(0) && word >= threshold;
            are_kept.element[e] = is_kept;
            // Not chosen but multiplied, as the reference does: NaN stays NaN.
            results.element[e] = store<T>(value * (is_kept ? Acc(1) : Acc(0)) *
                                          (load(next_scale[units + unit]) * factor));
            unit = unit + 1 == num_units ? 0 : unit + 1;
        }
        store_group<W>(y, at, size, wide, results);
        store_group<W>(kept, at, size, wide, are_kept);
    }
}
