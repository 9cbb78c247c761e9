// Computes: dx[m, h, w, c] = sum of w[k, l, c, o] dz[m, i, j, o] over taps (k, l) and outputs o,
//           (i, j) being the window that sees (h, w) at that tap: i stride + k dilation - padding =
//           h, likewise j; 0 if there is none. A product as the forward pass, of a matrix (M H W,
//           KH KW O) that is not stored. Each of GROUPS has C channels and O outputs.
// Layout:   dz (M, OH, OW, GROUPS O), w (KH, KW, C, GROUPS O), dx (M, H, W, GROUPS C), contiguous;
//           num_pixels = M H W.
// Launch:   grid GROUPS ceil(num_pixels / BLOCK_M) ceil(C / BLOCK_N), block 128; shared bytes:
//           STAGES tiles of A and B (`Tiling.shared_bytes`). Defines: DTYPE, TENSOR_CORES, BLOCK_M,
//           BLOCK_N, STAGES; STRIDED: not both strides are 1; C_VECTOR (O_VECTOR): dx (dz and w) is
//           aligned to 16 bytes, and so is each group of every pixel.
// Numerics: sums in float (double for float64), in the order of taps and outputs, without atomics:
//           each pixel gathers what it gets. Tensor cores round float32 operands to tf32 as
//           TensorCore in mma/mma.cuh.
// Cost:     2 GROUPS M H W KH KW C O FLOP, of which strides waste all but 1 / (stride_h stride_w);
//           reads dz KH KW times, mostly from L1 and L2, once for each column of tiles; writes dx
//           once.
// Reference: conv2d_backward_input of backends/numpy/conv.py; PTX ISA 9.7.14.5 (mma), 9.7.9.25.3
//           (cp.async).
#define VECTOR C_VECTOR
#include "ops/conv/conv.cuh"

using Product = TileProduct<true, true>;

extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_backward_input(const T* dz, const T* w, T* dx, int num_pixels, int height, int width,
                          int channels, int out_height, int out_width, int outputs,
                          int kernel_height, int kernel_width, int stride_height, int stride_width,
                          int padding_height, int padding_width, int dilation_height,
                          int dilation_width) {
    take_turn();
    DYNAMIC_SHARED(unsigned char, ring);
    const Geometry geometry{{height, width},
                            {out_height, out_width},
                            {kernel_height, kernel_width},
                            {stride_height, stride_width},
                            {padding_height, padding_width},
                            {dilation_height, dilation_width}};
    const int num_features = kernel_height * kernel_width * outputs;
    const int tiles_n = (channels + BLOCK_N - 1) / BLOCK_N;
    const int group = own_group();
    const unsigned tile = own_tile();
    const int first_pixel = tile / tiles_n * BLOCK_M, first_channel = tile % tiles_n * BLOCK_N;

    WindowRows<Product::TileA, true, STRIDED, O_VECTOR> of_dz(
        {dz + group * outputs, geometry.windows, outputs}, geometry, first_pixel, num_pixels);
    WeightRows<Product::TileB, O_VECTOR> of_w(w + group * outputs, geometry, channels, outputs,
                                              first_channel);
    Product product;
    NothingElse nothing;
    multiply_blocks(product, of_dz, of_w, ring, (num_features + BLOCK_K - 1) / BLOCK_K, nothing);
    const Epilogue epilogue{
        dx + group * channels, nullptr, nullptr, nullptr, Acc(1), Acc(0), num_pixels, channels,
        GROUPS * channels};
    write_product(product, epilogue, first_pixel, first_channel);
}
