// What a block of one_launch_card.cu does with a layer: products forward and back, activations, and
// updates. Units of a layer belong to a cluster, and of their rows pieces to the rank that adds
// them up; every block owns its tile of weights.
#pragma once

#include "resident/update/streamed_weights.cuh"

// A number of the piece of layer L's units that a rank finds: its row in the batch, and its unit in
// the tile. Where ranks are apart, four rows of a unit lie side by side.
template <int L>
struct Place {
    static constexpr int UNITS = WeightTile<L>::UNITS, ROWS_OF_QUAD = APART ? 4 : 1;
    int row, unit;

    __device__ explicit Place(int i)
        : row(rank_here() * PIECE_ROWS + i / (UNITS * ROWS_OF_QUAD) * ROWS_OF_QUAD +
              i % ROWS_OF_QUAD),
          unit(i / ROWS_OF_QUAD % UNITS) {}

    __device__ int unit_in_layer() const { return WeightTile<L>::first_unit() + unit; }
    __device__ bool is_sent() const { return unit_in_layer() < WeightTile<L>::SENT_UNITS; }
};

// What threads keep of their units until gradients come: the derivatives of the activations.
template <int L>
struct Derivatives {
    float values[WeightTile<L>::TURNS];
};

// Where a rank of this cluster finds the parts of all in memory.
template <int L>
__device__ inline unsigned* parts_left(const CardRun& run, const Now& now, int rank) {
    return words_of(run, now.forward()) + Places<L>::PARTS +
           (own_cluster() * RANKS + rank) * RANKS * WeightTile<L>::PIECE;
}

// This rank's part of the sums of layer L's units: each row's go to the rank that finds its units.
template <int L, bool TRAINS>
__device__ inline void multiply_forward(CardShared& shared, const CardRun& run, Ring& ring,
                                        const Now& now) {
    using Own = WeightTile<L>;
    auto& inputs = inputs_of<L>(shared, now);
    const int own_parts = rank_here() * Own::PIECE;
    if constexpr (APART) {
        const auto leave = [&](const Quad& quad, int unit, int row) {
            const int place = (row % PIECE_ROWS / 4 * Own::UNITS + unit) * 4;
            leave_quad(parts_left<L>(run, now, row / PIECE_ROWS) + own_parts + place, quad,
                       now.forward().turn());
        };
        if constexpr (IS_STREAMED<L>) {
            stream_forward<L, TRAINS>(inputs, run, ring, leave);
        } else {
            each_quad<Own::UNITS, Own::INPUTS, true>(part_of<L>(shared).weights, inputs, leave);
        }
    } else {
        each_tile<ROW_TILES, Own::UNITS / 16, Own::INPUTS / 16>(
            inputs, 0, columns(part_of<L>(shared).weights),
            [&](const float (&sums)[4], int row, int unit) {
                const Quad quad(sums);
                row += quad.row;
                const float* place = shared.parts(PARITY_OF<L>) + own_parts +
                                     row % PIECE_ROWS * Own::UNITS + unit + quad.column;
                send_quad(row / PIECE_ROWS, place, quad.numbers, shared.parts_full[PARITY_OF<L>]);
            });
    }
}

// f(turn, place, z, is_there) for this rank's units, when all ranks' parts have come.
template <int L, class F>
__device__ inline void each_sum(CardShared& shared, const CardRun& run, const Now& now, F f) {
    using Own = WeightTile<L>;
    if constexpr (!APART)
        await_bytes(shared.parts_full[PARITY_OF<L>],
                    now.forward().number * PHASES<L, HIDDEN_LAYERS> + L / 2,
                    RANKS * Own::PIECE * sizeof(float));
    each_number<Own::PIECE>([&](int turn, int i, bool is_there) {
        const Place<L> place(is_there ? i : 0);
        float z = biases_of<L>(shared)[0][place.unit];
        if constexpr (APART) {
            z += sum_of<RANKS>(parts_left<L>(run, now, rank_here()) + i / 4 * 4, Own::PIECE,
                               now.forward().turn(), is_there);
        } else {
            const float* parts = shared.parts(PARITY_OF<L>);
#pragma unroll
            for (int rank = 0; rank < RANKS; ++rank)
                z += parts[rank * Own::PIECE + (is_there ? i : 0)];
        }
        f(turn, place, z, is_there);
    });
}

__device__ inline float rounded(float number) { return unpacked<T>(packed<T>(number, 0)).x; }

// Leaves a number of a unit in memory, among those that begin at FIRST.
template <int L>
__device__ inline void leave_unit(const CardRun& run, const Use& use, int first,
                                  const Place<L>& place, float number) {
    unsigned* words = words_of(run, use) + first + place.row * WeightTile<L>::SENT_UNITS;
    if (place.is_sent()) store_relaxed(words + place.unit_in_layer(), marked(number, use.turn()));
}

// A unit of the last hidden layer, where this block multiplies by it.
template <int L>
__device__ inline void keep_last_unit(CardShared& shared, const Place<L>& place, unsigned word) {
    *part_of<L + 1>(shared).inputs[0].at(place.row, place.unit) = T{static_cast<uint16>(word)};
}

// A unit of the last hidden layer and its derivative, which lies in the lower half of a word and
// loses a bit, for the ranks that are apart; and for this one.
template <int L, class Found>
__device__ inline void leave_last_unit(CardShared& shared, const CardRun& run, const Now& now,
                                       const Place<L>& place, const Found& found) {
    const unsigned word = packed<T>(found.derivative, found.value) & ~LAST_BIT;
    leave_unit<L>(run, now.back(), Places<L>::UNITS, place, __uint_as_float(word));
    keep_last_unit<L>(shared, place, word >> 16);
    *shared.derivatives().at(place.row, place.unit) = T{static_cast<uint16>(word)};
}

// What dropout multiplies this thread's units of a layer by.
struct KeptUnits {
    unsigned bits = 0;  // one for each that is kept
    float scale;

    __device__ float factor(int turn) const { return bits >> turn & 1 ? scale : 0; }
};

template <int L>
__device__ inline KeptUnits kept_units(const CardRun& run, const Now& now) {
    static_assert(WeightTile<L>::TURNS <= 32, "a bit for each number of a thread");
    const Dropout dropout = run.dropouts[L];
    KeptUnits kept{0, dropout.scale};
    each_number<WeightTile<L>::PIECE>([&](int turn, int i, bool) {
        const Place<L> place(i);
        const uint32 unit = place.unit_in_layer();
        const Words words = dropout.words(run.first_step + now.step, place.row, unit / 4, run.key);
        const bool is_upper = unit % 4 >= 2;
        const uint32 even = is_upper ? words.word[2] : words.word[0],
                     odd = is_upper ? words.word[3] : words.word[1];
        kept.bits |= dropout.keeps(unit % 2 ? odd : even) << turn;
    });
    return kept;
}

// From the ranks' sums to layer L's units: those of the last hidden layer go to this cluster, which
// multiplies by them; the others to all. Only to train takes more of the former than this rank's.
template <int L, bool TRAINS>
__device__ inline void activate_units(CardShared& shared, const CardRun& run, const Now& now,
                                      Derivatives<L>& derivatives) {
    [[maybe_unused]] KeptUnits kept;  // found while sums are in flight
    if constexpr (TRAINS && DROPOUTS[L]) kept = kept_units<L>(run, now);
    each_sum<L>(shared, run, now, [&](int turn, const Place<L>& place, float z, bool is_there) {
        auto found = activated<ACTIVATIONS[L]>(z, SLOPES[L]);
        if (place.unit_in_layer() >= WIDTHS[L + 1]) found = {0, 0};
        if constexpr (TRAINS && DROPOUTS[L]) {
            found.value *= kept.factor(turn);
            found.derivative *= kept.factor(turn);
        }
        derivatives.values[turn] = found.derivative;
        if constexpr (Places<L>::IS_INNER) {
            if (is_there)
                leave_unit<L>(run, now.forward(), Places<L>::UNITS, place, rounded(found.value));
        } else if constexpr (!TRAINS) {
            if (is_there) keep_last_unit<L>(shared, place, packed<T>(found.value, 0));
        } else if constexpr (APART) {
            if (is_there) leave_last_unit<L>(shared, run, now, place, found);
        } else {
            broadcast(found.value,
                      part_of<L + 1>(shared).inputs[0].at(place.row, place.unit / 8 * 8),
                      shared.last_full, is_there);
        }
    });
}

// The derivatives of the last hidden layer's activation go to this cluster, too.
template <int L>
__device__ inline void share_derivatives(CardShared& shared, const Derivatives<L>& derivatives) {
    each_number<WeightTile<L>::PIECE>([&](int turn, int i, bool is_there) {
        const Place<L> place(is_there ? i : 0);
        broadcast(derivatives.values[turn], shared.derivatives().at(place.row, place.unit / 8 * 8),
                  shared.last_full, is_there);
    });
}

// Layer L's inputs of this rank, from all clusters that have some.
template <int L>
__device__ inline void receive_inputs(CardShared& shared, const CardRun& run, const Now& now) {
    receive_rows<WeightTile<L>::INPUTS, WeightTile<L - 1>::SENT_UNITS>(
        words_of(run, now.forward()) + Places<L - 1>::UNITS, WeightTile<L>::first_input(),
        now.forward().turn(), [&](int row, int column, const float (&quad)[4]) {
            *reinterpret_cast<uint2*>(part_of<L>(shared).inputs[0].at(row, column)) =
                packed_quad(quad);
        });
}

// Units of the last hidden layer, and their derivatives, of all other ranks that are apart.
template <int L>
__device__ inline void receive_last_units(CardShared& shared, const CardRun& run, const Now& now) {
    receive_rows<WeightTile<L>::UNITS, WeightTile<L>::SENT_UNITS>(
        words_of(run, now.back()) + Places<L>::UNITS, WeightTile<L>::first_unit(),
        now.back().turn(), [&](int row, int unit, const float (&quad)[4]) {
            if (row / PIECE_ROWS == rank_here()) return;
            const auto words = [&](int shift) -> uint2 {
                const auto pair = [&](int i) {
                    return (__float_as_uint(quad[i]) >> shift & 0xffff) |
                           __float_as_uint(quad[i + 1]) >> shift << 16;
                };
                return {pair(0), pair(2)};
            };
            *reinterpret_cast<uint2*>(part_of<LAYERS - 1>(shared).inputs[0].at(row, unit)) =
                words(16);
            *reinterpret_cast<uint2*>(shared.derivatives().at(row, unit)) = words(0);
        });
}

// Tiles of 16 rows that a rank's piece may lie in.
constexpr int TILES_OF_PIECE = 16 % PIECE_ROWS == 0   ? 1
                               : PIECE_ROWS % 16 == 0 ? PIECE_ROWS / 16
                                                      : smaller(ROW_TILES, PIECE_ROWS / 16 + 2);

// This cluster's part of the outputs of this rank's rows, which goes to all blocks.
__device__ inline void multiply_last(CardShared& shared, const CardRun& run, const Now& now) {
    using Last = WeightTile<LAYERS - 1>;
    unsigned* words = words_of(run, now.forward()) + Places<LAYERS - 1>::SUMS +
                      own_cluster() * Places<LAYERS - 1>::SENT;
    const int first_row = smaller(rank_here() * PIECE_ROWS / 16, ROW_TILES - TILES_OF_PIECE) * 16;
    each_tile<TILES_OF_PIECE, Last::UNITS / 16, Last::INPUTS / 16>(
        inputs_of<LAYERS - 1>(shared, now), first_row, columns(part_of<LAYERS - 1>(shared).weights),
        [&](const float (&sums)[4], int row, int unit) {
            leave_tile(sums, now.forward().turn(), [&](int quad_row, int column) -> unsigned* {
                const int in_batch = first_row + row + quad_row;
                const bool is_own = in_batch / PIECE_ROWS == rank_here();
                if (!is_own || unit + column >= Last::SENT_UNITS) return nullptr;
                return words + in_batch * Last::SENT_UNITS + unit + column;
            });
        });
}

// The outputs of all rows, without their biases.
__device__ inline void receive_outputs(CardShared& shared, const CardRun& run, const Now& now) {
    using Last = WeightTile<LAYERS - 1>;
    constexpr int SENT = Last::SENT_UNITS, ALL = ROWS * SENT;
    const unsigned* words = words_of(run, now.forward()) + Places<LAYERS - 1>::SUMS;
    each_number<ALL>([&](int, int i, bool is_there) {
        const float sum = sum_of<CLUSTERS>(words + i / 4 * 4, ALL, now.forward().turn(), is_there);
        if (is_there) shared.outputs[i / SENT][i % SENT] = sum;
    });
}

// The gradients of all of this cluster's units of the last hidden layer.
__device__ inline void differentiate_last(CardShared& shared) {
    constexpr int L = HIDDEN_LAYERS - 1;
    using Last = WeightTile<LAYERS - 1>;
    each_tile<ROW_TILES, Last::INPUTS / 16, Last::UNITS / 16>(
        shared.output_gradients, 0, transposed_columns(part_of<LAYERS - 1>(shared).weights),
        [&](const float (&sums)[4], int row, int unit) {
            const int lane = threadIdx.x % 32;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int own_row = row + lane / 4 + 8 * half, own_unit = unit + lane % 4 * 2;
                const float2 derivative = unpacked<T>(
                    *reinterpret_cast<unsigned*>(shared.derivatives().at(own_row, own_unit)));
                *reinterpret_cast<unsigned*>(gradients_of<L>(shared).at(own_row, own_unit)) =
                    packed<T>(sums[2 * half] * derivative.x, sums[2 * half + 1] * derivative.y);
            }
        });
}

// This cluster's part of the gradients of layer L's inputs, which are units of the layer below.
// Streamed weights are updated at once, of the first layer without a product.
template <int L>
__device__ inline void multiply_back(CardShared& shared, const CardRun& run, Ring& ring,
                                     const Now& now) {
    using Own = WeightTile<L>;
    constexpr int SENT = L == 0 ? 0 : WeightTile < L == 0 ? 0 : L - 1 > ::SENT_UNITS;
    unsigned* words =
        words_of(run, now.back()) + Places<L - 1>::SUMS + own_cluster() * Places<L - 1>::SENT;
    auto& dz = gradients_of<L>(shared);
    if constexpr (APART) {
        const auto leave = [&](const Quad& quad, int input, int row) {
            const int in_layer = Own::first_input() + input;
            if (in_layer < SENT)
                leave_quad(words + (row / 4 * SENT + in_layer) * 4, quad, now.back().turn());
        };
        if constexpr (IS_STREAMED<L>) {
            stream_back<L>(inputs_of<L>(shared, now), dz, run, ring, now, leave);
        } else {
            each_quad<Own::INPUTS, Own::UNITS, false>(part_of<L>(shared).weights, dz, leave);
        }
    } else {
        each_tile<ROW_TILES, Own::INPUTS / 16, Own::UNITS / 16>(
            dz, 0, transposed_columns(part_of<L>(shared).weights),
            [&](const float (&sums)[4], int row, int input) {
                leave_tile(sums, now.back().turn(), [&](int quad_row, int column) -> unsigned* {
                    const int in_layer = Own::first_input() + input + column;
                    return in_layer < SENT ? words + (row + quad_row) * SENT + in_layer : nullptr;
                });
            });
    }
}

// From the clusters' parts to the gradients of layer L's units, which go to this cluster.
template <int L>
__device__ inline void differentiate_units(CardShared& shared, const CardRun& run, const Now& now,
                                           const Derivatives<L>& derivatives) {
    using Own = WeightTile<L>;
    const unsigned* words = words_of(run, now.back()) + Places<L>::SUMS;
    each_number<Own::PIECE>([&](int turn, int i, bool is_there) {
        const Place<L> place(is_there ? i : 0);
        const int unit = place.unit_in_layer(),
                  quad = APART ? (place.row / 4 * Own::SENT_UNITS + unit) * 4
                               : place.row * Own::SENT_UNITS + unit / 4 * 4;
        const float sum = sum_of<CLUSTERS>(words + quad, Places<L>::SENT, now.back().turn(),
                                           is_there && place.is_sent());
        const float gradient = sum * derivatives.values[turn];
        if constexpr (APART) {
            if (is_there)
                leave_unit<L>(run, now.back(), Places<L>::GRADIENTS, place, rounded(gradient));
        } else {
            broadcast(gradient, gradients_of<L>(shared).at(place.row, place.unit / 8 * 8),
                      shared.gradients_full[PARITY_OF<L>], is_there);
        }
    });
}

// Until all of them are there.
template <int L>
__device__ inline void await_gradients(CardShared& shared, const CardRun& run, const Now& now) {
    constexpr int LATER = HIDDEN_LAYERS - 2 - L;
    if constexpr (APART) {
        receive_rows<WeightTile<L>::UNITS, WeightTile<L>::SENT_UNITS>(
            words_of(run, now.back()) + Places<L>::GRADIENTS, WeightTile<L>::first_unit(),
            now.back().turn(), [&](int row, int unit, const float (&quad)[4]) {
                *reinterpret_cast<uint2*>(gradients_of<L>(shared).at(row, unit)) =
                    packed_quad(quad);
            });
    } else {
        await_bytes(shared.gradients_full[PARITY_OF<L>],
                    now.step * PHASES<L, HIDDEN_LAYERS - 1> + LATER / 2,
                    (RANKS - 1) * WeightTile<L>::PIECE * sizeof(T));
    }
    meet_for_products();
}
