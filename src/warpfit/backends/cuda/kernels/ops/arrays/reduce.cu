// Computes: y[k] = the sum over r of x[k, r], divided by `divisor`; or their largest, or smallest.
// Layout:   x[k, r] lies at offset_of(kept, k) + offset_of(reduced, r), y[k] at offset_of(y_layout,
//           k), k < num_kept, r < num_reduced; partial (gridDim.y, num_kept) accumulator, arrivals
//           (gridDim.x,) zeros, both null if gridDim.y = 1.
// Launch:   256 threads in two dimensions, powers of two. by_rows: x runs over r, y over k; else x
//           over k, y over r. grid.x covers k, grid.y the parts of per_part r's (a multiple of 16 /
//           sizeof DTYPE; of 32 for each thread that takes part in one k, all of a part is loaded
//           without a remainder). Static shared memory of 264 accumulators; defines OP (Sum, Max,
//           Min), DTYPE.
// Numerics: in float, or double for float64, in an order that the launch alone decides: each thread
//           adds up several sums of at most 16 terms at a time, then threads are joined as a tree.
//           Max and Min are NaN if any entry is.
// Cost:     num_kept · num_reduced · sizeof DTYPE bytes, as many FLOP.
// Reference: reduce of backends/numpy/elementwise.py.
#include "base/math.cuh"
#include "base/reduce.cuh"
#include "ops/arrays/strided.cuh"

using T = DTYPE;
using Acc = accumulator<T>;

constexpr int DEPTH = 16;  // terms of an inner sum

struct Neutral {
    __device__ static Acc of(Sum) { return Acc(0); }
    __device__ static Acc of(Max) { return -infinity(); }
    __device__ static Acc of(Min) { return infinity(); }
};

// Values joined as a tree; COUNT is a power of two.
template <int COUNT>
__device__ inline Acc join_tree(const Acc* values) {
    if constexpr (COUNT == 1) {
        return values[0];
    } else {
        return OP::join(join_tree<COUNT / 2>(values), join_tree<COUNT / 2>(values + COUNT / 2));
    }
}

template <int WIDTH>
__device__ inline Acc join_run(const Run<T, WIDTH>& run) {
    Acc values[WIDTH];
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) values[j] = load(run.element[j]);
    return join_tree<WIDTH>(values);
}

// One thread's part of [begin, end): the runs of WIDTH elements at begin + (lane + i · num_lanes) ·
// WIDTH. IS_LINE: the reduced elements have one stride, which is 1 if WIDTH > 1.
template <int WIDTH, bool IS_LINE>
struct Part {
    // Inner sums under way at once, and loads: 64 bytes of them where that is cheap.
    static constexpr int STREAMS = WIDTH > 1 || !IS_LINE ? 4 : 64 / sizeof(Acc);

    const T* x;
    const Layout& reduced;

    __device__ Run<T, WIDTH> run_at(int64 r) const {
        const int64 offset =
            IS_LINE ? r * (WIDTH > 1 ? 1 : reduced.strides[0]) : offset_of(reduced, r);
        return *reinterpret_cast<const Run<T, WIDTH>*>(x + offset);
    }

    __device__ Acc join(int64 begin, int64 end, int lane, int num_lanes) const {
        const int64 step = static_cast<int64>(num_lanes) * WIDTH;
        const int64 reach = (STREAMS - 1) * step + WIDTH;
        Acc total = Neutral::of(OP());
        int64 r = begin + static_cast<int64>(lane) * WIDTH;
        while (r + reach <= end) {
            Acc inner[STREAMS];
#pragma unroll
            for (int k = 0; k < STREAMS; ++k) inner[k] = Neutral::of(OP());
#pragma unroll 1
            for (int d = 0; d < DEPTH && r + reach <= end; ++d, r += STREAMS * step) {
                Run<T, WIDTH> runs[STREAMS];
#pragma unroll
                for (int k = 0; k < STREAMS; ++k) runs[k] = run_at(r + k * step);
#pragma unroll
                for (int k = 0; k < STREAMS; ++k) inner[k] = OP::join(inner[k], join_run(runs[k]));
            }
            total = OP::join(total, join_tree<STREAMS>(inner));
        }
        // The rest: a step that is not whole, whose loads are under way together too.
        for (; r + WIDTH <= end; r += STREAMS * step) {
            Acc inner[STREAMS];
#pragma unroll
            for (int k = 0; k < STREAMS; ++k) {
                inner[k] = Neutral::of(OP());
                if (r + k * step + WIDTH <= end) inner[k] = join_run(run_at(r + k * step));
            }
            total = OP::join(total, join_tree<STREAMS>(inner));
        }
        if (WIDTH > 1) {
#pragma unroll 1
            for (r = end - (end - begin) % WIDTH + lane; r < end; r += num_lanes) {
                total = OP::join(total, static_cast<Acc>(load(x[r])));
            }
        }
        return total;
    }
};

__device__ inline Acc join_part(const T* x, const Layout& reduced, bool by_rows, int64 begin,
                                int64 end, int lane, int num_lanes) {
    constexpr int WIDTH = 16 / sizeof(T);
    if (reduced.ndim != 1) return Part<1, false>{x, reduced}.join(begin, end, lane, num_lanes);
    if (by_rows && reduced.strides[0] == 1 && starts_run<WIDTH>(x)) {
        return Part<WIDTH, true>{x, reduced}.join(begin, end, lane, num_lanes);
    }
    return Part<1, true>{x, reduced}.join(begin, end, lane, num_lanes);
}

// The lanes of every k joined as a tree; lane 0 gets the result. Lanes of one k are neighbours.
__device__ inline Acc join_neighbours(Acc value, int lane, int num_lanes) {
#pragma unroll 1
    for (int offset = (num_lanes < WARP ? num_lanes : WARP) / 2; offset > 0; offset /= 2) {
        value = OP::join(value, __shfl_xor_sync(FULL_WARP, value, offset));
    }
    if (num_lanes <= WARP) return value;
    __shared__ Acc shared[256 / WARP];
    const int warp = (threadIdx.y * blockDim.x + threadIdx.x) / WARP;
    if (lane % WARP == 0) shared[warp] = value;
    __syncthreads();
    if (lane == 0) {
        for (int other = 1; other < num_lanes / WARP; ++other)
            value = OP::join(value, shared[warp + other]);
    }
    __syncthreads();
    return value;
}

// The same where lanes are rows of the block, `step` threads apart.
__device__ inline Acc join_rows(Acc value, int lane, int num_lanes, int step) {
    __shared__ Acc shared[256];
    const int own = threadIdx.y * blockDim.x + threadIdx.x;
    shared[own] = value;
    for (int half = num_lanes / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) shared[own] = OP::join(shared[own], shared[own + half * step]);
    }
    value = shared[own];
    __syncthreads();
    return value;
}

extern "C" __global__ void __launch_bounds__(256, 4)
    reduce(const DTYPE* x, DTYPE* y, Acc* partial, unsigned* arrivals, double divisor, Layout kept,
           Layout reduced, Layout y_layout, int64 num_kept, int64 num_reduced, int64 per_part,
           int by_rows) {
    take_turn();
    const int lane = by_rows ? threadIdx.x : threadIdx.y;
    const int num_lanes = by_rows ? blockDim.x : blockDim.y;
    const auto join_lanes = [=](Acc value) {
        return by_rows ? join_neighbours(value, lane, num_lanes)
                       : join_rows(value, lane, num_lanes, blockDim.x);
    };
    const int64 first = static_cast<int64>(blockIdx.x) * (by_rows ? blockDim.y : blockDim.x);
    const int64 k = first + (by_rows ? threadIdx.y : threadIdx.x);
    const bool is_inside = k < num_kept;

    Acc value = Neutral::of(OP());
    if (is_inside) {
        const int64 begin = blockIdx.y * per_part;
        const int64 end = begin + per_part < num_reduced ? begin + per_part : num_reduced;
        value = join_part(x + offset_of(kept, k), reduced, by_rows, begin, end, lane, num_lanes);
    }
    value = join_lanes(value);

    if (gridDim.y > 1) {
        if (is_inside && lane == 0) partial[blockIdx.y * num_kept + k] = value;
        if (!is_last_block(arrivals + blockIdx.x, gridDim.y)) return;
        value = Neutral::of(OP());
        if (is_inside) {
            for (int64 part = lane; part < gridDim.y; part += num_lanes) {
                value = OP::join(value, __ldcg(partial + part * num_kept + k));
            }
        }
        value = join_lanes(value);
    }
    if (is_inside && lane == 0)
        y[offset_of(y_layout, k)] = store<T>(value / static_cast<Acc>(divisor));
}
