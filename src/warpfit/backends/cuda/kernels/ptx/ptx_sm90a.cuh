// PTX instructions of Hopper alone, one function each: tensor copies, and products of groups of
// four warps. Part of ptx.cuh.
//
// Reference: PTX ISA, docs.nvidia.com/cuda/parallel-thread-execution; the section is named at each
//   function.
#pragma once

// What the driver encodes of a matrix, or of images, for tensor copies (cuTensorMapEncodeTiled).
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// cp.async.bulk.tensor (9.7.9.25.5.2): the box of a matrix whose first element is (row, column),
// from global to shared memory; what lies outside of the matrix is zero. The barrier counts the
// bytes of the whole box.
__device__ inline void copy_tensor(void* shared, const TensorMap* map, int row, int column,
                                   unsigned long long* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2, %3}], "
        "[%4];" ::"r"(shared_address(shared)),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
        : "memory");
}

// The same to the blocks of the cluster whose bits are set in `blocks`: to the same place, counted
// by the same barrier of each.
__device__ inline void copy_tensor_to_cluster(void* shared, const TensorMap* map, int row,
                                              int column, unsigned long long* barrier,
                                              unsigned short blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
        "cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(blocks)
        : "memory");
}

// The box of some images' pixels and channels: from global to shared memory, its pixels in the
// order of images, rows and columns, a line each; zeros outside of the images.
__device__ inline void copy_images(void* shared, const TensorMap* map, int image, int row,
                                   int column, int channel, unsigned long long* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2, %3, %4, %5}], "
        "[%6];" ::"r"(shared_address(shared)),
        "l"(map), "r"(channel), "r"(column), "r"(row), "r"(image), "r"(shared_address(barrier))
        : "memory");
}

// From shared to global memory; what lies outside of the matrix is left out.
__device__ inline void store_tensor(const TensorMap* map, const void* shared, int row, int column) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
        "r"(column), "r"(row), "r"(shared_address(shared))
        : "memory");
}

// cp.async.bulk.commit_group and wait_group (9.7.9.25.4.3): until at most the N latest of this
// thread's groups of stores have still to read shared memory.
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

template <int N>
__device__ inline void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

// mbarrier.arrive (9.7.13.15.13) at the barrier of another block of the cluster. Its default
// semantics are those of the block's own: with .release.cluster the compiler puts a fence of the
// whole GPU before it.
__device__ inline void mbarrier_arrive_at(unsigned cluster_address) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address) : "memory");
}

// add.f16x2 (9.7.4.1): of each half of two words the sum.
__device__ inline unsigned sums_of_halves(unsigned first, unsigned second) {
    unsigned word;
    asm("add.f16x2 %0, %1, %2;" : "=r"(word) : "r"(first), "r"(second));
    return word;
}

// mma.m16n8k8 and m16n8k16 (9.7.14.5) with sums of float16, two of a row in a word.
__device__ inline void mma_m16n8k8_f16(unsigned (&d)[2], const unsigned (&a)[2],
                                       const unsigned& b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
        : "+r"(d[0]), "+r"(d[1])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

__device__ inline void mma_m16n8k16_f16(unsigned (&d)[2], const unsigned (&a)[4],
                                        const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 "
        "{%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
        : "+r"(d[0]), "+r"(d[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// wgmma.fence, commit_group and wait_group (9.7.15.7): before the first product that takes
// registers written by others; around those that are waited for together; until at most the N
// latest groups are still under way.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// wgmma.mma_async (9.7.15.5): d = a b, + d if `adds` > 0, with a of 64 x 16 (tf32: 64 x 8) and b of
// 16 x N numbers in shared memory, of which descriptors tell; N is twice the size of d. Lane l of
// warp w of the four has in d[4 j + 2 h + i] row 16 w + l / 4 + 8 h, column 8 j + 2 (l % 4) + i.
// A_ACROSS: whether in memory the rows of a, not its k, lie side by side; B_ACROSS: the columns of
// b. tf32 takes neither. a may come from registers: a[2 i + h] is row 16 w + l / 4 + 8 h, columns 8
// i + 2 (l % 4) and the next, of tf32 column l % 4 + 4 i. They must stay as they are until the
// product has been waited for.
// d is 0 where sums begin, though nothing is added to then: two that are undefined are the same to
// the compiler, which may leave out one of two products. An `adds` of 0 may be one of these zeros
// to it, in a register: then it sees no constant, and keeps all of them. A negative number is none.
#define DEFINE_WGMMA(NAME, SHAPE, MAJORS, NUMBER, D, COUNT, A, B, ADDS)                        \
    template <int A_ACROSS, int B_ACROSS>                                                      \
    __device__ inline void NAME(NUMBER(&d)[COUNT], unsigned long long a, unsigned long long b, \
                                int adds) {                                                    \
        asm volatile("{ .reg .pred adds; setp.gt.s32 adds, " ADDS                              \
                     ", 0; wgmma.mma_async.sync.aligned." SHAPE " {" REGISTERS_##COUNT         \
                     "}, " A ", " B ", adds, 1, 1" MAJORS "; }"                                \
                     : D##_##COUNT                                                             \
                     : "l"(a), "l"(b), "r"(adds), "n"(A_ACROSS), "n"(B_ACROSS));               \
    }

#define DEFINE_WGMMA_OF_REGISTERS(NAME, SHAPE, MAJOR, NUMBER, D, COUNT, A0, A1, A2, A3, B, ADDS) \
    template <int B_ACROSS = 0>                                                                  \
    __device__ inline void NAME(NUMBER(&d)[COUNT], const unsigned (&a)[4], unsigned long long b, \
                                int adds) {                                                      \
        asm volatile("{ .reg .pred adds; setp.gt.s32 adds, " ADDS                                \
                     ", 0; wgmma.mma_async.sync.aligned." SHAPE " {" REGISTERS_##COUNT           \
                     "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", adds, 1, 1" MAJOR "; }"        \
                     : D##_##COUNT                                                               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds),            \
                       "n"(B_ACROSS));                                                           \
    }

// P0 to P6: the names of the operands that come after d.
#define DEFINE_WGMMAS(N, COUNT, P0, P1, P2, P3, P4, P5, P6)                                        \
    DEFINE_WGMMA(wgmma_f16, "m64n" #N "k16.f32.f16.f16", ", " P3 ", " P4, float, D, COUNT, P0, P1, \
                 P2)                                                                               \
    DEFINE_WGMMA(wgmma_bf16, "m64n" #N "k16.f32.bf16.bf16", ", " P3 ", " P4, float, D, COUNT, P0,  \
                 P1, P2)                                                                           \
    DEFINE_WGMMA(wgmma_tf32, "m64n" #N "k8.f32.tf32.tf32", "", float, D, COUNT, P0, P1, P2)        \
    DEFINE_WGMMA_OF_REGISTERS(wgmma_f16_of_registers, "m64n" #N "k16.f32.f16.f16", ", " P6, float, \
                              D, COUNT, P0, P1, P2, P3, P4, P5)                                    \
    DEFINE_WGMMA_OF_REGISTERS(wgmma_bf16_of_registers, "m64n" #N "k16.f32.bf16.bf16", ", " P6,     \
                              float, D, COUNT, P0, P1, P2, P3, P4, P5)                             \
    DEFINE_WGMMA_OF_REGISTERS(wgmma_tf32_of_registers, "m64n" #N "k8.f32.tf32.tf32", "", float, D, \
                              COUNT, P0, P1, P2, P3, P4, P5)

// With sums of float16, two of a row in a word: d[2 j + h] has what d[4 j + 2 h] and the next have.
#define DEFINE_HALF_WGMMAS(N, COUNT, P0, P1, P2, P3, P4, P5, P6)                                  \
    DEFINE_WGMMA(wgmma_f16, "m64n" #N "k16.f16.f16.f16", ", " P3 ", " P4, unsigned, H, COUNT, P0, \
                 P1, P2)                                                                          \
    DEFINE_WGMMA_OF_REGISTERS(wgmma_f16_of_registers, "m64n" #N "k16.f16.f16.f16", ", " P6,       \
                              unsigned, H, COUNT, P0, P1, P2, P3, P4, P5)

#define D_FROM(i)                                                                               \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]),        \
        "+f"(d[i + 11]), "+f"(d[i + 12]), "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define D_EIGHT(i)                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define D_16 D_FROM(0)
#define D_8 D_EIGHT(0)
#define D_12 D_8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define D_24 D_16, D_EIGHT(16)
#define D_32 D_16, D_FROM(16)
#define D_64 D_32, D_FROM(32), D_FROM(48)
#define D_96 D_64, D_FROM(64), D_FROM(80)
#define D_128 D_96, D_FROM(96), D_FROM(112)

#define H_FOUR(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define H_4 H_FOUR(0)
#define H_8 H_4, H_FOUR(4)
#define H_16 H_8, H_FOUR(8), H_FOUR(12)
#define H_32 H_16, H_FOUR(16), H_FOUR(20), H_FOUR(24), H_FOUR(28)

#define REGISTERS_4 "%0, %1, %2, %3"
#define REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGISTERS_12 REGISTERS_8 ", %8, %9, %10, %11"
#define REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_24 REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define REGISTERS_32                                                                \
    REGISTERS_16                                                                    \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, " \
    "%31"
#define REGISTERS_48                                                                \
    REGISTERS_32                                                                    \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
    "%47"
#define REGISTERS_64                                                                \
    REGISTERS_48                                                                    \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, " \
    "%63"
#define REGISTERS_80                                                                \
    REGISTERS_64                                                                    \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, " \
    "%79"
#define REGISTERS_96                                                                \
    REGISTERS_80                                                                    \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, " \
    "%95"
#define REGISTERS_112 \
    REGISTERS_96      \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define REGISTERS_128                                                                              \
    REGISTERS_112                                                                                  \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
    "%127"

DEFINE_WGMMAS(16, 8, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
DEFINE_WGMMAS(24, 12, "%12", "%13", "%14", "%15", "%16", "%17", "%18")
DEFINE_WGMMAS(32, 16, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
DEFINE_WGMMAS(48, 24, "%24", "%25", "%26", "%27", "%28", "%29", "%30")
DEFINE_WGMMAS(64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
DEFINE_WGMMAS(128, 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
DEFINE_WGMMAS(192, 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
DEFINE_WGMMAS(256, 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
DEFINE_HALF_WGMMAS(16, 4, "%4", "%5", "%6", "%7", "%8", "%9", "%10")
DEFINE_HALF_WGMMAS(32, 8, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
DEFINE_HALF_WGMMAS(64, 16, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
DEFINE_HALF_WGMMAS(128, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
