// Computes: y = f(z), f the define ACTIVATION.
// Layout:   z and y of n elements each, contiguous; y may be z.
// Launch:   1-D blocks of at most 256 threads, each taking blockDim.x · 32 / sizeof DTYPE elements;
//           no shared memory; defines DTYPE, ACTIVATION.
// Numerics: computed in float32, or float64 for float64; a NaN stays one.
// Cost:     2 n · sizeof DTYPE bytes.
// Reference: activation_forward of backends/activations.py.
#include "base/stream.cuh"
#include "ops/activation/activation.cuh"

extern "C" __global__ void __launch_bounds__(256)
    activation_forward(const T* z, T* y, double slope, int64 n) {
    take_turn();
    const Acc a = static_cast<Acc>(slope);
    map_elements<1>({{z}}, y, n, 0, [=](const Acc(&x)[1], int64, int64) {
        return activate<Activation::ACTIVATION>(x[0], a);
    });
}
