// The row warps of one_launch.cu: they take tiles of rows from the sums of the product with x
// through activation, outputs, loss and gradient to the gradients of the hidden units. h and dh of
// a tile are one row warp's until dh_full. In a cluster the block that owns rows finds their
// losses, and sends dz to all.
#pragma once

#include "ops/activation/activation.cuh"
#include "resident/layout/trained_block.cuh"

// The product of tile r of x with tile u of units, added up over parts of the features.
__device__ inline void add_divided_sums(OneLaunchShared& shared, int step, int r, int u,
                                        float (&z)[2][4]) {
    const auto& parts = divided(shared).sums[step % SUM_SLOTS];
    unsigned upper[FEATURE_PARTS][4], lower[FEATURE_PARTS][2] = {};
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int part = 0; part < FEATURE_PARTS; ++part)
        load_a(upper[part], parts[part][u].upper[0][r * 16], UNIT_STRIDE, UNIT_CHUNK);
#pragma unroll
    for (int part = 0; part + 1 < FEATURE_PARTS; part += 2) {
        ldmatrix_x4(lower[part][0], lower[part][1], lower[part + 1][0], lower[part + 1][1],
                    parts[part + lane / 16][u].lower[r * 16 + lane % 16]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float& sum = z[i / 4][i % 4];
        sum = 0;
#pragma unroll
        for (int part = 0; part < FEATURE_PARTS; ++part)
            sum += widened(upper[part][i / 2], lower[part][i / 2 % 2], i % 2, i / 4);
    }
}

// The product of a tile of x with tile u of units, added up over the groups of weight warps.
__device__ inline void add_sums(const OneLaunchShared& shared, int slot, int u, float (&z)[2][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float4 sum = shared.sums[slot][0][u][half][lane];
#pragma unroll
        for (int k = 1; k < WARPS_K; ++k) {
            const float4 part = shared.sums[slot][k][u][half][lane];
            sum = float4{sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
        }
        z[half][0] = sum.x;
        z[half][1] = sum.y;
        z[half][2] = sum.z;
        z[half][3] = sum.w;
    }
}

// Sums of tile r of a step's rows: until they are there, those with tile u of units, and when all
// have been taken.
__device__ inline void await_sums(OneLaunchShared& shared, int step, int r) {
    if constexpr (DIVIDED) {
        wait(divided(shared).sums_full[step % SUM_SLOTS], step / SUM_SLOTS);
    } else {
        const unsigned place = place_of_sums(step, r);
        wait(shared.sums_full[place % SUM_BARRIERS], place / SUM_BARRIERS);
    }
}

__device__ inline void take_sums(OneLaunchShared& shared, int step, int r, int u,
                                 float (&z)[2][4]) {
    if constexpr (DIVIDED) {
        add_divided_sums(shared, step, r, u, z);
    } else {
        add_sums(shared, place_of_sums(step, r) % SUM_SLOTS, u, z);
    }
}

__device__ inline void release_sums(OneLaunchShared& shared, int step, int r) {
    // Where each place has a slot, it is free again when the gradients of its last tile have come.
    if (SUM_SLOTS < SUM_PLACES && !DIVIDED)
        arrive_warp(shared.sums_empty[place_of_sums(step, r) % SUM_SLOTS]);
}

// What tile u of units has of the hidden biases and of the output layer, of a step.
struct UnitTile {
    float2 bias[2];
    unsigned low[OUT_TILES][2], high[OUT_TILES][2];

    __device__ UnitTile(const OneLaunchShared& shared, const OneLaunchRun& run, int step, int u) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float2 held =
                *reinterpret_cast<const float2*>(&shared.bias[u * 16 + half * 8 + lane % 4 * 2]);
            bias[half] = float2{held.x * run.unscale, held.y * run.unscale};
        }
#pragma unroll
        for (int o = 0; o < OUT_TILES; ++o) {
            load_b_pair_transposed(low[o], high[o], &shared.outputs.half[step % 2][u * 16][o * 16],
                                   OUT_STRIDE);
        }
    }

    __device__ void add_biases(float (&z)[2][4]) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) z[i / 4][i % 4] += i % 2 ? bias[i / 4].y : bias[i / 4].x;
    }
};

// f(z) and f'(z) of 16 rows and units, as words of an A fragment.
__device__ inline void activate_units(const OneLaunchRun& run, int u, const float (&z)[2][4],
                                      unsigned (&a)[4], unsigned (&derivatives)[4]) {
    const int lane = threadIdx.x % 32, num_units = own_units().count;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        float y[2], derivative[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int unit = u * 16 + part / 2 * 8 + lane % 4 * 2 + i;
            const bool is_there = HIDDEN % (16 * CLUSTER) == 0 || unit < num_units;
            const auto found = activated<ACTIVATION>(z[part / 2][part % 2 * 2 + i], run.slope);
            y[i] = is_there ? found.value : 0;
            derivative[i] = is_there ? found.derivative : 0;
        }
        a[part] = packed<T>(y[0], y[1]);
        derivatives[part] = packed<T>(derivative[0], derivative[1]);
    }
}

// The two units of tile (r, u) that are in word `part` of this lane's fragment.
__device__ inline unsigned& word_of(T* rows, int r, int u, int part) {
    const int lane = threadIdx.x % 32, row = r * 16 + lane / 4 + part % 2 * 8;
    return *reinterpret_cast<unsigned*>(
        &rows[row * UNIT_STRIDE + (u * 2 + part / 2) * UNIT_CHUNK + lane % 4 * 2]);
}

__device__ inline void store_units(T* rows, int r, int u, const unsigned (&words)[4]) {
#pragma unroll
    for (int part = 0; part < 4; ++part) word_of(rows, r, u, part) = words[part];
}

// The outputs of tile r, as far as this block's units or features make them up, without the bias.
__device__ inline void find_outputs(OneLaunchShared& shared, const OneLaunchRun& run, int step,
                                    int r, Outputs& z) {
    wait(shared.outputs_ready, step + 1);
    if constexpr (HIDDEN > 0) {
#pragma unroll
        for (int i = 0; i < 8 * OUT_TILES; ++i) z[i / 4][i % 4] = 0;
#pragma unroll
        for (int u = 0; u < UNIT_TILES; ++u) {
            float sums[2][4];
            unsigned a[4], derivatives[4];
            const UnitTile tile(shared, run, step, u);
            if (u == 0) await_sums(shared, step, r);
            take_sums(shared, step, r, u, sums);
            tile.add_biases(sums);
            activate_units(run, u, sums, a, derivatives);
            store_units(shared.h[0], r, u, a);
            store_units(shared.dh[0], r, u, derivatives);
#pragma unroll
            for (int o = 0; o < OUT_TILES; ++o) {
                TensorCore<T>::multiply(z[2 * o], a, tile.low[o]);
                TensorCore<T>::multiply(z[2 * o + 1], a, tile.high[o]);
            }
        }
    } else {
        await_sums(shared, step, r);
#pragma unroll
        for (int u = 0; u < UNIT_TILES; ++u) {
            float sums[2][4];
            take_sums(shared, step, r, u, sums);
#pragma unroll
            for (int i = 0; i < 8; ++i) z[2 * u + i / 4][i % 4] = sums[i / 4][i % 4];
        }
    }
    release_sums(shared, step, r);
}

// Of the rows in z that are the upper or the lower ones, `row` being this lane's: adds the bias,
// and replaces outputs by the derivatives of the loss. What is left of the outputs is enough for
// the loss.
__device__ inline OutputRest replace_outputs(const OneLaunchShared& shared, const OneLaunchRun& run,
                                             int step, int count, float factor, int row, int below,
                                             Outputs& z) {
    OutputRows<2 * OUT_TILES, OUTPUTS> rows{z};
    const float own_factor = row < count ? factor : 0;
    const float* target = shared.targets[step % TARGET_STEPS][row - own_rank() * OWN_ROWS];
    rows.each(below,
              [&](int col, float& value) { value += shared.output_bias[col] * run.unscale; });
    return rows.replace(below, target, own_factor, run.loss, EvenClasses{});
}

// What the derivatives of the loss are multiplied by.
__device__ inline float factor_of(const OneLaunchRun& run, float rate, int count) {
    return (MOMENTUM || ADAPTIVE ? run.gradient_scale : -rate * run.gradient_scale) / count;
}

// A warp arrives, and says how many bytes are to come.
__device__ inline void arrive_warp(Barrier& barrier, unsigned bytes) {
    __syncwarp();
    const unsigned lane = threadIdx.x % 32;
    if (lane == 0) {
        mbarrier_expect(&barrier, bytes);
    } else if (lane < OF_WARP) {
        mbarrier_arrive(&barrier);
    }
}

// Columns of tile o of the outputs that are there, of 16; what holds none is not sent.
__device__ constexpr int columns_of(int o) { return OUTPUTS - o * 16 < 16 ? OUTPUTS - o * 16 : 16; }

// Messages of 16 bytes that a row's outputs take, two columns of each half of a tile in one, and
// its gradients, eight.
__device__ constexpr int output_messages(int o) {
    return o < OUT_TILES
               ? (columns_of(o) < 8 ? (columns_of(o) + 1) / 2 : 4) + output_messages(o + 1)
               : 0;
}
__device__ constexpr int gradient_messages(int o) {
    return o < OUT_TILES ? (columns_of(o) + 7) / 8 + gradient_messages(o + 1) : 0;
}

// Sends this block's part of the outputs of tile r to the blocks whose rows they are.
__device__ inline void send_outputs(OneLaunchShared& shared, int r, const Outputs& z) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
        const int row = r * 16 + lane / 4 + 8 * below, owner = row / OWN_ROWS,
                  tile = row % OWN_ROWS / 16;
        const unsigned barrier = place_in(owner, &shared.parts_full[tile]);
        const unsigned part =
            place_in(owner, &shared.parts[tile][own_rank()][row % OWN_OF_TILE][lane % 4][0][0]);
#pragma unroll
        for (int o = 0; o < OUT_TILES; ++o) {
            const float *low = &z[2 * o][2 * below], *high = &z[2 * o + 1][2 * below];
            const unsigned words[4] = {__float_as_uint(low[0]), __float_as_uint(low[1]),
                                       __float_as_uint(high[0]), __float_as_uint(high[1])};
            if (lane % 4 * 2 < columns_of(o))
                store_async_quad(part + o * 4 * sizeof(float), words, barrier);
        }
    }
}

// The outputs of this block's row `own` of its tile, added up in a fixed order, to the upper or the
// lower row of z.
__device__ inline void add_outputs(const OneLaunchShared& shared, int tile, int own, int below,
                                   Outputs& z) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int o = 0; o < OUT_TILES; ++o) {
        float4 sums[2] = {};  // of even and odd blocks
#pragma unroll
        for (int rank = 0; rank < CLUSTER; ++rank) {
            const float4 part = *reinterpret_cast<const float4*>(
                &shared.parts[tile][rank][own][lane % 4][2 * o][0]);
            float4& sum = sums[rank % 2];
            sum = float4{sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
        }
        z[2 * o][2 * below] = sums[0].x + sums[1].x;
        z[2 * o][2 * below + 1] = sums[0].y + sums[1].y;
        z[2 * o + 1][2 * below] = sums[0].z + sums[1].z;
        z[2 * o + 1][2 * below + 1] = sums[0].w + sums[1].w;
    }
}

// Sends a row of gradients to all blocks. Groups of 4 lanes that have the same row partition the
// blocks; a lane sends 8 numbers at once.
__device__ inline void send_gradients(OneLaunchShared& shared, int row, int below,
                                      const Outputs& z) {
    constexpr int ROWS_AT_ONCE = OWN_OF_TILE < 8 ? OWN_OF_TILE : 8,
                  RANKS_AT_ONCE = 16 / ROWS_AT_ONCE;
    const int lane = threadIdx.x % 32, half = lane % 2;
#pragma unroll
    for (int o = 0; o < OUT_TILES; ++o) {
        const unsigned low = packed<T>(z[2 * o][2 * below], z[2 * o][2 * below + 1]);
        const unsigned high = packed<T>(z[2 * o + 1][2 * below], z[2 * o + 1][2 * below + 1]);
        unsigned words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned of_low = __shfl_sync(FULL_WARP, low, lane / 4 * 4 + i);
            const unsigned of_high = __shfl_sync(FULL_WARP, high, lane / 4 * 4 + i);
            words[i] = half ? of_high : of_low;
        }
#pragma unroll
        for (int first = 0; first < CLUSTER; first += RANKS_AT_ONCE) {
            const unsigned rank = first + lane / 4 / ROWS_AT_ONCE * 2 + lane % 4 / 2;
            if (half * 8 >= columns_of(o)) continue;
            store_async_quad(place_in(rank, &shared.dz[row][o * 16 + half * 8]), words,
                             place_in(rank, &shared.dz_full[row / (16 * GROUP)]));
        }
    }
}

// From all blocks' parts of the outputs of this block's rows of tile r to their gradients, which go
// to all, and what is left for their losses.
__device__ inline void exchange_rows(OneLaunchShared& shared, const OneLaunchRun& run, int step,
                                     int count, float factor, int r, OutputRest (&rests)[2]) {
    const int lane = threadIdx.x % 32, first = own_rank() * OWN_ROWS, tile = r - first_own_tile();
    if (lane == 0)
        mbarrier_expect(&shared.parts_full[tile], CLUSTER * OWN_OF_TILE * 16 * output_messages(0));
    wait(shared.parts_full[tile], step);
    Outputs z;
#pragma unroll
    for (int below = 0; below < (OWN_OF_TILE + 7) / 8; ++below) {
        const int own = (lane / 4 + 8 * below) % OWN_OF_TILE, row = first + tile * 16 + own;
        add_outputs(shared, tile, own, below, z);
        rests[below] = replace_outputs(shared, run, step, count, factor, row, below, z);
        send_gradients(shared, row, below, z);
    }
}

// Sends the losses of this block's rows of tile r to the first block.
__device__ inline void send_losses(OneLaunchShared& shared, const OneLaunchRun& run, int step,
                                   int count, int r, const OutputRest (&rests)[2]) {
    const int lane = threadIdx.x % 32, first = own_rank() * OWN_ROWS, tile = r - first_own_tile();
#pragma unroll
    for (int below = 0; below < (OWN_OF_TILE + 7) / 8; ++below) {
        const int own = lane / 4 + 8 * below, row = first + tile * 16 + own;
        const RowLoss loss =
            find_row_loss(rests[below], 0, run.loss, OUTPUTS, EvenClasses{}, row < count);
        if (lane % 4 == 0 && own < OWN_OF_TILE) {
            store_async_pair(place_in(0, &shared.losses[step % 2][row]), __float_as_uint(loss.loss),
                             loss.is_correct, place_in(0, &shared.losses_full[step % 2]));
        }
    }
}

// Both, of this block's rows of tile r.
__device__ inline void finish_rows(OneLaunchShared& shared, const OneLaunchRun& run, int step,
                                   int count, float factor, int r) {
    if constexpr (CLUSTER > 1) {
        OutputRest rests[2];
        exchange_rows(shared, run, step, count, factor, r, rests);
        send_losses(shared, run, step, count, r, rests);
    }
}

// From this block's part of the outputs of tile r to their gradients, or in a cluster to what other
// blocks need for them.
__device__ inline void begin_tile(OneLaunchShared& shared, const OneLaunchRun& run, int step,
                                  int count, float factor, int r, Outputs& z) {
    if constexpr (CLUSTER > 1) {
        send_outputs(shared, r, z);
        arrive_warp(shared.dz_full[r / GROUP], 16 * 16 * gradient_messages(0));
        return;
    }
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
        const int row = r * 16 + lane / 4 + 8 * below;
        const OutputRest rest = replace_outputs(shared, run, step, count, factor, row, below, z);
        const RowLoss loss = find_row_loss(rest, 0, run.loss, OUTPUTS, EvenClasses{}, row < count);
        if (lane % 4 == 0) shared.losses[step % 2][row] = loss;
#pragma unroll
        for (int t = 0; t < 2 * OUT_TILES; ++t) {
            *reinterpret_cast<unsigned*>(&shared.dz[row][t * 8 + lane % 4 * 2]) =
                packed<T>(z[t][2 * below], z[t][2 * below + 1]);
        }
    }
    arrive_warp(shared.dz_full[r / GROUP]);
}

// The gradients of the hidden units of tile r, from those of its outputs and `derivatives` (unit
// tile, part), which may lie where the gradients go.
template <class F>
__device__ inline void find_unit_gradients(OneLaunchShared& shared, int step, int r,
                                           F derivatives) {
    wait(shared.dz_full[r / GROUP], step);
    unsigned a[OUT_TILES][4];
#pragma unroll
    for (int o = 0; o < OUT_TILES; ++o) load_a(a[o], &shared.dz[r * 16][o * 16], OUT_STRIDE);
#pragma unroll
    for (int u = 0; u < UNIT_TILES; ++u) {
        float sums[2][4] = {};
#pragma unroll
        for (int o = 0; o < OUT_TILES; ++o) {
            unsigned low[2], high[2];
            load_b_pair(low, high, &shared.outputs.half[step % 2][u * 16][o * 16], OUT_STRIDE);
            TensorCore<T>::multiply(sums[0], a[o], low);
            TensorCore<T>::multiply(sums[1], a[o], high);
        }
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const float2 derivative = unpacked<T>(derivatives(u, part));
            const float* pair = &sums[part / 2][part % 2 * 2];
            word_of(own_dh(shared, step), r, u, part) =
                packed<T>(pair[0] * derivative.x, pair[1] * derivative.y);
        }
    }
    if constexpr (DIVIDED) fence_async();  // an output warp sends them
    arrive_warp(shared.dh_full[r / HIDDEN_GROUP]);
}

// Takes every ROW_WARPS-th tile of a batch through its stages; while one waits for other blocks,
// others go on.
__device__ inline void pass_tiles(OneLaunchShared& shared, const OneLaunchRun& run, int warp) {
    Step step = run.first_step();
    for (StepRules rules(run.rules, step); step.is_there(); rules.advance(step)) {
        const int count = own_rows(step.count());
        const float factor = factor_of(run, rate_of(rules.now), step.count());
#pragma unroll 1
        for (int r = warp; r < ROW_TILES + 2 * ROW_WARPS; r += ROW_WARPS) {
            if (r < ROW_TILES) {
                Outputs z;
                find_outputs(shared, run, step.index, r, z);
                begin_tile(shared, run, step.index, count, factor, r, z);
            }
            const int second = r - ROW_WARPS;
            if (CLUSTER > 1 && second >= 0 && second < ROW_TILES && is_own(second))
                finish_rows(shared, run, step.index, count, factor, second);
            const int last = r - 2 * ROW_WARPS;
            if (HIDDEN && last >= 0) {
                find_unit_gradients(shared, step.index, last, [&](int u, int part) {
                    return word_of(shared.dh[0], last, u, part);
                });
            }
        }
        step.advance();
    }
}
