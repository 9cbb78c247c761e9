// What the scheduler offers to emulated device code: the thread's place, barriers, warp
// collectives, errors. Every kernel is compiled with it: it takes nothing of the standard library
// that is long to read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vector_types.h"

#define __forceinline__ inline __attribute__((always_inline))

// The built-in variables; the scheduler sets them whenever it resumes a thread.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace emulator {

// A place in the source, for messages.
struct Site {
    const char* file;
    int line;
    static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return Site{file, line};
    }
    bool operator==(const Site& other) const {
        return line == other.line &&
               (file == other.file || __builtin_strcmp(file, other.file) == 0);
    }
};

// One lane's part in a warp collective. The last lane to arrive calls execute for all of them; the
// requests lie on the stacks of the waiting lanes. A lane that takes no part is a null pointer.
struct Request {
    using Execute = void (*)(Request* const* lanes);
    const char* name;
    unsigned mask;
    Site site;
    Execute execute;
};

// A matrix of which boxes are copied, in place of what the driver encodes:
// EmulatedRuntime.tensor_map fills it.
struct MatrixMap {
    uint64_t mark;
    unsigned char* numbers;
    uint64_t rows, columns, row_bytes;
    unsigned box_rows, box_columns, number_bytes;
    unsigned is_tf32;  // what is copied is rounded
    // Of images, whose pixels are the matrix' rows; 0 otherwise. A box' pixels are box_rows, so many
    // of each, and its rows and columns `steps` apart.
    unsigned images, height, width;
    unsigned box[3], steps[2];
    unsigned char unused[40];
};
static_assert(sizeof(MatrixMap) == 128, "a tensor map has 128 bytes");

// How the numbers of a product's operands lie in memory.
struct NumberType {
    unsigned bytes;
    float (*value)(const unsigned char* place);
};

// A product of a group of four warps (wgmma), as one of its threads knows it.
struct Product {
    const NumberType* type;
    unsigned long long a;  // a descriptor
    const unsigned*
        a_registers;  // in its place, if there are any: of this thread, four numbers of 32 bits
    unsigned long long b;  // a descriptor
    bool a_across, b_across, adds;
    float* d;
    unsigned count;  // of this thread's words in d
    bool in_halves;  // whether a word has two sums, of float16, not one
    unsigned group;
    unsigned long long operands;  // a digest of what this warp multiplies, when it begins

    unsigned num_columns() const { return (in_halves ? 4 : 2) * count; }
};

struct Launch {
    const char* name;
    void (*body)(void** parameters);
    void*** parameters;  // of each card
    unsigned cards;      // that launch the kernel together, a grid each
    const unsigned* grid;
    const unsigned* block;
    unsigned long long dynamic_bytes;
    unsigned shared_alignment;  // of dynamic shared memory
    unsigned most_threads;      // of a block, from __launch_bounds__
    unsigned cluster;           // blocks along x that form one; 1: there are none
    bool cooperative;           // all blocks take turns
    unsigned char* static_begin;
    unsigned char* static_end;
    bool reverse;
    bool sanitized;
};

extern unsigned char* dynamic_shared;
extern unsigned long long progress;  // grows with everything that another thread may be waiting for

// Runs the whole grid; 0, or 1 with the reason in emulator_error().
int launch(const Launch& description);

// Waits for all threads of the block; the number of them whose predicate holds.
int barrier(const char* name, bool predicate, Site site);

// Waits for all threads of all blocks of the cluster.
void cluster_barrier(const char* name, Site site);

// Waits for the lanes of request.mask. `whole` demands a warp of 32 existing lanes.
void collective(Request& request, bool whole);

// Lets the others run. A launch in which all do only this fails.
void yield(const char* name, Site site);

// Likewise, if this thread's warp is the late one: it is held up after what others may wait for.
void fall_behind(const char* name, Site site);

// Ends the launch with an error that names the kernel, the block and this thread.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Whether the bytes lie in the block's static or dynamic shared memory.
bool is_shared(const void* pointer, size_t bytes);

// The address in the block's shared window of dynamic shared memory, and back. Dynamic shared
// memory begins at an odd multiple of its alignment.
unsigned to_shared_address(const void* pointer);
unsigned char* at_shared_address(unsigned address);

// The number of this block in its cluster.
unsigned rank_in_cluster();

// The address in the cluster of what another block has where this one has `pointer`; and what is
// there, which has to be memory of a block that runs.
unsigned to_cluster_address(const char* name, const void* pointer, unsigned rank);
unsigned char* at_cluster_address(const char* name, unsigned address, unsigned bytes);
unsigned rank_of_address(unsigned address);

// Late writes to global memory (late_writes.cpp), where a launch has them; the last two tell of
// what was done.
extern bool writes_are_late;
void fence();
void see_atomic(const void* place, size_t bytes);
void store_late(const void* place, size_t bytes);

// Fails if a thread has had very many atomic operations since it last waited for others.
void count_atomic();

// Fails unless an address is a multiple of so many bytes; and shared memory.
void check_aligned(const char* name, const void* pointer, unsigned bytes);
void check_shared(const char* name, const void* pointer, unsigned alignment, unsigned bytes);

// cp.async: from global memory, or zeros if that is not valid; until at most so many of the
// thread's groups are under way.
void begin_copy(const char* name, void* shared, const void* global, unsigned bytes, bool valid);
void commit_copies();
void wait_for_copies(unsigned most_pending);

// Waits until so many threads of the block have come to its barrier of this number (mbarriers.cpp).
void meet_some(const char* name, unsigned number, unsigned count, Site site);

// Barriers of shared memory (mbarriers.cpp).
void init_mbarrier(unsigned long long* place, unsigned count);
void arrive(const char* name, unsigned long long* place, unsigned bytes = 0);
void arrive_at(const char* name, unsigned address);
void arrive_after_copies(const char* name, unsigned long long* place);
void wait_for_phase(const char* name, unsigned long long* place, unsigned parity, Site site);
void store_for_mbarrier(const char* name, unsigned address, const void* words, unsigned bytes,
                        unsigned barrier, bool reads_late = false);

// Writes bytes to this block's shared memory when its barrier's phase ends, which counts them.
void copy_for_mbarrier(const char* name, void* target, const void* source, unsigned bytes,
                       unsigned long long* place);

// Fails if such a copy to some bytes is in flight.
void check_copied(const char* name, const void* begin, unsigned bytes);

// What copy_for_mbarrier does, to the blocks of the cluster whose bits are set: to the same place,
// counted by the same barrier of each.
void copy_to_blocks(const char* name, void* target, const void* source, unsigned bytes,
                    unsigned long long* place, unsigned blocks);
unsigned bytes_under_way(const unsigned char* begin, const unsigned char* end);
void forget_mbarriers();

// Boxes of matrices (tensor_copies.cpp).
constexpr unsigned OWN_BLOCK = 1u << 16;  // instead of the blocks of a cluster
void check_map(const char* name, const MatrixMap* map);
void load_box(const char* name, void* target, const MatrixMap* map, int row, int column,
              unsigned long long* barrier, unsigned blocks);
struct Corner {
    int image, row, column, channel;
};
void load_images(const char* name, void* target, const MatrixMap* map, Corner corner,
                 unsigned long long* barrier, unsigned blocks);
void store_box(const char* name, const MatrixMap* map, const void* source, int row, int column);
void commit_stores();
void wait_for_stores(const char* name, unsigned most_pending, Site site);
void end_stores();

// What threads write to shared memory is there for stores of boxes when they have called the fence;
// what copies write is.
void fence_copies();
void see_copied(const unsigned char* begin, const unsigned char* end);
void forget_fences();

// Products of groups of four warps (products.cpp).
void fence_products(const char* name, Site site);
void begin_product(const char* name, const Product& product, Site site);
void commit_products(const char* name, Site site);
void wait_for_products(const char* name, unsigned most_pending, Site site);
void end_products();

// This thread's number in its block.
inline unsigned linear_thread() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

inline unsigned lane() { return linear_thread() % warpSize; }

}  // namespace emulator
