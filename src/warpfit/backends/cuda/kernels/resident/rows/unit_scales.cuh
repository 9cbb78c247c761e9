// What products of one_launch_layers.cu take of float32, whose range 16 bits have not. A block's
// units or gradients of a layer are numbers times a power of two, which their largest decides; all
// come with its exponent, chunk by chunk. They lie in float32 until it is known, which takes all of
// a block's threads, each where its thread has found the sums that they are made of. Then they are
// rounded on their way to the other blocks, and to their own.
//
// A product sums up w 2^e v: the exponents e of rows v join the weights w where those are rounded,
// and what a whole product has in common, the sums. Of a gradient, each tile's has one of its own.
//
// Without SCALES nothing of this is there. Whole blocks call; sums and `largest` are theirs until
// all of a block have sent what they are to send, of which each of its warps sends itself the last.
// Users: one_launch_layers.cu.
#pragma once

#include "resident/layout/layer_shapes.cuh"

// 2^exponent, 0 or the largest one beyond the range.
__device__ inline float power(int exponent) {
    if (exponent < -126) return 0;
    return __int_as_float((smaller(exponent, 127) + 127) << 23);
}

// Numbers times 2^exponent, which may lie beyond the range itself.
struct Scaling {
    float first = 1, second = 1;

    __device__ explicit Scaling([[maybe_unused]] int exponent) {
        if constexpr (SCALES) {
            const int half = exponent >> 1;
            first = power(half);
            second = power(exponent - half);
        }
    }

    __device__ float of(float number) const { return SCALES ? number * first * second : number; }
};

// By which power of two numbers are divided whose largest magnitude this is, for 16 bits.
__device__ inline int exponent_of(float largest) {
    if (largest == 0) return NO_UNITS;
    return static_cast<int>(__float_as_uint(largest) >> 23) - 127 - TOP_EXPONENT;
}

__device__ inline float magnitude(float number) {
    return __uint_as_float(__float_as_uint(number) & 0x7fffffffu);
}

// Magnitudes order as the integers that have their bits, among which NaN is the largest.
__device__ inline float larger_of(float a, float b) {
    return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));
}

__device__ inline float largest_of_warp(float own) {
    return __uint_as_float(reduce_warp<Max>(__float_as_uint(own)));
}

// Of all that a block's threads have staged; each says what its own largest is, before they meet.
__device__ inline void leave_largest(LayersShared& shared, float own) {
    const float of_warp = largest_of_warp(own);
    if (threadIdx.x % 32 == 0) part_of<UnitScales>(shared).largest[threadIdx.x / 32] = of_warp;
}

__device__ inline int exponent_of_staged(const LayersShared& shared) {
    const int lane = threadIdx.x % 32;
    return exponent_of(
        largest_of_warp(lane < WARPS ? part_of<UnitScales>(shared).largest[lane] : 0));
}

// The units of a chunk that a row has, rounded, term by term.
struct RoundedChunk {
    unsigned words[TERMS][4];

    __device__ RoundedChunk(const float2* staged, const Scaling& scaling) {
        const float4 low = reinterpret_cast<const float4*>(staged)[0],
                     high = reinterpret_cast<const float4*>(staged)[1];
        const float numbers[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Pair pair(scaling.of(numbers[2 * i]), scaling.of(numbers[2 * i + 1]));
#pragma unroll
            for (int term = 0; term < TERMS; ++term) words[term][i] = pair.words[term];
        }
    }
};

// What the block has staged of `count` chunks of a product, to its own rows from `units` on, which
// all of its threads then see. The block has met before.
template <class Product>
__device__ inline void keep_staged(LayersShared& shared, T* units, int next_term, int2* exponents,
                                   int count) {
    const int exponent = exponent_of_staged(shared);
    const Scaling scaling(-exponent);
    for (int place = threadIdx.x; place < count * ROWS; place += 32 * WARPS) {
        const RoundedChunk chunk(Product::staged(shared.sums, place % ROWS, place / ROWS), scaling);
#pragma unroll
        for (int term = 0; term < TERMS; ++term) {
            const unsigned (&words)[4] = chunk.words[term];
            *reinterpret_cast<uint4*>(units + term * next_term + place * CHUNK_UNITS) = {
                words[0], words[1], words[2], words[3]};
        }
    }
    if (threadIdx.x < count) exponents[threadIdx.x] = {exponent, exponent};
    __syncthreads();
}

// The same to the rows of all blocks of the cluster, its own as well.
template <class Product, int MOST_CHUNKS>
__device__ inline void send_staged(LayersShared& shared, const LayersRun& run, T* units,
                                   int next_term, int2* exponents, const Barrier& full, int count) {
    const int exponent = exponent_of_staged(shared), lane = threadIdx.x % 32,
              warp = threadIdx.x / 32;
    const Scaling scaling(-exponent);
    const auto send = [&](auto place_of, int place) {
        const RoundedChunk chunk(Product::staged(shared.sums, place % ROWS, place / ROWS), scaling);
#pragma unroll
        for (int term = 0; term < TERMS; ++term)
            store_async_quad(place_of(units + term * next_term + place * CHUNK_UNITS),
                             chunk.words[term], place_of(&full));
    };
    const auto send_exponent = [&](auto place_of, int chunk) {
        store_async_pair(place_of(exponents + chunk), exponent, exponent, place_of(&full));
    };
    constexpr int PARTS = (MOST_CHUNKS * ROWS + 31) / 32;  // what a warp sends at once
#pragma unroll
    for (int i = 0; i < Peers::OF_WARP; ++i) {
        if (!Peers::has(i)) break;
        const auto place_of = [&](const void* own) { return run.peers.place(i, own); };
#pragma unroll 1
        for (int part = Peers::first_part(); part < PARTS; part += Peers::SHARERS) {
            if (part * 32 + lane < count * ROWS) send(place_of, part * 32 + lane);
        }
        if (Peers::first_part() == 0 && lane < count) send_exponent(place_of, lane);
    }
    __syncwarp();
    const auto place_of = [&](const void* own) { return place_in(own_rank(), own); };
    static_assert(ROWS >= WARPS, "each warp sends its own block something");
#pragma unroll 1
    for (int place = lane * WARPS + warp; place < count * ROWS; place += 32 * WARPS)
        send(place_of, place);
    if (warp == 0 && lane < count) send_exponent(place_of, lane);
}
