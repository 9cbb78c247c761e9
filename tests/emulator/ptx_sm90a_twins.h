// CPU twins of the functions of kernels/ptx/ptx_sm90a.cuh, by the same names and signatures. Part
// of ptx_twins.h.
//
// Reference: PTX ISA, docs.nvidia.com/cuda/parallel-thread-execution; the section is named at each
//   group.
#pragma once

using TensorMap = emulator::MatrixMap;

// cp.async.bulk.tensor (9.7.9.25.5.2). A copy lands when somebody waits for the phase that counts
// it. A store may read from when it is issued until its thread has waited for it, which is when all
// others have gone as far as they can: then what it reads must be as it was. What it writes is
// there when its thread ends.

inline void copy_tensor(void* shared, const TensorMap* map, int row, int column,
                        unsigned long long* barrier) {
    emulator::load_box("copy_tensor", shared, map, row, column, barrier, emulator::OWN_BLOCK);
}

inline void copy_tensor_to_cluster(void* shared, const TensorMap* map, int row, int column,
                                   unsigned long long* barrier, unsigned short blocks) {
    emulator::load_box("copy_tensor_to_cluster", shared, map, row, column, barrier, blocks);
}

inline void copy_images(void* shared, const TensorMap* map, int image, int row, int column,
                        int channel, unsigned long long* barrier) {
    emulator::load_images("copy_images", shared, map, {image, row, column, channel}, barrier,
                          emulator::OWN_BLOCK);
}

inline void store_tensor(const TensorMap* map, const void* shared, int row, int column) {
    emulator::store_box("store_tensor", map, shared, row, column);
}

inline void bulk_commit() { emulator::commit_stores(); }

template <int N>
inline void bulk_wait_read(emulator::Site site = emulator::Site::here()) {
    emulator::wait_for_stores("bulk_wait_read", N, site);
}

// mbarrier.arrive (9.7.13.15.13).
inline void mbarrier_arrive_at(unsigned cluster_address) {
    emulator::arrive_at("mbarrier_arrive_at", cluster_address);
}

// add.f16x2 (9.7.4.1).
inline unsigned sums_of_halves(unsigned first, unsigned second) {
    return floats_to_halves(emulator::sum_of_halves(first, second, 0),
                            emulator::sum_of_halves(first, second, 16));
}

// mma.m16n8k8 and m16n8k16 (9.7.14.5).
namespace emulator {

// With two sums of float16 a word.
template <int K>
void multiply_to_halves(const char* name, unsigned (&d)[2], const unsigned* a, const unsigned* b,
                        Site site) {
    float sums[4];
    for (int i = 0; i < 4; ++i)
        sums[i] = half_to_float(static_cast<unsigned short>(d[i / 2] >> i % 2 * 16));
    multiply<F16, K>(name, sums, a, b, site);
    for (int i = 0; i < 2; ++i)
        d[i] = float_to_half(sums[2 * i]) | unsigned{float_to_half(sums[2 * i + 1])} << 16;
}

}  // namespace emulator

inline void mma_m16n8k8_f16(unsigned (&d)[2], const unsigned (&a)[2], const unsigned& b,
                            emulator::Site site = emulator::Site::here()) {
    emulator::multiply_to_halves<8>("mma_m16n8k8_f16", d, a, &b, site);
}

inline void mma_m16n8k16_f16(unsigned (&d)[2], const unsigned (&a)[4], const unsigned (&b)[2],
                             emulator::Site site = emulator::Site::here()) {
    emulator::multiply_to_halves<16>("mma_m16n8k16_f16", d, a, b, site);
}

// wgmma (9.7.15). A product reads its operands and writes its registers when its thread waits for
// it, which is when all others have gone as far as they can; until then its registers are poisoned,
// and its operands must stay as they are. Products are exact; their sum with d is formed in double
// precision and rounded once.

inline void wgmma_fence(emulator::Site site = emulator::Site::here()) {
    emulator::fence_products("wgmma_fence", site);
}

inline void wgmma_commit(emulator::Site site = emulator::Site::here()) {
    emulator::commit_products("wgmma_commit", site);
}

template <int N>
inline void wgmma_wait(emulator::Site site = emulator::Site::here()) {
    emulator::wait_for_products("wgmma_wait", N, site);
}

namespace emulator {

// Of which `d` has two sums a word, if its words are no numbers.
inline bool are_halves(const float*) { return false; }
inline bool are_halves(const unsigned*) { return true; }

template <class Sum, int COUNT>
void multiply_async(const char* name, const NumberType& type, Sum (&d)[COUNT], unsigned long long a,
                    unsigned long long b, bool a_across, bool b_across, int adds, Site site) {
    static_assert(COUNT % 4 == 0 && COUNT <= 128, "d has a multiple of 8 columns, at most 256");
    begin_product(name,
                  {&type, a, nullptr, b, a_across, b_across, adds > 0, reinterpret_cast<float*>(d),
                   COUNT, are_halves(d), 0, 0},
                  site);
}

}  // namespace emulator

template <int A_ACROSS, int B_ACROSS, class Sum, int COUNT>
inline void wgmma_f16(Sum (&d)[COUNT], unsigned long long a, unsigned long long b, int adds,
                      emulator::Site site = emulator::Site::here()) {
    emulator::multiply_async("wgmma_f16", emulator::f16_numbers, d, a, b, A_ACROSS, B_ACROSS, adds,
                             site);
}

template <int A_ACROSS, int B_ACROSS, int COUNT>
inline void wgmma_bf16(float (&d)[COUNT], unsigned long long a, unsigned long long b, int adds,
                       emulator::Site site = emulator::Site::here()) {
    emulator::multiply_async("wgmma_bf16", emulator::bf16_numbers, d, a, b, A_ACROSS, B_ACROSS,
                             adds, site);
}

template <int A_ACROSS, int B_ACROSS, int COUNT>
inline void wgmma_tf32(float (&d)[COUNT], unsigned long long a, unsigned long long b, int adds,
                       emulator::Site site = emulator::Site::here()) {
    static_assert(!A_ACROSS && !B_ACROSS, "tf32 lies along k");
    emulator::multiply_async("wgmma_tf32", emulator::tf32_numbers, d, a, b, false, false, adds,
                             site);
}

namespace emulator {

template <class Sum, int COUNT>
void multiply_registers_async(const char* name, const NumberType& type, Sum (&d)[COUNT],
                              const unsigned (&a)[4], unsigned long long b, bool b_across, int adds,
                              Site site) {
    static_assert(COUNT % 4 == 0 && COUNT <= 128, "d has a multiple of 8 columns, at most 256");
    begin_product(name,
                  {&type, 0, a, b, false, b_across, adds > 0, reinterpret_cast<float*>(d), COUNT,
                   are_halves(d), 0, 0},
                  site);
}

}  // namespace emulator

template <int B_ACROSS = 0, class Sum, int COUNT>
inline void wgmma_f16_of_registers(Sum (&d)[COUNT], const unsigned (&a)[4], unsigned long long b,
                                   int adds, emulator::Site site = emulator::Site::here()) {
    emulator::multiply_registers_async("wgmma_f16_of_registers", emulator::f16_numbers, d, a, b,
                                       B_ACROSS, adds, site);
}

template <int B_ACROSS = 0, int COUNT>
inline void wgmma_bf16_of_registers(float (&d)[COUNT], const unsigned (&a)[4], unsigned long long b,
                                    int adds, emulator::Site site = emulator::Site::here()) {
    emulator::multiply_registers_async("wgmma_bf16_of_registers", emulator::bf16_numbers, d, a, b,
                                       B_ACROSS, adds, site);
}

template <int COUNT>
inline void wgmma_tf32_of_registers(float (&d)[COUNT], const unsigned (&a)[4], unsigned long long b,
                                    int adds, emulator::Site site = emulator::Site::here()) {
    emulator::multiply_registers_async("wgmma_tf32_of_registers", emulator::tf32_numbers, d, a, b,
                                       false, adds, site);
}
