// What the scheduler offers to emulated device code: the thread's place, barriers, warp collectives, errors.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

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
        return line == other.line && (file == other.file || __builtin_strcmp(file, other.file) == 0);
    }
};

// One lane's part in a warp collective. The last lane to arrive calls execute for all of them; the requests
// lie on the stacks of the waiting lanes. A lane that takes no part is a null pointer.
struct Request {
    using Execute = void (*)(Request* const* lanes);
    const char* name;
    unsigned mask;
    Site site;
    Execute execute;
};

// What a thread waits for, looked at whenever its turn comes.
struct Condition {
    const char* name;
    Site site;
    Condition(const char* name, Site site) : name(name), site(site) {}
    virtual bool holds() = 0;
    virtual std::string detail() const { return ""; }
};

// A cp.async that was issued and has not landed.
struct PendingCopy {
    unsigned char* target;
    unsigned bytes;
    unsigned number;  // among all copies of its thread
    unsigned group;
    unsigned char data[16];
};

// What a thread keeps from one call to the next.
struct Thread {
    std::vector<PendingCopy> copies;
    unsigned copies_issued = 0;
    unsigned groups_committed = 0;
    unsigned atomics_since_wait = 0;

    void begin() {
        copies.clear();
        copies_issued = groups_committed = 0;
    }

    // Lets those copies land for which is_due(copy).
    template <class F>
    void land(F is_due) {
        size_t kept = 0;
        for (const auto& copy : copies) {
            if (is_due(copy)) {
                std::memcpy(copy.target, copy.data, copy.bytes);
            } else {
                copies[kept++] = copy;
            }
        }
        copies.resize(kept);
    }
};

struct Launch {
    const char* name;
    void (*body)(void** parameters);
    void** parameters;
    const unsigned* grid;
    const unsigned* block;
    unsigned long long dynamic_bytes;
    unsigned most_threads;  // of a block, from __launch_bounds__
    unsigned cluster;       // blocks along x that form one; 1: there are none
    bool cooperative;       // all blocks take turns
    unsigned char* static_begin;
    unsigned char* static_end;
    bool reverse;
    bool sanitized;
};

extern Thread* current;
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

// Waits until it holds.
void wait_for(Condition& condition);

// Lets the others run. A launch in which all do only this fails.
void yield(const char* name, Site site);

// Ends the launch with an error that names the kernel, the block and this thread.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Whether the bytes lie in the block's static or dynamic shared memory.
bool is_shared(const void* pointer, size_t bytes);

// Where in shared memory a pointer points, in words.
std::string shared_text(const void* pointer);

// The number of this block in its cluster.
unsigned rank_in_cluster();

// The address in the cluster of what another block has where this one has `pointer`; and what is there, which has
// to be memory of a block that runs.
unsigned to_cluster_address(const char* name, const void* pointer, unsigned rank);
unsigned char* at_cluster_address(const char* name, unsigned address, unsigned bytes);
unsigned rank_of_address(unsigned address);

// Barriers of shared memory (mbarriers.cpp).
void init_mbarrier(unsigned long long* place, unsigned count);
void arrive(const char* name, unsigned long long* place, unsigned bytes = 0);
void arrive_after_copies(const char* name, unsigned long long* place);
void wait_for_phase(const char* name, unsigned long long* place, unsigned parity, Site site);
void store_for_mbarrier(const char* name, unsigned address, const void* words, unsigned bytes,
                        unsigned barrier);

// Writes bytes to this block's shared memory when its barrier's phase ends, which counts them.
void copy_for_mbarrier(const char* name, void* target, const void* source, unsigned bytes,
                       unsigned long long* place);
unsigned bytes_under_way(const unsigned char* begin, const unsigned char* end);
void forget_mbarriers();

// This thread's number in its block.
inline unsigned linear_thread() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

inline unsigned lane() { return linear_thread() % warpSize; }

}  // namespace emulator
