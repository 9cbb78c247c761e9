// The first layer of one_launch_layers.cu where it looks ahead, as look_ahead.cuh does: while a batch is on its way back, the
// next one is multiplied by weights that lack its gradient, and the Gram matrix of both says what they lack. So the
// way from one step to the next leads neither through the products of the first layer nor through its update, which
// comes in parts while units of the next batch are on their way.
#pragma once

#if AHEAD
#include "resident/update/layer_weights.cuh"

static_assert(CLUSTER > 1 && LAYERS > 3, "gradients of two layers go to other blocks");
static_assert(Shape<1>::ALL_HAVE_UNITS, "all hear of a block's gradients, and of its second units");
static_assert((X_SLOTS == 2 || X_SLOTS == 3) && UNIT_COPIES == 2,
              "a batch is there beside the one before, or the next");
static_assert(TURNS<0> <= 2, "registers have what is found ahead");
static_assert(REPLICAS == 1 && !CLIPS && !PENALIZED && TERMS == 1, "what others add is not known ahead");

// What a thread has of the next batch's units before their activation.
class Ahead {
  public:
    // Multiplies the next batch, while layer L's gradients are on their way.
    template <int L>
    __device__ void multiply(Shared& shared, const Run& run, const Now& now, const Network& network) {
        if (!Shape<L>::IS_LAST) return;
        const int next = now.pass.index() + 1;
        forecast = forecast_of(now.settings, run.rule);
        read_gram(run, now.step + 1);
        wait(shared.x_full[next % X_SLOTS], next / X_SLOTS);
        network.multiply_ahead(parts_of(shared, next), inputs_of<0>(shared, next), forecast);
    }

    // Adds up what all warps have found, when they have multiplied layer L's gradients.
    template <int L>
    __device__ void add_up(Shared& shared, const Now& now) {
        if (L != LAYERS - 2) return;
        const Parts* parts = parts_of(shared, now.pass.index() + 1);
        const Biases<0>& biases = layer_of<0>(shared.layers).biases;
        each_turn<0>([&](int turn, const Piece& piece) {
            const float2 sums = Forward<0>::sums_of(parts, piece.eighth, piece.chunk);
            const auto bias = [&](int unit) {
                return forecast.value(biases.values[unit], biases.slots[0][unit]);
            };
            z[turn] = float2{sums.x + bias(piece.unit()), sums.y + bias(piece.unit() + 1)};
        });
    }

    // Adds the gradients of this batch, which are there for the first layer, and sends the next one's units.
    template <int L>
    __device__ void activate(Shared& shared, const Run& run, const Now& now) const {
        if (L > 0) return;
        const Passes next = now.pass.next();
        const float factor = forecast.of_gradient * run.unscale * gram_scale;
        each_turn<0>([&](int turn, const Piece& piece) {
            float sums[2][4] = {};  // of even and odd tiles; of the piece's rows, and of others that are 0
#pragma unroll
            for (int other = 0; other < ROW_TILES; other += 2) {
                constexpr int SIZE = 16 * CHUNK_UNITS;
                unsigned gradients[2][2];
                load_b_pair_transposed(gradients[0], gradients[1],
                                       tile_of(gradients_of<0>(shared), other, piece.chunk, 0), CHUNK_UNITS,
                                       other + 1 < ROW_TILES ? SIZE : 0);
#pragma unroll
                for (int i = 0; i < smaller(2, ROW_TILES - other); ++i) {
                    const RowWords& words = gram[turn][other + i];
                    const unsigned rows[4] = {words.words[0], 0, words.words[1], 0};
                    TensorCore<T>::multiply(sums[i], rows, gradients[i]);
                }
            }
            const float2 found = {z[turn].x + (sums[0][0] + sums[1][0]) * factor,
                                  z[turn].y + (sums[0][1] + sums[1][1]) * factor};
            activate_piece<0>(shared, run, next, piece, found);
        });
        send_units<0>(shared, run, next.index());
    }

  private:
    Forecast forecast;
    float2 z[TURNS<0>];
    RowWords gram[TURNS<0>][ROW_TILES];
    float gram_scale;

    // The parts of the product lie where the next first units come. Others send those when they have heard of this
    // block's last gradients, which come after the parts are added up. All but what pads these units is written anew.
    __device__ static Parts* parts_of(Shared& shared, int next) {
        using Units = Chunks<up(Shape<0>::UNITS, CHUNK_UNITS)>;
        static_assert(sizeof(Parts) * Forward<0>::SUMS_NEEDED <= sizeof(Units), "all parts have a place");
        return reinterpret_cast<Parts*>(&layer_of<0>(shared.layers).units(next));
    }

    // Of each piece's rows, with those of the batch before.
    __device__ void read_gram(const Run& run, int step) {
        each_turn<0>([&](int turn, const Piece& piece) {
            const int64 row = static_cast<int64>(step) * 2 * ROW_TILES + piece.eighth;
#pragma unroll
            for (int other = 0; other < ROW_TILES; ++other)
                gram[turn][other] = run.gram[(row * ROW_TILES + other) * 32 + threadIdx.x % 32];
        });
        gram_scale = run.gram_scales[step];
    }
};
#else
// Everything waits for its turn.
struct Ahead {
    template <int L>
    __device__ void multiply(Shared&, const Run&, const Now&, const Network&) {}
    template <int L>
    __device__ void add_up(Shared&, const Now&) {}
    template <int L>
    __device__ void activate(Shared&, const Run&, const Now&) const {}
};
#endif
