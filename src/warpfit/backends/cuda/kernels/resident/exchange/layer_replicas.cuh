// The weights of one_launch_layers.cu where several clusters, replicas, partition the rows of each
// batch.
//
// All replicas have the same weights, rounded to 16 bits for products. In float32, with all
// optimizer state of it, a weight has one owner. A step goes
//
//     gradients of a replica's rows ──► their owner: adds up those of all replicas, updates ──► all
//     blocks that multiply by it
//
// through memory, quad by quad: four weights that a thread has of a tile. A thread sends gradients
// to the thread of its number in a block of its rank, and takes weights from there; in addition
// owners send each weight to where the backward pass takes it. Biases are few: each replica adds up
// all their gradients, and updates all of them alike.
//
// Several cards have the same replicas. What an owner has added up it leaves on all cards, for the
// owner of its number there; each adds up what came of all cards, and updates its own copy alike.
#pragma once

#include "resident/exchange/replica_exchange.cuh"

// All weights of a block as products take them, and those that this thread owns.
template <int NUM_REPLICAS>
struct ReplicaNetwork {
    const LayersShared& shared;
    LayersExchange* exchanges;
    unsigned forward[TERMS][FORWARD_TILES][4], backward[TERMS][larger(BACKWARD_TILES, 1)][4];
    float weights[OWN_QUADS][4], slots[SLOT_PLACES][OWN_QUADS][4];
    // Where the backward pass takes a quad's lower and upper units from.
    unsigned places[OWN_QUADS][2];
    unsigned owned = 0;            // of quads that are there, a bit each
    unsigned counted[2] = {0, 0};  // and of those whose lower or upper units this block counts

    __device__ ReplicaNetwork(LayersShared& shared, const LayersRun& run)
        : shared(shared), exchanges(run.exchanges) {}

    __device__ LayersExchange& own_exchange() const { return exchanges[own_rank()]; }

    // f(i, its number among a warp's quads) for each quad that this thread owns.
    template <class F>
    __device__ void each_own(F f) const {
#pragma unroll
        for (int i = 0; i < OWN_QUADS; ++i) {
            if (owns(i)) f(i, i * NUM_REPLICAS + own_replica());
        }
    }

    // f(number, its place in memory) for each number of owned quads; of layers that all ranks have,
    // only of the first's if `is_once`.
    template <class Places, class F>
    __device__ void each_number(const Places& places, bool is_once, F f) {
        each_own([&](int i, int quad) {
            quad = Places::index(quad);
            at_tile(quad / 2, [&](auto layer, int tile) {
                constexpr int L = decltype(layer)::VALUE;
                using Weights = typename Forward<L>::Weights;
                if (is_once && !Shape<L>::IS_SHARED_OUT && own_rank() > 0) return;
#pragma unroll
                for (int part = 0; part < 4; ++part) {
                    const int unit = Weights::unit_of(tile / Weights::MINE_K, part),
                              input =
                                  Weights::feature_of(tile % Weights::MINE_K, quad % 2 * 4 + part);
                    if (unit >= Shape<L>::count() || input >= WIDTHS[L]) continue;
                    const int64 place =
                        static_cast<int64>(input) * WIDTHS[L + 1] + Shape<L>::first() + unit;
                    f(weights[i][part], places.template weights<L>(-1) + place);
                    for (int slot = 0; slot < Places::NUM_SLOTS; ++slot)
                        f(slots[slot][i][part], places.template weights<L>(slot) + place);
                }
            });
        });
    }

    // Where, in words from the first rank's exchange on, the backward pass takes a weight of layer
    // L from, if anybody does. The next input's is 16 words further.
    template <int L>
    __device__ unsigned backward_place(int unit, int input) const {
        if constexpr (L > 0) {
            using Product = Backward<L>;
            using Weights = typename Product::Weights;
            if (unit >= Shape<L>::count() || input >= WIDTHS[L]) return NOWHERE;
            const int rank = Shape<L - 1>::IS_SHARED_OUT ? Shape<L - 1>::rank_of(input) : 0;
            // Weights of the outputs are in all ranks.
            if (!Shape<L>::IS_SHARED_OUT && rank != own_rank()) return NOWHERE;
            const int row = input - Shape<L - 1>::first_of(rank), col = Shape<L>::first() + unit;
            const int row_tile = row / 16, col_tile = col / 16;
            const int warp =
                row_tile / Weights::MINE_U * Product::GROUPS_K + col_tile % Product::GROUPS_K;
            const int tile =
                row_tile % Weights::MINE_U * Weights::MINE_K + col_tile / Product::GROUPS_K;
            const int quad = 2 * (First<L>::BACKWARD + tile) + col % 16 / 8;
            const int thread = 32 * warp + row % 8 * 4 + col % 8 / 2,
                      word = row % 16 / 8 * 2 + col % 2;
            const uint4* first = reinterpret_cast<const uint4*>(exchanges);
            return static_cast<unsigned>(&exchanges[rank].backward[0][quad][thread] - first) * 4 +
                   word;
        } else {
            return NOWHERE;
        }
    }

    // Finds out what this thread owns.
    __device__ void find_own() {
#pragma unroll
        for (int i = 0; i < OWN_QUADS; ++i) {
            const int quad = i * NUM_REPLICAS + own_replica();
            if (quad >= QUADS) continue;
            at_tile(quad / 2, [&](auto layer, int tile) {
                constexpr int L = decltype(layer)::VALUE;
                using Weights = typename Forward<L>::Weights;
                if (!has_tile<Forward<L>>(tile)) return;
                owned |= 1U << i;
                const bool counts = Shape<L>::IS_SHARED_OUT || own_rank() == 0;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int unit = Weights::unit_of(tile / Weights::MINE_K, 2 * half),
                              input = Weights::feature_of(tile % Weights::MINE_K, quad % 2 * 4);
                    places[i][half] = backward_place<L>(unit, input);
                    counted[half] |= static_cast<unsigned>(counts && unit < Shape<L>::count()) << i;
                }
            });
        }
    }

    __device__ void read(const Arrays& arrays) {
        find_own();
#pragma unroll
        for (int i = 0; i < OWN_QUADS * 4; ++i) {
            weights[i / 4][i % 4] = 0;
            for (int slot = 0; slot < SLOTS; ++slot) slots[slot][i / 4][i % 4] = 0;
        }
        each_number(arrays, false, [](float& number, const float* place) { number = *place; });
        each_own([&](int i, int quad) { send_weights(i, quad, 0); });
    }

    template <class Places>
    __device__ void write(const Places& places) {
        each_number(places, true, [](float number, float* place) { *place = number; });
    }

    __device__ void keep(const BestArrays& best) { write(best); }

    // Times which products take a quad.
    __device__ float scale_of([[maybe_unused]] int quad) const {
        float scale = 1;
        if constexpr (SCALES) {
            at_tile(quad / 2, [&](auto layer, int) {
                scale = part_of<Scales>(shared).layers[decltype(layer)::VALUE].weights;
            });
        }
        return scale;
    }

    // Sends a quad to all blocks that multiply by it in a step.
    __device__ void send_weights(int i, int quad, int step) const {
        const float scale = scale_of(quad);
        const float numbers[1][4] = {{weights[i][0] * scale, weights[i][1] * scale,
                                      weights[i][2] * scale, weights[i][3] * scale}};
        send(&own_exchange().weights[quad][threadIdx.x], 0, step, numbers);
        unsigned* words =
            reinterpret_cast<unsigned*>(exchanges) + step % 2 * (BACK_QUADS * THREADS * 4);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (places[i][half] == NOWHERE) continue;
            store_relaxed(words + places[i][half], marked(numbers[0][2 * half], step / 2));
            store_relaxed(words + places[i][half] + 16, marked(numbers[0][2 * half + 1], step / 2));
        }
    }

    // What all weights have become in `step` steps.
    __device__ void begin(int step) {
        const LayersExchange& exchange = own_exchange();
        if (LAYERS > 1) {
            receive_tiles(
                backward, step / 2,
                [&](int tile, int half) {
                    return &exchange.backward[step % 2][2 * tile + half][threadIdx.x];
                },
                words_of_backward);
        }
        receive_tiles(
            forward, step,
            [&](int tile, int half) { return &exchange.weights[2 * tile + half][threadIdx.x]; },
            [](int tile, int) {
                bool is_there = false;
                at_tile(tile, [&](auto layer, int tile) {
                    is_there = has_tile<Forward<decltype(layer)::VALUE>>(tile);
                });
                return is_there ? ALL_WORDS : 0;
            });
    }

    // Which words of half a tile are weights, and not beyond the last.
    __device__ static unsigned words_of_backward(int tile, int half) {
        unsigned words = 0;
        at_backward_tile(tile, [&](auto layer, int tile) {
            constexpr int L = decltype(layer)::VALUE;
            using Weights = typename Backward<L>::Weights;
            if (!has_tile<Backward<L>>(tile)) return;
            constexpr bool IS_WHOLE =
                Shape<L - 1>::UNITS % 16 == 0 && Shape<L>::UNITS % 16 == 0 &&
                (!Shape<L - 1>::IS_SHARED_OUT ||
                 (Shape<L - 1>::BLOCK_UNITS % 16 == 0 &&
                  Shape<L - 1>::BLOCK_UNITS * CLUSTER == Shape<L - 1>::UNITS));
            words = ALL_WORDS;
            if (IS_WHOLE) return;
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const int input = Weights::unit_of(tile / Weights::MINE_K, part),
                          unit = Weights::feature_of(tile % Weights::MINE_K, half * 4 + part);
                if (input >= Shape<L - 1>::count() || unit >= WIDTHS[L + 1]) words &= ~(1U << part);
            }
        });
        return words;
    }

    template <int L, class Rows>
    __device__ void multiply_forward(LayersShared& shared, const LayersRun&,
                                     const Rows& rows) const {
        multiply<Forward<L>, FORWARD_TILES>(shared, rows, forward, First<L>::FORWARD);
    }
    template <int L>
    __device__ void multiply_backward(LayersShared& shared, const LayersRun&,
                                      const UnitRows& rows) const {
        multiply<Backward<L>, BACKWARD_TILES>(shared, rows, backward, First<L>::BACKWARD);
    }

    // By the tiles from `first` on.
    template <class Product, int TILES, class Rows>
    __device__ static void multiply(LayersShared& shared, const Rows& rows,
                                    const unsigned (&tiles)[TERMS][TILES][4], int first) {
        if (!Product::is_mine()) return;
        typename Product::Fragments b;
#pragma unroll
        for (int i = 0; i < TERMS * Product::Weights::MINE * 4; ++i) {
            const int term = i / (Product::Weights::MINE * 4),
                      word = i % (Product::Weights::MINE * 4);
            (&b[term][0][0][0][0])[word] = tiles[term][first + word / 4][word % 4];
        }
        Product::multiply(shared.sums, rows, b);
    }

    // No step leaves anything to the next.
    __device__ void catch_up(LayersShared&, const LayersRun&, const Now&) {}

    // Layer L's gradients are there: they are sent to their owners.
    template <int L>
    __device__ void take(LayersShared& shared, const LayersRun& run, const Now& now) const {
        using Weights = typename Forward<L>::Weights;
        LayersExchange& exchange = own_exchange();
        const UnitRows dz = gradients_of<L>(shared);
        const int chunk = Shape<L>::first_gradient() / CHUNK_UNITS;
        const LayerScales scales = of_gradients<L>(shared, run);
        Forward<L>::each_gradient(dz, chunk, inputs_of<L>(shared, now.pass.index()),
                                  [&](int u, int j, float (&sums)[2][4]) {
                                      const int quad =
                                          2 * (First<L>::FORWARD + u * Weights::MINE_K + j);
#pragma unroll
                                      for (int i = 0; i < 8; ++i)
                                          sums[i / 4][i % 4] *= scales.of_weights;
                                      send(&exchange.gradients[own_replica()][quad][threadIdx.x],
                                           THREADS, now.step, sums);
                                  });
        Forward<L>::each_bias_gradient(dz, chunk, [&](int unit, float sum) {
            store_relaxed(&exchange.biases[now.step % 2][own_replica()][First<L>::BIAS + unit],
                          marked(sum * scales.of_biases, now.step / 2));
        });
    }

    // All gradients are on their way: what this thread owns takes them in, and is sent.
    __device__ void finish(LayersShared& shared, const LayersRun& run, const Now& now) {
        constexpr bool IS_WHOLE = CLIPS || CARDS > 1;
        float sums[OWN_QUADS][4], of_biases[OWN_BIASES], unscale = run.unscale;
        if (IS_WHOLE) {
#pragma unroll
            for (int first = 0; first < OWN_QUADS; first += GROUP) {
                receive_gradients(now.step, first, sums);
                if constexpr (CARDS > 1) send_to_cards(run, now.step, first, sums);
            }
            receive_biases(now.step, of_biases);
        }
        if constexpr (CARDS > 1) add_up_cards(run, now.step, sums, of_biases);
        if (CLIPS) {
            unscale *= clip_factor(run, sum_of_all(shared, now.step, sum_squares(sums, of_biases)));
        }
#pragma unroll
        for (int first = 0; first < OWN_QUADS; first += GROUP) {
            if (!IS_WHOLE) receive_gradients(now.step, first, sums);
#pragma unroll
            for (int i = first; i < smaller(first + GROUP, OWN_QUADS); ++i) {
                if (!owns(i)) continue;
                update(i, sums[i], unscale, now, run);
                send_weights(i, i * NUM_REPLICAS + own_replica(), now.step + 1);
            }
        }
        if (!IS_WHOLE) receive_biases(now.step, of_biases);
        each_own_bias([&](int i, auto layer, int unit) {
            constexpr int L = decltype(layer)::VALUE;
            layer_of<L>(shared.layers)
                .biases.update(unit, of_biases[i], unscale, now.settings, run.rule);
        });
    }

    // The sum of the squares of the weights that this thread owns.
    __device__ float sum_squared() const { return sum_counted(weights); }

  private:
    static constexpr unsigned NOWHERE = ~0U;
    // Own quads whose gradients are waited for at once.
    static constexpr int GROUP = larger(AT_ONCE / NUM_REPLICAS, 1);

    __device__ bool owns(int i) const { return owned >> i & 1; }

    // The sum of the squares of numbers of own quads, each of one rank.
    __device__ float sum_counted(const float (&numbers)[OWN_QUADS][4]) const {
        float squares = 0;
#pragma unroll
        for (int i = 0; i < OWN_QUADS * 4; ++i) {
            const float number = numbers[i / 4][i % 4];
            if (counted[i % 4 / 2] >> (i / 4) & 1) squares += number * number;
        }
        return squares;
    }

    // The gradients of own quads from `first` on, added up over the replicas in their order.
    __device__ void receive_gradients(int step, int first, float (&sums)[OWN_QUADS][4]) const {
        const LayersExchange& exchange = own_exchange();
        const auto place = [&](int i) {
            const int quad = (first + i / NUM_REPLICAS) * NUM_REPLICAS + own_replica();
            return &exchange.gradients[i % NUM_REPLICAS][quad][threadIdx.x];
        };
        const auto is_there = [&](int i) {
            return first + i / NUM_REPLICAS < OWN_QUADS && owns(first + i / NUM_REPLICAS);
        };
        float numbers[GROUP * NUM_REPLICAS][4];
        receive(numbers, step, place, is_there);
#pragma unroll
        for (int i = first; i < smaller(first + GROUP, OWN_QUADS); ++i) {
            float (&sum)[4] = sums[i];
            sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
            for (int replica = 0; replica < NUM_REPLICAS; ++replica) {
                const float (&quad)[4] = numbers[(i - first) * NUM_REPLICAS + replica];
#pragma unroll
                for (int part = 0; part < 4; ++part) sum[part] += quad[part];
            }
        }
    }

    // Leaves this card's sums of a group of own quads on all cards, itself included.
    __device__ void send_to_cards(const LayersRun& run, int step, int first,
                                  const float (&sums)[OWN_QUADS][4]) const {
#pragma unroll
        for (int i = first; i < smaller(first + GROUP, OWN_QUADS); ++i) {
            if (!owns(i)) continue;
            const int quad = i * NUM_REPLICAS + own_replica();
            const float numbers[1][4] = {{sums[i][0], sums[i][1], sums[i][2], sums[i][3]}};
#pragma unroll
            for (int card = 0; card < CARDS; ++card) {
                CardSums& there = run.card_sums[card][own_rank()];
                send<true>(&there.of_cards[run.card].gradients[step % 2][quad][threadIdx.x], 0,
                           step / 2, numbers);
            }
        }
    }

    // From this card's sums to those of all cards, in their order.
    __device__ void add_up_cards(const LayersRun& run, int step, float (&sums)[OWN_QUADS][4],
                                 float (&of_biases)[OWN_BIASES]) const {
        const CardSums& here = run.card_sums[run.card][own_rank()];
        if (own_replica() == 0) {
            each_own_bias([&](int i, auto, int) {
#pragma unroll
                for (int card = 0; card < CARDS; ++card) {
                    CardSums& there = run.card_sums[card][own_rank()];
                    leave<true>(
                        &there.of_cards[run.card].biases[step % 2][i * THREADS + threadIdx.x],
                        marked(of_biases[i], step / 2));
                }
            });
        }
        constexpr int QUADS_AT_ONCE = larger(AT_ONCE / CARDS, 1);
#pragma unroll
        for (int first = 0; first < OWN_QUADS; first += QUADS_AT_ONCE) {
            float numbers[QUADS_AT_ONCE * CARDS][4];
            receive<true>(
                numbers, step / 2,
                [&](int i) {
                    const int quad = (first + i / CARDS) * NUM_REPLICAS + own_replica();
                    return &here.of_cards[i % CARDS].gradients[step % 2][quad][threadIdx.x];
                },
                [&](int i) { return first + i / CARDS < OWN_QUADS && owns(first + i / CARDS); });
#pragma unroll
            for (int i = 0; i < smaller(QUADS_AT_ONCE, OWN_QUADS - first) * 4; ++i) {
                float sum = 0;
#pragma unroll
                for (int card = 0; card < CARDS; ++card)
                    sum += numbers[i / 4 * CARDS + card][i % 4];
                sums[first + i / 4][i % 4] = sum;
            }
        }
        each_own_bias([&](int i, auto, int) {
            of_biases[i] = receive_sum<CARDS, true>(step, [&](int card) {
                return &here.of_cards[card].biases[step % 2][i * THREADS + threadIdx.x];
            });
        });
    }

    __device__ void update(int i, const float (&sum)[4], float unscale, const Now& now,
                           const LayersRun& run) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const auto slot = [&](int idx) -> float& { return slots[idx][i][part]; };
            update_in_place(weights[i][part], slot, sum[part], unscale, now.settings,
                            now.of_weights);
        }
    }

    // f(i, layer, unit) for each of this block's biases that falls to this thread.
    template <class F>
    __device__ static void each_own_bias(F f) {
#pragma unroll
        for (int i = 0; i < OWN_BIASES; ++i) {
            const int bias = i * THREADS + threadIdx.x;
            if (bias >= BIASES) continue;
            at_bias(bias, [&](auto layer, int unit) {
                if (unit < Shape<decltype(layer)::VALUE>::count()) f(i, layer, unit);
            });
        }
    }

    // The gradients of those biases, added up likewise.
    __device__ void receive_biases(int step, float (&sums)[OWN_BIASES]) const {
        bool is_there[OWN_BIASES] = {};
        each_own_bias([&](int i, auto, int) { is_there[i] = true; });
#pragma unroll
        for (int i = 0; i < OWN_BIASES; ++i) {
            if (is_there[i]) {
                sums[i] = receive_sum(step, [&](int replica) {
                    return &own_exchange().biases[step % 2][replica][i * THREADS + threadIdx.x];
                });
            }
        }
    }

    // The sum of what SENDERS, replicas or cards, have left at place(sender) in a step.
    template <int SENDERS = NUM_REPLICAS, bool OF_CARDS = false, class F>
    __device__ static float receive_sum(int step, F place) {
        unsigned words[SENDERS];
        for (Patience patience;; patience.wait()) {
            unsigned missing = 0;
#pragma unroll
            for (int sender = 0; sender < SENDERS; ++sender)
                words[sender] = look<OF_CARDS>(place(sender));
#pragma unroll
            for (int sender = 0; sender < SENDERS; ++sender)
                missing |= words[sender] ^ mark_of(step / 2);
            if ((missing & LAST_BIT) == 0) break;
        }
        float sum = 0;
#pragma unroll
        for (int sender = 0; sender < SENDERS; ++sender) sum += without_last_bit(words[sender]);
        return sum;
    }

    // The sum of the squares of this thread's gradients, each of one thread of all.
    __device__ float sum_squares(const float (&sums)[OWN_QUADS][4],
                                 const float (&of_biases)[OWN_BIASES]) const {
        float squares = sum_counted(sums);
        each_own_bias([&](int i, auto layer, int) {
            const bool counts = Shape<decltype(layer)::VALUE>::IS_SHARED_OUT || own_rank() == 0;
            if (counts && own_replica() == 0) squares += of_biases[i] * of_biases[i];
        });
        return squares;
    }

    // The sum of a number over all threads of all replicas.
    __device__ float sum_of_all(LayersShared& shared, int step, float number) const {
        LayersExchange& exchange = own_exchange();
        const float sum = sum_of_cluster(shared, step, number);
        if (threadIdx.x == 0)
            store_relaxed(&exchange.squares[step % 2][own_replica()], marked(sum, step / 2));
        return receive_sum(step, [&](int replica) { return &exchange.squares[step % 2][replica]; });
    }
};
