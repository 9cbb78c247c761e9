// Computes:  from dy, the gradients of outputs of member_layers_forward_sm90.cu, those of all that
//            is a member's own: scales, biases and heads; and dz_l, of the layers' sums, from which
//            those of weights are products. Of the first layer's unscaled inputs, too, if asked
//            for.
// Layout:    as there; dz_l as h_l; dy as y, dx (members, rows, inputs) or null; partials (blocks,
//            partial_size) float32: of each layer two rows of UNITS sums, of each output one, then
//            inputs; arrivals (members), zero before and after.
// Launch:    as there.
// Numerics:  products of bfloat16 with float32 sums in the order of k; all else in float32: sums
//            over rows by trees within a warp, then over warps and blocks in their order.
// Cost:      2 rows UNITS (inputs + (L - 1) UNITS + 2 outputs) FLOP a member; a cluster reads all
//            weights once, from L2.
// Reference: TabM.vjp of tabular/tabm_network.py.
#define SHARED_ALIGNMENT 1024

#include "base/reduce.cuh"
#include "ops/members/member_products.cuh"

constexpr int SUMS_AT_ONCE = 2;

struct BackwardShared {
    unsigned char rows[UNITS / PANEL][PANEL_BYTES];
    Rings rings;
    Vectors vectors;
    float sums[SUMS_AT_ONCE][4][UNITS];  // over the rows of each warp of a half
    bool is_last;
};

static_assert(sizeof(BackwardShared) == SHARED_BYTES, "member_layers.py counts them");

// What a block adds to the gradients of its member.
struct Partials {
    float* numbers;
    int64 size;
    int num_layers, num_outputs;

    __device__ float* of_block(int block) const { return numbers + block * size; }
    // Where the sums of gradients lie, and behind them those of gradients times sums.
    __device__ int64 of_layer(int layer) const { return 2 * layer * UNITS; }
    __device__ int64 of_output(int output) const { return (2 * num_layers + output) * UNITS; }
    __device__ int64 of_inputs() const { return of_output(num_outputs); }
};

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

    __device__ KeptGroup(const Kept& kept, int layer, int group, const Worker& own)
        : bits(kept.bits_at(layer, group, own)) {
#pragma unroll
        for (int i = 0; i < PAIRS / 4; ++i) {
            const uint4 four = kept.sums_at(layer, group, i, own);
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
__device__ inline void group_backward(BackwardShared& shared, const Arrived& arrived,
                                      const KeptGroup& kept, const Worker& own, int group,
                                      float of_kept) {
    float sums[PAIRS], products[PAIRS];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        const int unit = own.unit(group) + 8 * tile;
        const float2 scale = pair_of(shared.vectors.scale, unit),
                     next = pair_of(shared.vectors.next_scale, unit);
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

// Those of the last layer's units of a group.
__device__ inline void arrive_of_head(Arrived& arrived, const OutputGradients& dy,
                                      const Worker& own, int group, const float* head, int count) {
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

// Sums over rows of the last layer's units times the gradient of an output.
__device__ inline void sum_head(BackwardShared& shared, const KeptGroup& kept,
                                const OutputGradients& dy, const Worker& own, int group, int output,
                                float (&sums)[4][UNITS], float of_kept) {
    const float of_rows[2] = {dy.of(0, output) * of_kept, dy.of(1, output) * of_kept};
    float products[PAIRS];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        const int unit = own.unit(group) + 8 * tile;
        const float2 scale = pair_of(shared.vectors.scale, unit),
                     bias = pair_of(shared.vectors.bias, unit);
        const float2 upper = kept.sums(tile, 0), lower = kept.sums(tile, 1);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float s = i ? scale.y : scale.x, b = i ? bias.y : bias.x;
            const float of_upper = kept.is_kept(tile, 0, i) ? (i ? upper.y : upper.x) * s + b : 0,
                        of_lower = kept.is_kept(tile, 1, i) ? (i ? lower.y : lower.x) * s + b : 0;
            products[2 * tile + i] = of_upper * of_rows[0] + of_lower * of_rows[1];
        }
    }
    put_sums(sums, own, own.half * OWN_UNITS + group * PANEL, products);
}

// The last layer: dz, and the gradients of heads.
__device__ inline void heads_backward(BackwardShared& shared, const MemberNetwork& network,
                                      const Place& place, const Worker& own, const float* dy,
                                      const float* head, const Kept& kept, const Partials& partials,
                                      float of_kept) {
    const int layer = network.num_layers - 1, count = network.num_outputs;
    const OutputGradients gradients(network, place, own, dy);
    float* to = partials.of_block(blockIdx.x);
    head += static_cast<int64>(place.member) * UNITS * count;
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
        Arrived arrived;
        arrive_of_head(arrived, gradients, own, group, head, count);
        const KeptGroup of_group(kept, layer, group, own);
        group_backward(shared, arrived, of_group, own, group, of_kept);
    }
    add_warps(shared, own, 2, UNITS, to + partials.of_layer(layer), UNITS);
    for (int output = 0; output < count; output += SUMS_AT_ONCE) {
        const int some = min(SUMS_AT_ONCE, count - output);
#pragma unroll 1
        for (int group = 0; group < GROUPS; ++group) {
            const KeptGroup of_group(kept, layer, group, own);
            for (int i = 0; i < some; ++i) {
                sum_head(shared, of_group, gradients, own, group, output + i, shared.sums[i],
                         of_kept);
            }
        }
        add_warps(shared, own, some, UNITS, to + partials.of_output(output), UNITS);
    }
}

// -- hidden layers, inputs ------------------------------------------------------------------------

// A layer's units, from the products that have arrived there.
__device__ inline void units_backward(BackwardShared& shared, Sums& sums, const Worker& own,
                                      int layer, const Kept& kept, const Partials& partials,
                                      float of_kept) {
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        Arrived arrived;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                arrived[bit_of(tile, i / 2, i % 2)] = sum_at(sums, group, tile, i / 2, i % 2);
        }
        const KeptGroup of_group(kept, layer, group, own);
        group_backward(shared, arrived, of_group, own, group, of_kept);
    }
    add_warps(shared, own, 2, UNITS, partials.of_block(blockIdx.x) + partials.of_layer(layer),
              UNITS);
}

constexpr int INPUTS_AT_ONCE = 2 * SLOT_UNITS;

// The first layer's inputs, INPUTS_AT_ONCE from `first` on.
__device__ inline void inputs_backward(BackwardShared& shared, PartSums& sums,
                                       const MemberNetwork& network, const Place& place,
                                       const Worker& own, int first, const float* x,
                                       const float* scale_in, float* dx, const Partials& partials) {
    const int inputs = network.num_inputs;
    const float* scales = scale_in + static_cast<int64>(place.member) * inputs;
#pragma unroll
    for (int group = 0; group < GROUPS_OF_SLOT; ++group) {
        const int of_group = own.half * SLOT_UNITS + group * PANEL;
        float products[PAIRS];
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            const int tile = pair / 2, i = pair % 2;
            const int input = first + of_group + 8 * tile + own.lane % 4 * 2 + i;
            products[pair] = 0;
#pragma unroll
            for (int lower = 0; lower < 2; ++lower) {
                const int row = place.first_row + own.row() + 8 * lower;
                if (row >= network.num_rows || input >= inputs) continue;
                const int64 of_row = static_cast<int64>(place.member) * network.num_rows + row;
                const float arrived = sums[(group * TILES + tile) * 4 + 2 * lower + i];
                products[pair] += arrived * x[of_row * inputs + input];
                if (dx) dx[of_row * inputs + input] = arrived * scales[input];
            }
        }
        put_sums(shared.sums[0], own, of_group, products);
    }
    add_warps(shared, own, 1, min(INPUTS_AT_ONCE, inputs - first),
              partials.of_block(blockIdx.x) + partials.of_inputs() + first, 0);
}

// -- gradients ------------------------------------------------------------------------------------

// The sum of a number over the blocks of a member.
__device__ inline float over_blocks(const Partials& partials, int first_block, int num_blocks,
                                    int64 at) {
    float sum = 0;
#pragma unroll 4
    for (int block = 0; block < num_blocks; ++block)
        sum += __ldcg(partials.of_block(first_block + block) + at);
    return sum;
}

// All workers of all blocks: whether this block is the last of its member, and so sees what all of
// them left.
__device__ inline bool is_last_of_member(BackwardShared& shared, const MemberNetwork& network,
                                         const Place& place, const Worker& own,
                                         unsigned* arrivals) {
    __threadfence();
    meet();
    if (own.number == 0) {
        const unsigned before = atomicAdd(arrivals + place.member, 1u);
        shared.is_last = before == static_cast<unsigned>(network.num_blocks) - 1;
        if (shared.is_last) arrivals[place.member] = 0;
    }
    meet();
    __threadfence();
    return shared.is_last;
}

__device__ inline void finish_layers(const MemberNetwork& network, const Place& place,
                                     const Worker& own, const Partials& partials, int first_block) {
    for (int i = own.number; i < network.num_layers * UNITS; i += WORKERS) {
        const int idx = i / UNITS, unit = i % UNITS;
        const MemberLayer& layer = network.layers[idx];
        const int64 at = static_cast<int64>(place.member) * UNITS + unit;
        const int64 of_sums = partials.of_layer(idx) + unit;
        const float sum = over_blocks(partials, first_block, network.num_blocks, of_sums),
                    product =
                        over_blocks(partials, first_block, network.num_blocks, of_sums + UNITS);
        const float next = layer.next_scale ? layer.next_scale[at] : 1.0f;
        layer.dscale[at] = next * product;
        layer.dbias[at] = next * sum;
        if (layer.dnext_scale)
            layer.dnext_scale[at] = layer.scale[at] * product + layer.bias[at] * sum;
    }
}

__device__ inline void finish_inputs(const MemberNetwork& network, const Place& place,
                                     const Worker& own, const Partials& partials, int first_block,
                                     float* dscale_in) {
    for (int input = own.number; input < network.num_inputs; input += WORKERS) {
        dscale_in[static_cast<int64>(place.member) * network.num_inputs + input] =
            over_blocks(partials, first_block, network.num_blocks, partials.of_inputs() + input);
    }
}

__device__ inline void finish_heads(const MemberNetwork& network, const Place& place,
                                    const Worker& own, const Partials& partials, int first_block,
                                    const float* dy, float* dhead, float* dhead_bias) {
    const int count = network.num_outputs;
    for (int i = own.number; i < UNITS * count; i += WORKERS) {
        const int unit = i / count, output = i % count;
        dhead[static_cast<int64>(place.member) * UNITS * count + i] = over_blocks(
            partials, first_block, network.num_blocks, partials.of_output(output) + unit);
    }
    const float* of_member = dy + static_cast<int64>(place.member) * network.num_rows * count;
    for (int output = own.number / 32; output < count; output += WORKERS / 32) {
        float sum = 0;
        for (int row = own.lane; row < network.num_rows; row += 32)
            sum += of_member[static_cast<int64>(row) * count + output];
        sum = reduce_warp<Sum>(sum);
        if (own.lane == 0) dhead_bias[place.member * count + output] = sum;
    }
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
                                uint4* kept_sums, unsigned* kept_bits, float* dx, float* dscale_in,
                                float* dhead, float* dhead_bias, float* partial_sums,
                                unsigned* arrivals, double of_kept, int64 partial_size) {
    DYNAMIC_SHARED(BackwardShared, shared);
    start_rings(shared->rings);
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
        const Partials partials{partial_sums, partial_size, network.num_layers,
                                network.num_outputs};
        const float factor = static_cast<float>(of_kept);
        unsigned char* rows = shared->rows[0];
        Pipeline pipeline{shared->rings, own.half};
        Sums sums;
        int layer = network.num_layers - 1;
        shared->vectors.load(network.layers[layer], place.member, own);
        meet();
        heads_backward(*shared, network, place, own, dy, head, kept, partials, factor);
        while (true) {
            publish(rows, network.layers[layer].dz, place.padded_row(), UNITS / PANEL, own, true);
            if (layer == 0) break;
            shared->vectors.load(network.layers[layer - 1], place.member, own);
            multiply<Backward>(sums, pipeline, rows, UNITS / PANEL, [](int) {});
            await_readers(own);
            --layer;
            units_backward(*shared, sums, own, layer, kept, partials, factor);
        }
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
            inputs_backward(*shared, part, network, place, own, first, x, scale_in, dx, partials);
        }
        const int first_block = place.member * network.num_blocks;
        if (is_last_of_member(*shared, network, place, own, arrivals)) {
            finish_layers(network, place, own, partials, first_block);
            finish_inputs(network, place, own, partials, first_block, dscale_in);
            finish_heads(network, place, own, partials, first_block, dy, dhead, dhead_bias);
        }
        if (own.number == 0) bulk_wait_read<0>();
    }
    barrier_of_cluster();  // the other block may still write to this one's shared memory
}
