// Barriers, shuffles, votes, fences and traps of CUDA C++, over the scheduler's two primitives.
//
// Reference: CUDA C++ Programming Guide, "Synchronization Functions", "Warp Vote Functions", "Warp
// Shuffle Functions".
#pragma once

#include <cstring>

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

template <class T>
struct Shuffle : Request {
    T value, result;
    unsigned source;
};

// A lane that reads from one which takes no part gets a poisoned value.
template <class T>
void execute_shuffle(Request* const* lanes) {
    for (int lane = 0; lane < warpSize; ++lane) {
        if (!lanes[lane]) continue;
        auto* target = static_cast<Shuffle<T>*>(lanes[lane]);
        const auto* source = static_cast<const Shuffle<T>*>(lanes[target->source]);
        if (source) {
            target->result = source->value;
        } else {
            std::memset(&target->result, 0xff, sizeof(T));
        }
    }
}

inline void check_width(const char* name, int width) {
    if (width < 1 || width > warpSize || (width & (width - 1)) != 0)
        fail("%s: expected a width of 1, 2, 4, 8, 16 or 32, got %d", name, width);
}

template <class T>
T shuffle(const char* name, unsigned mask, T value, unsigned source, Site site) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move values of 4 or 8 bytes");
    Shuffle<T> request{{name, mask, site, execute_shuffle<T>}, value, T(), source};
    collective(request, false);
    return request.result;
}

struct Vote : Request {
    bool predicate;
    unsigned ballot;
};

inline void execute_vote(Request* const* lanes) {
    unsigned ballot = 0;
    for (int lane = 0; lane < warpSize; ++lane)
        if (lanes[lane] && static_cast<Vote*>(lanes[lane])->predicate) ballot |= 1u << lane;
    for (int lane = 0; lane < warpSize; ++lane)
        if (lanes[lane]) static_cast<Vote*>(lanes[lane])->ballot = ballot;
}

inline unsigned vote(const char* name, unsigned mask, bool predicate, Site site) {
    Vote request{{name, mask, site, execute_vote}, predicate, 0};
    collective(request, false);
    return request.ballot;
}

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
    emulator::Request request{"__syncwarp", mask, site, [](emulator::Request* const*) {}};
    emulator::collective(request, false);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              emulator::Site site = emulator::Site::here()) {
    emulator::check_width("__shfl_sync", width);
    const unsigned start = emulator::lane() & ~(width - 1u);
    return emulator::shuffle("__shfl_sync", mask, value, start | (source & (width - 1u)), site);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 emulator::Site site = emulator::Site::here()) {
    emulator::check_width("__shfl_up_sync", width);
    const unsigned lane = emulator::lane(), within = lane & (width - 1u);
    return emulator::shuffle("__shfl_up_sync", mask, value, delta <= within ? lane - delta : lane,
                             site);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   emulator::Site site = emulator::Site::here()) {
    emulator::check_width("__shfl_down_sync", width);
    const unsigned lane = emulator::lane(), left = width - 1u - (lane & (width - 1u));
    return emulator::shuffle("__shfl_down_sync", mask, value, delta <= left ? lane + delta : lane,
                             site);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize,
                  emulator::Site site = emulator::Site::here()) {
    emulator::check_width("__shfl_xor_sync", width);
    const unsigned lane = emulator::lane(), last = lane | (width - 1u), source = lane ^ lane_mask;
    return emulator::shuffle("__shfl_xor_sync", mask, value, source <= last ? source : lane, site);
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
