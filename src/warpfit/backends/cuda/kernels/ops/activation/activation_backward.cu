// Computes: dz = dy f'(z), f the define ACTIVATION, or (dy + plus) f'(z) if HAS_PLUS.
// Layout:   dy, saved, plus and dz of n elements each, contiguous; saved is z where f needs_input,
//           and y = f(z) for all others.
// Launch:   1-D blocks of at most 256 threads, each taking blockDim.x · 32 / sizeof DTYPE elements;
//           no shared memory; defines DTYPE and these.
// Numerics: computed in float32, or float64 for float64.
// Cost:     3 n · sizeof DTYPE bytes, or 4 n.
// Reference: activation_backward of backends/activations.py.
#include "base/stream.cuh"
#include "ops/activation/activation.cuh"

extern "C" __global__ void __launch_bounds__(256)
    activation_backward(const T* dy, const T* saved, const T* plus, T* dz, double slope, int64 n) {
    take_turn();
    const Acc a = static_cast<Acc>(slope);
#if HAS_PLUS
    map_elements<3>({{dy, saved, plus}}, dz, n, 0, [=](const Acc(&x)[3], int64, int64) {
        return (x[0] + x[2]) * activation_derivative<Activation::ACTIVATION>(x[1], x[1], a);
    });
#else
    map_elements<2>({{dy, saved}}, dz, n, 0, [=](const Acc(&x)[2], int64, int64) {
        return x[0] * activation_derivative<Activation::ACTIVATION>(x[1], x[1], a);
    });
#endif
}
