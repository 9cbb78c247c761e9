// What a block of one_launch_card.cu does with a layer: products forward and back, activations, and
// updates. Units of a layer belong to a cluster, and of their rows pieces to the rank that adds
// them up; every block owns its tile of weights.
// Users: one_launch_card.cu.
#pragma once

#include "resident/exchange/card_exchange.cuh"

template <int L>
__device__ inline Rows inputs_of(CardShared& shared, const Now& now) {
    return {&part_of<L>(shared).inputs[now.step % LayerPart<L>::BATCHES][0][0],
            WeightTile<L>::INPUT_STRIDE};
}

template <int L>
__device__ inline T (&gradients_of(CardShared& shared))
    [ROWS][GRADIENT_STRIDE] { return shared.gradients[PARITY_OF<L>]; }

// A number of the piece of layer L's units that a rank finds: its row in the batch, and its unit in
// the tile.
template <int L>
struct Place {
    int row, unit;

    __device__ explicit Place(int i)
        : row(own_rank() * PIECE_ROWS + i / WeightTile<L>::UNITS), unit(i % WeightTile<L>::UNITS) {}

    __device__ int unit_in_layer() const { return WeightTile<L>::first_unit() + unit; }
    __device__ bool is_sent() const { return unit_in_layer() < WeightTile<L>::SENT_UNITS; }
};

// What threads keep of their units until gradients come: the derivatives of the activations.
template <int L>
struct Derivatives {
    float values[WeightTile<L>::TURNS];
};

// Layer L's weights as products take them, forward and back.
template <int L>
__device__ inline TransposedColumns forward_weights(CardShared& shared) {
    return {&part_of<L>(shared).weights[0][0], WeightTile<L>::STRIDE};
}
template <int L>
__device__ inline Columns backward_weights(CardShared& shared) {
    return {&part_of<L>(shared).weights[0][0], WeightTile<L>::STRIDE};
}

// This rank's part of the sums of layer L's units: each row's go to the rank that finds its units.
template <int L>
__device__ inline void multiply_forward(CardShared& shared, const Now& now) {
    using Own = WeightTile<L>;
    float* parts = shared.parts[PARITY_OF<L>] + own_rank() * Own::PIECE;
    each_tile<ROW_TILES, Own::UNITS / 16, Own::INPUTS / 16>(
        inputs_of<L>(shared, now), forward_weights<L>(shared),
        [&](const float (&sums)[4], int row, int unit) {
            const Quad quad(sums);
            row += quad.row;
            send_quad(row / PIECE_ROWS, parts + row % PIECE_ROWS * Own::UNITS + unit + quad.column,
                      quad.numbers, shared.parts_full[PARITY_OF<L>]);
        });
}

// f(turn, place, z, is_there) for this rank's units, when all ranks' parts have come.
template <int L, class F>
__device__ inline void each_sum(CardShared& shared, const Now& now, F f) {
    using Own = WeightTile<L>;
    await_bytes(shared.parts_full[PARITY_OF<L>], now.step * PHASES<L, HIDDEN_LAYERS> + L / 2,
                CLUSTER * Own::PIECE * sizeof(float));
    const float* parts = shared.parts[PARITY_OF<L>];
    each_number<Own::PIECE>([&](int turn, int i, bool is_there) {
        const Place<L> place(is_there ? i : 0);
        float z = part_of<L>(shared).biases[0][place.unit];
#pragma unroll
        for (int rank = 0; rank < CLUSTER; ++rank)
            z += parts[rank * Own::PIECE + (is_there ? i : 0)];
        f(turn, place, z, is_there);
    });
}

// From the ranks' sums to layer L's units: those of the last hidden layer go to this cluster, which
// multiplies by them; the others to all.
template <int L>
__device__ inline void activate_units(CardShared& shared, const CardRun& run, const Now& now,
                                      Derivatives<L>& derivatives) {
    each_sum<L>(shared, now, [&](int turn, const Place<L>& place, float z, bool is_there) {
        auto found = activated<ACTIVATIONS[L]>(z, SLOPES[L]);
        if (place.unit_in_layer() >= WIDTHS[L + 1]) found = {0, 0};
        derivatives.values[turn] = found.derivative;
        if constexpr (Places<L>::IS_INNER) {
            unsigned* words =
                words_of(run, now) + Places<L>::UNITS + place.row * WeightTile<L>::SENT_UNITS;
            const float rounded = unpacked<T>(packed<T>(found.value, 0)).x;
            if (is_there && place.is_sent())
                store_relaxed(words + place.unit_in_layer(), marked(rounded, now.turn()));
        } else {
            broadcast(found.value, &part_of<L + 1>(shared).inputs[0][place.row][place.unit / 8 * 8],
                      shared.last_full, is_there);
        }
    });
}

// The derivatives of the last hidden layer's activation go to this cluster, too.
template <int L>
__device__ inline void share_derivatives(CardShared& shared, const Derivatives<L>& derivatives) {
    each_number<WeightTile<L>::PIECE>([&](int turn, int i, bool is_there) {
        const Place<L> place(is_there ? i : 0);
        broadcast(derivatives.values[turn], &shared.derivatives[place.row][place.unit / 8 * 8],
                  shared.last_full, is_there);
    });
}

// Layer L's inputs of this rank, from all clusters that have some.
template <int L>
__device__ inline void receive_inputs(CardShared& shared, const CardRun& run, const Now& now) {
    constexpr int SENT = WeightTile<L - 1>::SENT_UNITS, QUADS = WeightTile<L>::INPUTS / 4,
                  ALL = ROWS * QUADS;
    constexpr int TURNS = (ALL + THREADS - 1) / THREADS;
    const unsigned* words = words_of(run, now) + Places<L - 1>::UNITS;
    const auto row_of = [](int turn) {
        return (turn * THREADS + static_cast<int>(threadIdx.x)) / QUADS;
    };
    const auto column_of = [](int turn) {
        return (turn * THREADS + static_cast<int>(threadIdx.x)) % QUADS * 4;
    };
    float numbers[TURNS][4];
    receive(
        numbers, now.turn(),
        [&](int turn) {
            const int place = row_of(turn) * SENT + WeightTile<L>::first_input() + column_of(turn);
            return reinterpret_cast<const uint4*>(words + place);
        },
        [&](int turn) {
            return row_of(turn) < ROWS && WeightTile<L>::first_input() + column_of(turn) < SENT;
        });
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        if (row_of(turn) >= ROWS) break;
        const float (&quad)[4] = numbers[turn];
        *reinterpret_cast<uint2*>(&part_of<L>(shared).inputs[0][row_of(turn)][column_of(turn)]) =
            uint2{packed<T>(quad[0], quad[1]), packed<T>(quad[2], quad[3])};
    }
}

// Tiles of 16 rows that a rank's piece may lie in.
constexpr int TILES_OF_PIECE = 16 % PIECE_ROWS == 0   ? 1
                               : PIECE_ROWS % 16 == 0 ? PIECE_ROWS / 16
                                                      : smaller(ROW_TILES, PIECE_ROWS / 16 + 2);

// This cluster's part of the outputs of this rank's rows, which goes to all blocks.
__device__ inline void multiply_last(CardShared& shared, const CardRun& run, const Now& now) {
    using Last = WeightTile<LAYERS - 1>;
    unsigned* words =
        words_of(run, now) + Places<LAYERS - 1>::SUMS + own_cluster() * Places<LAYERS - 1>::SENT;
    const int first_row = smaller(own_rank() * PIECE_ROWS / 16, ROW_TILES - TILES_OF_PIECE) * 16;
    Rows inputs = inputs_of<LAYERS - 1>(shared, now);
    inputs.first += first_row * inputs.stride;
    each_tile<TILES_OF_PIECE, Last::UNITS / 16, Last::INPUTS / 16>(
        inputs, forward_weights<LAYERS - 1>(shared),
        [&](const float (&sums)[4], int row, int unit) {
            leave_tile(sums, now.turn(), [&](int quad_row, int column) -> unsigned* {
                const int in_batch = first_row + row + quad_row;
                const bool is_own = in_batch / PIECE_ROWS == own_rank();
                if (!is_own || unit + column >= Last::SENT_UNITS) return nullptr;
                return words + in_batch * Last::SENT_UNITS + unit + column;
            });
        });
}

// The outputs of all rows, without their biases.
__device__ inline void receive_outputs(CardShared& shared, const CardRun& run, const Now& now) {
    using Last = WeightTile<LAYERS - 1>;
    constexpr int SENT = Last::SENT_UNITS, ALL = ROWS * SENT;
    const unsigned* words = words_of(run, now) + Places<LAYERS - 1>::SUMS;
    each_number<ALL>([&](int, int i, bool is_there) {
        const float sum = sum_of_clusters(words + i / 4 * 4, ALL, now.turn(), is_there);
        if (is_there) shared.outputs[i / SENT][i % SENT] = sum;
    });
}

// The gradients of all of this cluster's units of the last hidden layer.
__device__ inline void differentiate_last(CardShared& shared) {
    constexpr int L = HIDDEN_LAYERS - 1;
    using Last = WeightTile<LAYERS - 1>;
    each_tile<ROW_TILES, Last::INPUTS / 16, Last::UNITS / 16>(
        Rows{&shared.output_gradients[0][0], OUTPUT_STRIDE}, backward_weights<LAYERS - 1>(shared),
        [&](const float (&sums)[4], int row, int unit) {
            const int lane = threadIdx.x % 32;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int own_row = row + lane / 4 + 8 * half, own_unit = unit + lane % 4 * 2;
                const float2 derivative = unpacked<T>(
                    *reinterpret_cast<unsigned*>(&shared.derivatives[own_row][own_unit]));
                *reinterpret_cast<unsigned*>(&gradients_of<L>(shared)[own_row][own_unit]) =
                    packed<T>(sums[2 * half] * derivative.x, sums[2 * half + 1] * derivative.y);
            }
        });
}

// This cluster's part of the gradients of layer L's inputs, which are units of the layer below.
template <int L>
__device__ inline void multiply_back(CardShared& shared, const CardRun& run, const Now& now) {
    using Own = WeightTile<L>;
    constexpr int SENT = WeightTile<L - 1>::SENT_UNITS;
    unsigned* words =
        words_of(run, now) + Places<L - 1>::SUMS + own_cluster() * Places<L - 1>::SENT;
    each_tile<ROW_TILES, Own::INPUTS / 16, Own::UNITS / 16>(
        Rows{&gradients_of<L>(shared)[0][0], GRADIENT_STRIDE}, backward_weights<L>(shared),
        [&](const float (&sums)[4], int row, int input) {
            leave_tile(sums, now.turn(), [&](int quad_row, int column) -> unsigned* {
                const int in_layer = Own::first_input() + input + column;
                return in_layer < SENT ? words + (row + quad_row) * SENT + in_layer : nullptr;
            });
        });
}

// From the clusters' parts to the gradients of layer L's units, which go to this cluster.
template <int L>
__device__ inline void differentiate_units(CardShared& shared, const CardRun& run, const Now& now,
                                           const Derivatives<L>& derivatives) {
    using Own = WeightTile<L>;
    const unsigned* words = words_of(run, now) + Places<L>::SUMS;
    each_number<Own::PIECE>([&](int turn, int i, bool is_there) {
        const Place<L> place(is_there ? i : 0);
        const int quad = place.unit_in_layer() / 4 * 4;
        const float sum = sum_of_clusters(words + place.row * Own::SENT_UNITS + quad,
                                          Places<L>::SENT, now.turn(), is_there && place.is_sent());
        broadcast(sum * derivatives.values[turn],
                  &gradients_of<L>(shared)[place.row][place.unit / 8 * 8],
                  shared.gradients_full[PARITY_OF<L>], is_there);
    });
}

// Until all of them are there.
template <int L>
__device__ inline void await_gradients(CardShared& shared, const Now& now) {
    constexpr int LATER = HIDDEN_LAYERS - 2 - L;
    await_bytes(shared.gradients_full[PARITY_OF<L>],
                now.step * PHASES<L, HIDDEN_LAYERS - 1> + LATER / 2,
                (CLUSTER - 1) * WeightTile<L>::PIECE * sizeof(T));
    __syncthreads();
}

// Takes in the gradients of layer L's biases: `dz` are its units'.
template <int L>
__device__ inline void update_biases(CardShared& shared, const CardRun& run, const Now& now,
                                     const T* dz, int stride) {
    auto& biases = part_of<L>(shared).biases;
    // From the last warps on, which have the fewest tiles.
    for (int unit = THREADS - 1 - static_cast<int>(threadIdx.x); unit < WeightTile<L>::UNITS;
         unit += THREADS) {
        float sum = 0;
#pragma unroll 8
        for (int row = 0; row < ROWS; ++row) sum += load(dz[row * stride + unit]);
        const auto slot = [&](int i) -> float& { return biases[1 + i][unit]; };
        update_in_place(biases[0][unit], slot, sum, run.unscale, now.settings, run.rule);
    }
}

// Where a lane has the quads of a fragment of weights.
template <int L>
struct WeightQuads {
    float4* first;

    __device__ WeightQuads(CardShared& shared, const CardRun& run, int input, int unit)
        : first(quads_of<L>(shared, run) +
                (input / 16 * (WeightTile<L>::UNITS / 8) + unit / 8) * (1 + SLOTS) * 32 +
                threadIdx.x % 32) {}

    __device__ float4& weights() const { return first[0]; }
    __device__ float4& slot(int i) const { return first[(1 + i) * 32]; }
};

// A quad's four numbers of an array.
__device__ inline float& number_of(float4& quad, int part) { return (&quad.x)[part]; }

// Writes the rounded weights of a fragment to where products take them from.
template <int L>
__device__ inline void round_weights(CardShared& shared, const float4& quad, int input, int unit) {
    const int lane = threadIdx.x % 32;
    T* place = &part_of<L>(shared).weights[input + lane / 4][unit + lane % 4 * 2];
    *reinterpret_cast<unsigned*>(place) = packed<T>(quad.x, quad.y);
    *reinterpret_cast<unsigned*>(place + 8 * WeightTile<L>::STRIDE) = packed<T>(quad.z, quad.w);
}

// Takes the gradients of layer L's parameters in: `dz` are its units'.
template <int L>
__device__ inline void update_layer(CardShared& shared, const CardRun& run, const Now& now,
                                    const T* dz, int stride) {
    using Own = WeightTile<L>;
    Gradients<Own::INPUTS / 16, Own::UNITS / 8>::each_tile(
        inputs_of<L>(shared, now), dz, stride, [&](const float (&sums)[4], int input, int unit) {
            const WeightQuads<L> quads(shared, run, input, unit);
            float4 weights = quads.weights(), slots[SLOT_PLACES];
#pragma unroll
            for (int i = 0; i < SLOTS; ++i) slots[i] = quads.slot(i);
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const auto slot = [&](int i) -> float& { return number_of(slots[i], part); };
                update_in_place(number_of(weights, part), slot, sums[part], run.unscale,
                                now.settings, run.rule);
            }
            quads.weights() = weights;
#pragma unroll
            for (int i = 0; i < SLOTS; ++i) quads.slot(i) = slots[i];
            round_weights<L>(shared, weights, input, unit);
        });
    update_biases<L>(shared, run, now, dz, stride);
}

// f(number, its place in memory) for each number that a block has of layer L's parameters, and of
// their optimizer state. Of what several blocks have alike, to write takes only one.
template <int L, bool WRITES, class F>
__device__ inline void each_parameter(CardShared& shared, const CardRun& run, const Arrays& arrays,
                                      F f) {
    using Own = WeightTile<L>;
    const bool has_biases = !WRITES || (own_rank() == 0 && (!Own::IS_LAST || own_cluster() == 0));
    for (int unit = threadIdx.x; unit < Own::UNITS && has_biases; unit += THREADS) {
        if (Own::first_unit() + unit >= WIDTHS[L + 1]) break;
        for (int slot = -1; slot < SLOTS; ++slot)
            f(part_of<L>(shared).biases[1 + slot][unit],
              arrays.template biases<L>(slot) + Own::first_unit() + unit);
    }
    if (WRITES && Own::IS_LAST && own_rank() > 0) return;
    const int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < Own::FRAGMENTS; i += WARPS) {
        const int input = i / (Own::UNITS / 8) * 16, unit = i % (Own::UNITS / 8) * 8;
        const WeightQuads<L> quads(shared, run, input, unit);
        for (int part = 0; part < 4; ++part) {
            const int row = Own::first_input() + input + lane / 4 + part / 2 * 8;
            const int column = Own::first_unit() + unit + lane % 4 * 2 + part % 2;
            if (row >= WIDTHS[L] || column >= WIDTHS[L + 1]) continue;
            const int64 place = static_cast<int64>(row) * WIDTHS[L + 1] + column;
            f(number_of(quads.weights(), part), arrays.template weights<L>(-1) + place);
            for (int slot = 0; slot < SLOTS; ++slot)
                f(number_of(quads.slot(slot), part), arrays.template weights<L>(slot) + place);
        }
    }
}

// Layer L's parameters; those beyond the layer's are 0.
template <int L>
__device__ inline void read_layer(CardShared& shared, const CardRun& run, const Arrays& arrays) {
    float4* quads = quads_of<L>(shared, run);
    for (int i = threadIdx.x; i < WeightTile<L>::QUADS * 32; i += THREADS)
        quads[i] = float4{0, 0, 0, 0};
    __syncthreads();
    each_parameter<L, false>(shared, run, arrays,
                             [](float& number, const float* place) { number = *place; });
    for (int i = threadIdx.x / 32; i < WeightTile<L>::FRAGMENTS; i += WARPS) {
        const int input = i / (WeightTile<L>::UNITS / 8) * 16,
                  unit = i % (WeightTile<L>::UNITS / 8) * 8;
        round_weights<L>(shared, WeightQuads<L>(shared, run, input, unit).weights(), input, unit);
    }
}
