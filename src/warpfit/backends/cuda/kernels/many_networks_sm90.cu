// Computes: whole training runs of many networks with a hidden layer, of one shape, a network at a time in each cluster: for each
//           step of each epoch forward pass, loss, backward pass, and the optimizer's update. A cluster that is done takes the
//           next network.
// Layout:   x (all rows, 16 NUM_SLICES) of DTYPE, filled up with zeros, after a row of zeros; targets (all rows, TARGET_WORDS) 32-bit words, labels or
//           float32; which rows a network trains on, in which order and at what rates its `Network` says; parameters
//           (num_networks, 1 + SLOTS, PARAMETERS) float32: weights (FEATURES, HIDDEN) and biases of the hidden layer, weights
//           (HIDDEN, OUTPUTS) and biases of the outputs, each layer filled up to a multiple of 4, then what the optimizer
//           remembers of them; queue one zero.
// Launch:   any number of clusters of CLUSTER blocks of 256 threads; SHARED_BYTES of dynamic shared memory, from a multiple of
//           1024. Defines DTYPE, FEATURES, HIDDEN (at most 64 CLUSTER), OUTPUTS (at most 16), BATCH (at most 64), CLUSTER,
//           TARGET_WORDS, ACTIVATION, SLOPE, LOSS, CROSS_ENTROPY, SMOOTHED, COUNTS_ROWS, OPTIMIZER, SLOTS, ADAPTIVE, MOMENTUM,
//           NESTEROV, DECAYS, RATE_IN_VELOCITY, SHARED_BYTES, BOUNDED_WAITS.
// Numerics: products of DTYPE with float32 sums; parameters and what is remembered of them in float32. A network's bits follow
//           from its own numbers alone.
// Cost:     of a step 4 BATCH HIDDEN FEATURES FLOP and the output layer's; each block reads the batch from L2 once, and from
//           shared memory twice.
// Reference: the layerwise engine over backends/numpy; PTX ISA 9.7.15 (wgmma).
//
// A block has 64 of the hidden units. Its two warpgroups share out the features: the weights of theirs are the accumulators of
// dw1ᵀ = dhᵀ x, and, rounded, the operand in registers of zᵀ = w1ᵀ xᵀ. x lies in shared memory in boxes of 64 rows and 64
// features, which both products read: along k, and across. A step goes
//
//   forward    each warpgroup its part of zᵀ, while the next batch is on its way; both exchange halves of the rows
//   outputs    h of a warpgroup's 32 rows, their part of the logits, which the blocks of a cluster exchange
//   loss       of all rows, in each block
//   backward   dh of a warpgroup's 32 rows, through shared memory to both; dw1 box by box, added to the weights
#define SHARED_ALIGNMENT 1024

#include "include/barriers.cuh"
#include "include/cluster.cuh"
#include "include/fragments.cuh"
#include "include/many_rows.cuh"
#include "include/operand_tile.cuh"
#include "include/output_losses.cuh"
#include "include/reduce.cuh"

using T = DTYPE;

constexpr int ROWS = 64, UNITS = 64, THREADS = 256, GROUPS = 2, WARPS_WITH_ROWS = 4;
static_assert(BATCH <= ROWS && HIDDEN <= UNITS * CLUSTER && OUTPUTS <= 16, "a batch is a tile");

// Boxes of 64 features, of four slices each; the last may be a part of one, in which both stages of x lie side by side if
// they can.
constexpr int SLICES_OF_BOX = 4, BOX_BYTES = ROWS * LINE_BYTES;
constexpr int NUM_SLICES = (FEATURES + 15) / 16, X_WIDTH = 16 * NUM_SLICES;
constexpr int WHOLE = NUM_SLICES / SLICES_OF_BOX, TAIL = NUM_SLICES % SLICES_OF_BOX,
              BOXES = WHOLE + (TAIL > 0);
constexpr bool SHARES_TAIL = TAIL == 1 || TAIL == 2;
constexpr int X_BOXES = SHARES_TAIL ? 2 * WHOLE + 1 : 2 * BOXES;

// Those of the first warpgroup, and of the second: COMMON whole boxes each, and perhaps one more.
constexpr int FIRST_BOXES = BOXES / 2, LAST_BOXES = BOXES - FIRST_BOXES;
constexpr int COMMON = WHOLE - FIRST_BOXES < FIRST_BOXES ? WHOLE - FIRST_BOXES : FIRST_BOXES;
constexpr int FIRST_REST = FIRST_BOXES > COMMON ? SLICES_OF_BOX : 0,
              LAST_REST = LAST_BOXES > COMMON ? (TAIL > 0 ? TAIL : SLICES_OF_BOX) : 0;
constexpr int MOST_REST = FIRST_REST > LAST_REST ? FIRST_REST : LAST_REST;
constexpr int OWN_SLICES = SLICES_OF_BOX * COMMON + MOST_REST;

constexpr int OUT_WIDTH = 16, PAIRS_OF_ROW = (OUTPUTS + 1) / 2;
constexpr int HALF_ROWS = ROWS / GROUPS, H_LINE_BYTES = HALF_ROWS * 2;
__device__ constexpr int up_to_four(int size) { return (size + 3) / 4 * 4; }
constexpr int OUTPUT_PARAMETERS = up_to_four((FEATURES + 1) * HIDDEN);
constexpr int PARAMETERS = OUTPUT_PARAMETERS + up_to_four((HIDDEN + 1) * OUTPUTS);

struct Shared {
    unsigned char x[X_BOXES * BOX_BYTES];
    // Sums on their way from a warpgroup to the other; then h of the first's rows, dh of all, and h of the second's.
    unsigned char passed[16384];
    T dz[ROWS][OUT_WIDTH];
    T w2[UNITS][OUT_WIDTH];
    float logits[CLUSTER > 1 ? CLUSTER - 1 : 1][CLUSTER > 1 ? ROWS : 1]
                [2 * PAIRS_OF_ROW];  // of the other blocks
    float held_w2[1 + SLOTS][UNITS][OUTPUTS];
    float bias[1 + SLOTS][UNITS], output_bias[1 + SLOTS][OUT_WIDTH];
    float of_bias[GROUPS][UNITS];
    alignas(16) int rows[2][2][ROWS / 2];  // of each stage the numbers of those that are even, and odd
    double sums[WARPS_WITH_ROWS][2];       // of losses, and of rows that are right
    Network network;
    Barrier logits_full, logits_free, next_full;
    uint64 next;
};

static_assert(sizeof(Shared) == SHARED_BYTES, "many_networks_sm90.py counts these bytes");

constexpr int H_BYTES = UNITS * H_LINE_BYTES, DH_AT = H_BYTES, LAST_H_AT = DH_AT + ROWS * LINE_BYTES;

__device__ inline int own_group() { return static_cast<int>(threadIdx.x) / 128; }
__device__ inline int own_lane() { return static_cast<int>(threadIdx.x) % WARP; }
__device__ inline int own_warp() { return static_cast<int>(threadIdx.x) / WARP; }
// Of a thread's accumulators: the first of its two units, the other being 8 further on, and the first of its pairs of columns,
// 8 apart.
__device__ inline int own_unit() { return own_warp() % 4 * 16 + own_lane() / 4; }
__device__ inline int own_column() { return own_lane() % 4 * 2; }

// Where a stage's box begins in x, in bytes; the tail of both may lie in one, in other columns.
__device__ inline int box_at(int stage, int box) {
    if (TAIL > 0 && box == WHOLE) {
        return SHARES_TAIL ? 2 * WHOLE * BOX_BYTES + stage * TAIL * SLICE_BYTES
                           : (2 * WHOLE + stage) * BOX_BYTES;
    }
    return (stage * WHOLE + box) * BOX_BYTES;
}

// f(slice of this thread's weights, box, slice of the box) for each slice that the warpgroup has.
template <class F>
__device__ inline void each_own_slice(F f) {
    const int first = own_group() * FIRST_BOXES, rest = own_group() ? LAST_REST : FIRST_REST;
#pragma unroll
    for (int i = 0; i < OWN_SLICES; ++i) {
        const int box = i / SLICES_OF_BOX, slice = i % SLICES_OF_BOX;
        if (box < COMMON || slice < rest) f(i, first + box, slice);
    }
}

struct Weights {
    float numbers[1 + SLOTS][OWN_SLICES][8];

    // f(number, its place among a layer's) for each of this thread in a slot.
    template <class F>
    __device__ void each(int slot, F f) {
        each_own_slice([&](int i, int box, int slice) {
#pragma unroll
            for (int part = 0; part < 8; ++part) {
                const int unit = static_cast<int>(own_rank()) * UNITS + own_unit() + part % 4 / 2 * 8;
                const int feature =
                    (box * SLICES_OF_BOX + slice) * 16 + part / 4 * 8 + own_column() + part % 2;
                float& number = numbers[slot][i][part];
                if (unit < HIDDEN && feature < FEATURES) {
                    f(number, feature * HIDDEN + unit);
                } else {
                    number = 0;
                }
            }
        });
    }

    // As the operand of the product with x.
    __device__ void round(unsigned (&a)[4], int i) const {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            const float* pair = &numbers[0][i][word / 2 * 4 + word % 2 * 2];
            a[word] = packed<T>(pair[0], pair[1]);
        }
    }
};

template <class Number>
__device__ inline void multiply_registers(float (&d)[32], const unsigned (&a)[4], uint64 b, bool adds);

template <>
__device__ inline void multiply_registers<float16>(float (&d)[32], const unsigned (&a)[4], uint64 b,
                                                   bool adds) {
    wgmma_f16_of_registers(d, a, b, adds);
}

template <>
__device__ inline void multiply_registers<bfloat16>(float (&d)[32], const unsigned (&a)[4], uint64 b,
                                                    bool adds) {
    wgmma_bf16_of_registers(d, a, b, adds);
}

struct Data {
    const T* x;
    const float* targets;
    LossSettings loss;
};

// An epoch's batches: those of its steps, then those of the validation rows, which take all ROWS.
__device__ inline int num_batches(const Network& network) {
    return network.num_steps() + (network.num_validated + ROWS - 1) / ROWS;
}

// The numbers of a batch's rows among all, -1 for those that it does not have; 64 threads call.
__device__ inline void find_rows(int (&rows)[2][ROWS / 2], const Network& network, int epoch, int batch) {
    const int own = threadIdx.x, validation_batch = batch - network.num_steps();
    int& found = rows[own % 2][own / 2];
    if (validation_batch >= 0) {
        found = network.validation_row(validation_batch * ROWS + own);
    } else {
        found = own < BATCH ? network.row(epoch, batch * BATCH + own) : -1;
    }
}

// Copies of rows to a stage of x: a thread has 16 bytes of every other row, of one column after the other. Row -1 is zeros.
__device__ inline void fetch(Shared& shared, const Data& data, int stage) {
    constexpr int PIECES = X_WIDTH / 8, AT_ONCE = 4;
    const int half = threadIdx.x / 128;
    for (int piece = threadIdx.x % 128; piece < PIECES; piece += 128) {
        const int at = box_at(stage, piece / 8), chunk = piece % 8 + at % LINE_BYTES / 16;
        unsigned char* lines = shared.x + at / LINE_BYTES * LINE_BYTES;
        unsigned char* places[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int line = 2 * i + half;  // of 8, after which the pieces' places are the same again
            places[i] = lines + line * LINE_BYTES + (chunk ^ line) * 16;
        }
        const char* column = reinterpret_cast<const char*>(data.x + piece * 8);
#pragma unroll 2
        for (int first = 0; first < ROWS / 2; first += AT_ONCE) {
            const uint4 rows = *reinterpret_cast<const uint4*>(&shared.rows[stage][half][first]);
            const unsigned own[AT_ONCE] = {rows.x, rows.y, rows.z, rows.w};
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                copy_async_16(places[i] + 2 * first * LINE_BYTES,
                              column + static_cast<int64>(static_cast<int>(own[i])) *
                                           static_cast<int>(X_WIDTH * sizeof(T)),
                              true);
            }
        }
    }
    copy_async_commit();
}

// The place of units' values of a warpgroup's 32 rows: lines of 64 bytes, whose 16-byte pieces change places.
__device__ inline unsigned char* h_place(Shared& shared, int group, int unit, int piece) {
    unsigned char* lines = shared.passed + group * LAST_H_AT;
    return lines + unit * H_LINE_BYTES + (piece ^ unit / 2 % 4) * 16;
}

// The descriptor of what lies so many bytes behind what one tells of.
__device__ inline uint64 moved(uint64 descriptor, int bytes) { return descriptor + (bytes >> 4); }

// What tells of the boxes of a stage of x that the warpgroup has: whole ones one after the other, and the last, which may be in
// parts.
template <int GROUP>
struct OwnBoxes {
    static constexpr int FIRST = GROUP * FIRST_BOXES, REST = GROUP ? LAST_REST : FIRST_REST;
    uint64 whole, rest;

    __device__ OwnBoxes(const Shared& shared, int stage, int panel_bytes) {
        const unsigned x = shared_address(shared.x);
        whole = matrix_descriptor(x + box_at(stage, FIRST), panel_bytes);
        rest = matrix_descriptor(x + box_at(stage, FIRST + COMMON), panel_bytes);
    }

    __device__ uint64 at(int box, int bytes) const {
        return box < COMMON ? moved(whole, box * BOX_BYTES + bytes) : moved(rest, bytes);
    }
};

// zᵀ of the warpgroup's features, of all rows.
template <int GROUP>
__device__ inline void multiply_forward(float (&z)[32], Shared& shared, const Weights& weights, int stage) {
    using Boxes = OwnBoxes<GROUP>;
    const Boxes boxes(shared, stage, 0);
    unsigned a[2][4];
#pragma unroll
    for (float& sum : z) sum = 0;
#pragma unroll
    for (int i = 0; i < SLICES_OF_BOX * COMMON + Boxes::REST; ++i) {
        if (i >= 2) wgmma_wait<1>();
        weights.round(a[i % 2], i);
        wgmma_fence();
        multiply_registers<T>(z, a[i % 2], boxes.at(i / SLICES_OF_BOX, i % SLICES_OF_BOX * SLICE_BYTES),
                              true);
        wgmma_commit();
    }
    wgmma_wait<0>();
}

// Adds dhᵀ x to the weights, box by box.
template <int COUNT>
__device__ inline void add_box(Weights& weights, const Step& step, uint64 dh, uint64 box, int first) {
    float sums[COUNT];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < ROWS / 16; ++k) {
        using Product = SliceProduct<T, false, true>;
        Product::add_to(sums, moved(dh, k * SLICE_BYTES), moved(box, k * 16 * LINE_BYTES), k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int slice = first + i / 8, part = i % 8;
        step.update(
            weights.numbers[0][slice][part],
            [&](int slot) -> float& { return weights.numbers[1 + slot][slice][part]; }, sums[i]);
    }
}

template <int GROUP>
__device__ inline void multiply_backward(Weights& weights, Shared& shared, const Step& step, int stage) {
    using Boxes = OwnBoxes<GROUP>;
    const Boxes boxes(shared, stage, BOX_BYTES);
    const uint64 dh = matrix_descriptor(shared_address(shared.passed + DH_AT), 0);
#pragma unroll
    for (int i = 0; i < COMMON; ++i) add_box<32>(weights, step, dh, boxes.at(i, 0), i * SLICES_OF_BOX);
    if constexpr (Boxes::REST > 0) {
        add_box<8 * Boxes::REST>(weights, step, dh, boxes.rest, COMMON * SLICES_OF_BOX);
    }
}

// A network's run, as a block of its cluster knows it.
struct Trainer {
    Shared& shared;
    const Data& data;
    Weights weights;
    unsigned exchanges;  // of logits, over all networks

    __device__ Trainer(Shared& shared, const Data& data, unsigned exchanges)
        : shared(shared), data(data), exchanges(exchanges) {}

    // f(number in shared memory, its place) for each of the block's but those of the hidden layer's weights.
    template <class F>
    __device__ void each_shared(int slot, F f) {
        const int first = own_rank() * UNITS;
        for (int i = threadIdx.x; i < UNITS * OUTPUTS; i += THREADS) {
            const int unit = first + i / OUTPUTS;
            if (unit < HIDDEN) {
                f(shared.held_w2[slot][i / OUTPUTS][i % OUTPUTS],
                  OUTPUT_PARAMETERS + unit * OUTPUTS + i % OUTPUTS);
            }
        }
        for (int i = threadIdx.x; i < UNITS; i += THREADS) {
            if (first + i < HIDDEN) f(shared.bias[slot][i], FEATURES * HIDDEN + first + i);
        }
        for (int i = threadIdx.x; i < OUTPUTS; i += THREADS) {
            f(shared.output_bias[slot][i], OUTPUT_PARAMETERS + HIDDEN * OUTPUTS + i);
        }
    }

    __device__ void read(const float* parameters) {
        for (int i = threadIdx.x; i < UNITS * OUT_WIDTH; i += THREADS) (&shared.w2[0][0])[i] = T{};
        for (int i = threadIdx.x; i < (1 + SLOTS) * UNITS * OUTPUTS; i += THREADS)
            (&shared.held_w2[0][0][0])[i] = 0;
        for (int i = threadIdx.x; i < (1 + SLOTS) * UNITS; i += THREADS) (&shared.bias[0][0])[i] = 0;
        __syncthreads();
#pragma unroll
        for (int slot = 0; slot <= SLOTS; ++slot) {
            const float* own = parameters + slot * PARAMETERS;
            weights.each(slot, [&](float& number, int place) { number = own[place]; });
            each_shared(slot, [&](float& number, int place) { number = own[place]; });
        }
        __syncthreads();
        for (int i = threadIdx.x; i < UNITS * OUTPUTS; i += THREADS) {
            shared.w2[i / OUTPUTS][i % OUTPUTS] = store<T>((&shared.held_w2[0][0][0])[i]);
        }
    }

    __device__ void write(float* parameters) {
        __syncthreads();
#pragma unroll
        for (int slot = 0; slot <= SLOTS; ++slot) {
            float* own = parameters + slot * PARAMETERS;
            weights.each(slot, [&](float& number, int place) { own[place] = number; });
            each_shared(slot, [&](float& number, int place) {
                const bool is_of_outputs = place >= OUTPUT_PARAMETERS + HIDDEN * OUTPUTS;
                if (!is_of_outputs || own_rank() == 0) own[place] = number;
            });
        }
    }

    // Adds what the other warpgroup has of z to this one's, of this one's rows: then z[4 j + 2 h + i] is unit own_unit() + 8 h,
    // row 8 j + own_column() + i of the 32.
    template <int GROUP>
    __device__ void join_halves(float (&own)[16], const float (&z)[32]) {
        const int thread = threadIdx.x % 128;
        float* sent = reinterpret_cast<float*>(shared.passed) + (1 - GROUP) * 2048 + thread;
        const float* received = reinterpret_cast<const float*>(shared.passed) + GROUP * 2048 + thread;
#pragma unroll
        for (int i = 0; i < 16; ++i) sent[i * 128] = z[16 * (1 - GROUP) + i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const float mine = z[16 * GROUP + i], other = received[i * 128];
            own[i] = GROUP ? other + mine : mine + other;
        }
    }

    // z becomes the derivatives of h, which goes to shared memory.
    __device__ void activate(float (&z)[16]) {
        constexpr Activation OF = Activation::ACTIVATION;
        unsigned words[2][4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float bias = shared.bias[0][own_unit() + 8 * h];
                float values[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& number = z[4 * j + 2 * h + i];
                    const Activated<float> found = activated<OF>(number + bias, static_cast<float>(SLOPE));
                    values[i] = found.value;
                    number = found.derivative;
                }
                words[h][j] = packed<T>(values[0], values[1]);
            }
        }
        __syncthreads();  // everybody has taken what was passed here
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                unsigned char* place = h_place(shared, own_group(), own_unit() + 8 * h, j);
                reinterpret_cast<unsigned*>(place)[own_lane() % 4] = words[h][j];
            }
        }
        __syncthreads();
    }

    // Rows of a tile of 16, of which the warp finds the loss: two warps of each warpgroup have one.
    __device__ static bool has_rows() { return own_warp() % 4 < 2; }
    __device__ static int first_row() { return own_group() * HALF_ROWS + own_warp() % 4 * 16; }

    // This block's part of the logits of a tile.
    __device__ void find_logits(float (&logits)[2][4]) {
        const int lane = own_lane(), tile = own_warp() % 4;
#pragma unroll
        for (int k = 0; k < UNITS / 16; ++k) {
            const int unit = 16 * k + lane % 8 + lane / 16 * 8;
            unsigned a[4], low[2], high[2];
            ldmatrix_x4_trans(a[0], a[1], a[2], a[3],
                              h_place(shared, own_group(), unit, 2 * tile + lane / 8 % 2));
            load_b_pair_transposed(low, high, &shared.w2[16 * k][0], OUT_WIDTH);
            TensorCore<T>::multiply(logits[0], a, low);
            TensorCore<T>::multiply(logits[1], a, high);
        }
    }

    // Adds the parts of all blocks, in their order.
    __device__ void exchange(float (&logits)[2][4]) {
#if CLUSTER > 1
        const int rank = own_rank();
        wait(shared.logits_free, exchanges + 1);
#pragma unroll
        for (int to = 0; to < CLUSTER; ++to) {
            if (to == rank) continue;
            const unsigned barrier = place_in(to, &shared.logits_full);
            each_pair([&](int tile, int below, int row, int col) {
                store_async_pair(place_in(to, &shared.logits[rank - (rank > to)][row][col]),
                                 __float_as_uint(logits[tile][2 * below]),
                                 __float_as_uint(logits[tile][2 * below + 1]), barrier);
            });
        }
        wait(shared.logits_full, exchanges);
        each_pair([&](int tile, int below, int row, int col) {
            float2 sum = {0, 0};
#pragma unroll
            for (int from = 0; from < CLUSTER; ++from) {
                const float2 part =
                    from == rank
                        ? float2{logits[tile][2 * below], logits[tile][2 * below + 1]}
                        : *reinterpret_cast<const float2*>(&shared.logits[from - (from > rank)][row][col]);
                sum.x += part.x;
                sum.y += part.y;
            }
            logits[tile][2 * below] = sum.x;
            logits[tile][2 * below + 1] = sum.y;
        });
        __syncwarp();
        if (own_lane() < CLUSTER && own_lane() != rank)
            mbarrier_arrive_at(place_in(own_lane(), &shared.logits_free));
#endif
    }

    // f(tile of 8 columns, whether the lower row, row, column) for each pair of logits that the lane has of its warp's rows.
    template <class F>
    __device__ static void each_pair(F f) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int tile = part / 2, below = part % 2, col = 8 * tile + own_column();
            if (col < OUTPUTS) f(tile, below, first_row() + own_lane() / 4 + 8 * below, col);
        }
    }

    // Makes logits their gradients, times the scale, in shared memory, and adds up their losses.
    __device__ void find_loss(float (&logits)[2][4], int stage, float factor) {
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                logits[tile][part] += shared.output_bias[0][8 * tile + own_column() + part % 2];
            }
        }
        OutputRows<2, OUTPUTS> rows{logits};
        float loss = 0, correct = 0;
        const EvenClasses classes;
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const int row = first_row() + own_lane() / 4 + 8 * below,
                      number = shared.rows[stage][row % 2][row / 2];
            const bool is_there = number >= 0;
            const float* target = data.targets + static_cast<int64>(is_there ? number : 0) * TARGET_WORDS;
            const OutputRest rest = rows.replace(below, target, is_there ? factor : 0, data.loss, classes);
            const RowLoss found = find_row_loss(rest, CROSS_ENTROPY ? label_of(target) : 0, data.loss,
                                                OUTPUTS, classes, is_there);
            if (own_lane() % 4 == 0) {
                loss += found.loss;
                correct += found.is_correct;
            }
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) {
                T* place = &shared.dz[row][8 * tile + own_column()];
                *reinterpret_cast<unsigned*>(place) =
                    packed<T>(logits[tile][2 * below], logits[tile][2 * below + 1]);
            }
        }
        double (&own)[2] = shared.sums[own_group() * 2 + own_warp() % 4];
        const double of_loss = reduce_warp<Sum>(static_cast<double>(loss)), right = reduce_warp<Sum>(correct);
        if (own_lane() == 0) {
            own[0] += of_loss;
            own[1] += right;
        }
    }

    // dh of the warpgroup's rows, which comes in as derivatives; what its units' biases get from them.
    __device__ void go_back(const float (&derivatives)[16]) {
        unsigned a[4];
        load_a(a, &shared.w2[own_warp() % 4 * 16][0], OUT_WIDTH);
        float of_bias[2] = {0, 0};
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            unsigned b[2][2];
            load_b_pair(b[0], b[1], &shared.dz[own_group() * HALF_ROWS + 16 * pair][0], OUT_WIDTH);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int j = 2 * pair + half;
                float dh[4] = {};
                TensorCore<T>::multiply(dh, a, b[half]);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float first = dh[2 * h] * derivatives[4 * j + 2 * h],
                                second = dh[2 * h + 1] * derivatives[4 * j + 2 * h + 1];
                    of_bias[h] += first + second;
                    const int unit = own_unit() + 8 * h, piece = own_group() * 4 + j;
                    unsigned char* line = shared.passed + DH_AT + unit * LINE_BYTES;
                    reinterpret_cast<unsigned*>(line + (piece ^ unit % 8) * 16)[own_lane() % 4] =
                        packed<T>(first, second);
                }
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float sum = reduce_row<Sum>(of_bias[h]);
            if (own_lane() % 4 == 0) shared.of_bias[own_group()][own_unit() + 8 * h] = sum;
        }
    }

    // Gradients of a tile of 16 units' weights of the outputs, by warps that have no rows; the sums of dz's columns by the
    // first that has.
    __device__ static int own_tile() { return own_group() * 2 + own_warp() % 4 - 2; }

    __device__ void find_output_gradients(float (&sums)[2][4]) {
        const int lane = own_lane();
        const unsigned one = packed<T>(1, 1);
#pragma unroll
        for (int k = 0; k < ROWS / 16; ++k) {
            unsigned a[4] = {one, one, one, one}, low[2], high[2];
            if (!has_rows()) {
                ldmatrix_x4(a[0], a[1], a[2], a[3],
                            h_place(shared, k / 2, own_tile() * 16 + lane % 16, k % 2 * 2 + lane / 16));
            }
            load_b_pair_transposed(low, high, &shared.dz[16 * k][0], OUT_WIDTH);
            TensorCore<T>::multiply(sums[0], a, low);
            TensorCore<T>::multiply(sums[1], a, high);
        }
    }

    __device__ void update_outputs(const float (&found)[2][4], const Step& step) {
        if (!has_rows()) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int unit = own_tile() * 16 + own_lane() / 4 + i % 4 / 2 * 8;
                const int col = i / 4 * 8 + own_column() + i % 2;
                if (col >= OUTPUTS || own_rank() * UNITS + unit >= HIDDEN) continue;
                float& w = shared.held_w2[0][unit][col];
                step.update(
                    w, [&](int slot) -> float& { return shared.held_w2[1 + slot][unit][col]; },
                    found[i / 4][i % 4]);
                shared.w2[unit][col] = store<T>(w);
            }
        } else if (own_warp() == 0 && own_lane() / 4 == 0) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int col = i / 2 * 8 + own_column() + i % 2;
                if (col >= OUTPUTS) continue;
                step.update(
                    shared.output_bias[0][col],
                    [&](int slot) -> float& { return shared.output_bias[1 + slot][col]; },
                    found[i / 2][i % 2]);
            }
        } else if (own_warp() % 4 == 1) {
            const int unit = own_group() * 32 + own_lane();
            step.update(
                shared.bias[0][unit], [&](int slot) -> float& { return shared.bias[1 + slot][unit]; },
                shared.of_bias[0][unit] + shared.of_bias[1][unit]);
        }
    }

    // To its last epoch, or until its loss is no number; returns how many epochs were done.
    template <int GROUP>
    __device__ int train() {
        const int num_steps = shared.network.num_steps(), batches = num_batches(shared.network);
        if (threadIdx.x < ROWS) {
            find_rows(shared.rows[0], shared.network, 0, 0);
            find_rows(shared.rows[1], shared.network, 1 / batches, 1 % batches);
        }
        __syncthreads();
        fetch(shared, data, 0);
        int stage = 0;
        for (int epoch = 0; epoch < shared.network.num_epochs; ++epoch) {
            bool is_finite = true;
            for (int batch = 0; batch < batches; ++batch, stage ^= 1) {
                take_batch<GROUP>(stage, epoch, batch, num_steps, batches);
                const bool ends_training = batch + 1 == num_steps;
                if (!ends_training && batch + 1 < batches) continue;
                const EpochSums sums =
                    take_sums(ends_training ? shared.network.num_rows : shared.network.num_validated);
                if (ends_training) is_finite = sums.is_finite();
                if (threadIdx.x == 0 && own_rank() == 0)
                    shared.network.write_record(epoch, !ends_training, sums);
            }
            if (!is_finite) return epoch;
        }
        return shared.network.num_epochs;
    }

    // Of the rows in a stage of x the loss, and, if they are to train on, a step; meanwhile the next batch comes.
    template <int GROUP>
    __device__ void take_batch(int stage, int epoch, int batch, int num_steps, int batches) {
        copy_async_wait<0>();
        fence_async();
        __syncthreads();
        fetch(shared, data, stage ^ 1);
        const bool trains = batch < num_steps;
        const int rows_of_step = min(BATCH, shared.network.num_rows - batch * BATCH);
        float z[16];
        go_forward<GROUP>(z, stage, trains ? shared.network.scale / static_cast<float>(rows_of_step) : 0);
        float of_outputs[2][4] = {};
        if (trains) {
            go_back(z);
            if (!has_rows() || own_warp() == 0) find_output_gradients(of_outputs);
            fence_async();
        }
        __syncthreads();
        // Nobody needs this batch's row numbers any more.
        if (threadIdx.x < ROWS) {
            const int ahead = batch + 2;
            find_rows(shared.rows[stage], shared.network, epoch + ahead / batches, ahead % batches);
        }
        if (!trains) return;
        const Step step{shared.network.steps[epoch * num_steps + batch], shared.network.rule,
                        1 / shared.network.scale};
        update_outputs(of_outputs, step);
        multiply_backward<GROUP>(weights, shared, step, stage);
    }

    // From the rows in a stage of x to their losses, and to gradients of the logits, times `factor`; z becomes the derivatives
    // of the hidden units.
    template <int GROUP>
    __device__ void go_forward(float (&z)[16], int stage, float factor) {
#if CLUSTER > 1
        if (threadIdx.x == 0) mbarrier_expect(&shared.logits_full, (CLUSTER - 1) * ROWS * PAIRS_OF_ROW * 8);
#endif
        {
            float of_group[32];
            multiply_forward<GROUP>(of_group, shared, weights, stage);
            join_halves<GROUP>(z, of_group);
        }
        activate(z);
        if (has_rows()) {
            float logits[2][4] = {};
            find_logits(logits);
            exchange(logits);
            find_loss(logits, stage, factor);
        }
        __syncthreads();
        ++exchanges;
    }

    // What all warps have added up of so many rows, whose sums begin anew.
    __device__ EpochSums take_sums(int num_rows) {
        double (&sums)[WARPS_WITH_ROWS][2] = shared.sums;
        __syncthreads();
        double total = 0, correct = 0;
        for (int warp = 0; warp < WARPS_WITH_ROWS; ++warp) {
            total += sums[warp][0];
            correct += sums[warp][1];
        }
        __syncthreads();
        if (threadIdx.x < WARPS_WITH_ROWS) sums[threadIdx.x][0] = sums[threadIdx.x][1] = 0;
        return {num_rows > 0 ? total / num_rows : 0, correct};
    }
};

// The number of the next network, the same for all blocks of a cluster.
__device__ inline unsigned take_next(Shared& shared, unsigned* queue, [[maybe_unused]] unsigned round) {
    if (threadIdx.x == 0 && own_rank() == 0) {
        const unsigned next = atomicAdd(queue, 1u);
#if CLUSTER > 1
        for (int to = 1; to < CLUSTER; ++to) {
            store_async_pair(place_in(to, &shared.next), next, 0, place_in(to, &shared.next_full));
        }
#endif
        shared.next = next;
    }
#if CLUSTER > 1
    if (own_rank() > 0) {
        if (threadIdx.x == 0) mbarrier_expect(&shared.next_full, 8);
        wait(shared.next_full, round);
    }
#endif
    __syncthreads();
    const unsigned next = static_cast<unsigned>(shared.next);
    barrier_of_cluster();  // all have it, and are done with the network before
    return next;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    many_networks_sm90(const T* x, const float* targets, const Network* networks, float* parameters,
                       unsigned* queue, int num_networks, float setting, float of_term, float of_slope) {
    take_turn();
    DYNAMIC_SHARED(Shared, whole);
    Shared& shared = *whole;
    const Data data{x, targets, {setting, of_term, of_slope}};
    if (threadIdx.x == 0) {
        mbarrier_init(&shared.logits_full, 1);
        mbarrier_init(&shared.logits_free, CLUSTER > 1 ? (CLUSTER - 1) * WARPS_WITH_ROWS : 1);
        mbarrier_init(&shared.next_full, 1);
        fence_mbarrier_init();
    }
    for (int i = threadIdx.x; i < (1 + SLOTS) * OUT_WIDTH; i += THREADS) (&shared.output_bias[0][0])[i] = 0;
    barrier_of_cluster();
    unsigned exchanges = 0;
    for (unsigned round = 0;; ++round) {
        const unsigned idx = take_next(shared, queue, round);
        if (idx >= static_cast<unsigned>(num_networks)) return;
        if (threadIdx.x == 0) shared.network = networks[idx];
        if (threadIdx.x < WARPS_WITH_ROWS) shared.sums[threadIdx.x][0] = shared.sums[threadIdx.x][1] = 0;
        __syncthreads();
        float* own = parameters + static_cast<int64>(idx) * (1 + SLOTS) * PARAMETERS;
        Trainer trainer(shared, data, exchanges);
        trainer.read(own);
        const int done = own_group() == 0 ? trainer.train<0>() : trainer.train<1>();
        copy_async_wait<0>();
        trainer.write(own);
        exchanges = trainer.exchanges;
        if (threadIdx.x == 0 && own_rank() == 0) *shared.network.epochs_done = done;
    }
}
