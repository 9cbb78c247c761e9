// Rounds `numbers` to float16 and bfloat16 and widens `halves`, all as bits.
#include "base/types.cuh"

extern "C" __global__ void conversions(const float* numbers, uint16* half, uint16* bfloat, int n,
                                       const uint16* halves, float* widened, int num_halves) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        half[i] = float_to_half(numbers[i]);
        bfloat[i] = float_to_bfloat(numbers[i]);
    }
    if (i < num_halves) widened[i] = half_to_float(halves[i]);
}
