// Computes:  from dy, the gradients of outputs of member_layers_forward_sm90.cu, dz_l, those of the
//            layers' sums, and of each block what it adds to the gradients of all that is a
//            member's own: scales, biases and heads. dx, of the unscaled inputs, too, if asked for.
// Layout:    as there; dz_l as h_l; dy as y, dx (members, rows, inputs) or null; partials as in
//            member_partials.cuh, block after block. dz_l takes the place of what is kept of the
//            layer: a block's 64 rows are as large, and nobody else reads them.
// Launch:    as there.
// Numerics:  products of bfloat16 with float32 sums in the order of k; all else in float32: sums
//            over rows by trees within a warp, then over warps in their order.
// Cost:      2 rows UNITS (inputs + (L - 1) UNITS + 2 outputs) FLOP a member; a cluster reads all
//            weights once, from L2.
// Reference: TabM.vjp of tabular/tabm_network.py.
#define SHARED_ALIGNMENT 1024

#include "base/reduce.cuh"
#include "ops/members/member_partials.cuh"
#include "ops/members/member_products.cuh"

constexpr int SUMS_AT_ONCE = 2;

struct BackwardShared {
    unsigned char rows[UNITS / PANEL][PANEL_BYTES];
    Rings rings;
    Vectors vectors;
    Head head;
    float sums[SUMS_AT_ONCE][4][UNITS];  // over the rows of each warp of a half
};

static_assert(sizeof(BackwardShared) == SHARED_BYTES, "member_layers.py counts them");

// -- sums over rows -------------------------------------------------------------------------------

// Two lanes that lie 2 COUNT apart add up 2 COUNT values, of which each keeps COUNT.
template <int COUNT>
__device__ inline void share_sums(float (&values)[PAIRS], int lane) {
    const bool is_upper = lane & 2 * COUNT;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const float sent = is_upper ? values[i] : values[i + COUNT];
        const float stays = is_upper ? values[i + COUNT] : values[i];
        values[i] = stays + __shfl_xor_sync(0xffffffffu, sent, 2 * COUNT);
    }
}

// Adds up values of 8 lanes that have the same units: of 16 each a lane is left with the sums of
// the two of tile lane / 4.
__device__ inline float2 sums_over_lanes(float (&values)[PAIRS], int lane) {
    share_sums<8>(values, lane);
    share_sums<4>(values, lane);
    share_sums<2>(values, lane);
    return {values[0], values[1]};
}

// A warp's sums of a group that begins at a unit.
__device__ inline void put_sums(float (&sums)[4][UNITS], const Worker& own, int unit,
                                float (&values)[PAIRS]) {
    *reinterpret_cast<float2*>(sums[own.warp] + unit + 2 * own.lane) =
        sums_over_lanes(values, own.lane);
}

// All workers: what the warps have put adds up to numbers of the block's partials.
__device__ inline void add_warps(BackwardShared& shared, const Worker& own, int count, int size,
                                 float* to, int stride) {
    meet();
    for (int i = 0; i < count; ++i) {
        for (int unit = own.number; unit < size; unit += WORKERS) {
            float sum = shared.sums[i][0][unit];
#pragma unroll
            for (int warp = 1; warp < 4; ++warp) sum += shared.sums[i][warp][unit];
            to[i * stride + unit] = sum;
        }
    }
    meet();
}

// -- units ----------------------------------------------------------------------------------------

// A group of a layer as the forward pass left it.
struct KeptGroup {
    unsigned words[PAIRS];  // packed pairs
    unsigned bits;

    __device__ void load(const Kept& of_layer, int group) {
        bits = of_layer.bits_at(group);
#pragma unroll
        for (int i = 0; i < PAIRS / 4; ++i) {
            const uint4 four = of_layer.sums_at(group, i);
            words[4 * i] = four.x;
            words[4 * i + 1] = four.y;
            words[4 * i + 2] = four.z;
            words[4 * i + 3] = four.w;
        }
    }

    __device__ float2 sums(int tile, int lower) const {
        return unpacked<T>(words[2 * tile + lower]);
    }
    __device__ bool is_kept(int tile, int lower, int i) const {
        return bits >> bit_of(tile, lower, i) & 1;
    }
};

// Gradients of a group that have arrived, in the order of bit_of.
using Arrived = float[2 * PAIRS];

// From those of h_(l+1) to dz_l, which becomes rows, and sums over rows.
__device__ inline void group_backward(BackwardShared& shared, const Vectors::Layer& vectors,
                                      const Arrived& arrived, const KeptGroup& kept,
                                      const Worker& own, int group, float of_kept) {
    float sums[PAIRS], products[PAIRS];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        const int unit = own.unit(group) + 8 * tile;
        const float2 scale = pair_of(vectors.scale, unit), next = pair_of(vectors.next_scale, unit);
        const float factors[2] = {scale.x * next.x, scale.y * next.y};
        float q[2][2];
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
            const float2 z = kept.sums(tile, lower);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                q[lower][i] = arrived[bit_of(tile, lower, i)] *
                              (kept.is_kept(tile, lower, i) ? of_kept : 0.0f);
                const float product = q[lower][i] * (i ? z.y : z.x);
                sums[2 * tile + i] = lower ? sums[2 * tile + i] + q[1][i] : q[0][i];
                products[2 * tile + i] = lower ? products[2 * tile + i] + product : product;
            }
            pair_at(shared.rows[0], own, group, tile, lower) =
                packed<T>(q[lower][0] * factors[0], q[lower][1] * factors[1]);
        }
    }
    const int first = own.half * OWN_UNITS + group * PANEL;
    put_sums(shared.sums[0], own, first, sums);
    put_sums(shared.sums[1], own, first, products);
}

// -- heads ----------------------------------------------------------------------------------------

// Gradients of outputs, of this thread's two rows; 0 of rows that are not there.
struct OutputGradients {
    const float* rows[2];  // null
    __device__ OutputGradients(const MemberNetwork& network, const Place& place, const Worker& own,
                               const float* dy) {
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
            const int row = place.first_row + own.row() + 8 * lower;
            const int64 at = static_cast<int64>(place.member) * network.num_rows + row;
            rows[lower] = row < network.num_rows ? dy + at * network.num_outputs : nullptr;
        }
    }
    __device__ float of(int lower, int output) const {
        return rows[lower] ? rows[lower][output] : 0.0f;
    }
};

// Those of the last layer's units of a group, of a head that is held.
template <int COUNT>
__device__ inline void arrive_of_held(Arrived& arrived, const OutputGradients& dy,
                                      const Worker& own, int group, const float* head) {
    float of_rows[2][COUNT];
#pragma unroll
    for (int i = 0; i < 2 * COUNT; ++i) of_rows[i / COUNT][i % COUNT] = dy.of(i / COUNT, i % COUNT);
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        const auto weights = HeadPair<COUNT>::at(head + (own.unit(group) + 8 * tile) * COUNT);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float sum = 0;
#pragma unroll
            for (int output = 0; output < COUNT; ++output)
                sum += of_rows[i / 2][output] * weights.of_unit[i % 2][output];
            arrived[bit_of(tile, i / 2, i % 2)] = sum;
        }
    }
}

// Of any.
__device__ inline void arrive_of_head(Arrived& arrived, const OutputGradients& dy,
                                      const Worker& own, int group, const float* head, int count) {
    if (count == 1) return arrive_of_held<1>(arrived, dy, own, group, head);
    if (count == 2) return arrive_of_held<2>(arrived, dy, own, group, head);
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; ++i) arrived[i] = 0;
    for (int output = 0; output < count; ++output) {
        const float of_rows[2] = {dy.of(0, output), dy.of(1, output)};
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float weight = head[(own.unit(group) + 8 * tile + i) * count + output];
#pragma unroll
                for (int lower = 0; lower < 2; ++lower)
                    arrived[bit_of(tile, lower, i)] += of_rows[lower] * weight;
            }
        }
    }
}

// The last layer's units of a group, in this thread's two rows.
__device__ inline void find_units(Arrived& units, const Vectors::Layer& vectors,
                                  const KeptGroup& kept, const Worker& own, int group,
                                  float of_kept) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        const int unit = own.unit(group) + 8 * tile;
        const float2 scale = pair_of(vectors.scale, unit), bias = pair_of(vectors.bias, unit);
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
            const float2 z = kept.sums(tile, lower);
            const float values[2] = {z.x * scale.x + bias.x, z.y * scale.y + bias.y};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                units[bit_of(tile, lower, i)] =
                    values[i] * (kept.is_kept(tile, lower, i) ? of_kept : 0.0f);
            }
        }
    }
}

// Sums over rows of units times the gradient of an output.
__device__ inline void sum_head(float (&sums)[4][UNITS], const Arrived& units,
                                const OutputGradients& dy, const Worker& own, int group,
                                int output) {
    const float of_rows[2] = {dy.of(0, output), dy.of(1, output)};
    float products[PAIRS];
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
        products[pair] = units[bit_of(pair / 2, 0, pair % 2)] * of_rows[0] +
                         units[bit_of(pair / 2, 1, pair % 2)] * of_rows[1];
    }
    put_sums(sums, own, own.half * OWN_UNITS + group * PANEL, products);
}

// The last layer: dz, and the gradients of heads.
__device__ inline void heads_backward(BackwardShared& shared, const MemberNetwork& network,
                                      const Place& place, const Worker& own, const float* dy,
                                      const float* head, const Kept& of_layer,
                                      const PartialSizes& sizes, float* partials, float of_kept) {
    const int layer = network.num_layers - 1, count = network.num_outputs;
    const OutputGradients gradients(network, place, own, dy);
    KeptGroup kept, next;
    next.load(of_layer, 0);
    head = shared.head.await(head, place.member, count);
    const Vectors::Layer& vectors = shared.vectors.await(0);
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
        kept = next;
        next.load(of_layer, (group + 1) % GROUPS);
        Arrived arrived;
        arrive_of_head(arrived, gradients, own, group, head, count);
        group_backward(shared, vectors, arrived, kept, own, group, of_kept);
    }
    add_warps(shared, own, 2, UNITS, partials + sizes.of_layer(layer), UNITS);
    for (int output = 0; output < count; output += SUMS_AT_ONCE) {
        const int some = min(SUMS_AT_ONCE, count - output);
#pragma unroll 1
        for (int group = 0; group < GROUPS; ++group) {
            kept = next;
            next.load(of_layer, (group + 1) % GROUPS);
            Arrived units;
            find_units(units, vectors, kept, own, group, of_kept);
            for (int i = 0; i < some; ++i)
                sum_head(shared.sums[i], units, gradients, own, group, output + i);
        }
        add_warps(shared, own, some, UNITS, partials + sizes.of_output(output), UNITS);
    }
}

// -- hidden layers, inputs ------------------------------------------------------------------------

// A layer's units, from the products that have arrived there; `next` is its first group.
__device__ inline void units_backward(BackwardShared& shared, const Vectors::Layer& vectors,
                                      Sums& sums, const Worker& own, const Kept& of_layer,
                                      KeptGroup& next, float* partials, float of_kept) {
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        const KeptGroup kept = next;
        if (group + 1 < GROUPS) next.load(of_layer, group + 1);
        Arrived arrived;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                arrived[bit_of(tile, i / 2, i % 2)] = sum_at(sums, group, tile, i / 2, i % 2);
        }
        group_backward(shared, vectors, arrived, kept, own, group, of_kept);
    }
    add_warps(shared, own, 2, UNITS, partials, UNITS);
}

constexpr int INPUTS_AT_ONCE = 2 * SLOT_UNITS;

// Two inputs of a row, side by side, of which the second may be missing.
__device__ inline void input_backward(float2& sum, float2 arrived, const float* x,
                                      const float* scales, float* dx, int64 at, int input,
                                      int inputs) {
    if (inputs % 2 == 0) {
        const float2 values = *reinterpret_cast<const float2*>(x + at),
                     scale = *reinterpret_cast<const float2*>(scales + input);
        sum.x += arrived.x * values.x;
        sum.y += arrived.y * values.y;
        if (dx) *reinterpret_cast<float2*>(dx + at) = {arrived.x * scale.x, arrived.y * scale.y};
        return;
    }
    sum.x += arrived.x * x[at];
    if (dx) dx[at] = arrived.x * scales[input];
    if (input + 1 == inputs) return;
    sum.y += arrived.y * x[at + 1];
    if (dx) dx[at + 1] = arrived.y * scales[input + 1];
}

// The first layer's inputs, INPUTS_AT_ONCE from `first` on.
__device__ inline void inputs_backward(BackwardShared& shared, PartSums& sums,
                                       const MemberNetwork& network, const Place& place,
                                       const Worker& own, int first, const float* x,
                                       const float* scale_in, float* dx, float* partials) {
    const int inputs = network.num_inputs;
    const float* scales = scale_in + static_cast<int64>(place.member) * inputs;
#pragma unroll
    for (int group = 0; group < GROUPS_OF_SLOT; ++group) {
        const int of_group = own.half * SLOT_UNITS + group * PANEL;
        float products[PAIRS];
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const int input = first + of_group + 8 * tile + own.lane % 4 * 2;
            float2 sum = {0, 0};
#pragma unroll
            for (int lower = 0; lower < 2; ++lower) {
                const int row = place.first_row + own.row() + 8 * lower;
                if (row >= network.num_rows || input >= inputs) continue;
                const int64 of_row = static_cast<int64>(place.member) * network.num_rows + row;
                const float* arrived = sums + (group * TILES + tile) * 4 + 2 * lower;
                input_backward(sum, {arrived[0], arrived[1]}, x, scales, dx,
                               of_row * inputs + input, input, inputs);
            }
            products[2 * tile] = sum.x;
            products[2 * tile + 1] = sum.y;
        }
        put_sums(shared.sums[0], own, of_group, products);
    }
    add_warps(shared, own, 1, min(INPUTS_AT_ONCE, inputs - first), partials + first, 0);
}

// -- the whole ------------------------------------------------------------------------------------

// One thread: the weights of all products, in their order.
__device__ inline void load_products(Loader& loader, const MemberNetwork& network) {
    for (int layer = network.num_layers - 1; layer > 0; --layer)
        load_layer<Backward>(loader, network.layers[layer].weight, UNITS / PANEL);
    for (int first = 0; first < network.num_inputs; first += INPUTS_AT_ONCE) {
        for (int panel = 0; panel < UNITS / PANEL; ++panel) {
            for (int half = 0; half < 2; ++half) {
                const int input = first + half * SLOT_UNITS;
                if (input < network.num_inputs)
                    Backward::load(loader, half, network.layers[0].weight, panel, input);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    member_layers_backward_sm90(const __grid_constant__ MemberNetwork network, const float* x,
                                const float* scale_in, const float* head, const float* dy,
                                uint4* kept_sums, unsigned* kept_bits, float* dx, float* partials,
                                double of_kept) {
    DYNAMIC_SHARED(BackwardShared, shared);
    start_barriers(shared->rings, shared->vectors, shared->head);
    take_turn();
    if (threadIdx.x < WARPGROUP) {
        leave_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 0) {
            Loader loader{shared->rings};
            load_products(loader, network);
        }
    } else {
        take_registers<WORKER_REGISTERS>();
        const Place place(network);
        const Worker own;
        const Kept kept{kept_sums, kept_bits};
        const PartialSizes sizes{network.num_layers, network.num_inputs, network.num_outputs};
        const int last = network.num_layers - 1;
        const float factor = static_cast<float>(of_kept);
        unsigned char* rows = shared->rows[0];
        partials += blockIdx.x * sizes.count();
        if (own.number == 0) {
            for (int turn = 0; turn <= min(1, last); ++turn)
                shared->vectors.load(turn, network.layers[last - turn], place.member);
            shared->head.load(head, place.member, network.num_outputs);
        }
        shared->vectors.fill_ones(0, network.layers[last], own);
        meet();
        heads_backward(*shared, network, place, own, dy, head, kept.of_layer(last, own), sizes,
                       partials, factor);
        Pipeline pipeline{shared->rings, own.half};
        Sums sums = {};
        for (int layer = last; layer > 0; --layer) {
            const int turn = last - layer + 1;
            const Kept of_layer = kept.of_layer(layer - 1, own);
            KeptGroup first;
            first.load(of_layer, 0);
            publish(rows, network.layers[layer].dz, place.padded_row(), UNITS / PANEL, own, true);
            if (own.number == 0 && turn < last)
                shared->vectors.load(turn + 1, network.layers[layer - 2], place.member);
            multiply<Backward>(sums, pipeline, rows, UNITS / PANEL);
            await_readers(own);
            units_backward(*shared, shared->vectors.await(turn), sums, own, of_layer, first,
                           partials + sizes.of_layer(layer - 1), factor);
        }
        publish(rows, network.layers[0].dz, place.padded_row(), UNITS / PANEL, own, true);
        for (int first = 0; first < network.num_inputs; first += INPUTS_AT_ONCE) {
            PartSums& part = sums[0];
            if (first + own.half * SLOT_UNITS < network.num_inputs) {
#pragma unroll 1
                for (int panel = 0; panel < UNITS / PANEL; ++panel) {
                    pipeline.start<Backward>(part, rows + panel * PANEL_BYTES, panel > 0);
                    pipeline.advance();
                }
                pipeline.finish();
            } else {
#pragma unroll
                for (float& sum : part) sum = 0;
            }
            inputs_backward(*shared, part, network, place, own, first, x, scale_in, dx,
                            partials + sizes.of_inputs());
        }
        if (own.number == 0) bulk_wait_read<0>();
    }
    barrier_of_cluster();  // the other block may still write to this one's shared memory
}
