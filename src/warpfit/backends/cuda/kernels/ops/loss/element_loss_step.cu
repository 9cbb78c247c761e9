// Computes: record[row] = (the mean loss of element_loss_forward, Σ s, how many rows have every
//           (p > 0) equal to (t > 1/2), or 0), and gradient, that of the mean times `loss_scale`.
// Layout:   prediction p and gradient (M, N); target t (M, N), or with GATHERS (any, N), of which
//           row i of the batch has row order[(read(first_step) + offset) · rows_per_step + i];
//           sample_weight s (M,), null for ones; both of DTYPE's arithmetic type, all contiguous,
//           order int64, without GATHERS null; record (steps, 3) float64; partials two for each
//           block, arrivals one zero, both null with a single block.
// Launch:   at least one 1-D block of whole warps, at most 256 threads, which take blockDim.x · 32
//           / sizeof DTYPE elements at once until none is left; to count rows (COUNTS_ROWS = 1),
//           `lanes` adjacent threads take one at a time, a power of two up to 32, or the whole
//           block. No dynamic shared memory. Defines DTYPE, LOSS (see loss_terms.cuh), COUNTS_ROWS,
//           GATHERS (0 or 1).
// Numerics: terms in float32, or float64 for float64; their sums in float64, in a fixed sequence,
//           wherever targets lie. The mean over nothing is 0, and so is its gradient.
// Cost:     M · N · (2 sizeof DTYPE + sizeof of its arithmetic type) bytes; every block reads all
//   weights.
// Reference: element_loss_forward, element_loss_backward and count_correct_binary of
//            backends/numpy/loss.py.
#include "base/stream.cuh"
#include "ops/loss/loss_step.cuh"
#include "ops/loss/loss_terms.cuh"

// Whether each element's row has to be looked up; threads that take whole rows do so once for each.
constexpr bool LOOKS_UP = GATHERS && !COUNTS_ROWS;

// Blocks that a multiprocessor has registers for.
constexpr int BLOCKS_HELD = COUNTS_ROWS && sizeof(Acc) == 8               ? 2
                            : COUNTS_ROWS || (LOOKS_UP && sizeof(T) == 2) ? 3
                                                                          : 4;

// Targets as elements of the batch, wherever their rows are.
struct TargetRows {
    const Acc* target;
    const int64* order;  // of the step
    int64 num_columns;

    __device__ bool in_vectors() const {
        return is_aligned(target) && (!LOOKS_UP || num_columns % Vec<Acc>::SIZE == 0);
    }

    __device__ const Acc* at(int64 index) const {
        return LOOKS_UP ? at(Place(index, num_columns)) : target + index;
    }
    __device__ const Acc* at(const Place& place) const {
        return target + order[place.row] * num_columns + place.column;
    }

    // Those of which one row is where it would be if all lay one after the other.
    __device__ TargetRows around(int64 row) const {
        return {GATHERS ? target + (order[row] - row) * num_columns : target, order, num_columns};
    }
};

struct Arrays {
    const T* prediction;
    T* gradient;
    TargetRows targets;

    __device__ bool aligned() const { return is_aligned(prediction) && is_aligned(gradient); }
};

// Targets that belong to a vector of predictions.
struct TargetVectors {
    static constexpr int COUNT = sizeof(Acc) / sizeof(T), SIZE = WIDTH / COUNT;

    Vec<Acc> vector[COUNT];

    __device__ void read(const TargetRows& targets, bool in_vectors, int64 start) {
        Place place(start, LOOKS_UP ? targets.num_columns : 0);
        if (in_vectors) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i, place.advance(SIZE)) {
                vector[i] = load_vec(LOOKS_UP ? targets.at(place) : targets.at(start + i * SIZE));
            }
            return;
        }
#pragma unroll
        for (int k = 0; k < WIDTH; ++k, place.advance()) {
            vector[k / SIZE].element[k % SIZE] =
                *(LOOKS_UP ? targets.at(place) : targets.at(start + k));
        }
    }

    __device__ Acc element(int k) const { return vector[k / SIZE].element[k % SIZE]; }
};

// One of `count` adjacent threads that take elements together.
struct Member {
    int number, count;

    __device__ int elements_at_once() const { return count * UNROLL * WIDTH; }
    __device__ int offset(int u) const { return (u * count + number) * WIDTH; }
};

// Lets use(p, t, row, gradient) write the gradients of the elements that members take at once, from
// `first` on up to `end`; returns the sum of what it returns for this thread's. Where elements come
// in vectors, `first` is aligned. A row is 0 if num_columns is 0.
template <class F>
__device__ inline double take_elements(const Arrays& arrays, bool in_vectors, const Member& member,
                                       int64 first, int64 end, int64 num_columns, F use) {
    double total = 0;
    int64 rest = first;
    if (in_vectors) {
        const bool has_target_vectors = arrays.targets.in_vectors();
        Vec<T> predictions[UNROLL];
        TargetVectors targets[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64 start = first + member.offset(u);
            if (start + WIDTH > end) continue;
            predictions[u] = load_vec(arrays.prediction + start);
            targets[u].read(arrays.targets, has_target_vectors, start);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64 start = first + member.offset(u);
            if (start + WIDTH > end) continue;
            Place place(start, num_columns);
            Vec<T> result;
            Acc sum = 0;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k, place.advance()) {
                Acc gradient;
                sum += use(load(predictions[u].element[k]), targets[u].element(k), place.row,
                           gradient);
                result.element[k] = store<T>(gradient);
            }
            store_vec(arrays.gradient + start, result);
            total += sum;
        }
        rest = end - (end - first) % WIDTH;
    }
#pragma unroll 1
    for (int64 i = rest + member.number; i < end; i += member.count) {
        const Place place(i, num_columns);
        Acc gradient;
        total += use(load(arrays.prediction[i]), *arrays.targets.at(i), place.row, gradient);
        arrays.gradient[i] = store<T>(gradient);
    }
    return total;
}

// The loss, with weights `s` of rows.
struct Rule {
    Acc setting, scale;

    __device__ Acc take(Acc p, Acc t, Acc s, Acc& gradient) const {
        gradient = LOSS::derivative(p, t, setting) * (s * scale);
        return LOSS::term(p, t, setting) * s;
    }
};

#if COUNTS_ROWS
// Whether any of the threads of a row says so.
__device__ inline int any_of_row(int is_so, int lanes) {
    if (lanes > WARP) return __syncthreads_or(is_so);
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
        is_so |= __shfl_xor_sync(FULL_WARP, is_so, offset);
    }
    return is_so;
}

__device__ inline void take_rows(const Arrays& arrays, const Rule& rule, const Acc* sample_weight,
                                 int64 num_rows, int64 num_columns, int lanes, double (&sums)[2]) {
    const int rows_of_block = blockDim.x / lanes;
    const int64 step = static_cast<int64>(gridDim.x) * rows_of_block;
    const int64 first_group =
        static_cast<int64>(blockIdx.x) * rows_of_block + threadIdx.x / WARP * WARP / lanes;
    const Member member{static_cast<int>(threadIdx.x) % lanes, lanes};
    const bool in_vectors = num_columns % WIDTH == 0 && arrays.aligned();
    // All threads of a warp go round as often, since they vote together.
    for (int64 group = first_group; group < num_rows; group += step) {
        const int64 row = group + threadIdx.x % WARP / lanes;
        const int64 end = row < num_rows ? (row + 1) * num_columns : 0;
        const Acc s = sample_weight && row < num_rows ? sample_weight[row] : Acc(1);
        const Arrays of_row{arrays.prediction, arrays.gradient,
                            arrays.targets.around(row < num_rows ? row : 0)};
        int wrong = row >= num_rows;
        for (int64 first = row * num_columns; first < end; first += member.elements_at_once()) {
            const int64 next = first + member.elements_at_once();
            sums[0] += take_elements(of_row, in_vectors, member, first, next < end ? next : end, 0,
                                     [&](Acc p, Acc t, int64, Acc& gradient) {
                                         wrong |= !is_on_side(p, t);
                                         return rule.take(p, t, s, gradient);
                                     });
        }
        if (!any_of_row(wrong, lanes) && member.number == 0) sums[1] += 1;
    }
}
#else
// Σ term over this block's share of all elements; rows count where they have weights.
template <class F>
__device__ inline double take_share(const Arrays& arrays, int64 n, int64 num_columns, F use) {
    const Member member{static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
    const int64 at_once = member.elements_at_once();
    const bool in_vectors = arrays.aligned();
    double total = 0;
#pragma unroll 1
    for (int64 first = blockIdx.x * at_once; first < n; first += gridDim.x * at_once) {
        const int64 end = first + at_once < n ? first + at_once : n;
        total += take_elements(arrays, in_vectors, member, first, end, num_columns, use);
    }
    return total;
}
#endif

extern "C" __global__ void __launch_bounds__(256, BLOCKS_HELD)
    element_loss_step(const T* prediction, const Acc* target, const int64* order, Scalar first_step,
                      int64 offset, int64 rows_per_step, const Acc* sample_weight, T* gradient,
                      double* record, Scalar record_row, double* partials, unsigned* arrivals,
                      double of_term, double of_derivative, double setting, double loss_scale,
                      int64 num_rows, int64 num_columns, int lanes) {
    take_turn();
    const int64* own_order = order_of_step(order, first_step, offset, rows_per_step);
    const Arrays arrays{prediction, gradient, {target, own_order, num_columns}};
    double total_weight = num_rows;
    if (sample_weight) {
        total_weight = sum_of_rows(num_rows, [=](int64 row) { return sample_weight[row]; });
    }
    const Acc inverse =
        inverse_or_zero(static_cast<Acc>(static_cast<Acc>(total_weight) / of_derivative));
    const Rule rule{static_cast<Acc>(setting), inverse * static_cast<Acc>(loss_scale)};
    double sums[2] = {0, 0};
#if COUNTS_ROWS
    take_rows(arrays, rule, sample_weight, num_rows, num_columns, lanes, sums);
#else
    if (sample_weight) {
        sums[0] = take_share(arrays, num_rows * num_columns, num_columns,
                             [=](Acc p, Acc t, int64 row, Acc& to) {
                                 return rule.take(p, t, sample_weight[row], to);
                             });
    } else {
        sums[0] = take_share(arrays, num_rows * num_columns, 0, [=](Acc p, Acc t, int64, Acc& to) {
            return rule.take(p, t, Acc(1), to);
        });
    }
#endif
    if (sum_over_grid(sums, partials, arrivals) && threadIdx.x == 0) {
        write_record(record, record_row, of_term * sums[0], total_weight, sums[1]);
    }
}
