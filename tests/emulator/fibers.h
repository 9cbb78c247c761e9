// What the scheduler offers to emulated device code: the thread's place, barriers, warp collectives, errors.
#pragma once

#include <cstddef>
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

// A cp.async that was issued and has not landed.
struct PendingCopy {
    unsigned char* target;
    unsigned bytes;
    unsigned group;
    unsigned char data[16];
};

// What a thread keeps from one call to the next.
struct Thread {
    std::vector<PendingCopy> copies;
    unsigned groups_committed = 0;
    unsigned atomics_since_wait = 0;
};

struct Launch {
    const char* name;
    void (*body)(void** parameters);
    void** parameters;
    const unsigned* grid;
    const unsigned* block;
    unsigned long long dynamic_bytes;
    unsigned most_threads;  // of a block, from __launch_bounds__
    unsigned char* static_begin;
    unsigned char* static_end;
    bool reverse;
    bool sanitized;
};

extern Thread* current;
extern unsigned char* dynamic_shared;

// Runs the whole grid; 0, or 1 with the reason in emulator_error().
int launch(const Launch& description);

// Waits for all threads of the block; the number of them whose predicate holds.
int barrier(const char* name, bool predicate, Site site);

// Waits for the lanes of request.mask. `whole` demands a warp of 32 existing lanes.
void collective(Request& request, bool whole);

// Ends the launch with an error that names the kernel, the block and this thread.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Whether the bytes lie in the block's static or dynamic shared memory.
bool is_shared(const void* pointer, size_t bytes);

// This thread's number in its block.
inline unsigned linear_thread() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

inline unsigned lane() { return linear_thread() % warpSize; }

}  // namespace emulator
