// Computes: a training run of a small convolutional network: for each step of each epoch forward
//           pass, loss, backward pass, and the optimizer's update. Convolutions of stride 1 with an
//           activation, each with max pooling or without; then linear layers.
// Layout:   batches (steps, BATCH, X_STRIDE) 16-bit, images pixel by pixel, and targets (steps,
//           BATCH, TARGET_WORDS) of all epochs, as gather_batches leaves them; settings (steps,);
//           places: of each layer where its weights, their optimizer state, its biases (units,),
//           and their optimizer state lie, all float32; weights of convolutions (height, width,
//           inputs, outputs), of linear layers (inputs, units); record (epochs, steps, 3) float64:
//           loss, weight, and rows that are right; exchange, zeros.
// Launch:   BLOCKS blocks of 32 WARPS threads, all resident; SHARED_BYTES of dynamic shared memory.
//           Settings: ImagesConfig of resident_config.py.
// Numerics: products of 16-bit numbers with float32 sums; parameters and their optimizer state in
//           float32; gradients times `scale`, a power of two that keeps them in the range of 16
//           bits. Sums of convolutions are rounded to 16 bits before their activation. Sums in a
//           fixed order.
// Cost:     of a step 6 BATCH FLOP for each product of the forward pass, or 4 for one of the first
//           layer, and two barriers of the grid.
// Reference: the layerwise engine over backends/numpy; PTX ISA 9.7.14.5 (ldmatrix, mma).
//
// Each of the first blocks takes IMAGES images of a batch through all layers and back, with all
// weights in its shared memory. It leaves in device memory the inputs of linear layers, the
// gradients of their units, and the gradients of the convolutions' weights. Once all have, the
// warps of all blocks update the parameters that they hold. Once these are updated, the blocks load
// them.
#include "ops/loss/loss_terms.cuh"
#include "ops/optim/update_rules.cuh"

namespace config {
#include <config>  // the settings, as the host declares them
}
using namespace config;

#include "base/block.cuh"
#include "resident/images/image_updates.cuh"

// Starts to copy this block's images of a step, and their targets; of rows that are not there,
// zeros.
__device__ inline void load_images_of(ImagesShared& shared, const ImagesRun& run,
                                      const Step& step) {
    constexpr int CHUNKS = X_STRIDE / 8;
    const int left = step.count() - first_row();
    const int64 first = static_cast<int64>(step.index) * BATCH + first_row();
    each_of_thread<IMAGES * CHUNKS>([&](int i) {
        const int image = i / CHUNKS, column = i % CHUNKS * 8;
        const bool is_there = image < left;
        copy_async_16(&shared.images[image][column],
                      run.batches + (is_there ? (first + image) * X_STRIDE + column : 0), is_there);
    });
    each_of_thread<IMAGES * TARGET_WORDS>([&](int i) {
        const bool is_there = i / TARGET_WORDS < left;
        copy_async_4(&shared.targets[step.index % 2][0][0] + i,
                     run.targets + (is_there ? first * TARGET_WORDS + i : 0), is_there);
    });
}

// Says where the windows of pixels begin.
template <int C = 0>
__device__ inline void fill_tables(ImagesShared& shared) {
    using Own = Convolution<C>;
    if constexpr (Own::HAS_TABLE) {
        auto& part = layer_of<C>(shared.convolutions);
        each_of_block<THREADS>(Own::PIXEL_SLICES * 16, [&](int pixel) {
            part.in_x[pixel] = Own::in_x(smaller(pixel, Own::Z_PIXELS - 1));
        });
    }
    if constexpr (C + 1 < CONVOLUTIONS) fill_tables<C + 1>(shared);
}

// From images to the input of the first convolution.
__device__ inline void place_images(ImagesShared& shared) {
    using First = Convolution<0>;
    auto& part = layer_of<0>(shared.convolutions);
    constexpr int COLUMNS = First::SPREAD ? First::Z_WIDTH : First::WIDTH;
    constexpr int ITEMS = First::HEIGHT * COLUMNS * First::PIECES;
    each_of_thread<IMAGES * ITEMS>([&](int i) {
        const int image = i / ITEMS, piece = i % First::PIECES * 8;
        const int pixel = i % ITEMS / First::PIECES, y = pixel / COLUMNS, x = pixel % COLUMNS;
        const int left = First::SPREAD ? x - First::LEFT : x;
        const T* from = shared.images[image] + (y * First::WIDTH + left) * First::INPUTS;
        alignas(16) T numbers[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const int column = left + (piece + k) / First::INPUTS;
            const bool is_there = piece + k < First::DEPTH && 0 <= column && column < First::WIDTH;
            numbers[k] = is_there ? from[piece + k] : T{0};
        }
        T* to = part.x[image] +
                First::in_x(0, y + First::TOP, First::SPREAD ? x : x + First::LEFT) + piece;
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(numbers);
    });
}

constexpr int CONVOLUTION_WEIGHTS = BeforeLinear<0>::WEIGHTS;
constexpr int LINEAR_WEIGHTS = AllLayers::WEIGHTS - CONVOLUTION_WEIGHTS;

// Starts to copy `count` numbers of what is rounded. Before Hopper all threads call, from Hopper on
// one.
template <class Number>
__device__ inline void copy_rounded(Number* to, const Number* from, int count,
                                    [[maybe_unused]] Barrier& full) {
    const int bytes = count * static_cast<int>(sizeof(Number));
    if constexpr (GENERATION >= 90) {
        copy_bulk(to, from, bytes, &full);
    } else {
        each_of_block<THREADS>(bytes / 16, [&](int i) {
            copy_async_16(reinterpret_cast<uint4*>(to) + i,
                          reinterpret_cast<const uint4*>(from) + i, true);
        });
    }
}

// Likewise all of them, once all blocks have left theirs: the weights of convolutions and all
// biases, then the weights of linear layers.
__device__ inline void load_rounded(ImagesShared& shared, const ImagesRun& run) {
    constexpr bool ONE_COPIES = GENERATION >= 90;
    if (ONE_COPIES && threadIdx.x > 0) return;
    RoundedParameters &to = shared.rounded, &from = run.exchange.rounded;
    if constexpr (ONE_COPIES) {
        fence_async_of_grid();
        mbarrier_expect(&shared.full[0], CONVOLUTION_WEIGHTS * sizeof(T) + sizeof(to.biases));
        mbarrier_expect(&shared.full[1], LINEAR_WEIGHTS * sizeof(T));
    }
    copy_rounded(to.weights, from.weights, CONVOLUTION_WEIGHTS, shared.full[0]);
    copy_rounded(to.biases, from.biases, AllLayers::BIASES, shared.full[0]);
    if constexpr (!ONE_COPIES) copy_async_commit();
    copy_rounded(to.weights + CONVOLUTION_WEIGHTS, from.weights + CONVOLUTION_WEIGHTS,
                 LINEAR_WEIGHTS, shared.full[1]);
    if constexpr (!ONE_COPIES) copy_async_commit();
}

// Waits until the weights of convolutions and all biases are there, or with OF_LAYERS those of
// linear layers. All threads call. The images that come meanwhile are a later group of copies.
template <bool OF_LAYERS>
__device__ inline void await_rounded(ImagesShared& shared, const Step& step) {
    if constexpr (GENERATION >= 90) {
        wait(shared.full[OF_LAYERS], step.index);
    } else {
        copy_async_wait<OF_LAYERS ? 1 : 2>();
        __syncthreads();
    }
}

// Forward from convolution C's input to the inputs of the first linear layer.
template <int C = 0>
__device__ inline void go_through_convolutions(ImagesShared& shared, const ImagesRun& run,
                                               const Step& step) {
    if constexpr (C < CONVOLUTIONS) {
        convolve<C>(shared);
        __syncthreads();
        activate_pixels<C>(shared, run);
        if constexpr (C + 1 == CONVOLUTIONS) await_rounded<true>(shared, step);
        __syncthreads();
        go_through_convolutions<C + 1>(shared, run, step);
    }
}

// Forward from layer L's inputs to the loss, and back to the gradients of layer L's units.
template <int L = 0>
__device__ inline void go_through_layers(ImagesShared& shared, const ImagesRun& run, int slot,
                                         int count) {
    multiply_units<L>(shared);
    __syncthreads();
    if constexpr (L + 1 < LAYERS) {
        activate_units<L>(shared, run);
        __syncthreads();
        go_through_layers<L + 1>(shared, run, slot, count);
    } else {
        if (own_warp() == 0) find_losses(shared, run, slot, count);
        __syncthreads();
    }
    differentiate_layer<L>(shared, run);
    __syncthreads();
}

// Back from the gradients of convolution C's outputs to those of all convolutions' weights.
template <int C = CONVOLUTIONS - 1>
__device__ inline void go_back_through_convolutions(ImagesShared& shared, const ImagesRun& run) {
    differentiate_convolution<C>(shared, run);
    if constexpr (C > 0) {
        __syncthreads();
        go_back_through_convolutions<C - 1>(shared, run);
    }
}

// Takes this block's images through the network and back; the next ones come meanwhile.
__device__ inline void train_images(ImagesShared& shared, const ImagesRun& run, const Step& step,
                                    const Step& next) {
    load_rounded(shared, run);
    if (next.is_there()) load_images_of(shared, run, next);
    copy_async_commit();
    await_rounded<false>(shared, step);
    go_through_convolutions(shared, run, step);
    go_through_layers(shared, run, step.index % 2, step.count());
    go_back_through_convolutions(shared, run);
}

// The record of a step, when all blocks have left their losses; one warp calls. Nobody reads these
// before the wait, so that plain loads find them.
__device__ inline void record_step(const ImagesRun& run, const Step& step) {
    const int count = step.count();
    write_record(run.record + 3 * static_cast<int64>(step.index), run.exchange.losses, count, count,
                 count);
}

// Numbers that are never copied are 0 from here on.
__device__ inline void prepare(ImagesShared& shared) {
    clear_by_block<THREADS>(reinterpret_cast<uint4*>(&shared), sizeof(ImagesShared) / 16);
    if constexpr (GENERATION >= 90) fence_async();  // bulk copies write there later
    __syncthreads();
    fill_tables(shared);
    __syncthreads();
    if (GENERATION >= 90 && threadIdx.x == 0) {
        for (Barrier& full : shared.full) mbarrier_init(&full, 1);
        fence_mbarrier_init();
    }
}

#include <arguments>  // struct Arguments, as the host packs it

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    one_launch_images(const __grid_constant__ Arguments arguments) {
    know_threads<THREADS>();
    DYNAMIC_SHARED(ImagesShared, whole);
    ImagesShared& shared = *whole;
    const ImagesRun run{arguments.batches, arguments.targets, {arguments.places},
                        arguments.record,  arguments.scale,   1 / arguments.scale,
                        arguments.loss,    arguments.rule,    *arguments.exchange};
    ImageTurns& turns = run.exchange.turns;
    const StepSettings* settings = arguments.settings;
    const bool has_images = static_cast<int>(blockIdx.x) < ROW_BLOCKS;
    Step step(arguments.num_rows, arguments.num_epochs);
    prepare(shared);
    Held held[ITEMS_OF_WARP] = {};
    load_parameters(held, run);
    arrive(&turns.updates);
    if (has_images) load_images_of(shared, run, step);
    copy_async_commit();
    for (; step.is_there(); step.advance()) {
        const StepSettings now = settings[step.index];
        if (has_images) {
            copy_async_wait<0>();
            __syncthreads();
            place_images(shared);
            wait_for(&turns.updates, BLOCKS * (step.index + 1u));
            Step next = step;
            next.advance();
            train_images(shared, run, step, next);
            arrive(&turns.rows);
        }
        wait_for(&turns.rows, ROW_BLOCKS * (step.index + 1u));
        update_parameters(held, run, now);
        if (blockIdx.x == 0 && own_warp() == WARPS - 1) record_step(run, step);
        arrive(&turns.updates);
    }
    store_parameters(held, run);
}
