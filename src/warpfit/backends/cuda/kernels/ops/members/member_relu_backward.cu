// Computes: with q = dy · kept · of_kept, dz = q · next_scale · scale, and of each member's unit,
//           over its rows, dscale = next_scale Σ q z, dbias = next_scale Σ q, dnext_scale =
//           scale Σ q z + bias Σ q, these times of_gradient.
// Layout:   dy, z, kept, dz (E, M, num_units); scale, bias, next_scale, dscale, dbias, dnext_scale
//           (E, num_units), the last three of DTYPE's arithmetic type; all contiguous.
// Launch:   grid (ceil(num_units / 32), E), block (32, 8), static shared memory; define DTYPE.
// Numerics: in float, double for float64; a thread adds up every eighth row, then the first thread
//           of a column adds up those sums, in a fixed sequence.
// Cost:     3 sizeof DTYPE + 1 bytes an element.
// Reference: member_relu_backward of backends/numpy/members.py.
#include "base/types.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

constexpr int COLUMNS = 32;
constexpr int ROWS = 8;

extern "C" __global__ void __launch_bounds__(256)
    member_relu_backward(const T* __restrict__ dy, const T* __restrict__ z,
                         const bool* __restrict__ kept, const T* __restrict__ scale,
                         const T* __restrict__ bias, const T* __restrict__ next_scale,
                         T* __restrict__ dz, Acc* __restrict__ dscale, Acc* __restrict__ dbias,
                         Acc* __restrict__ dnext_scale, int num_rows, int num_units, double of_kept,
                         double of_gradient) {
    take_turn();
    __shared__ Acc sums[ROWS][COLUMNS];
    __shared__ Acc products[ROWS][COLUMNS];
    const int unit = blockIdx.x * COLUMNS + threadIdx.x;
    const int64 member = blockIdx.y;
    const int64 place = member * num_units + unit;
    const bool takes_part = unit < num_units;
    const Acc scales = takes_part ? load(scale[place]) : Acc(0);
    const Acc next = takes_part ? load(next_scale[place]) : Acc(0);
    const Acc factor = static_cast<Acc>(of_kept);
    Acc sum = 0;
    Acc product = 0;
#pragma unroll 4
    for (int row = threadIdx.y; row < (takes_part ? num_rows : 0); row += ROWS) {
        const int64 at = (member * num_rows + row) * num_units + unit;
        const Acc q = load(dy[at]) * (kept[at] ? factor : Acc(0));
        sum += q;
        product += q * load(z[at]);
        dz[at] = store<T>(q * (next * scales));
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    products[threadIdx.y][threadIdx.x] = product;
    __syncthreads();
    if (threadIdx.y != 0 || !takes_part) return;
#pragma unroll
    for (int row = 1; row < ROWS; ++row) {
        sum += sums[row][threadIdx.x];
        product += products[row][threadIdx.x];
    }
    const Acc share = static_cast<Acc>(of_gradient);
    dscale[place] = next * product * share;
    dbias[place] = next * sum * share;
    dnext_scale[place] = (scales * product + load(bias[place]) * sum) * share;
}
