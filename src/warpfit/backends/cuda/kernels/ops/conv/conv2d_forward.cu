// Computes: y = f(z), z[m, i, j, o] = b[o] + sum of w[k, l, c, o] x[m, i stride + k dilation -
//           padding, ..., c] over taps (k, l) and channels c, x being 0 outside of the image: the
//           matrix of windows (M OH OW, KH KW C) times w (KH KW C, O), without storing the former.
//           Each of GROUPS has C channels and O outputs.
// Layout:   x (M, H, W, GROUPS C), w (KH, KW, C, GROUPS O), bias (GROUPS O) or null, y and z (M,
//           OH, OW, GROUPS O), contiguous; num_windows = M OH OW. z is written if STORE_Z.
// Launch:   grid GROUPS ceil(num_windows / BLOCK_M) ceil(O / BLOCK_N), block 128; shared bytes:
//           STAGES tiles of A and B (`Tiling.shared_bytes`). Defines: DTYPE, ACTIVATION, STORE_Z,
//           TENSOR_CORES, BLOCK_M, BLOCK_N, STAGES; C_VECTOR (O_VECTOR): x (w, y and z) is aligned
//           to 16 bytes, and so is each group of every pixel.
// Numerics: sums in float (double for float64), in the order bias, taps, channels. Tensor cores
//           round float32 operands to tf32 as TensorCore in mma/mma.cuh.
// Cost:     2 GROUPS M OH OW KH KW C O FLOP; reads x KH KW / (stride_h stride_w) times, mostly from
//           L1 and L2, once for each column of tiles; writes y (and z) once.
// Reference: conv2d_forward of backends/numpy/conv.py; PTX ISA 9.7.14.5 (mma), 9.7.9.25.3
//           (cp.async).
#define EPILOGUE epilogue_activation
#define VECTOR O_VECTOR
#include "ops/conv/conv.cuh"

using Product = TileProduct<true, false>;

extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_forward(const T* x, const T* w, const T* bias, T* y, T* z, double slope, int num_windows,
                   int height, int width, int channels, int out_height, int out_width, int outputs,
                   int kernel_height, int kernel_width, int stride_height, int stride_width,
                   int padding_height, int padding_width, int dilation_height, int dilation_width) {
    take_turn();
    DYNAMIC_SHARED(unsigned char, ring);
    const Geometry geometry{{height, width},
                            {out_height, out_width},
                            {kernel_height, kernel_width},
                            {stride_height, stride_width},
                            {padding_height, padding_width},
                            {dilation_height, dilation_width}};
    const int num_features = kernel_height * kernel_width * channels;
    const int tiles_n = (outputs + BLOCK_N - 1) / BLOCK_N;
    const int group = own_group();
    const unsigned tile = own_tile();
    const int first_window = tile / tiles_n * BLOCK_M, first_output = tile % tiles_n * BLOCK_N;

    WindowRows<Product::TileA, false, false, C_VECTOR> of_x(
        {x + group * channels, geometry.image, channels}, geometry, first_window, num_windows);
    MatrixRows<Product::TileB, O_VECTOR> of_w(w + group * outputs, outputs, 0, num_features,
                                              first_output);
    Product product;
    begin_with_bias(product, bias, group * outputs + first_output, (group + 1) * outputs);
    NothingElse nothing;
    multiply_blocks(product, of_x, of_w, ring, (num_features + BLOCK_K - 1) / BLOCK_K, nothing);
    const Epilogue epilogue{y + group * outputs,
                            nullptr,
                            nullptr,
                            STORE_Z ? z + group * outputs : nullptr,
                            Acc(1),
                            static_cast<Acc>(slope),
                            num_windows,
                            outputs,
                            GROUPS * outputs};
    write_product(product, epilogue, first_window, first_output);
}
