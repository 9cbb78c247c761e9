// Two products by wgmma of a slice of k, KIND = f16 | bf16 | tf32 (A_IN_REGISTERS: its A comes from
// there; SUMS_IN_HALVES: its sums are of float16, two in a word): first (64, COLUMNS) = c + A B,
// then second = A B. A and B come as they shall lie in shared memory, in planes without a swizzle if
// IN_PLANES. The second is still in flight when the first is written. Mistakes, one for each value
// of BUG:
enum Bug {
    NONE,
    READS_FIRST_EARLY,
    READS_SECOND_EARLY,
    WRITES_OPERAND_EARLY,
    WRITES_REGISTERS,
    WRITES_A_REGISTERS,
    NO_FENCE,
    NO_COMMIT,
    NO_WAIT,
    ONE_WARP,
    OTHER_LANE,
    OTHER_FLAG,
    OTHER_ATOMS,
    PAST_THE_END
};
#define SHARED_ALIGNMENT 1024
#include "mma/operand_tile.cuh"
#include "mma/planes.cuh"

#define NAME_OF(kind) wgmma_##kind
#define NAME(kind) NAME_OF(kind)

#if SUMS_IN_HALVES
using Word = unsigned;
constexpr int OF_WORD = 2;
__device__ void put(unsigned& word, int i, float sum) {
    reinterpret_cast<uint16*>(&word)[i] = store<float16>(sum).bits;
}
__device__ float sum_of(unsigned word, int i) {
    return load(float16{reinterpret_cast<const uint16*>(&word)[i]});
}
#else
using Word = float;
constexpr int OF_WORD = 1;
__device__ void put(float& word, int, float sum) { word = sum; }
__device__ float sum_of(float word, int) { return word; }
#endif
constexpr int COUNT = COLUMNS / 2 / OF_WORD;

struct Shared {
    uint4 a[A_BYTES / 16], b[B_BYTES / 16];
};

__device__ void fill(Shared& shared, const uint4* a, const uint4* b) {
    for (int i = threadIdx.x; i < A_BYTES / 16; i += blockDim.x) shared.a[i] = a[i];
    for (int i = threadIdx.x; i < B_BYTES / 16; i += blockDim.x) shared.b[i] = b[i];
    fence_async();
    __syncthreads();
}

__device__ uint64 descriptor(const void* matrix, int panel_bytes, [[maybe_unused]] int row_step) {
    unsigned address = shared_address(matrix);
    if (BUG == OTHER_ATOMS) address += 128;
    if (BUG == PAST_THE_END) address += A_BYTES + B_BYTES;
#if IN_PLANES
    address += 3 * PIECE_BYTES;
    return planes_descriptor(address, panel_bytes, row_step);
#else
    const uint64 found = matrix_descriptor(address, panel_bytes);
    return BUG == OTHER_FLAG ? found | 1ull << 52 : found;
#endif
}

using ARegisters = unsigned[4];

// What a thread has of A, which lies along k, in a product that takes it from registers.
__device__ void load_registers(ARegisters& a, const uint4* matrix) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int i = 0; i < 4; ++i) {
        const int row = 16 * warp + lane / 4 + 8 * (i % 2);
        a[i] = reinterpret_cast<const unsigned*>(&matrix[8 * row + (i / 2 ^ row % 8)])[lane % 4];
    }
}

__device__ void multiply(Word (&d)[COUNT], const ARegisters& registers, uint64 a, uint64 b,
                         int adds) {
#if A_IN_REGISTERS
    wgmma_tf32_of_registers(d, registers, b, adds);
#else
    NAME(KIND)<ACROSS_A, ACROSS_B>(d, a, b, adds);
#endif
}

// The place in C of a thread's number.
__device__ int place(int i) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = 16 * warp + lane / 4 + 8 * (i / 2 % 2),
              column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    return row * COLUMNS + column;
}

__device__ void write(const Word (&sums)[COUNT], float* c) {
    for (int i = 0; i < COUNT * OF_WORD; ++i) c[place(i)] = sum_of(sums[i / OF_WORD], i % OF_WORD);
}

extern "C" __global__ void __launch_bounds__(128)
    group_product(const uint4* a, const uint4* b, const float* c, float* first_c, float* second_c) {
    DYNAMIC_SHARED(Shared, shared);
    fill(*shared, a, b);
    if (BUG == ONE_WARP && threadIdx.x >= 32) return;
    const uint64 of_a = descriptor(shared->a, PANEL_BYTES_A, ROW_STEP_A),
                 of_b = descriptor(shared->b, PANEL_BYTES_B, ROW_STEP_B);
    Word first[COUNT] = {}, second[COUNT] = {};
    for (int i = 0; i < COUNT * OF_WORD; ++i) put(first[i / OF_WORD], i % OF_WORD, c[place(i)]);
    ARegisters registers = {};
    if (A_IN_REGISTERS) load_registers(registers, shared->a);
    if (BUG != NO_FENCE) wgmma_fence();
    multiply(first, registers, of_a, of_b, BUG == OTHER_LANE && threadIdx.x == 7 ? 0 : 1);
    wgmma_commit();
    if (BUG == WRITES_REGISTERS) first[3] = 0;
    multiply(second, registers, of_a, of_b, 0);
    if (BUG != NO_COMMIT) wgmma_commit();
    if (BUG == READS_FIRST_EARLY) write(first, first_c);
    if (BUG == WRITES_A_REGISTERS && threadIdx.x == 64) registers[1] ^= 0x2000;
    if (BUG == WRITES_OPERAND_EARLY && threadIdx.x == 64) shared->b[0] = {};
    wgmma_wait<1>();
    if (BUG != READS_FIRST_EARLY) write(first, first_c);
    if (BUG == READS_SECOND_EARLY) write(second, second_c);
    if (BUG != NO_WAIT) wgmma_wait<0>();
    if (BUG != READS_SECOND_EARLY) write(second, second_c);
}
