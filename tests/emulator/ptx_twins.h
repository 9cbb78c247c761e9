// CPU twins of the functions of kernels/ptx/ptx.cuh, by the same names and signatures.
//
// Reference: PTX ISA, docs.nvidia.com/cuda/parallel-thread-execution; the section is named at each
//   group.
#pragma once

#include <cstdint>
#include <cstring>

#include "device_math.h"
#include "fibers.h"
#include "fragments.h"

// cvt (9.7.9.21): half_to_float, float_to_half. A NaN becomes the canonical one of the target type.

inline float reciprocal(float value) { return 1 / value; }

inline float square_root_near(float value) { return sqrtf(value); }

inline float sine_near(float angle) { return sinf(angle); }
inline float cosine_near(float angle) { return cosf(angle); }
inline float power_of_2(float exponent) { return exp2f(exponent); }

inline float logarithm_of_2(float value) { return log2f(value); }

// prmt (9.7.9.7).
inline unsigned permuted_bytes(unsigned word, unsigned selector) {
    unsigned bytes = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned digit = selector >> 4 * i & 15, byte = word >> digit % 4 * 8 & 0xff;
        const unsigned sign = byte & 0x80 ? 0xff : 0;
        bytes |= (digit & 8 ? sign : byte) << 8 * i;
    }
    return bytes;
}

inline void store_16_bytes(void* place, uint4 word) { *static_cast<uint4*>(place) = word; }

// ldmatrix (9.7.14.5.15): 8x8 matrices of 16-bit elements. Lanes 8i to 8i+7 give the rows of matrix
// i; lane l gets elements 2(l % 4) and 2(l % 4) + 1 of row l / 4, or with .trans those of column l
// / 4.

inline void ldmatrix_x4(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const void* row,
                        emulator::Site site = emulator::Site::here()) {
    emulator::load_matrix<false>("ldmatrix_x4", {&r0, &r1, &r2, &r3}, row, site);
}

inline void ldmatrix_x4_trans(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3,
                              const void* row, emulator::Site site = emulator::Site::here()) {
    emulator::load_matrix<true>("ldmatrix_x4_trans", {&r0, &r1, &r2, &r3}, row, site);
}

// mma.sync (9.7.14.5): D += A B, A of 16 x K, B of K x 8. Lane l holds of D the elements (l / 4,
// 2(l % 4) + {0, 1}) in d[0], d[1] and those 8 rows below in d[2], d[3]. Of 16-bit A, register i
// holds row l / 4 + 8(i % 2), columns 2(l % 4) + 8(i / 2) + {0, 1}; of B column l / 4, rows 2(l %
// 4) + 8i + {0, 1}; the lower one in the low half. Of tf32, a[i] is row l / 4 + 8(i % 2), column l
// % 4 + 4(i / 2), and b[i] column l / 4, row l % 4 + 4i. Products are exact; their sum with D is
// formed in double precision and rounded once.

inline void mma_m16n8k8_f16(float (&d)[4], const unsigned (&a)[2], const unsigned& b,
                            emulator::Site site = emulator::Site::here()) {
    emulator::multiply<emulator::F16, 8>("mma_m16n8k8_f16", d, a, &b, site);
}

#if __CUDA_ARCH__ < 800
#include "ptx/before_sm80.cuh"
#else

inline unsigned short float_to_bfloat(float value) {
    const unsigned word = __float_as_uint(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<unsigned short>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}

inline unsigned floats_to_halves(float first, float second) {
    return float_to_half(first) | static_cast<unsigned>(float_to_half(second)) << 16;
}

inline unsigned floats_to_bfloats(float first, float second) {
    return float_to_bfloat(first) | static_cast<unsigned>(float_to_bfloat(second)) << 16;
}

inline void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                             emulator::Site site = emulator::Site::here()) {
    emulator::multiply<emulator::F16, 16>("mma_m16n8k16_f16", d, a, b, site);
}

inline void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                              emulator::Site site = emulator::Site::here()) {
    emulator::multiply<emulator::Bf16, 16>("mma_m16n8k16_bf16", d, a, b, site);
}

inline void mma_m16n8k8_bf16(float (&d)[4], const unsigned (&a)[2], const unsigned& b,
                             emulator::Site site = emulator::Site::here()) {
    emulator::multiply<emulator::Bf16, 8>("mma_m16n8k8_bf16", d, a, &b, site);
}

inline void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                             emulator::Site site = emulator::Site::here()) {
    emulator::multiply<emulator::Tf32, 8>("mma_m16n8k8_tf32", d, a, b, site);
}

// cp.async (9.7.9.25.3). The target is poisoned at once and gets its bytes only when the thread
// that issued the copy waits for its group, the latest moment that the ISA allows: whoever reads
// too early, or still needs what was there before, meets NaN.

inline void copy_async_16(void* shared, const void* global, bool valid) {
    emulator::begin_copy("copy_async_16", shared, global, 16, valid);
}

inline void copy_async_8(void* shared, const void* global, bool valid) {
    emulator::begin_copy("copy_async_8", shared, global, 8, valid);
}

inline void copy_async_4(void* shared, const void* global, bool valid) {
    emulator::begin_copy("copy_async_4", shared, global, 4, valid);
}

inline void copy_async_commit() { emulator::commit_copies(); }

// Waits until at most N of this thread's committed groups are pending.
template <int N>
inline void copy_async_wait() {
    emulator::wait_for_copies(N);
}

// bar.sync (9.7.13.1).
template <int COUNT>
inline void meet_at(unsigned number, emulator::Site site = emulator::Site::here()) {
    emulator::meet_some("meet_at", number, COUNT, site);
}

// mbarrier (9.7.13.15), and cp.async.mbarrier.arrive (9.7.13.15.16). Copies land, and arrive, when
// somebody tests a barrier at which all others have arrived, the latest moment that the ISA allows.

inline void mbarrier_init(unsigned long long* barrier, unsigned count) {
    emulator::init_mbarrier(barrier, count);
}

inline void mbarrier_arrive(unsigned long long* barrier,
                            emulator::Site site = emulator::Site::here()) {
    emulator::arrive("mbarrier_arrive", barrier);
    emulator::fall_behind("mbarrier_arrive", site);
}

inline void copy_async_arrive(unsigned long long* barrier,
                              emulator::Site site = emulator::Site::here()) {
    emulator::arrive_after_copies("copy_async_arrive", barrier);
    emulator::fall_behind("copy_async_arrive", site);
}

// Kernels ask until it holds: so it returns only then, and others run meanwhile.
inline bool mbarrier_test(unsigned long long* barrier, unsigned parity,
                          emulator::Site site = emulator::Site::here()) {
    emulator::wait_for_phase("mbarrier_test", barrier, parity, site);
    return true;
}

#endif

// setmaxnreg (9.7.20.5): a CPU has the registers that it has.

// ld.relaxed and st.relaxed (9.7.9.8, 9.7.9.12).

template <class Words>
inline Words load_relaxed(const Words* pointer) {
    emulator::check_aligned("load_relaxed", pointer, sizeof(Words));
    return *pointer;
}

template <class Words>
inline void store_relaxed(Words* pointer, Words words,
                          emulator::Site site = emulator::Site::here()) {
    emulator::check_aligned("store_relaxed", pointer, sizeof(Words));
    if (std::memcmp(pointer, &words, sizeof words) != 0) ++emulator::progress;
    *pointer = words;
    if (emulator::writes_are_late) emulator::store_late(pointer, sizeof words);
    emulator::fall_behind("store_relaxed", site);
}

// fence.acq_rel (9.7.13.4).
inline void fence_of_grid() { emulator::fence(); }

inline uint4 load_system(const uint4* pointer) { return load_relaxed(pointer); }
inline void store_system(uint4* pointer, uint4 words,
                         emulator::Site site = emulator::Site::here()) {
    store_relaxed(pointer, words, site);
}

inline unsigned load_system(const unsigned* pointer) {
    return __atomic_load_n(pointer, __ATOMIC_ACQUIRE);
}

inline void store_system(unsigned* pointer, unsigned word) {
    if (*pointer != word) ++emulator::progress;
    __atomic_store_n(pointer, word, __ATOMIC_RELEASE);
    emulator::fence();
    if (emulator::writes_are_late) emulator::see_atomic(pointer, sizeof word);
}

inline unsigned uniform(unsigned number) { return number; }

template <class Number>
inline Number unforeseen(Number number) {
    return number;
}

inline void let_others_run(emulator::Site site = emulator::Site::here()) {
    emulator::yield("let_others_run", site);
}

template <int COUNT>
inline void take_registers() {}

template <int COUNT>
inline void leave_registers() {}

// griddepcontrol (9.7.13.13): a launch is complete when it returns.
inline void take_turn() {}

#if __CUDA_ARCH__ >= 800

// stmatrix (9.7.14.5.16).
inline void stmatrix_x4(void* row, const unsigned (&r)[4],
                        emulator::Site site = emulator::Site::here()) {
    emulator::store_matrix<false>("stmatrix_x4", row, r, site);
}

inline void stmatrix_x4_trans(void* row, const unsigned (&r)[4],
                              emulator::Site site = emulator::Site::here()) {
    emulator::store_matrix<true>("stmatrix_x4_trans", row, r, site);
}

// cvt.rn.relu (9.7.9.21).
namespace emulator {
inline float relu_of(float value) { return value < 0 || value == 0 ? 0 : value; }
}  // namespace emulator

inline unsigned relu_to_halves(float first, float second) {
    return floats_to_halves(emulator::relu_of(first), emulator::relu_of(second));
}

inline unsigned relu_to_bfloats(float first, float second) {
    return floats_to_bfloats(emulator::relu_of(first), emulator::relu_of(second));
}

// fma.rn.relu.f16x2 (9.7.4.4). The sum of two halves is exact in float32.
namespace emulator {

inline float sum_of_halves(unsigned first, unsigned second, int shift) {
    return half_to_float(static_cast<unsigned short>(first >> shift)) +
           half_to_float(static_cast<unsigned short>(second >> shift));
}

}  // namespace emulator

inline unsigned relu_of_sums(unsigned first, unsigned second) {
    return relu_to_halves(emulator::sum_of_halves(first, second, 0),
                          emulator::sum_of_halves(first, second, 16));
}

// set.gt, set.ge (9.7.7.1), max.NaN (9.7.4.9).
namespace emulator {

template <class Choose>
inline unsigned of_both_halves(unsigned word, unsigned other, Choose choose) {
    const unsigned low = choose(word & 0xffff, other & 0xffff),
                   high = choose(word >> 16, other >> 16);
    return (low & 0xffff) | high << 16;
}

inline float half_value(unsigned bits) { return half_to_float(static_cast<unsigned short>(bits)); }
inline float bfloat_value(unsigned bits) { return __uint_as_float(bits << 16); }

}  // namespace emulator

inline unsigned greater_halves(unsigned word, unsigned other) {
    return emulator::of_both_halves(word, other, [](unsigned a, unsigned b) {
        return emulator::half_value(a) > emulator::half_value(b) ? 0xffffu : 0;
    });
}

inline unsigned greater_bfloats(unsigned word, unsigned other) {
    return emulator::of_both_halves(word, other, [](unsigned a, unsigned b) {
        return emulator::bfloat_value(a) > emulator::bfloat_value(b) ? 0xffffu : 0;
    });
}

inline unsigned at_least_halves(unsigned word, unsigned other) {
    return emulator::of_both_halves(word, other, [](unsigned a, unsigned b) {
        return emulator::half_value(a) >= emulator::half_value(b) ? 0xffffu : 0;
    });
}

inline unsigned at_least_bfloats(unsigned word, unsigned other) {
    return emulator::of_both_halves(word, other, [](unsigned a, unsigned b) {
        return emulator::bfloat_value(a) >= emulator::bfloat_value(b) ? 0xffffu : 0;
    });
}

inline unsigned larger_halves(unsigned word, unsigned other) {
    return emulator::of_both_halves(word, other, [](unsigned a, unsigned b) {
        const float first = emulator::half_value(a), second = emulator::half_value(b);
        return first != first || second != second ? 0x7fffu : second > first ? b : a;
    });
}

inline unsigned larger_bfloats(unsigned word, unsigned other) {
    return emulator::of_both_halves(word, other, [](unsigned a, unsigned b) {
        const float first = emulator::bfloat_value(a), second = emulator::bfloat_value(b);
        return first != first || second != second ? 0x7fffu : second > first ? b : a;
    });
}

inline unsigned cluster_rank() { return emulator::rank_in_cluster(); }

inline unsigned shared_address(const void* pointer) { return emulator::to_shared_address(pointer); }

inline unsigned cluster_address(const void* pointer, unsigned rank) {
    return emulator::to_cluster_address("cluster_address", pointer, rank);
}

inline void mbarrier_expect(unsigned long long* barrier, unsigned bytes,
                            emulator::Site site = emulator::Site::here()) {
    emulator::arrive("mbarrier_expect", barrier, bytes);
    emulator::fall_behind("mbarrier_expect", site);
}

// cp.async.bulk (9.7.9.25.4.1). Like cp.async, it lands when somebody waits for the phase that
// counts it.
inline void copy_bulk(void* shared, const void* global, unsigned bytes,
                      unsigned long long* barrier) {
    emulator::check_aligned("copy_bulk", global, 16);
    emulator::check_shared("copy_bulk", shared, 16, bytes);
    if (bytes % 16 != 0)
        emulator::fail("copy_bulk: expected a multiple of 16 bytes, got %u", bytes);
    emulator::copy_for_mbarrier("copy_bulk", shared, global, bytes, barrier);
}

// cp.async.bulk.prefetch (9.7.9.25.4.2).
inline void prefetch_bulk(const void* global, unsigned bytes) {
    emulator::check_aligned("prefetch_bulk", global, 16);
    if (bytes % 16 != 0)
        emulator::fail("prefetch_bulk: expected a multiple of 16 bytes, got %u", bytes);
}

// From shared memory to another block's: read as late as it lands, for which the barrier there
// waits.
inline void copy_to_block(unsigned address, const void* from, unsigned bytes, unsigned barrier) {
    emulator::check_shared("copy_to_block", from, 16, bytes);
    if (bytes % 16 != 0)
        emulator::fail("copy_to_block: expected a multiple of 16 bytes, got %u", bytes);
    emulator::store_for_mbarrier("copy_to_block", address, from, bytes, barrier, true);
}

// st.async (9.7.9.13). Like cp.async, it lands when somebody waits for the phase that counts it.

inline void store_async_pair(unsigned address, unsigned first, unsigned second, unsigned barrier) {
    const unsigned pair[2] = {first, second};
    emulator::store_for_mbarrier("store_async_pair", address, pair, 8, barrier);
}

inline void store_async_quad(unsigned address, const unsigned (&words)[4], unsigned barrier) {
    emulator::store_for_mbarrier("store_async_quad", address, words, 16, barrier);
}

inline void fence_mbarrier_init() {}

// fence.proxy.async (9.7.13.4).
inline void fence_async() { emulator::fence_copies(); }
// Copies see all of global memory here: that this fence is there, no test can tell.
inline void fence_async_of_grid() {}

inline void cluster_barrier(emulator::Site site = emulator::Site::here()) {
    emulator::cluster_barrier("cluster_barrier", site);
}

#if __CUDA_ARCH__ == 900
#include "ptx_sm90a_twins.h"
#endif
#endif
