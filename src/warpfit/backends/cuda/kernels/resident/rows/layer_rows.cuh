// The rows of one_launch_layers.cu on their way: from the sums of a product to units, to the
// gradients of outputs, and to those of units; and how the blocks of a cluster come to have each
// other's. A block owns its units of all rows, and has copies of the others' in the same places.
// Users: one_launch_layers.cu.
#pragma once

#include "resident/products/layer_products.cuh"
#include "resident/rows/unit_scales.cuh"

// What is to be written of a pass, and where.
struct Losses {
    int row, count;
    float weight, penalty;
    bool trains, is_first;  // of its epoch
    bool is_there;
};

// Whether the second layer takes its gradients in after the next step has begun, while that one's
// first units are on their way. What it takes stays where it is until all blocks have had the next
// of its units from this one.
template <int SECOND>
__device__ constexpr bool is_second_late() {
    constexpr bool SENDS = CLUSTER > 1 && SECOND + 1 < LAYERS;
    if constexpr (SENDS && REPLICAS == 1 && UNIT_COPIES == 2 && !CLIPS && !PENALIZED) {
        return Shape<SECOND>::ALL_HAVE_UNITS;
    } else {
        return false;
    }
}
constexpr bool SECOND_IS_LATE = is_second_late<1>();

// Where a block stands: which pass it is, which step, of how many rows, and how many of them are
// this replica's; what it multiplies by; and what the pass before left.
struct Now {
    Passes pass;
    int step, count, own_count;
    StepSettings settings, last_settings;
    RuleSettings of_weights;
    Losses before;

    __device__ int slot() const { return pass.index() % X_SLOTS; }
    // Whether the pass before has left something to this one, and whether this one leaves something
    // to the next: not where an epoch begins or ends.
    __device__ bool is_led_on() const {
        return SECOND_IS_LATE && pass.trains() && !pass.training.is_first_of_epoch();
    }
    __device__ bool leads_on() const {
        return SECOND_IS_LATE && pass.trains() && !pass.training.is_last_of_epoch();
    }
};

// The exponents that a layer's units of a pass come with, and its gradients.
template <int L>
__device__ inline int2* exponents_of_units([[maybe_unused]] LayersShared& shared,
                                           [[maybe_unused]] int pass) {
    if constexpr (!SCALES) return nullptr;
    return layer_of<L>(part_of<UnitScales>(shared).exponents).y[pass % LayerRows<L>::COPIES];
}
template <int L>
__device__ inline int2* exponents_of_gradients([[maybe_unused]] LayersShared& shared) {
    if constexpr (!SCALES) return nullptr;
    return layer_of<L>(part_of<UnitScales>(shared).exponents).dz;
}

// The rows that layer L takes in a pass.
template <int L>
__device__ inline auto inputs_of(LayersShared& shared, int pass) {
    if constexpr (L == 0) {
        const int slot = pass % X_SLOTS;
        int exponent = 0;
        if constexpr (SCALES) exponent = part_of<UnitScales>(shared).of_batches[slot];
        return BatchRows{&shared.x[slot][0][0][0], exponent};
    } else {
        return UnitRows(layer_of<L - 1>(shared.layers).units(pass),
                        exponents_of_units<L - 1>(shared, pass));
    }
}

template <int L>
__device__ inline UnitRows gradients_of(LayersShared& shared) {
    return UnitRows(layer_of<L>(shared.layers).dz, exponents_of_gradients<L>(shared));
}

// A piece of a block's rows: 8 rows by 8 units. Of the row, a lane has two columns.
struct Piece {
    int eighth, chunk;  // of the rows, and of the units

    __device__ int row() const { return eighth * 8 + static_cast<int>(threadIdx.x) % 32 / 4; }
    __device__ static int column_of_lane() { return static_cast<int>(threadIdx.x) % 4 * 2; }
    __device__ int unit() const { return chunk * CHUNK_UNITS + column_of_lane(); }
};

// How many pieces of a block's units of layer L a warp has.
template <int L>
constexpr int TURNS = (ROWS / 8 * Shape<L>::BLOCK_CHUNKS + WARPS - 1) / WARPS;

// f(turn, piece) for this warp's pieces of this block's units of layer L. The compiler inlines what is in
// them in two steps, which takes up to 18 registers fewer than in one.
template <int L, class F>
__device__ inline void each_turn(F f) {
    constexpr int CHUNKS = Shape<L>::BLOCK_CHUNKS, PIECES = ROWS / 8 * CHUNKS;
    const int count = Shape<L>::own_chunks();
#pragma unroll(TURNS<L> <= 2 ? TURNS<L> : 1)
    for (int turn = 0; turn < TURNS<L>; ++turn) {
        const int i = turn * WARPS + threadIdx.x / 32;
        if (i < PIECES && i % CHUNKS < count) f(turn, Piece{i / CHUNKS, i % CHUNKS});
    }
}

template <int L, class F>
__device__ inline void each_piece(F f) {
    each_turn<L>([&](int turn, const Piece& piece) { f(turn, piece); });
}

// The word of this lane's two units of a piece, if `units` begin with this block's.
template <int COUNT>
__device__ inline unsigned& word_of(T (&units)[COUNT][ROWS][CHUNK_UNITS], const Piece& piece,
                                    int first_chunk = 0) {
    return *reinterpret_cast<unsigned*>(
        &units[first_chunk + piece.chunk][piece.row()][Piece::column_of_lane()]);
}

// Writes this lane's two units of a piece.
template <int COUNT>
__device__ inline void set_units(T (&units)[TERMS][COUNT][ROWS][CHUNK_UNITS], const Piece& piece,
                                 int first_chunk, float low, float high) {
    const Pair pair(low, high);
#pragma unroll
    for (int term = 0; term < TERMS; ++term)
        word_of(units[term], piece, first_chunk) = pair.words[term];
}

// With SCALES: the numbers of this lane's pieces while their exponent is not known, in registers if
// they are few, else where the lane has found the sums that they are made of.
template <int L, class Product>
struct Waiting {
    static constexpr bool ARE_FEW = TURNS<L> <= 2;
    float2 held[ARE_FEW ? TURNS<L> : 1];
    float largest = 0;

    __device__ float2& at(LayersShared& shared, int turn, const Piece& piece) {
        if constexpr (ARE_FEW) return held[turn];
        return Product::own_place(shared.sums, piece.eighth, piece.chunk);
    }

    __device__ void put(LayersShared& shared, int turn, const Piece& piece, const float2& pair) {
        at(shared, turn, piece) = pair;
        take_largest(largest, pair);
    }

    // All of the block's: rounded, to its rows of `units`. Returns their exponent.
    template <int COUNT>
    __device__ int settle(LayersShared& shared, T (&units)[TERMS][COUNT][ROWS][CHUNK_UNITS],
                          int2* exponents, int first_chunk) {
        const int exponent = common_exponent(shared, largest);
        const float factor = power(-exponent);
        each_piece<L>([&](int turn, const Piece& piece) {
            const float2 pair = at(shared, turn, piece);
            set_units(units, piece, first_chunk, factor * pair.x, factor * pair.y);
        });
        set_exponents(exponents + first_chunk, Shape<L>::own_chunks(), exponent);
        return exponent;
    }
};

// The derivatives of this lane's two units of a piece; with SCALES, in float32, in their place.
template <int COUNT>
__device__ inline float2& derivatives_at(T (&units)[TERMS][COUNT][ROWS][CHUNK_UNITS],
                                         const Piece& piece) {
    static_assert(!SCALES || TERMS * sizeof(T) == sizeof(float), "as many bytes");
    return *reinterpret_cast<float2*>(reinterpret_cast<float*>(units) +
                                      (piece.chunk * ROWS + piece.row()) * CHUNK_UNITS +
                                      Piece::column_of_lane());
}

template <int COUNT>
__device__ inline void set_derivatives(T (&units)[TERMS][COUNT][ROWS][CHUNK_UNITS],
                                       const Piece& piece, float low, float high) {
    if constexpr (SCALES) {
        derivatives_at(units, piece) = {low, high};
    } else {
        word_of(units[0], piece) = packed<T>(low, high);
    }
}

template <int COUNT>
__device__ inline float2 derivatives_of(T (&units)[TERMS][COUNT][ROWS][CHUNK_UNITS],
                                        const Piece& piece) {
    if constexpr (SCALES) return derivatives_at(units, piece);
    return unpacked<T>(word_of(units[0], piece));
}

// Sends that of this block's chunks, from `own` on, to all others.
template <int L>
__device__ inline void send_exponent(const LayersRun& run, const int2* own, int exponent,
                                     const Barrier& full) {
    if (Peers::first_part() > 0) return;
#pragma unroll 1
    for (int chunk = threadIdx.x % 32; chunk < Shape<L>::own_chunks(); chunk += 32) {
#pragma unroll
        for (int i = 0; i < Peers::OF_WARP; ++i) {
            if (!Peers::has(i)) break;
            store_async_pair(run.peers.place(i, own + chunk), exponent, exponent,
                             run.peers.place(i, &full));
        }
    }
}

// Sends this block's units of layer L, which are there, to all others.
template <int L, int COUNT>
__device__ inline void broadcast([[maybe_unused]] const LayersRun& run,
                                 [[maybe_unused]] const T (&units)[TERMS][COUNT][ROWS][CHUNK_UNITS],
                                 [[maybe_unused]] const int2* exponents,
                                 [[maybe_unused]] int exponent,
                                 [[maybe_unused]] const Barrier& full) {
    if constexpr (CLUSTER == 1) return;
    if constexpr (SCALES)
        send_exponent<L>(run, exponents + Shape<L>::first() / CHUNK_UNITS, exponent, full);
    constexpr int PARTS = (Shape<L>::BLOCK_CHUNKS * ROWS + 31) / 32;  // what a warp sends at once
    const int count = Shape<L>::own_chunks() * ROWS;
#pragma unroll
    for (int term = 0; term < TERMS; ++term) {
        const uint4* own =
            reinterpret_cast<const uint4*>(&units[term][Shape<L>::first() / CHUNK_UNITS]);
#pragma unroll
        for (int part = 0; part < PARTS; part += Peers::SHARERS) {
            const int place =
                (part + Peers::first_part()) * 32 + static_cast<int>(threadIdx.x) % 32;
            if (place >= count) continue;
            const uint4 words = own[place];
#pragma unroll
            for (int i = 0; i < Peers::OF_WARP; ++i) {
                if (!Peers::has(i)) break;
                store_async_quad(run.peers.place(i, own + place),
                                 {words.x, words.y, words.z, words.w}, run.peers.place(i, &full));
            }
        }
    }
}

// What dropout multiplies this lane's two units of a piece by.
template <int L>
__device__ inline float2 dropout_of(const LayersShared& shared, const LayersRun& run, int step,
                                    const Piece& piece) {
    const Dropout& dropout = shared.dropouts[L];
    const uint32 unit = Shape<L>::first() + piece.unit(), row = first_row() + piece.row();
    const Words words =
        philox({{run.first_step + step, dropout.layer, row, unit / 4}}, run.key[0], run.key[1]);
    const bool is_upper = unit % 4 >= 2;
    const uint32 low = is_upper ? words.word[2] : words.word[0],
                 high = is_upper ? words.word[3] : words.word[1];
    return {low < dropout.dropped_below ? 0 : dropout.scale,
            high < dropout.dropped_below ? 0 : dropout.scale};
}

// From z, which a unit's inputs and bias add up to, to layer L's units of a piece, and the
// activation's derivatives, which go to their place.
template <int L>
__device__ inline float2 activate_piece(LayersShared& shared, const LayersRun& run,
                                        const Passes& pass, const Piece& piece, const float2& z,
                                        [[maybe_unused]] int own_count) {
    LayerRows<L>& rows = layer_of<L>(shared.layers);
    const int unit = piece.unit(), count = Shape<L>::count();
    const auto low = activated<ACTIVATIONS[L]>(z.x, SLOPES[L]);
    const auto high = activated<ACTIVATIONS[L]>(z.y, SLOPES[L]);
    float2 factors = {1, 1};
    if constexpr (DROPOUTS[L]) {
        if (pass.trains()) factors = dropout_of<L>(shared, run, pass.training.index, piece);
    }
    if (unit >= count) factors.x = 0;
    if (unit + 1 >= count) factors.y = 0;
    float2 values = {low.value * factors.x, high.value * factors.y},
           derivatives = {low.derivative * factors.x, high.derivative * factors.y};
    if constexpr (SCALES) {  // what is not there decides no exponent
        const bool is_row = piece.row() < own_count;
        if (!is_row || unit >= count) values.x = derivatives.x = 0;
        if (!is_row || unit + 1 >= count) values.y = derivatives.y = 0;
    }
    set_derivatives(rows.derivatives, piece, derivatives.x, derivatives.y);
    return values;
}

// Sends this block's units of layer L to all others, when all of its threads have found theirs.
template <int L>
__device__ inline void send_units(LayersShared& shared, const LayersRun& run, int pass,
                                  int exponent) {
    LayerRows<L>& rows = layer_of<L>(shared.layers);
    LayerRows<L>::MUST_MEET ? barrier_of_cluster() : __syncthreads();
    broadcast<L>(run, rows.units(pass), exponents_of_units<L>(shared, pass), exponent,
                 rows.y_full[pass % LayerRows<L>::COPIES]);
}

// From the sums of the product to layer L's units, which go to all blocks.
template <int L>
__device__ inline void activate_units(LayersShared& shared, const LayersRun& run,
                                      const Passes& pass, int own_count) {
    LayerRows<L>& rows = layer_of<L>(shared.layers);
    const int first_chunk = Shape<L>::first() / CHUNK_UNITS;
    [[maybe_unused]] Waiting<L, Forward<L>> waiting;
    each_piece<L>([&](int turn, const Piece& piece) {
        const float2 sums = Forward<L>::sums_of(shared.sums, piece.eighth, piece.chunk);
        const float2 bias = *reinterpret_cast<const float2*>(&rows.biases.values[piece.unit()]);
        const float2 values = activate_piece<L>(shared, run, pass, piece,
                                                {sums.x + bias.x, sums.y + bias.y}, own_count);
        if constexpr (SCALES) {
            waiting.put(shared, turn, piece, values);
        } else {
            set_units(rows.units(pass.index()), piece, first_chunk, values.x, values.y);
        }
    });
    int exponent = 0;
    if constexpr (SCALES)
        exponent = waiting.settle(shared, rows.units(pass.index()),
                                  exponents_of_units<L>(shared, pass.index()), first_chunk);
    send_units<L>(shared, run, pass.index(), exponent);
}

// From the sums of the product with the weights of the layer above to the gradients before layer
// L's activation, which go to all blocks if any block needs them.
template <int L>
__device__ inline void differentiate_units(LayersShared& shared, const LayersRun& run) {
    using Weights = Backward<L + 1>;
    LayerRows<L>& rows = layer_of<L>(shared.layers);
    const int first_chunk = Shape<L>::first_gradient() / CHUNK_UNITS;
    [[maybe_unused]] Waiting<L, Weights> waiting;
    each_piece<L>([&](int turn, const Piece& piece) {
        const float2 derivative = derivatives_of(rows.derivatives, piece);
        const float2 dy = Weights::sums_of(shared.sums, piece.eighth, piece.chunk);
        float2 dz = {dy.x * derivative.x, dy.y * derivative.y};
        if constexpr (SCALES) {  // sums of units that are not there may be anything
            if (derivative.x == 0) dz.x = 0;
            if (derivative.y == 0) dz.y = 0;
            waiting.put(shared, turn, piece, dz);
        } else {
            set_units(rows.dz, piece, first_chunk, dz.x, dz.y);
        }
    });
    [[maybe_unused]] int exponent = 0;
    if constexpr (SCALES)
        exponent = waiting.settle(shared, rows.dz, exponents_of_gradients<L>(shared), first_chunk);
    __syncthreads();
    if constexpr (L > 0)
        broadcast<L>(run, rows.dz, exponents_of_gradients<L>(shared), exponent, rows.dz_full);
}

using Eighths = RowEighths<ROWS, WARPS>;
using Rests = Eighths::Rests;

// What classes weigh.
__device__ inline auto own_classes([[maybe_unused]] const LayersShared& shared) {
    if constexpr (CLASS_WEIGHTS) {
        const ClassWeights& own = part_of<ClassWeights>(shared);
        return WeighedClasses{own.weights, *own.mean};
    } else {
        return EvenClasses{};
    }
}

// The sample weight of a row, which follows its target.
__device__ inline float sample_weight(const float* target) {
    return WEIGHTED ? target[TARGET_WORDS] : 1;
}

// A row's target.
__device__ inline const float* target_of(const LayersShared& shared, int slot, int row) {
    return shared.targets[slot][SEES_ALL_TARGETS ? first_row() + row : row];
}

// The weight of a batch: its rows', added up.
__device__ inline float weigh_batch(const LayersShared& shared, int slot, int count) {
    if (!WEIGHTED && !CLASS_WEIGHTS) return count;
    float sum = 0;
    for (int row = threadIdx.x % 32; row < count; row += 32) {
        const float* target = shared.targets[slot][row];
        float weight = sample_weight(target);
        if constexpr (CLASS_WEIGHTS)
            weight *= part_of<ClassWeights>(shared).weights[label_of(target)];
        sum += weight;
    }
    return reduce_warp<Sum>(sum);
}

// Those of the outputs, which wait for their exponent where their sums were.
__device__ inline void settle_gradients(LayersShared& shared, float largest) {
    constexpr int L = LAYERS - 1, CHUNKS = Shape<L>::BLOCK_CHUNKS;
    const int exponent = common_exponent(shared, largest);
    const float factor = power(-exponent);
    Eighths::each([&](int, int eighth) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const float2 pair = Forward<L>::own_place(shared.sums, eighth, chunk);
            set_units(layer_of<L>(shared.layers).dz, Piece{eighth, chunk}, 0, factor * pair.x,
                      factor * pair.y);
        }
    });
    set_exponents(exponents_of_gradients<L>(shared), CHUNKS, exponent);
}

// From the sums of the last product to the gradients of the outputs. Of rows that are not there
// they are 0.
__device__ inline void find_gradients(LayersShared& shared, const LayersRun& run, int slot,
                                      int count, float weight, Rests& rests) {
    using Weights = Forward<LAYERS - 1>;
    LayerRows<LAYERS - 1>& outputs = layer_of<LAYERS - 1>(shared.layers);
    const float factor = weight > 0 ? run.scale / weight : 0;
    float largest = 0;
    // Gradients of cross-entropy are at most the factor.
    constexpr bool IS_BOUNDED = LOSS::HAS_LABELS && !WEIGHTED && !CLASS_WEIGHTS;
    const int exponent = SCALES && IS_BOUNDED ? exponent_of(factor) : 0;
    const float scale = SCALES ? power(-exponent) : 1;
    Eighths::each([&](int i, int eighth) {
        const auto outputs_of = [&](int chunk) {
            float2 sums = {};
            if (chunk < Shape<LAYERS - 1>::BLOCK_CHUNKS)
                sums = Weights::sums_of(shared.sums, eighth, chunk);
            const int unit = Piece{eighth, chunk}.unit();
            const float2 bias = *reinterpret_cast<const float2*>(&outputs.biases.values[unit]);
            return float2{sums.x + bias.x, sums.y + bias.y};
        };
        const int row = Piece{eighth, 0}.row();
        const float* target = target_of(shared, slot, row);
        const float own_factor = row < count ? factor * sample_weight(target) : 0;
        rests[i] = find_row_gradients<2 * OUT_TILES, OUTPUTS>(
            target, own_factor, run.loss, own_classes(shared), outputs_of,
            [&](int chunk, float first, float second) {
                if constexpr (!SCALES || IS_BOUNDED) {
                    if (SCALES) first *= scale, second *= scale;
                    set_units(outputs.dz, Piece{eighth, chunk}, 0, first, second);
                } else if (chunk < Shape<LAYERS - 1>::BLOCK_CHUNKS) {  // others stay 0
                    Weights::own_place(shared.sums, eighth, chunk) = {first, second};
                    take_largest(largest, {first, second});
                }
            });
    });
    if constexpr (SCALES && IS_BOUNDED) {
        set_exponents(exponents_of_gradients<LAYERS - 1>(shared), Shape<LAYERS - 1>::BLOCK_CHUNKS,
                      exponent);
    } else if constexpr (SCALES) {
        settle_gradients(shared, largest);
    }
}

// The losses of this warp's rows.
__device__ inline void find_losses(LayersShared& shared, const LayersRun& run, int pass, int slot,
                                   int count, const Rests& rests) {
    Eighths::each([&](int i, int eighth) {
        const int row = Piece{eighth, 0}.row();
        const float* target = target_of(shared, slot, row);
        RowLoss loss = find_row_loss(rests[i], label_of(target), run.loss, OUTPUTS,
                                     own_classes(shared), row < count);
        loss.loss *= sample_weight(target);
        if (threadIdx.x % 4 == 0) shared.losses[pass % 2][row] = loss;
    });
}

// Until all units of layer L are there.
template <int L>
__device__ inline void await_units(LayersShared& shared, int pass) {
    constexpr int COPIES = LayerRows<L>::COPIES;
    if constexpr (CLUSTER > 1) {
        await_bytes(layer_of<L>(shared.layers).y_full[pass % COPIES], pass / COPIES,
                    Shape<L>::bytes_of_others());
    }
}

// Until all gradients that the backward pass needs of layer L are there.
template <int L>
__device__ inline void await_gradients(LayersShared& shared, int step) {
    if constexpr (CLUSTER > 1 && L > 0) {
        await_bytes(layer_of<L>(shared.layers).dz_full, step, Shape<L>::bytes_of_others());
    }
}
