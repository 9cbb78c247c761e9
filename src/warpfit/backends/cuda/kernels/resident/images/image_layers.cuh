// Linear layers of a block of one_launch_images.cu, and the loss. Rows of products are units, or
// inputs, and columns are the block's images, of which an mma has room for 8.
#pragma once

#include "resident/images/image_convolutions.cuh"

// Numbers of a slice of k of all images, as columns of B; of those that are not there 0.
template <int WIDTH>
__device__ inline void load_images(unsigned (&b)[2], const T (&rows)[IMAGES][WIDTH], int k,
                                   bool are_there = true) {
    const int image = own_lane() / 4, column = k * 16 + own_lane() % 4 * 2;
    const bool is_there = image < IMAGES && are_there;
    const unsigned* words =
        reinterpret_cast<const unsigned*>(&rows[image < IMAGES ? image : 0][column]);
    b[0] = is_there ? words[0] : 0;
    b[1] = is_there ? words[4] : 0;
}

// f(row, image, sum) for each of a lane's sums of a tile that is an image's.
template <class F>
__device__ inline void each_of_image(const float (&sums)[2][4], F f) {
    each_pair(sums, [&](int row, int column, float left, float right) {
        if (column < IMAGES) f(row, column, left);
        if (column + 1 < IMAGES) f(row, column + 1, right);
    });
}

// Parts of the units of layer L.
template <int L>
__device__ inline void multiply_units(ImagesShared& shared) {
    using Own = Linear<L>;
    const auto& x = layer_of<L>(shared.layers).x;
    const T* weights = shared.rounded.weights + BeforeLinear<L>::WEIGHTS;
    constexpr int COUNT = Own::AT_ONCE;
    each_of_warp<Own::UNIT_TILES / COUNT * Own::SPLITS>([&](int item) {
        const int unit = item / Own::SPLITS * COUNT * 16, split = item % Own::SPLITS;
        float sums[COUNT][2][4] = {};
#pragma unroll 4
        for (int i = 0; i < (Own::INPUT_TILES + Own::SPLITS - 1) / Own::SPLITS; ++i) {
            // Of a slice beyond the last the images are 0.
            const int k = smaller(i * Own::SPLITS + split, Own::INPUT_TILES - 1);
            unsigned b[2];
            load_images(b, x, k, i * Own::SPLITS + split < Own::INPUT_TILES);
#pragma unroll
            for (int tile = 0; tile < COUNT; ++tile) {
                unsigned a[4];
                load_a_transposed(a, weights + k * 16 * Own::WEIGHT_ROW + unit + tile * 16,
                                  Own::WEIGHT_ROW);
                TensorCore<T>::multiply(sums[tile][i % 2], a, b);
            }
        }
#pragma unroll
        for (int tile = 0; tile < COUNT; ++tile)
            each_of_image(sums[tile], [&](int row, int image, float sum) {
                shared.sums[image][split * Own::UNITS + unit + tile * 16 + row] = sum;
            });
    });
}

// A unit of layer L before its activation: its bias and all parts.
template <int L>
__device__ inline float sum_of_unit(const ImagesShared& shared, int image, int unit) {
    using Own = Linear<L>;
    float sum = shared.rounded.biases[BeforeLinear<L>::BIASES + unit];
#pragma unroll
    for (int split = 0; split < Own::SPLITS; ++split)
        sum += shared.sums[image][split * Own::UNITS + unit];
    return sum;
}

// Units of hidden layer L, which are the inputs of the next.
template <int L>
__device__ inline void activate_units(ImagesShared& shared, const ImagesRun& run) {
    constexpr int UNITS = Linear<L>::OUT;
    each_of_thread<IMAGES * UNITS>([&](int i) {
        const int image = i / UNITS, unit = i % UNITS, row = first_row() + image;
        const auto found =
            activated<ACTIVATIONS[L]>(sum_of_unit<L>(shared, image, unit), SLOPES[L]);
        const T value = store<T>(found.value);
        layer_of<L>(shared.layers).derivatives[image][unit] = store<T>(found.derivative);
        layer_of<L + 1>(shared.layers).x[image][unit] = value;
        if (row < BATCH) layer_of<L + 1>(run.exchange.rows).x[row][unit] = value;
    });
}

// The gradients of the outputs, and the losses of a batch of `count` rows. One warp calls: four
// lanes have an image.
__device__ inline void find_losses(ImagesShared& shared, const ImagesRun& run, int slot,
                                   int count) {
    using Last = Linear<LAYERS - 1>;
    const int lane = own_lane(), image = lane / 4, own = image < IMAGES ? image : 0;
    const int row = first_row() + image;
    const bool is_image = image < IMAGES && row < BATCH, is_there = is_image && row < count;
    const auto column = [=](int chunk) { return chunk * 8 + lane % 4 * 2; };
    const float* target = shared.targets[slot][own];
    const auto outputs = [&](int chunk) {
        return float2{sum_of_unit<LAYERS - 1>(shared, own, column(chunk)),
                      sum_of_unit<LAYERS - 1>(shared, own, column(chunk) + 1)};
    };
    auto& dz = layer_of<LAYERS - 1>(shared.layers).dz;
    auto& of_batch = layer_of<LAYERS - 1>(run.exchange.rows).dz;
    const OutputRest rest = find_row_gradients<Last::UNITS / 8, OUTPUTS>(
        target, is_there ? run.scale / count : 0, run.loss, EvenClasses{}, outputs,
        [&](int chunk, float first, float second) {
            const unsigned word = is_there ? packed<T>(first, second) : 0;
            if (image < IMAGES) *reinterpret_cast<unsigned*>(&dz[own][column(chunk)]) = word;
            if (is_image) *reinterpret_cast<unsigned*>(&of_batch[row][column(chunk)]) = word;
        });
    const RowLoss loss =
        find_row_loss(rest, label_of(target), run.loss, OUTPUTS, EvenClasses{}, is_there);
    if (is_image && lane % 4 == 0) run.exchange.losses[row] = loss;
}

// The gradient of an input of layer L comes to what it comes from.
template <int L>
__device__ inline void put_input_gradient(ImagesShared& shared, const ImagesRun& run, int image,
                                          int input, float sum) {
    if constexpr (L == 0) {
        constexpr int CHANNELS_BEFORE = Convolution<CONVOLUTIONS - 1>::OUT;
        put_gradient<CONVOLUTIONS - 1>(shared, image, input / CHANNELS_BEFORE,
                                       input % CHANNELS_BEFORE, sum);
    } else {
        auto& below = layer_of<L - 1>(shared.layers);
        const T gradient = store<T>(sum * load(below.derivatives[image][input]));
        const int row = first_row() + image;
        below.dz[image][input] = gradient;
        if (row < BATCH) layer_of<L - 1>(run.exchange.rows).dz[row][input] = gradient;
    }
}

// From the gradients of layer L's units to those of its inputs, and of what these come from.
template <int L>
__device__ inline void differentiate_layer(ImagesShared& shared, const ImagesRun& run) {
    using Own = Linear<L>;
    auto& part = layer_of<L>(shared.layers);
    const T* weights = shared.rounded.weights + BeforeLinear<L>::WEIGHTS;
    each_of_warp<Own::INPUT_TILES>([&](int tile) {
        float sums[2][4] = {};
#pragma unroll 8
        for (int k = 0; k < Own::UNIT_TILES; ++k) {
            unsigned a[4], b[2];
            load_a(a, weights + tile * 16 * Own::WEIGHT_ROW + k * 16, Own::WEIGHT_ROW);
            load_images(b, part.dz, k);
            TensorCore<T>::multiply(sums[k % 2], a, b);
        }
        each_of_image(sums, [&](int row, int image, float sum) {
            shared.sums[image][tile * 16 + row] = sum;
        });
    });
    __syncthreads();
    each_of_thread<IMAGES * Own::INPUTS>([&](int i) {
        const int image = i / Own::INPUTS, input = i % Own::INPUTS;
        put_input_gradient<L>(shared, run, image, input, shared.sums[image][input]);
    });
}
