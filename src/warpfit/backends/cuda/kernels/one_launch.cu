// Computes: a training run of a network with no hidden layer or one: for each step of each epoch, the rows of
//           its batch, forward pass, loss, backward pass, and SGD with momentum.
// Layout:   x (num_rows, ROW_WIDTH) 16-bit, FEATURES numbers and zeros; targets (num_rows,) int64 for
//           cross_entropy, (num_rows, OUTPUTS) float32 else; w1 (FEATURES, ALL_UNITS), ALL_UNITS being HIDDEN,
//           or OUTPUTS without a hidden layer; w2 (HIDDEN, OUTPUTS); biases; velocities of each, if MOMENTUM;
//           record (steps, 3) float64: loss, rows, rows that are right; rates (steps,) float32; keys (epochs, 8).
// Launch:   one cluster of CLUSTER blocks of 32 WARPS_K WARPS_U threads; SHARED_BYTES of dynamic shared memory.
//           Defines: DTYPE, FEATURES, HIDDEN (0: none), OUTPUTS, BATCH, CLUSTER (1, 2, 4, 8 or 16), WARPS_K,
//           WARPS_U, STAGES (of the ring of batches), ACTIVATION, NEEDS_INPUT (whether its derivative does),
//           CROSS_ENTROPY, MOMENTUM, NESTEROV, SHARED_BYTES.
// Numerics: products of 16-bit numbers with float32 sums; weights, velocities and sums in float32, times
//           `scale`, a power of two that keeps gradients in the range of 16 bits. Sums in a fixed order. A loss
//           that is not finite ends the run with that step.
// Cost:     of a step 4 BATCH ALL_UNITS FEATURES FLOP and the output layer's; each block reads its part of
//           the batch from L2 once, and from shared memory twice. A cluster exchanges 4 BATCH OUTPUTS bytes a
//           block and 2 BATCH OUTPUTS to each, between two barriers.
// Reference: the layerwise engine over backends/numpy; PTX ISA 9.7.14.5 (ldmatrix, mma), 9.7.13.4 (cluster).
#include "include/activation.cuh"
#include "include/held_weights.cuh"
#include "include/output_losses.cuh"
#include "include/permutation.cuh"

using T = DTYPE;

constexpr int WARPS = WARPS_K * WARPS_U, THREADS = 32 * WARPS;
// The layer that takes the features, in whole and of this block: blocks share out the units of a hidden layer, or
// the features if there is none.
constexpr int ALL_UNITS = HIDDEN ? HIDDEN : OUTPUTS;
constexpr int UNIT_WIDTH = ((HIDDEN ? (HIDDEN + CLUSTER - 1) / CLUSTER : OUTPUTS) + 15) / 16 * 16;
constexpr int X_WIDTH = ((HIDDEN ? FEATURES : (FEATURES + CLUSTER - 1) / CLUSTER) + 15) / 16 * 16;
constexpr int ROW_WIDTH = HIDDEN ? X_WIDTH : X_WIDTH * CLUSTER;  // of x in memory
constexpr int ROWS = (BATCH + 15) / 16 * 16, ROW_TILES = ROWS / 16, OWN_ROWS = ROWS / CLUSTER;
constexpr int X_CHUNKS = X_WIDTH / 8, X_STRIDE = X_WIDTH + 8;
constexpr int UNIT_TILES = UNIT_WIDTH / 16, UNIT_STRIDE = UNIT_WIDTH + 8;
constexpr int OUT_WIDTH = (OUTPUTS + 15) / 16 * 16, OUT_TILES = OUT_WIDTH / 16, OUT_STRIDE = OUT_WIDTH + 8;

// This block's number in its cluster, and what it has of units and features: from where on, and how many.
__device__ inline int own_rank() {
#if CLUSTER > 1
    return static_cast<int>(cluster_rank());
#else
    return 0;
#endif
}

struct Part {
    int first, count;

    __device__ static Part of_block(int width, int whole) {
        const int first = own_rank() * width, left = whole - first;
        return {first, left < 0 ? 0 : left < width ? left : width};
    }
};

__device__ inline Part own_units() { return HIDDEN ? Part::of_block(UNIT_WIDTH, HIDDEN) : Part{0, OUTPUTS}; }
__device__ inline Part own_features() {
    return HIDDEN ? Part{0, FEATURES} : Part::of_block(X_WIDTH, FEATURES);
}

__device__ inline void barrier_of_all() {
#if CLUSTER > 1
    cluster_barrier();
#else
    __syncthreads();
#endif
}

// A parameter, and what its gradient's momentum has gathered, both times `scale`.
struct Optimizer {
    float momentum, weight_decay, rate;

    // Takes the sum of a gradient in; without momentum it comes times -rate already.
    __device__ void step(float& weight, float& velocity, float gradient) const {
        if (!MOMENTUM) {
            weight = weight * (1 - rate * weight_decay) + gradient;
            return;
        }
        const float whole = gradient + weight_decay * weight;
        velocity = momentum * velocity + whole;
        weight -= rate * (NESTEROV ? whole + momentum * velocity : velocity);
    }
};

// What a network with a hidden layer has besides: its units, and the output layer.
#if HIDDEN
struct HiddenState {
    T h[ROWS][UNIT_STRIDE], dh[ROWS][UNIT_STRIDE];
    T w_half[UNIT_WIDTH][OUT_STRIDE];
    float w[UNIT_WIDTH][OUT_WIDTH], v[MOMENTUM ? UNIT_WIDTH : 1][OUT_WIDTH];
    float bias[OUT_WIDTH], bias_velocity[OUT_WIDTH];
};

#endif

struct alignas(16) Shared {
    T x[STAGES][ROWS][X_STRIDE];
    T dz[ROWS][OUT_STRIDE];
#if CLUSTER > 1
    alignas(8) float parts[CLUSTER][OWN_ROWS][OUT_WIDTH];  // of the outputs of this block's rows
#endif
    float sums[WARPS_K][ROWS][UNIT_STRIDE];
    float bias[UNIT_WIDTH], bias_velocity[UNIT_WIDTH];
    float targets[STAGES][ROWS][CROSS_ENTROPY ? 1 : OUTPUTS];
    float losses[ROWS];
    int correct[ROWS], rows[2][ROWS];
    int is_over;
#if HIDDEN
    alignas(16) HiddenState hidden;
#endif
};
static_assert(sizeof(Shared) == SHARED_BYTES, "the launcher asks for as much");

// f(i) for each i below `count` that falls to this thread.
template <class F>
__device__ inline void each_of_block(int count, F f) {
    for (int i = threadIdx.x; i < count; i += THREADS) f(i);
}

// The data of a run, and which of its rows make a batch.
struct Batches {
    const T* x;
    const float* targets;
    const unsigned* keys;
    int num_rows, bits, steps_of_epoch;

    __device__ int size(int step) const {
        const int left = num_rows - step % steps_of_epoch * BATCH;
        return left < BATCH ? left : BATCH;
    }

    // Without keys, rows come in their own order.
    __device__ int row(int step, int i) const {
        const unsigned place = step % steps_of_epoch * BATCH + i;
        if (keys == nullptr) return place;
        uint32 own[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) own[k] = keys[step / steps_of_epoch * 8 + k];
        return permuted(place, num_rows, bits, own);
    }

    // Finds the rows of a step; -1 for those after the last.
    __device__ void find(Shared& shared, int step) const {
        const int count = size(step);
        each_of_block(ROWS, [&](int i) { shared.rows[step % 2][i] = i < count ? row(step, i) : -1; });
    }

    // Starts to copy them; zeros for those that are not there.
    __device__ void copy(Shared& shared, int step) const {
        const int stage = step % STAGES;
        const int* rows = shared.rows[step % 2];
        each_of_block(ROWS * X_CHUNKS, [&](int i) {
            const int r = i / X_CHUNKS, col = i % X_CHUNKS * 8;
            const int64 row = rows[r] < 0 ? 0 : rows[r];
            copy_async_16(&shared.x[stage][r][col], x + row * ROW_WIDTH + col, rows[r] >= 0);
        });
        constexpr int WORDS = CROSS_ENTROPY ? 1 : OUTPUTS, STEP = CROSS_ENTROPY ? 2 : OUTPUTS;
        each_of_block(ROWS * WORDS, [&](int i) {
            const int r = i / WORDS;
            const int64 row = rows[r] < 0 ? 0 : rows[r];
            copy_async_4(&shared.targets[stage][r][i % WORDS], targets + row * STEP + i % WORDS,
                         rows[r] >= 0);
        });
        copy_async_commit();
    }
};

#if HIDDEN
// f over the sums of the product with x: h, and in the place of the first part what the derivative needs.
__device__ inline void activate_units(Shared& shared, float unscale, float slope) {
    const int num_units = own_units().count;
    each_of_block(ROWS * UNIT_WIDTH, [&](int i) {
        const int row = i / UNIT_WIDTH, unit = i % UNIT_WIDTH;
        float z = shared.bias[unit] * unscale;
#pragma unroll
        for (int part = 0; part < WARPS_K; ++part) z += shared.sums[part][row][unit];
        const float y = activate(z, slope);
        shared.hidden.h[row][unit] = store<T>(unit < num_units ? y : 0.0f);
        shared.sums[0][row][unit] = NEEDS_INPUT ? z : y;
    });
}

// Adds the product of h with the output layer to the outputs of tile r of rows.
__device__ inline void add_outputs(const Shared& shared, int r, float (&z)[2 * OUT_TILES][4]) {
    for (int k = 0; k < UNIT_TILES; ++k) {
        unsigned a[4];
        load_a(a, &shared.hidden.h[r * 16][k * 16], UNIT_STRIDE);
#pragma unroll
        for (int o = 0; o < OUT_TILES; ++o) {
            unsigned low[2], high[2];
            load_b_pair_transposed(low, high, &shared.hidden.w_half[k * 16][o * 16], OUT_STRIDE);
            TensorCore<T>::multiply(z[2 * o], a, low);
            TensorCore<T>::multiply(z[2 * o + 1], a, high);
        }
    }
}
#endif

// The outputs of tile r of rows, as far as this block's units or features make them up, without the bias.
__device__ inline void find_outputs(const Shared& shared, int r, float (&z)[2 * OUT_TILES][4]) {
#pragma unroll
    for (int part = 0; part < 8 * OUT_TILES; ++part) {
        float& sum = z[part / 4][part % 4];
        sum = 0;
#if !HIDDEN
        const int lane = threadIdx.x % 32;
        const int col = part / 4 * 8 + lane % 4 * 2 + part % 2;
        const int row = r * 16 + lane / 4 + part % 4 / 2 * 8;
        for (int k = 0; k < WARPS_K; ++k) sum += shared.sums[k][row][col];
#endif
    }
#if HIDDEN
    add_outputs(shared, r, z);
#endif
}

__device__ inline const float* output_bias(const Shared& shared) {
#if HIDDEN
    return shared.hidden.bias;
#else
    return shared.bias;
#endif
}

// What a row lost, to where it is recorded; a loss that is not finite ends the run of all blocks.
__device__ inline void note_loss(Shared& shared, int row, float loss, bool is_correct) {
    const bool is_over = !(loss - loss == 0);
#if CLUSTER > 1
    store_cluster(cluster_address(&shared.losses[row], 0), __float_as_uint(loss));
    store_cluster(cluster_address(&shared.correct[row], 0), is_correct);
    for (int rank = 0; is_over && rank < CLUSTER; ++rank) {
        store_cluster(cluster_address(&shared.is_over, rank), 1);
    }
#else
    shared.losses[row] = loss;
    shared.correct[row] = is_correct;
    if (is_over) shared.is_over = 1;
#endif
}

// Adds the bias to the outputs of 16 rows, of which this block's first is `first_row`, and replaces those below
// `end_row` by `factor` times the derivative of their loss.
__device__ inline void find_output_gradients(Shared& shared, int first_row, int end_row, int stage, int count,
                                             float factor, float unscale, float (&z)[2 * OUT_TILES][4]) {
    OutputRows<2 * OUT_TILES, OUTPUTS> rows{z};
    const int lane = threadIdx.x % 32;
    const float* bias = output_bias(shared);
#pragma unroll
    for (int below = 0; below < 2; ++below) {
        const int row = first_row + lane / 4 + 8 * below;
        const bool is_there = row < count && row < end_row;
        const float own_factor = is_there ? factor : 0;
        const float* target = shared.targets[stage][is_there ? row : 0];
        rows.each(below, [&](int col, float& value) { value += bias[col] * unscale; });
        bool is_correct = false;
        const float loss = CROSS_ENTROPY
                               ? rows.cross_entropy(below, static_cast<int>(__float_as_uint(*target)),
                                                    own_factor, is_correct)
                               : rows.squared_error(below, target, own_factor / OUTPUTS) / OUTPUTS;
        if (lane % 4 == 0 && row < end_row)
            note_loss(shared, row, is_there ? loss : 0, is_there && is_correct);
    }
}

#if HIDDEN
// The hidden units' gradients of tile r, from those of its outputs.
__device__ inline void find_unit_gradients(Shared& shared, int r, float slope) {
    const int lane = threadIdx.x % 32, num_units = own_units().count;
    unsigned a[OUT_TILES][4];
#pragma unroll
    for (int o = 0; o < OUT_TILES; ++o) load_a(a[o], &shared.dz[r * 16][o * 16], OUT_STRIDE);
    for (int u = 0; u < UNIT_TILES; ++u) {
        float sums[2][4] = {};
#pragma unroll
        for (int o = 0; o < OUT_TILES; ++o) {
            unsigned low[2], high[2];
            load_b_pair(low, high, &shared.hidden.w_half[u * 16][o * 16], OUT_STRIDE);
            TensorCore<T>::multiply(sums[0], a[o], low);
            TensorCore<T>::multiply(sums[1], a[o], high);
        }
#pragma unroll
        for (int part = 0; part < 8; ++part) {
            const int row = r * 16 + lane / 4 + part % 4 / 2 * 8;
            const int unit = u * 16 + part / 4 * 8 + lane % 4 * 2 + part % 2;
            const float saved = shared.sums[0][row][unit];
            const float dz_unit = sums[part / 4][part % 4] * activation_derivative(saved, saved, slope);
            shared.hidden.dh[row][unit] = store<T>(unit < num_units ? dz_unit : 0.0f);
        }
    }
}
#endif

// f(row, col, first, second) for each pair of neighbours that this thread has of 16 rows of outputs.
template <class F>
__device__ inline void each_pair(const float (&z)[2 * OUT_TILES][4], F f) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int part = 0; part < 4 * OUT_TILES; ++part) {
        const float* pair = &z[part / 2][part % 2 * 2];
        f(lane / 4 + part % 2 * 8, part / 2 * 8 + lane % 4 * 2, pair[0], pair[1]);
    }
}

#if CLUSTER > 1
// Sends this block's part of all outputs to the blocks whose rows they are.
__device__ inline void send_outputs(Shared& shared) {
    for (int r = threadIdx.x / 32; r < ROW_TILES; r += WARPS) {
        float z[2 * OUT_TILES][4];
        find_outputs(shared, r, z);
        each_pair(z, [&](int row_of_tile, int col, float first, float second) {
            const int row = r * 16 + row_of_tile;
            const float* place = &shared.parts[own_rank()][row % OWN_ROWS][col];
            store_cluster_pair(cluster_address(place, row / OWN_ROWS), first, second);
        });
    }
}

// Adds up the outputs of this block's rows, in the order of the blocks, and sends their gradients to all.
__device__ inline void exchange_gradients(Shared& shared, int stage, int count, float factor, float unscale) {
    const int first_row = own_rank() * OWN_ROWS, lane = threadIdx.x % 32;
    for (int r = threadIdx.x / 32; r * 16 < OWN_ROWS; r += WARPS) {
        float z[2 * OUT_TILES][4];
#pragma unroll
        for (int part = 0; part < 8 * OUT_TILES; ++part) {
            const int row = r * 16 + lane / 4 + part % 4 / 2 * 8;
            const int col = part / 4 * 8 + lane % 4 * 2 + part % 2;
            float& sum = z[part / 4][part % 4];
            sum = 0;
            for (int rank = 0; rank < CLUSTER && row < OWN_ROWS; ++rank) sum += shared.parts[rank][row][col];
        }
        find_output_gradients(shared, first_row + r * 16, first_row + OWN_ROWS, stage, count, factor, unscale,
                              z);
        each_pair(z, [&](int row_of_tile, int col, float first, float second) {
            const int row = r * 16 + row_of_tile;
            if (row >= OWN_ROWS) return;
            const unsigned word = packed<T>(first, second);
            for (int rank = 0; rank < CLUSTER; ++rank) {
                store_cluster(cluster_address(&shared.dz[first_row + row][col], rank), word);
            }
        });
    }
}
#endif

// From the sums of the product with x to the gradients of all outputs, which all blocks then have.
__device__ inline void find_gradients(Shared& shared, int stage, int count, float factor, float unscale,
                                      float slope) {
#if CLUSTER > 1
    send_outputs(shared);
    cluster_barrier();
    exchange_gradients(shared, stage, count, factor, unscale);
#else
    for (int r = threadIdx.x / 32; r < ROW_TILES; r += WARPS) {
        float z[2 * OUT_TILES][4];
        find_outputs(shared, r, z);
        find_output_gradients(shared, r * 16, ROWS, stage, count, factor, unscale, z);
        each_pair(z, [&](int row, int col, float first, float second) {
            *reinterpret_cast<unsigned*>(&shared.dz[r * 16 + row][col]) = packed<T>(first, second);
        });
    }
#endif
    barrier_of_all();
#if HIDDEN
    for (int r = threadIdx.x / 32; r < ROW_TILES; r += WARPS) find_unit_gradients(shared, r, slope);
    __syncthreads();
#endif
}

// The sums over all rows of 16 columns of dz, in the lanes of which l % 4 is 0: columns l / 4 and l / 4 + 8.
__device__ inline void sum_of_columns(const T* dz, int stride, float (&sums)[2]) {
    const unsigned ones = packed<T>(1.0f, 1.0f);
    const unsigned b[2] = {ones, ones};
    float d[4] = {};
    for (int r = 0; r < ROW_TILES; ++r) {
        unsigned a[4];
        load_a_transposed(a, dz + r * 16 * stride, stride);
        TensorCore<T>::multiply(d, a, b);
    }
    sums[0] = d[0];
    sums[1] = d[2];
}

__device__ inline void update_bias(const Optimizer& optimizer, const T* dz, int stride, int tile, float* bias,
                                   float* velocity) {
    float sums[2];
    sum_of_columns(dz + tile * 16, stride, sums);
    const int lane = threadIdx.x % 32, unit = tile * 16 + lane / 4;
    if (lane % 4 == 0) {
        optimizer.step(bias[unit], velocity[unit], sums[0]);
        optimizer.step(bias[unit + 8], velocity[unit + 8], sums[1]);
    }
}

#if HIDDEN
// The output layer's weights with their 16-bit copy, and its biases.
__device__ inline void update_outputs(Shared& shared, const Optimizer& optimizer, float unscale) {
    HiddenState& hidden = shared.hidden;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int tile = warp; tile < UNIT_TILES * OUT_TILES; tile += WARPS) {
        const int u = tile / OUT_TILES * 16, o = tile % OUT_TILES * 16;
        float sums[2][4] = {};
        for (int r = 0; r < ROW_TILES; ++r) {
            unsigned a[4], low[2], high[2];
            load_a_transposed(a, &hidden.h[r * 16][u], UNIT_STRIDE);
            load_b_pair_transposed(low, high, &shared.dz[r * 16][o], OUT_STRIDE);
            TensorCore<T>::multiply(sums[0], a, low);
            TensorCore<T>::multiply(sums[1], a, high);
        }
#pragma unroll
        for (int part = 0; part < 8; ++part) {
            const int unit = u + lane / 4 + part % 4 / 2 * 8;
            const int col = o + part / 4 * 8 + lane % 4 * 2 + part % 2;
            float& weight = hidden.w[unit][col];
            optimizer.step(weight, hidden.v[MOMENTUM ? unit : 0][col], sums[part / 4][part % 4]);
            hidden.w_half[unit][col] = store<T>(weight * unscale);
        }
    }
    for (int o = WARPS - 1 - warp; o < OUT_TILES; o += WARPS) {
        update_bias(optimizer, &shared.dz[0][0], OUT_STRIDE, o, hidden.bias, hidden.bias_velocity);
    }
}

// Copies the output layer between its arrays and the block; either way.
__device__ inline void read_outputs(Shared& shared, const float* w, const float* bias, const float* v,
                                    const float* bias_velocity, float scale) {
    HiddenState& hidden = shared.hidden;
    const Part units = own_units();
    each_of_block(UNIT_WIDTH * OUT_WIDTH, [&](int i) {
        const int unit = i / OUT_WIDTH, col = i % OUT_WIDTH, at = (units.first + unit) * OUTPUTS + col;
        const bool is_there = unit < units.count && col < OUTPUTS;
        const float weight = is_there ? w[at] : 0;
        hidden.w[unit][col] = weight * scale;
        hidden.w_half[unit][col] = store<T>(weight);
        if (MOMENTUM) hidden.v[unit][col] = is_there ? v[at] * scale : 0;
    });
    each_of_block(OUT_WIDTH, [&](int col) {
        hidden.bias[col] = col < OUTPUTS ? bias[col] * scale : 0;
        hidden.bias_velocity[col] = MOMENTUM && col < OUTPUTS ? bias_velocity[col] * scale : 0;
    });
}

__device__ inline void write_outputs(const Shared& shared, float* w, float* bias, float* v,
                                     float* bias_velocity, float unscale) {
    const HiddenState& hidden = shared.hidden;
    const Part units = own_units();
    each_of_block(units.count * OUTPUTS, [&](int i) {
        const int at = units.first * OUTPUTS + i;
        w[at] = hidden.w[i / OUTPUTS][i % OUTPUTS] * unscale;
        if (MOMENTUM) v[at] = hidden.v[i / OUTPUTS][i % OUTPUTS] * unscale;
    });
    if (own_rank() > 0) return;  // all blocks have the same biases
    each_of_block(OUTPUTS, [&](int col) {
        bias[col] = hidden.bias[col] * unscale;
        if (MOMENTUM) bias_velocity[col] = hidden.bias_velocity[col] * unscale;
    });
}
#endif

// Writes a row of the record, by one warp.
__device__ inline void record_step(Shared& shared, double* record, int count) {
    const int lane = threadIdx.x % 32;
    double loss = 0, correct = 0;
    for (int row = lane; row < count; row += 32) {
        loss += shared.losses[row];
        correct += shared.correct[row];
    }
    loss = reduce_warp<Sum>(loss) / count;
    correct = reduce_warp<Sum>(correct);
    if (lane == 0) {
        record[0] = loss;
        record[1] = count;
        record[2] = correct;
    }
}

using Weights = HeldWeights<T, X_WIDTH, UNIT_WIDTH, WARPS_K, WARPS_U>;

// The weights of the product with x, and the biases that go with it.
__device__ inline void update_units(Shared& shared, const Optimizer& optimizer, Weights& weights,
                                    Weights& velocities, const T* x) {
#if HIDDEN
    const T* dz = &shared.hidden.dh[0][0];
#else
    const T* dz = &shared.dz[0][0];
#endif
    const float decay = 1 - optimizer.rate * optimizer.weight_decay;
#pragma unroll
    for (int j = 0; j < Weights::MINE_K; ++j) {
        if (!MOMENTUM) {
            Weights::each_of_tile([&](int i, int s, int c) { weights.tiles[i][j][s][c] *= decay; });
            weights.add_product(j, dz, UNIT_STRIDE, x, X_STRIDE, ROW_TILES);
            continue;
        }
        float before[Weights::MINE_U][2][4];
        Weights::each_of_tile([&](int i, int s, int c) {
            float& velocity = velocities.tiles[i][j][s][c];
            before[i][s][c] = velocity *= optimizer.momentum;
            velocity += optimizer.weight_decay * weights.tiles[i][j][s][c];
        });
        velocities.add_product(j, dz, UNIT_STRIDE, x, X_STRIDE, ROW_TILES);
        Weights::each_of_tile([&](int i, int s, int c) {
            const float velocity = velocities.tiles[i][j][s][c];
            const float step =
                NESTEROV ? velocity - before[i][s][c] + optimizer.momentum * velocity : velocity;
            weights.tiles[i][j][s][c] -= optimizer.rate * step;
        });
    }
    if (Weights::warp_k() == WARPS_K - 1) {
        for (int i = 0; i < Weights::MINE_U; ++i) {
            update_bias(optimizer, dz, UNIT_STRIDE, Weights::first_unit_tile() + i, shared.bias,
                        shared.bias_velocity);
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS_K * WARPS_U, 1)
    one_launch(const T* x, const float* targets, const float* rates, const unsigned* keys, float* w1,
               float* b1, float* w2, float* b2, float* w1_velocity, float* b1_velocity, float* w2_velocity,
               float* b2_velocity, double* record, int num_rows, int bits, int num_epochs, float scale,
               float momentum, float weight_decay, float slope) {
    DYNAMIC_SHARED(Shared, whole);
    Shared& shared = *whole;
    const float unscale = 1 / scale;
    const Part units = own_units(), features = own_features();
    float *own_w1 = w1 + static_cast<int64>(features.first) * ALL_UNITS + units.first,
          *own_velocity = w1_velocity + static_cast<int64>(features.first) * ALL_UNITS + units.first;
    const Batches batches{x + features.first, targets, keys, num_rows, bits, (num_rows + BATCH - 1) / BATCH};
    const int num_steps = num_epochs * batches.steps_of_epoch;

    Weights weights, velocities;
    weights.read(own_w1, ALL_UNITS, units.count, features.count, scale);
    if (MOMENTUM) velocities.read(own_velocity, ALL_UNITS, units.count, features.count, scale);
    each_of_block(UNIT_WIDTH, [&](int unit) {
        const bool is_there = unit < units.count;
        shared.bias[unit] = is_there ? b1[units.first + unit] * scale : 0;
        shared.bias_velocity[unit] = MOMENTUM && is_there ? b1_velocity[units.first + unit] * scale : 0;
    });
#if HIDDEN
    read_outputs(shared, w2, b2, w2_velocity, b2_velocity, scale);
#endif
    if (threadIdx.x == 0) shared.is_over = 0;
    batches.find(shared, 0);
    if (num_steps > 1) batches.find(shared, 1);
    barrier_of_all();  // no block writes to another that has not begun
    batches.copy(shared, 0);

    for (int step = 0; step < num_steps; ++step) {
        const int stage = step % STAGES, count = batches.size(step);
        const T* rows = &shared.x[stage][0][0];
        const Optimizer optimizer{momentum, weight_decay, rates[step]};
        copy_async_wait<0>();
        __syncthreads();
        if (shared.is_over) return;
        if (STAGES > 1 && step + 1 < num_steps) batches.copy(shared, step + 1);
        weights.multiply(rows, X_STRIDE, ROW_TILES, unscale, &shared.sums[0][0][0], UNIT_STRIDE);
        __syncthreads();
#if HIDDEN
        activate_units(shared, unscale, slope);
        __syncthreads();
#endif
        const float factor = (MOMENTUM ? scale : -optimizer.rate * scale) / count;
        find_gradients(shared, stage, count, factor, unscale, slope);
        update_units(shared, optimizer, weights, velocities, rows);
#if HIDDEN
        update_outputs(shared, optimizer, unscale);
#endif
        if (own_rank() == 0 && threadIdx.x < 32) record_step(shared, record + 3 * step, count);
        if (step + 2 < num_steps) batches.find(shared, step + 2);
        if (STAGES == 1 && step + 1 < num_steps) {
            __syncthreads();
            batches.copy(shared, step + 1);
        }
    }
    __syncthreads();
    weights.write(own_w1, ALL_UNITS, units.count, features.count, unscale);
    if (MOMENTUM) velocities.write(own_velocity, ALL_UNITS, units.count, features.count, unscale);
    // Without a hidden layer, all blocks have the same biases.
    each_of_block(HIDDEN || own_rank() == 0 ? units.count : 0, [&](int unit) {
        b1[units.first + unit] = shared.bias[unit] * unscale;
        if (MOMENTUM) b1_velocity[units.first + unit] = shared.bias_velocity[unit] * unscale;
    });
#if HIDDEN
    write_outputs(shared, w2, b2, w2_velocity, b2_velocity, unscale);
#endif
}
