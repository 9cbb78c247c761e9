// Updates of the parameters of one_launch_images.cu. Each warp of the grid has some items: a tile
// of 16 by 16 weights of a linear layer, or 8 weights of a convolution. It keeps them and their
// optimizer state in registers for the whole run, finds their gradients from what blocks have left
// in device memory, and leaves them there rounded.
#pragma once

#include "resident/images/image_layers.cuh"

constexpr int GRID_WARPS = BLOCKS * WARPS;
constexpr int ITEMS_OF_WARP = (AllLayers::ITEMS + GRID_WARPS - 1) / GRID_WARPS;
static_assert(ITEMS_OF_WARP <= 8, "registers hold all parameters");

// What a lane has of an item: up to 8 parameters, and their optimizer state.
struct Held {
    float numbers[1 + SLOTS][8];
};

// Two words' lower and upper halves.
__device__ inline unsigned lower_halves(unsigned first, unsigned second) {
    return (first & 0xffff) | second << 16;
}
__device__ inline unsigned upper_halves(unsigned first, unsigned second) {
    return first >> 16 | (second & 0xffff0000);
}

// 8 units' weights at one number of one tap of convolution C, or 8 biases. Even lanes sum up the
// gradients of the first 4 units, and odd lanes those of the others. Then eight lanes have a
// parameter each.
template <int C>
struct ConvolutionItem {
    using Own = Convolution<C>;
    static constexpr int COUNT = 1;
    int row, units;

    __device__ explicit ConvolutionItem(int item)
        : row(item / Own::UNIT_PIECES), units(item % Own::UNIT_PIECES * 8) {}

    __device__ bool is_bias() const { return row == Own::PARAMETER_ROWS; }
    __device__ int unit() const { return units + own_lane() % 2 * 4 + own_lane() / 2; }
    __device__ bool has(int) const { return own_lane() < 8 && unit() < Own::OUT; }
    // Among the rows of rounded weights, and of gradients.
    __device__ int padded_row() const {
        return is_bias() ? Own::WEIGHT_ROWS
                         : row / Own::DEPTH * (Own::PIECES * 8) + row % Own::DEPTH;
    }

    __device__ float* place(const ImagesRun& run, int, int slot) const {
        return is_bias() ? run.arrays.biases<C>(slot) + unit()
                         : run.arrays.weights<C>(slot) + row * Own::OUT + unit();
    }

    __device__ void find_gradients(const ImagesRun& run, float (&sums)[COUNT]) const {
        using Parts = GradientParts<C>;
        const int lane = own_lane();
        const float* from = layer_of<C>(run.exchange.gradients).parts[0] +
                            padded_row() * Own::UNITS + units + lane % 2 * 4;
        float quad[4] = {};
#pragma unroll 8
        for (int i = 0; i < (Parts::COUNT + 15) / 16; ++i) {
            const int part = i * 16 + lane / 2;
            if (part >= Parts::COUNT) break;
            const uint4 words =
                received(reinterpret_cast<const uint4*>(from + part * Own::GRADIENTS));
            quad[0] += __uint_as_float(words.x);
            quad[1] += __uint_as_float(words.y);
            quad[2] += __uint_as_float(words.z);
            quad[3] += __uint_as_float(words.w);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int offset = 2; offset < 32; offset *= 2)
                quad[i] += __shfl_xor_sync(FULL_WARP, quad[i], offset);
        }
        const int own = lane / 2;
        sums[0] = own == 0 ? quad[0] : own == 1 ? quad[1] : own == 2 ? quad[2] : quad[3];
    }

    __device__ void leave_rounded(const ImagesRun& run, const Held& held) const {
        if (!has(0)) return;
        RoundedParameters& rounded = run.exchange.rounded;
        const float number = held.numbers[0][0];
        if (is_bias()) {
            rounded.biases[BeforeConvolution<C>::BIASES + unit()] = number;
        } else {
            rounded
                .weights[BeforeConvolution<C>::WEIGHTS + padded_row() * Own::WEIGHT_ROW + unit()] =
                store<T>(number);
        }
    }
};

// 16 inputs by 16 units of linear layer L, or 16 biases. A lane has two inputs that lie side by
// side, and four units. Sums over a batch do not depend on the order of columns or rows: so lanes
// load words of two numbers, and no matrix needs to be transposed.
template <int L>
struct LinearItem {
    using Own = Linear<L>;
    static constexpr int COUNT = 8;
    int inputs, units;

    __device__ explicit LinearItem(int item)
        : inputs(item / Own::UNIT_TILES * 16), units(item % Own::UNIT_TILES * 16) {}

    __device__ bool is_bias() const { return inputs == Own::ROWS; }
    __device__ int input(int i) const { return inputs + own_lane() / 4 * 2 + i / 4; }
    __device__ int unit(int i) const { return units + own_lane() % 4 * 4 + i % 4; }
    __device__ bool has(int i) const {
        return unit(i) < Own::OUT && input(i) < (is_bias() ? Own::ROWS + 1 : Own::INPUTS);
    }

    __device__ float* place(const ImagesRun& run, int i, int slot) const {
        constexpr int LAYER = CONVOLUTIONS + L;
        return is_bias() ? run.arrays.biases<LAYER>(slot) + unit(i)
                         : run.arrays.weights<LAYER>(slot) + input(i) * Own::OUT + unit(i);
    }

    __device__ void find_gradients(const ImagesRun& run, float (&sums)[COUNT]) const {
        auto& rows = layer_of<L>(run.exchange.rows);
        const int group = own_lane() / 4 * 2, first = own_lane() % 4 * 2;
        const unsigned ones = packed<T>(1, 1);
        float left[4] = {}, right[4] = {};
#pragma unroll 4
        for (int slice = 0; slice < BATCH_ROWS / 16; ++slice) {
            unsigned x[4], dz[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = slice * 16 + first + i % 2 + i / 2 * 8;
                x[i] = is_bias() ? ones
                                 : load_relaxed(reinterpret_cast<const unsigned*>(
                                       &rows.x[row][inputs + group]));
                dz[i] =
                    load_relaxed(reinterpret_cast<const unsigned*>(&rows.dz[row][units + group]));
            }
            const unsigned a[4] = {lower_halves(x[0], x[1]), upper_halves(x[0], x[1]),
                                   lower_halves(x[2], x[3]), upper_halves(x[2], x[3])};
            const unsigned even[2] = {lower_halves(dz[0], dz[1]), lower_halves(dz[2], dz[3])},
                           odd[2] = {upper_halves(dz[0], dz[1]), upper_halves(dz[2], dz[3])};
            TensorCore<T>::multiply(left, a, even);
            TensorCore<T>::multiply(right, a, odd);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] = i % 2 == 0 ? left[i / 2] : right[i / 2];
    }

    __device__ void leave_rounded(const ImagesRun& run, const Held& held) const {
        RoundedParameters& rounded = run.exchange.rounded;
        const float (&own)[8] = held.numbers[0];
        if (is_bias()) {
            for (int i = 0; i < 4; ++i)
                if (has(i)) rounded.biases[BeforeLinear<L>::BIASES + unit(i)] = own[i];
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            if (unit(i) >= Own::WEIGHT_ROW) continue;
            *reinterpret_cast<uint2*>(rounded.weights + BeforeLinear<L>::WEIGHTS +
                                      input(i) * Own::WEIGHT_ROW + unit(i)) =
                uint2{packed<T>(own[i], own[i + 1]), packed<T>(own[i + 2], own[i + 3])};
        }
    }
};

// f(item) for one of all, by its number.
template <int LAYER = 0, class F>
__device__ inline void with_item(int item, F f) {
    if constexpr (LAYER < CONVOLUTIONS) {
        constexpr int ITEMS = Convolution<LAYER>::ITEMS;
        if (item < ITEMS) return f(ConvolutionItem<LAYER>(item));
        with_item<LAYER + 1>(item - ITEMS, f);
    } else if constexpr (LAYER < CONVOLUTIONS + LAYERS) {
        constexpr int ITEMS = Linear<LAYER - CONVOLUTIONS>::ITEMS;
        if (item < ITEMS) return f(LinearItem<LAYER - CONVOLUTIONS>(item));
        with_item<LAYER + 1>(item - ITEMS, f);
    }
}

// f(item, what is held of it) for each of this warp.
template <class F>
__device__ inline void each_item(Held (&held)[ITEMS_OF_WARP], F f) {
#pragma unroll
    for (int i = 0; i < ITEMS_OF_WARP; ++i) {
        const int item = i * GRID_WARPS + own_warp() * BLOCKS + static_cast<int>(blockIdx.x);
        with_item(item, [&](const auto& own) { f(own, held[i]); });
    }
}

// f(number, its place in memory) for each that a lane has.
template <class Item, class F>
__device__ inline void each_number(const Item& item, const ImagesRun& run, Held& held, F f) {
#pragma unroll
    for (int slot = -1; slot < SLOTS; ++slot) {
#pragma unroll
        for (int i = 0; i < Item::COUNT; ++i)
            if (item.has(i)) f(held.numbers[1 + slot][i], item.place(run, i, slot));
    }
}

// Takes in the gradients of an item.
template <class Item>
__device__ inline void update_item(const Item& item, const ImagesRun& run, Held& held,
                                   const StepSettings& settings) {
    float sums[Item::COUNT];
    item.find_gradients(run, sums);
#pragma unroll
    for (int i = 0; i < Item::COUNT; ++i) {
        const auto slot = [&](int which) -> float& { return held.numbers[1 + which][i]; };
        update_in_place(held.numbers[0][i], slot, sums[i], run.unscale, settings, run.rule);
    }
    item.leave_rounded(run, held);
}

// Takes this warp's parameters and their optimizer state into registers, and leaves them rounded.
__device__ inline void load_parameters(Held (&held)[ITEMS_OF_WARP], const ImagesRun& run) {
    each_item(held, [&](const auto& item, Held& own) {
        each_number(item, run, own, [](float& number, const float* place) { number = *place; });
        item.leave_rounded(run, own);
    });
    if constexpr (GENERATION >= 90) fence_async_of_grid();  // bulk copies read what is rounded
}

// Takes in the gradients of a step, and leaves the parameters rounded.
__device__ inline void update_parameters(Held (&held)[ITEMS_OF_WARP], const ImagesRun& run,
                                         const StepSettings& settings) {
    each_item(held, [&](const auto& item, Held& own) { update_item(item, run, own, settings); });
    if constexpr (GENERATION >= 90) fence_async_of_grid();
}

// Puts them back to where the layers have them.
__device__ inline void store_parameters(Held (&held)[ITEMS_OF_WARP], const ImagesRun& run) {
    each_item(held, [&](const auto& item, Held& own) {
        each_number(item, run, own, [](float number, float* place) { *place = number; });
    });
}
