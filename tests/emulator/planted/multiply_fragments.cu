// D = C + A B by one mma instruction, KIND = f16 | bf16 | tf32 | f16_k8. A (16 x K) and B (K x 8)
// come as words, one an element; fragments are filled by the formulas of the PTX ISA, 9.7.14.5.7
// and 9.7.14.5.8.
#include "base/types.cuh"

#define KIND_f16 0
#define KIND_bf16 1
#define KIND_tf32 2
#define KIND_f16_k8 3
#define KIND_NUMBER_OF(kind) KIND_##kind
#define KIND_NUMBER(kind) KIND_NUMBER_OF(kind)

constexpr int NUMBER = KIND_NUMBER(KIND);
constexpr int K = NUMBER == 0 || NUMBER == 1 ? 16 : 8;
constexpr int A_ELEMENTS = NUMBER == 2 || NUMBER == 3 ? 4 : 8;
constexpr int B_ELEMENTS = A_ELEMENTS / 2;

// The place of element a_i in A.
__device__ void place_of_a(int i, int group, int thread, int& row, int& column) {
    if (NUMBER == 2) {
        row = i == 0 || i == 2 ? group : group + 8;
        column = i < 2 ? thread : thread + 4;
    } else {
        row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
        column = i < 4 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8;
    }
}

// The row of element b_i in B; its column is the group.
__device__ int row_of_b(int i, int thread) {
    if (NUMBER == 2) return i == 0 ? thread : thread + 4;
    return i < 2 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8;
}

extern "C" __global__ void multiply_fragments(const unsigned* a, const unsigned* b, const float* c,
                                              float* d) {
    const int group = threadIdx.x >> 2, thread = threadIdx.x % 4;
    unsigned elements_a[8] = {}, elements_b[4] = {};
    for (int i = 0; i < A_ELEMENTS; ++i) {
        int row, column;
        place_of_a(i, group, thread, row, column);
        elements_a[i] = a[row * K + column];
    }
    for (int i = 0; i < B_ELEMENTS; ++i) elements_b[i] = b[row_of_b(i, thread) * 8 + group];
    float sums[4];
    for (int i = 0; i < 4; ++i) sums[i] = c[(i < 2 ? group : group + 8) * 8 + thread * 2 + (i & 1)];
#if KIND_NUMBER(KIND) == 2
    const unsigned fragment_a[4] = {elements_a[0], elements_a[1], elements_a[2], elements_a[3]};
    const unsigned fragment_b[2] = {elements_b[0], elements_b[1]};
    mma_m16n8k8_tf32(sums, fragment_a, fragment_b);
#else
    unsigned pairs_a[4], pairs_b[2];
    for (int i = 0; i < 4; ++i) pairs_a[i] = elements_a[2 * i] | (elements_a[2 * i + 1] << 16);
    for (int i = 0; i < 2; ++i) pairs_b[i] = elements_b[2 * i] | (elements_b[2 * i + 1] << 16);
#if KIND_NUMBER(KIND) == 0
    mma_m16n8k16_f16(sums, pairs_a, pairs_b);
#elif KIND_NUMBER(KIND) == 1
    mma_m16n8k16_bf16(sums, pairs_a, pairs_b);
#else
    const unsigned short_a[2] = {pairs_a[0], pairs_a[1]};
    mma_m16n8k8_f16(sums, short_a, pairs_b[0]);
#endif
#endif
    for (int i = 0; i < 4; ++i) d[(i < 2 ? group : group + 8) * 8 + thread * 2 + (i & 1)] = sums[i];
}
