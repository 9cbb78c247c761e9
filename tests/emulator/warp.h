// Barriers, shuffles, votes, fences and traps of CUDA C++, over the scheduler's two primitives.
//
// Reference: CUDA C++ Programming Guide, "Synchronization Functions", "Warp Vote Functions", "Warp
// Shuffle Functions".
#pragma once

#include "fibers.h"

inline void __syncthreads(emulator::Site site = emulator::Site::here()) {
    emulator::barrier("__syncthreads", false, site);
}

inline int __syncthreads_count(int predicate, emulator::Site site = emulator::Site::here()) {
    return emulator::barrier("__syncthreads_count", predicate != 0, site);
}

inline int __syncthreads_or(int predicate, emulator::Site site = emulator::Site::here()) {
    return emulator::barrier("__syncthreads_or", predicate != 0, site) != 0;
}

inline int __syncthreads_and(int predicate, emulator::Site site = emulator::Site::here()) {
    return emulator::barrier("__syncthreads_and", predicate == 0, site) == 0;
}

inline void __threadfence() { emulator::fence(); }
inline void __threadfence_system() { emulator::fence(); }
inline void __threadfence_block() {}

inline void __nanosleep(unsigned, emulator::Site site = emulator::Site::here()) {
    emulator::yield("__nanosleep", site);
}

// Time stands still: what waits in vain is found by the scheduler.
inline long long clock64() { return 0; }

[[noreturn]] inline void __trap() { emulator::fail("__trap"); }

namespace emulator {

// Whatever their type, values are moved as bits. A lane that reads from one which takes no part gets
// a poisoned value.
unsigned long long shuffle_bits(const char* name, unsigned mask, unsigned long long bits,
                                unsigned source, Site site);

template <class T>
T shuffle(const char* name, unsigned mask, T value, unsigned source, Site site) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move values of 4 or 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = shuffle_bits(name, mask, bits, source, site);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

// The lane that this one reads from, in its part of the warp of `width` lanes; itself, where there
// is none.
unsigned lane_at(const char* name, int source, int width);
unsigned lane_above(const char* name, unsigned delta, int width);
unsigned lane_below(const char* name, unsigned delta, int width);
unsigned lane_across(const char* name, int lane_mask, int width);

unsigned vote(const char* name, unsigned mask, bool predicate, Site site);
void meet_warp(const char* name, unsigned mask, Site site);

template <class T>
struct Reduction : Request {
    T value;
};

template <class T, class Combine>
void execute_reduction(Request* const* lanes) {
    bool first = true;
    T total = T();
    for (int lane = 0; lane < warpSize; ++lane) {
        if (!lanes[lane]) continue;
        const T value = static_cast<Reduction<T>*>(lanes[lane])->value;
        total = first ? value : Combine()(total, value);
        first = false;
    }
    for (int lane = 0; lane < warpSize; ++lane)
        if (lanes[lane]) static_cast<Reduction<T>*>(lanes[lane])->value = total;
}

template <class T, class Combine>
T reduce(const char* name, unsigned mask, T value, Site site) {
    static_assert(sizeof(T) == 4 && T(1) / T(2) == T(0), "warp reductions take 32-bit integers");
    Reduction<T> request{{name, mask, site, execute_reduction<T, Combine>}, value};
    collective(request, false);
    return request.value;
}

struct Add {
    template <class T>
    T operator()(T a, T b) const {
        return static_cast<T>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
    }
};

struct Min {
    template <class T>
    T operator()(T a, T b) const {
        return b < a ? b : a;
    }
};

struct Max {
    template <class T>
    T operator()(T a, T b) const {
        return a < b ? b : a;
    }
};

}  // namespace emulator

inline void __syncwarp(unsigned mask = 0xffffffffu, emulator::Site site = emulator::Site::here()) {
    emulator::meet_warp("__syncwarp", mask, site);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              emulator::Site site = emulator::Site::here()) {
    return emulator::shuffle("__shfl_sync", mask, value,
                             emulator::lane_at("__shfl_sync", source, width), site);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 emulator::Site site = emulator::Site::here()) {
    return emulator::shuffle("__shfl_up_sync", mask, value,
                             emulator::lane_below("__shfl_up_sync", delta, width), site);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   emulator::Site site = emulator::Site::here()) {
    return emulator::shuffle("__shfl_down_sync", mask, value,
                             emulator::lane_above("__shfl_down_sync", delta, width), site);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize,
                  emulator::Site site = emulator::Site::here()) {
    return emulator::shuffle("__shfl_xor_sync", mask, value,
                             emulator::lane_across("__shfl_xor_sync", lane_mask, width), site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              emulator::Site site = emulator::Site::here()) {
    return emulator::vote("__ballot_sync", mask, predicate != 0, site);
}

inline int __any_sync(unsigned mask, int predicate, emulator::Site site = emulator::Site::here()) {
    return emulator::vote("__any_sync", mask, predicate != 0, site) != 0;
}

inline int __all_sync(unsigned mask, int predicate, emulator::Site site = emulator::Site::here()) {
    return emulator::vote("__all_sync", mask, predicate == 0, site) == 0;
}

// Every existing lane of the warp: emulated warps never diverge on their own.
inline unsigned __activemask() {
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    const unsigned first = emulator::linear_thread() / warpSize * warpSize;
    return threads - first >= warpSize ? 0xffffffffu : (1u << (threads - first)) - 1;
}

template <class T>
T __reduce_add_sync(unsigned mask, T value, emulator::Site site = emulator::Site::here()) {
    return emulator::reduce<T, emulator::Add>("__reduce_add_sync", mask, value, site);
}

template <class T>
T __reduce_min_sync(unsigned mask, T value, emulator::Site site = emulator::Site::here()) {
    return emulator::reduce<T, emulator::Min>("__reduce_min_sync", mask, value, site);
}

template <class T>
T __reduce_max_sync(unsigned mask, T value, emulator::Site site = emulator::Site::here()) {
    return emulator::reduce<T, emulator::Max>("__reduce_max_sync", mask, value, site);
}
