// PTX instructions, one function each. No file but this one and its parts holds inline assembly.
//
// Reference: PTX ISA, docs.nvidia.com/cuda/parallel-thread-execution; the section is named at each
//   function.
#ifndef WARPFIT_PTX_CUH
#define WARPFIT_PTX_CUH

// cvt.f32.f16 (9.7.9.21): exact.
__device__ inline float half_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// cvt.rn.f16.f32 (9.7.9.21): to the nearest even; beyond 65504 infinity.
__device__ inline unsigned short float_to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

#define DEFINE_OF_FLOAT(NAME, INSTRUCTION)                       \
    __device__ inline float NAME(float value) {                  \
        float result;                                            \
        asm(INSTRUCTION " %0, %1;" : "=f"(result) : "f"(value)); \
        return result;                                           \
    }

// rcp (9.7.3.12) and sqrt (9.7.3.15): within one unit of the last place, and two; subnormal numbers
// are 0, here and below.
DEFINE_OF_FLOAT(reciprocal, "rcp.approx.ftz.f32")
DEFINE_OF_FLOAT(square_root_near, "sqrt.approx.ftz.f32")

// sin and cos (9.7.3.17, 9.7.3.18): within 2^-20 from -π to π.
DEFINE_OF_FLOAT(sine_near, "sin.approx.ftz.f32")
DEFINE_OF_FLOAT(cosine_near, "cos.approx.ftz.f32")

// ex2 (9.7.3.20): 2 to a power, within two units of the last place. lg2 (9.7.3.19): within 2^-22,
// of 0.5 to 2, else within two units of the last place.
DEFINE_OF_FLOAT(power_of_2, "ex2.approx.ftz.f32")
DEFINE_OF_FLOAT(logarithm_of_2, "lg2.approx.ftz.f32")

// The 32-bit address inside the shared window of a generic pointer.
__device__ inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// ldmatrix (9.7.14.5.15), sm_75: 8x8 matrices of 16-bit numbers, or 8x4 of 32-bit ones. Lanes 8i to
// 8i + 7 give the 16-byte rows of matrix i; lane l receives word l % 4 of row l / 4 of every
// matrix. With .trans, the 16-bit numbers (row 2 (l % 4), column l / 4) and the one below it.
__device__ inline void ldmatrix_x4(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3,
                                   const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ inline void ldmatrix_x4_trans(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3,
                                         const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"(shared_address(row))
                 : "memory");
}

// mma.m16n8k8 (9.7.14.5.5), sm_75: d += a * b, float16 operands, float32 sums.
__device__ inline void mma_m16n8k8_f16(float (&d)[4], const unsigned (&a)[2], const unsigned& b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, "
        "%1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

// prmt (9.7.9.7): four bytes, by the digits of `selector`, the lowest first: a byte of `word`, or,
// of 8 more than its number, eight copies of its sign.
__device__ inline unsigned permuted_bytes(unsigned word, unsigned selector) {
    unsigned bytes;
    asm("prmt.b32 %0, %1, %1, %2;" : "=r"(bytes) : "r"(word), "r"(selector));
    return bytes;
}

// st.v4.b32 (9.7.9.12): 16 bytes at once. The compiler may split a store of a struct that it can
// see into.
__device__ inline void store_16_bytes(void* place, uint4 word) {
    asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(place), "r"(word.x), "r"(word.y),
                 "r"(word.z), "r"(word.w)
                 : "memory");
}

#define DEFINE_WORD_OF_FLOATS(NAME, INSTRUCTION)                                \
    __device__ inline unsigned NAME(float first, float second) {                \
        unsigned word;                                                          \
        asm(INSTRUCTION " %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first)); \
        return word;                                                            \
    }

#if __CUDA_ARCH__ < 800
#include "ptx/before_sm80.cuh"
#else

// cvt.rn.bf16.f32 (9.7.9.21), sm_80: to the nearest even.
__device__ inline unsigned short float_to_bfloat(float value) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// cvt.rn.f16x2.f32, cvt.rn.bf16x2.f32 (9.7.9.21), sm_80: two numbers, the first in the lower half.
DEFINE_WORD_OF_FLOATS(floats_to_halves, "cvt.rn.f16x2.f32")
DEFINE_WORD_OF_FLOATS(floats_to_bfloats, "cvt.rn.bf16x2.f32")

// mma.m16n8k16 (9.7.14.5.8), sm_80.
__device__ inline void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4],
                                        const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// mma.m16n8k16 with bfloat16 operands (9.7.14.5.8).
__device__ inline void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4],
                                         const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// mma.m16n8k8 with bfloat16 operands (9.7.14.5.5).
__device__ inline void mma_m16n8k8_bf16(float (&d)[4], const unsigned (&a)[2], const unsigned& b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, "
        "%1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

// mma.m16n8k8 with tf32 operands (9.7.14.5.6).
__device__ inline void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4],
                                        const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// cp.async (9.7.9.25.3.1), sm_80: 16, 8 or 4 bytes from global to shared memory, zeros if not valid
// (then nothing is read). Both addresses are aligned to the size.
__device__ inline void copy_async_16(void* shared, const void* global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ inline void copy_async_8(void* shared, const void* global, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(valid ? 8 : 0)
                 : "memory");
}

__device__ inline void copy_async_4(void* shared, const void* global, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(valid ? 4 : 0)
                 : "memory");
}

// cp.async.commit_group (9.7.9.25.3.2): this thread's copies since the last one form a group.
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// bar.sync (9.7.13.1): COUNT threads, whole warps, meet at the barrier of this number, 1 to 15;
// __syncthreads has 0.
template <int COUNT>
__device__ inline void meet_at(unsigned number) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(COUNT) : "memory");
}

// mbarrier (9.7.13.15), sm_80: a barrier in 8 bytes of shared memory, whose phase is complete when
// `count` threads have arrived, and with them the bytes that they expect; then the next phase
// begins.
__device__ inline void mbarrier_init(unsigned long long* barrier, unsigned count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
                 : "memory");
}

__device__ inline void mbarrier_arrive(unsigned long long* barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(
                     shared_address(barrier))
                 : "memory");
}

// mbarrier.try_wait, before sm_90 test_wait: whether the phase of this parity is complete; what was
// written before the arrivals is then to be seen. Phase 0 is the first; before it, the one of
// parity 1 is complete.
__device__ inline bool mbarrier_test(unsigned long long* barrier, unsigned parity) {
    unsigned is_complete;
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(is_complete)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
#else
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(is_complete)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
#endif
    return is_complete;
}

// cp.async.mbarrier.arrive.noinc (9.7.13.15.16): this thread arrives when all its copies so far
// have landed.
__device__ inline void copy_async_arrive(unsigned long long* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

// cp.async.wait_group (9.7.9.25.3.3): until at most the N latest of this thread's groups are still
// under way.
template <int N>
__device__ inline void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif

#define DEFINE_LOADS(NAME, SCOPE)                                                 \
    __device__ inline uint4 NAME(const uint4* pointer) {                          \
        uint4 words;                                                              \
        asm volatile("ld.relaxed." SCOPE ".global.v4.u32 {%0, %1, %2, %3}, [%4];" \
                     : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w) \
                     : "l"(pointer)                                               \
                     : "memory");                                                 \
        return words;                                                             \
    }                                                                             \
    __device__ inline unsigned NAME(const unsigned* pointer) {                    \
        unsigned word;                                                            \
        asm volatile("ld.relaxed." SCOPE ".global.u32 %0, [%1];"                  \
                     : "=r"(word)                                                 \
                     : "l"(pointer)                                               \
                     : "memory");                                                 \
        return word;                                                              \
    }

#define DEFINE_STORES(NAME, SCOPE)                                                                \
    __device__ inline void NAME(uint4* pointer, uint4 words) {                                    \
        asm volatile("st.relaxed." SCOPE ".global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), \
                     "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)                       \
                     : "memory");                                                                 \
    }                                                                                             \
    __device__ inline void NAME(unsigned* pointer, unsigned word) {                               \
        asm volatile("st.relaxed." SCOPE ".global.u32 [%0], %1;" ::"l"(pointer), "r"(word)        \
                     : "memory");                                                                 \
    }

// ld.relaxed and st.relaxed (9.7.9.8, 9.7.9.12), sm_70: of memory that several blocks use, or that
// the host, or other cards, use, too. Each word comes and goes as a whole, in no order with others.
DEFINE_LOADS(load_relaxed, "gpu")
DEFINE_LOADS(load_system, "sys")
DEFINE_STORES(store_relaxed, "gpu")
DEFINE_STORES(store_system, "sys")

// fence.acq_rel (9.7.13.4): what comes before it, others see before what comes after it.
__device__ inline void fence_of_grid() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// The same number, of which the compiler knows nothing: so what follows from it is not found ahead.
template <class Number>
__device__ inline Number unforeseen(Number number) {
    asm volatile("" : "+r"(number));
    return number;
}

template <class Number>
__device__ inline Number* unforeseen(Number* pointer) {
    asm volatile("" : "+l"(pointer));
    return pointer;
}

// redux.sync (9.7.13.7), sm_80: a number that all lanes of a warp have. The compiler knows it then,
// and keeps what follows from it in uniform registers. Turing is not told.
__device__ inline unsigned uniform(unsigned number) {
#if __CUDA_ARCH__ >= 800
    unsigned same;
    asm("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(same) : "r"(number));
    return same;
#else
    return number;
#endif
}

// Nothing: threads of a GPU do not wait for others to let them run. An emulated one does.
__device__ inline void let_others_run() {}

// setmaxnreg (9.7.20.5), "a" targets: from here on each thread of this group of four warps has as
// many registers; 0 leaves them as they are.
template <int COUNT>
__device__ inline void take_registers() {
    if constexpr (COUNT > 0) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ inline void leave_registers() {
    if constexpr (COUNT > 0) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// griddepcontrol.wait (9.7.13.13), sm_90: until all kernels before are done. So a kernel that is
// launched programmatically, as those of graphs are, is at hand when its turn comes. All threads
// call it before they read or write any memory of the device. Nobody lets the next kernel start
// before its end: its blocks would take the place of those at work.
__device__ inline void take_turn() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// %cluster_ctarank (10.1): the number of this block in its cluster.
__device__ inline unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// mapa.shared::cluster (9.7.9.23): where another block of the cluster has what lies at `pointer`
// here.
__device__ inline unsigned cluster_address(const void* pointer, unsigned rank) {
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(address)
        : "r"(shared_address(pointer)), "r"(rank));
    return address;
}

// mbarrier.arrive.expect_tx (9.7.13.15.13): arrives, and lets the phase wait for as many bytes.
__device__ inline void mbarrier_expect(unsigned long long* barrier, unsigned bytes) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

// stmatrix (9.7.14.5.16), sm_90: what ldmatrix_x4_trans loads, to the places that it loads from.
__device__ inline void stmatrix_x4_trans(void* row, const unsigned (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(row)),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

__device__ inline void stmatrix_x4(void* row, const unsigned (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(row)),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

#include "ptx/packed_halves.cuh"

// cp.async.bulk (9.7.9.25.4.1): a multiple of 16 bytes from global to shared memory, both aligned
// to 16 bytes; the barrier counts them.
__device__ inline void copy_bulk(void* shared, const void* global, unsigned bytes,
                                 unsigned long long* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// cp.async.bulk.prefetch (9.7.9.25.4.2): a multiple of 16 bytes, aligned, to the L2 cache.
__device__ inline void prefetch_bulk(const void* global, unsigned bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// cp.async.bulk (9.7.9.25.4.1) from this block's shared memory to that of a block of its cluster,
// whose barrier counts.
__device__ inline void copy_to_block(unsigned address, const void* from, unsigned bytes,
                                     unsigned barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(address),
        "r"(shared_address(from)), "r"(bytes), "r"(barrier)
        : "memory");
}

// fence.proxy.async (9.7.13.4): bulk copies come after what this thread wrote to shared memory.
__device__ inline void fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// fence.proxy.async (9.7.13.4): bulk copies come after what was written to global memory, by this
// thread, or by others for which it has waited.
__device__ inline void fence_async_of_grid() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

// st.async (9.7.9.13): 8 or 16 bytes to a block of the cluster, which that block's barrier counts.
__device__ inline void store_async_pair(unsigned address, unsigned first, unsigned second,
                                        unsigned barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::
            "r"(address),
        "r"(first), "r"(second), "r"(barrier)
        : "memory");
}

__device__ inline void store_async_quad(unsigned address, const unsigned (&words)[4],
                                        unsigned barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(address),
        "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(barrier)
        : "memory");
}

// fence.mbarrier_init (9.7.13.4): other blocks of the cluster see barriers made before it.
__device__ inline void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// barrier.cluster (9.7.13.4): all threads of all blocks of the cluster meet, and see what was
// stored before.
__device__ inline void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

#if __CUDA_ARCH__ == 900
#include "ptx/ptx_sm90a.cuh"
#endif

#endif  // WARPFIT_PTX_CUH
