// Every atomic operation, by all threads of the grid on the same words; `before` takes what
// atomicAdd returned.
#include "base/types.cuh"

extern "C" __global__ void counters(int* signed_words, unsigned* words, uint64* wide,
                                    unsigned* before) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    before[t] = atomicAdd(&words[0], 1);
    atomicInc(&words[1], 6);
    atomicDec(&words[2], 6);
    atomicOr(&words[3], 1u << (t % 32));
    atomicAnd(&words[4], ~(1u << (t % 8)));
    atomicXor(&words[5], t);
    atomicSub(&words[6], 2);
    if (atomicCAS(&words[7], 0u, 77u) == 0u) atomicExch(&words[8], 5u);
    atomicMax(&signed_words[0], t - 100);
    atomicMin(&signed_words[1], t - 100);
    atomicAdd(&wide[0], 1ull << 33);
}
