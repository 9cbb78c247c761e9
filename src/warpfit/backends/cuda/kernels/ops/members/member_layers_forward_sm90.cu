// Computes:  of every member's rows the outputs y = h_L @ head + head_bias, with h_0 = x · scale_in
//            and h_(l+1) = relu(h_l @ weight_l · scale_l + bias_l) · mask_l · next_scale_l; mask_l
//            as in member_relu_forward.cu.
// Layout:    x (members, or 1 if is_common, rows, inputs) and y (members, rows, outputs) float32,
//            vectors (members, units), head (members, UNITS, outputs), head_bias (members, outputs)
//            float32; weights (inputs, UNITS), through tensor maps with boxes of SLOT_UNITS /
//            CLUSTER rows and 64 columns; h_l of bfloat16 through maps with boxes of 64 by 64, to
//            arrays whose members are padded to whole blocks with zeros; what the backward pass
//            needs besides as `Kept` of member_products.cuh. Without `kept_bits` only y is written.
// Launch:    grid: members times num_blocks, an even number, in clusters of 2; block: a warpgroup
//            that loads and two that multiply; SHARED_BYTES
//            of shared memory. Defines: that, UNITS (128, 256 or 512), CLUSTER (2).
// Numerics:  products of bfloat16 with float32 sums in the order of k; all else in float32; h_l
//            are rounded once, and so are sums that are kept.
// Cost:      2 rows UNITS (inputs + (L - 1) UNITS + outputs) FLOP a member; a cluster reads all
//            weights once, from L2.
// Reference: TabM.vjp of tabular/tabm_network.py.
#define SHARED_ALIGNMENT 1024

#include "base/philox64.cuh"
#include "base/scalar.cuh"
#include "ops/members/member_products.cuh"

// Masks of two layers, in turns: warps that have nothing to load draw them ahead.
struct Masks {
    unsigned bits[2][GROUPS][WORKERS];  // in the order of `bit_of`
    Barrier drawn[2], read[2];
};

struct ForwardShared {
    unsigned char rows[UNITS / PANEL][PANEL_BYTES];
    Rings rings;
    Vectors vectors;
    Head head;
    Masks masks;
};

static_assert(sizeof(ForwardShared) == SHARED_BYTES, "member_layers.py counts them");

// -- dropout --------------------------------------------------------------------------------------

struct Dropout {
    unsigned threshold;
    float of_kept;
};

// Of the words of a counter, which are at least the threshold: a bit each.
__device__ inline unsigned drawn_bits(const LongWords& words, unsigned threshold) {
    unsigned drawn = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const unsigned two = static_cast<unsigned>(words.word[i / 4] >> 32 * (i / 2 % 2));
        if ((i % 2 ? two : two << 16) >= threshold << 16) drawn |= 1u << i;
    }
    return drawn;
}

// The two rows of a worker: for each four lanes draw for 16 units of a group side by side, and
// share them. Neither row waits for the other.
struct Drawing {
    const RoundKeys& keys;
    unsigned step, threshold;

    __device__ unsigned draw(const Place& place, const Worker& worker, int layer, int group) const {
        const int lane = worker.lane % 4;
        unsigned drawn[2], kept = 0;
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
            const unsigned row = place.first_row + worker.row() + 8 * lower;
            const unsigned first = row * UNITS + worker.half * OWN_UNITS + group * PANEL;
            drawn[lower] =
                drawn_bits(philox64({{first / 16 + lane + 1, static_cast<unsigned>(place.member),
                                      static_cast<unsigned>(layer), step}},
                                    keys),
                           threshold);
        }
        const unsigned of_rows = drawn[0] | drawn[1] << 16;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const unsigned of_units =
                __shfl_sync(0xffffffffu, of_rows, worker.lane - lane + tile / 2);
            kept |= (of_units >> (tile % 2 * 8 + 2 * lane) & 0x30003u) << 2 * tile;
        }
        return kept;
    }
};

constexpr int DRAWERS = WARPGROUP / 32 - 1, WORKER_WARPS = WORKERS / 32;
// Groups of the first layer that workers draw themselves, which wait for rows meanwhile.
constexpr int OWN_GROUPS = GROUPS / 4;

__device__ inline void start_masks(Masks& masks) {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < 2; ++i) {
        mbarrier_init(&masks.drawn[i], DRAWERS * OF_WARP);
        mbarrier_init(&masks.read[i], WORKER_WARPS * OF_WARP);
    }
}

// The warps that draw, of which this is number `drawer`: the masks of all layers, those of a warp
// of workers in a group at once.
__device__ inline void draw_masks(Masks& masks, const Drawing& drawing, const Place& place,
                                  int num_layers, int drawer) {
    for (int layer = 0; layer < num_layers; ++layer) {
        wait(masks.read[layer % 2], layer / 2 + 1);
        const int first = (layer == 0 ? OWN_GROUPS : 0) * WORKER_WARPS;
        for (int i = first + drawer; i < WORKER_WARPS * GROUPS; i += DRAWERS) {
            const int group = i / WORKER_WARPS;
            const Worker worker(i % WORKER_WARPS * 32 + threadIdx.x % 32);
            masks.bits[layer % 2][group][worker.number] = drawing.draw(place, worker, layer, group);
        }
        arrive_warp(masks.drawn[layer % 2]);
    }
}

// -- rows -----------------------------------------------------------------------------------------

// The first layer's inputs, scaled, 8 at a time, and zeros for what is missing.
__device__ inline void fill_rows(ForwardShared& shared, const MemberNetwork& network,
                                 const Place& place, const Worker& own, const float* x,
                                 const float* scale_in) {
    const int inputs = network.num_inputs, panels = num_panels(inputs);
    const float* scales = scale_in + static_cast<int64>(place.member) * inputs;
    const int64 of_member = network.is_common ? 0 : place.member;
    for (int i = own.number; i < panels * ROWS * 8; i += WORKERS) {
        const int piece = i % 8, row = i / 8 % ROWS, panel = i / (8 * ROWS);
        const int first = panel * PANEL + piece * 8, own_row = place.first_row + row;
        const float* from = x + (of_member * network.num_rows + own_row) * inputs;
        float values[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const bool is_there = own_row < network.num_rows && first + j < inputs;
            values[j] = is_there ? from[first + j] * scales[first + j] : 0.0f;
        }
        uint4 words;
        words.x = packed<T>(values[0], values[1]);
        words.y = packed<T>(values[2], values[3]);
        words.z = packed<T>(values[4], values[5]);
        words.w = packed<T>(values[6], values[7]);
        *reinterpret_cast<uint4*>(shared.rows[panel] + row * LINE_BYTES + (piece ^ row % 8) * 16) =
            words;
    }
}

// A group's sums become what the next layer takes; is_kept is of `Kept`, and zero in rows that are
// not there.
__device__ inline unsigned activate_group(const Vectors::Layer& vectors, Sums& sums,
                                          const Worker& own, int group, unsigned drawn,
                                          float of_kept) {
    unsigned kept = 0;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        const int unit = own.unit(group) + 8 * tile;
        const float2 scale = pair_of(vectors.scale, unit), bias = pair_of(vectors.bias, unit),
                     next = pair_of(vectors.next_scale, unit);
        const float factors[2] = {next.x * of_kept, next.y * of_kept};
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& sum = sum_at(sums, group, tile, lower, i);
                const float value = sum * (i ? scale.y : scale.x) + (i ? bias.y : bias.x);
                const unsigned bit = 1u << bit_of(tile, lower, i);
                const bool is_kept = value > 0 && (drawn & bit);
                if (is_kept) kept |= bit;
                // Not chosen but multiplied, as the reference does: NaN stays NaN.
                sum = value * (is_kept ? factors[i] : 0.0f);
            }
        }
    }
    return kept;
}

__device__ inline void keep_sums(const Kept& kept, Sums& sums, int group) {
#pragma unroll
    for (int i = 0; i < PAIRS / 4; ++i) {
        unsigned words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int tile = 2 * i + j / 2, lower = j % 2;
            words[j] =
                packed<T>(sum_at(sums, group, tile, lower, 0), sum_at(sums, group, tile, lower, 1));
        }
        kept.sums_at(group, i) = {words[0], words[1], words[2], words[3]};
    }
}

__device__ inline void store_group(unsigned char* rows, Sums& sums, const Worker& own, int group) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
            pair_at(rows, own, group, tile, lower) =
                packed<T>(sum_at(sums, group, tile, lower, 0), sum_at(sums, group, tile, lower, 1));
        }
    }
}

// From a layer's sums to the next one's inputs, in the rows.
__device__ inline void activate_rows(ForwardShared& shared, Sums& sums,
                                     const MemberNetwork& network, const Place& place,
                                     const Worker& own, const Dropout& dropout, const Kept& kept,
                                     int layer) {
    const Kept own_kept = kept.of_layer(layer, own);
    const Vectors::Layer& vectors = shared.vectors.await(layer);
    if (dropout.threshold != 0) wait(shared.masks.drawn[layer % 2], layer / 2);
    const int left = network.num_rows - place.first_row - own.row();
    const unsigned there = (left > 0 ? 0xFFFFu : 0u) | (left > 8 ? 0xFFFF0000u : 0u);
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        unsigned drawn = there;
        if (dropout.threshold != 0) {
            drawn &= shared.masks.bits[layer % 2][group][own.number];
        }
        if (kept.bits) keep_sums(own_kept, sums, group);
        const unsigned bits = activate_group(vectors, sums, own, group, drawn, dropout.of_kept);
        if (kept.bits) own_kept.bits_at(group) = bits;
        store_group(shared.rows[0], sums, own, group);
        __syncwarp();  // the groups one by one, lest there be too few registers
    }
    if (dropout.threshold != 0) arrive_warp(shared.masks.read[layer % 2]);
}

// -- outputs --------------------------------------------------------------------------------------

constexpr int ROW_WORKERS = WORKERS / ROWS;  // that share a row
constexpr int PIECE = 8;                     // units that lie side by side in a panel

// The weights of two units for COUNT outputs, of a head that is held, and of one in memory that has
// `count`: those of the first unit begin at `weights`.
template <int COUNT, bool IS_HELD>
__device__ inline HeadPair<COUNT> load_pair(const float* weights, int count) {
    if constexpr (IS_HELD) return HeadPair<COUNT>::at(weights);
    HeadPair<COUNT> pair;
#pragma unroll
    for (int i = 0; i < 2 * COUNT; ++i)
        pair.of_unit[i / COUNT][i % COUNT] = weights[i / COUNT * count + i % COUNT];
    return pair;
}

// COUNT outputs of a row, from that of `weights` on.
template <int COUNT, bool IS_HELD>
__device__ inline void write_outputs(const unsigned char* rows, const Worker& own,
                                     const float* weights, int count, const float* bias, float* y,
                                     bool is_there) {
    const int row = own.number / ROW_WORKERS, part = own.number % ROW_WORKERS;
    float sums[2][COUNT] = {};
#pragma unroll 4
    for (int i = part; i < UNITS / PIECE; i += ROW_WORKERS) {
        const uint4 piece = *reinterpret_cast<const uint4*>(
            rows + i / 8 * PANEL_BYTES + row * LINE_BYTES + (i % 8 ^ row % 8) * 16);
        const unsigned words[PIECE / 2] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
        for (int two = 0; two < PIECE / 2; ++two) {
            const float2 units = unpacked<T>(words[two]);
            const auto pair =
                load_pair<COUNT, IS_HELD>(weights + (i * PIECE + 2 * two) * count, count);
#pragma unroll
            for (int output = 0; output < COUNT; ++output) {
                sums[0][output] += units.x * pair.of_unit[0][output];
                sums[1][output] += units.y * pair.of_unit[1][output];
            }
        }
    }
#pragma unroll
    for (int output = 0; output < COUNT; ++output) {
        float sum = sums[0][output] + sums[1][output];
#pragma unroll
        for (int lanes = 1; lanes < ROW_WORKERS; lanes *= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
        if (is_there && part == output) y[output] = sum + bias[output];
    }
}

// All workers: the outputs of the block's rows, of which a few threads share each.
__device__ inline void write_all_outputs(ForwardShared& shared, const MemberNetwork& network,
                                         const Place& place, const Worker& own, const float* head,
                                         const float* head_bias, float* y) {
    const int count = network.num_outputs, row = place.first_row + own.number / ROW_WORKERS;
    const bool is_there = row < network.num_rows;
    const unsigned char* rows = shared.rows[0];
    y += (static_cast<int64>(place.member) * network.num_rows + row) * count;
    head_bias += static_cast<int64>(place.member) * count;
    head = shared.head.await(head, place.member, count);
    const float* held = shared.head.weights;
    if (count == 1) return write_outputs<1, true>(rows, own, held, 1, head_bias, y, is_there);
    if (count == 2) return write_outputs<2, true>(rows, own, held, 2, head_bias, y, is_there);
    for (int i = 0; i < count; ++i)
        write_outputs<1, false>(rows, own, head + i, count, head_bias + i, y + i, is_there);
}

// One thread: the weights of all layers.
__device__ inline void load_weights(Rings& rings, const MemberNetwork& network) {
    Loader loader{rings};
    for (int layer = 0; layer < network.num_layers; ++layer) {
        load_layer<Forward>(loader, network.layers[layer].weight,
                            layer == 0 ? num_panels(network.num_inputs) : UNITS / PANEL);
    }
}

// -- the whole ------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    member_layers_forward_sm90(const __grid_constant__ MemberNetwork network, const float* x,
                               const float* scale_in, const float* head, const float* head_bias,
                               float* y, uint4* kept_sums, unsigned* kept_bits, Scalar step,
                               const __grid_constant__ RoundKeys keys, unsigned threshold,
                               double of_kept) {
    DYNAMIC_SHARED(ForwardShared, shared);
    start_masks(shared->masks);
    start_barriers(shared->rings, shared->vectors, shared->head);
    take_turn();
    const Place place(network);
    if (threadIdx.x < WARPGROUP) {
        leave_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 0) {
            load_weights(shared->rings, network);
        } else if (threadIdx.x >= 32 && threshold != 0) {
            const Drawing drawing{keys, static_cast<unsigned>(read(step)), threshold};
            draw_masks(shared->masks, drawing, place, network.num_layers, threadIdx.x / 32 - 1);
        }
    } else {
        take_registers<WORKER_REGISTERS>();
        const Worker own;
        if (own.number == 0) {
            for (int idx = 0; idx < min(2, network.num_layers); ++idx)
                shared->vectors.load(idx, network.layers[idx], place.member);
            shared->head.load(head, place.member, network.num_outputs);
        }
        const Kept kept{kept_sums, kept_bits};
        unsigned char* rows = shared->rows[0];
        Pipeline pipeline{shared->rings, own.half};
        const Dropout dropout{threshold, static_cast<float>(of_kept)};
        int panels = num_panels(network.num_inputs);
        if (threshold != 0) {
            const Drawing drawing{keys, static_cast<unsigned>(read(step)), threshold};
#pragma unroll 1
            for (int group = 0; group < OWN_GROUPS; ++group)
                shared->masks.bits[0][group][own.number] = drawing.draw(place, own, 0, group);
        }
        fill_rows(*shared, network, place, own, x, scale_in);
        Sums sums = {};
        for (int idx = 0; idx < network.num_layers; ++idx) {
            const MemberLayer& layer = network.layers[idx];
            shared->vectors.fill_ones(idx, layer, own);
            publish(rows, layer.inputs, place.padded_row(), panels, own, kept_bits != nullptr);
            multiply<Forward>(sums, pipeline, rows, panels);
            await_readers(own);
            activate_rows(*shared, sums, network, place, own, dropout, kept, idx);
            panels = UNITS / PANEL;
            meet();
            if (own.number == 0 && idx + 2 < network.num_layers)
                shared->vectors.load(idx + 2, network.layers[idx + 2], place.member);
        }
        write_all_outputs(*shared, network, place, own, head, head_bias, y);
        if (own.number == 0) bulk_wait_read<0>();
    }
    barrier_of_cluster();  // the other block may still write to this one's shared memory
}
