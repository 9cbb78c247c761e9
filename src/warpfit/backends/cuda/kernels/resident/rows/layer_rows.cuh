// The rows of one_launch_layers.cu on their way: from the sums of a product to units, to the
// gradients of outputs, and to those of units; and how the blocks of a cluster come to have each
// other's. A block owns its units of all rows, and has copies of the others' in the same places.
#pragma once

#include "resident/products/layer_products.cuh"

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

// The rows that layer L takes in a pass.
template <int L>
__device__ inline auto inputs_of(LayersShared& shared, int pass) {
    if constexpr (L == 0) {
        return BatchRows{&shared.x[pass % X_SLOTS][0][0][0]};
    } else {
        return UnitRows(layer_of<L - 1>(shared.layers).units(pass));
    }
}

template <int L>
__device__ inline UnitRows gradients_of(LayersShared& shared) {
    return UnitRows(layer_of<L>(shared.layers).dz);
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

// f(piece) for this warp's pieces of this block's units of layer L. The compiler inlines what is in
// them in two steps, which takes up to 18 registers fewer than in one.
template <int L, class F>
__device__ inline void each_turn(F f) {
    constexpr int CHUNKS = Shape<L>::BLOCK_CHUNKS, PIECES = ROWS / 8 * CHUNKS;
    const int count = Shape<L>::own_chunks();
#pragma unroll(TURNS<L> <= 2 ? TURNS<L> : 1)
    for (int turn = 0; turn < TURNS<L>; ++turn) {
        const int i = turn * WARPS + threadIdx.x / 32;
        if (i < PIECES && i % CHUNKS < count) f(Piece{i / CHUNKS, i % CHUNKS});
    }
}

template <int L, class F>
__device__ inline void each_piece(F f) {
    each_turn<L>([&](const Piece& piece) { f(piece); });
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

// Where this lane's two derivatives of a piece of layer L are.
template <int L>
__device__ inline Derivative* derivatives_at(LayersShared& shared, const Piece& piece) {
    return &layer_of<L>(shared.layers)
                .derivatives[piece.chunk][piece.row()][Piece::column_of_lane()];
}

// Sends this block's units of layer L, which are there, to all others.
template <int L, int COUNT>
__device__ inline void broadcast([[maybe_unused]] const LayersRun& run,
                                 [[maybe_unused]] const T (&units)[TERMS][COUNT][ROWS][CHUNK_UNITS],
                                 [[maybe_unused]] const Barrier& full) {
    if constexpr (CLUSTER == 1) return;
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
    const uint32 unit = Shape<L>::first() + piece.unit(), row = first_row(run.card) + piece.row();
    const Words words = dropout.words(run.first_step + step, row, unit / 4, run.key);
    const bool is_upper = unit % 4 >= 2;
    return {dropout.factor(is_upper ? words.word[2] : words.word[0]),
            dropout.factor(is_upper ? words.word[3] : words.word[1])};
}

// From z, which a unit's inputs and bias add up to, to layer L's units of a piece, and the
// activation's derivatives.
template <int L>
__device__ inline void activate_piece(LayersShared& shared, const LayersRun& run,
                                      const Passes& pass, const Piece& piece, const float2& z,
                                      float scale) {
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
    set_units(rows.units(pass.index()), piece, Shape<L>::first() / CHUNK_UNITS,
              low.value * (factors.x * scale), high.value * (factors.y * scale));
    const float2 derivatives = {low.derivative * factors.x, high.derivative * factors.y};
    Derivative* place = derivatives_at<L>(shared, piece);
    if constexpr (SCALES) {
        *reinterpret_cast<float2*>(place) = derivatives;
    } else {
        *reinterpret_cast<unsigned*>(place) = packed<T>(derivatives.x, derivatives.y);
    }
}

// Sends this block's units of layer L to all others, when all of its threads have found theirs.
template <int L>
__device__ inline void send_units(LayersShared& shared, const LayersRun& run, int pass) {
    LayerRows<L>& rows = layer_of<L>(shared.layers);
    LayerRows<L>::MUST_MEET ? barrier_of_cluster() : __syncthreads();
    broadcast<L>(run, rows.units(pass), rows.y_full[pass % LayerRows<L>::COPIES]);
}

// From the sums of the product to layer L's units, which go to all blocks.
template <int L>
__device__ inline void activate_units(LayersShared& shared, const LayersRun& run,
                                      const Passes& pass) {
    const LayerScales scales = scales_of<L>(shared, run);
    each_piece<L>([&](const Piece& piece) {
        const float2 sums = Forward<L>::sums_of(shared.sums, piece.eighth, piece.chunk);
        const float2 bias = *reinterpret_cast<const float2*>(
            &layer_of<L>(shared.layers).biases.values[piece.unit()]);
        activate_piece<L>(shared, run, pass, piece,
                          {sums.x * scales.sums + bias.x, sums.y * scales.sums + bias.y},
                          scales.units);
    });
    send_units<L>(shared, run, pass.index());
}

// From the sums of the product with the weights of the layer above to the gradients before layer
// L's activation, which go to all blocks if any block needs them.
template <int L>
__device__ inline void differentiate_units(LayersShared& shared, const LayersRun& run) {
    using Weights = Backward<L + 1>;
    LayerRows<L>& rows = layer_of<L>(shared.layers);
    const float scale = scales_of<L>(shared, run).gradients;
    each_piece<L>([&](const Piece& piece) {
        const Derivative* place = derivatives_at<L>(shared, piece);
        float2 derivative;
        if constexpr (SCALES) {
            derivative = *reinterpret_cast<const float2*>(place);
        } else {
            derivative = unpacked<T>(*reinterpret_cast<const unsigned*>(place));
        }
        const float2 dy = Weights::sums_of(shared.sums, piece.eighth, piece.chunk);
        set_units(rows.dz, piece, Shape<L>::first_gradient() / CHUNK_UNITS,
                  dy.x * scale * derivative.x, dy.y * scale * derivative.y);
    });
    __syncthreads();
    if constexpr (L > 0) broadcast<L>(run, rows.dz, rows.dz_full);
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
__device__ inline const float* target_of(const LayersShared& shared, const LayersRun& run, int slot,
                                         int row) {
    return shared.targets[slot][SEES_ALL_TARGETS ? first_row(run.card) + row : row];
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

// From the sums of the last product to the gradients of the outputs. Of rows that are not there
// they are 0.
__device__ inline void find_gradients(LayersShared& shared, const LayersRun& run, int slot,
                                      int count, float weight, Rests& rests) {
    using Weights = Forward<LAYERS - 1>;
    LayerRows<LAYERS - 1>& outputs = layer_of<LAYERS - 1>(shared.layers);
    const float factor = weight > 0 ? run.scale / weight : 0;
    const float of_sums = scales_of<LAYERS - 1>(shared, run).sums;
    Eighths::each([&](int i, int eighth) {
        const auto outputs_of = [&](int chunk) {
            float2 sums = {};
            if (chunk < Shape<LAYERS - 1>::BLOCK_CHUNKS)
                sums = Weights::sums_of(shared.sums, eighth, chunk);
            const int unit = Piece{eighth, chunk}.unit();
            const float2 bias = *reinterpret_cast<const float2*>(&outputs.biases.values[unit]);
            return float2{sums.x * of_sums + bias.x, sums.y * of_sums + bias.y};
        };
        const int row = Piece{eighth, 0}.row();
        const float* target = target_of(shared, run, slot, row);
        const float own_factor = row < count ? factor * sample_weight(target) : 0;
        rests[i] = find_row_gradients<2 * OUT_TILES, OUTPUTS>(
            target, own_factor, run.loss, own_classes(shared), outputs_of,
            [&](int chunk, float first, float second) {
                set_units(outputs.dz, Piece{eighth, chunk}, 0, first, second);
            });
    });
}

// The losses of this warp's rows.
__device__ inline void find_losses(LayersShared& shared, const LayersRun& run, int pass, int slot,
                                   int count, const Rests& rests) {
    Eighths::each([&](int i, int eighth) {
        const int row = Piece{eighth, 0}.row();
        const float* target = target_of(shared, run, slot, row);
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
