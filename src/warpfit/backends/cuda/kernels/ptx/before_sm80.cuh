// What stands in for instructions that architectures before sm_80 lack; see ptx.cuh, which includes
// this. For bfloat16 and tf32 on tensor cores, which they do not know, nothing does: other kernels
// are chosen there. Barriers keep the size of those that have one: two words of shared memory.
#pragma once

// To the nearest even.
__device__ inline unsigned short float_to_bfloat(float value) {
    const unsigned int word = __float_as_uint(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // NaN
    return static_cast<unsigned short>((word + 0x7fffu + ((word >> 16) & 1)) >> 16);
}

__device__ inline unsigned floats_to_halves(float first, float second) {
    return float_to_half(first) | static_cast<unsigned>(float_to_half(second)) << 16;
}

__device__ inline unsigned floats_to_bfloats(float first, float second) {
    return float_to_bfloat(first) | static_cast<unsigned>(float_to_bfloat(second)) << 16;
}

// The two halves of k one after the other.
__device__ inline void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4],
                                        const unsigned (&b)[2]) {
    const unsigned low[2] = {a[0], a[1]};
    const unsigned high[2] = {a[2], a[3]};
    mma_m16n8k8_f16(d, low, b[0]);
    mma_m16n8k8_f16(d, high, b[1]);
}

// A load and a store, done when the function returns.
__device__ inline void copy_async_16(void* shared, const void* global, bool valid) {
    *static_cast<uint4*>(shared) = valid ? *static_cast<const uint4*>(global) : uint4{0, 0, 0, 0};
}

__device__ inline void copy_async_8(void* shared, const void* global, bool valid) {
    *static_cast<uint2*>(shared) = valid ? *static_cast<const uint2*>(global) : uint2{0, 0};
}

__device__ inline void copy_async_4(void* shared, const void* global, bool valid) {
    *static_cast<unsigned*>(shared) = valid ? *static_cast<const unsigned*>(global) : 0;
}

__device__ inline void copy_async_commit() {}

template <int N>
__device__ inline void copy_async_wait() {}

// A barrier in two words: the arrivals that a phase takes, above those that it has, 16 bits each;
// and how many phases are complete.
__device__ inline void mbarrier_init(unsigned long long* barrier, unsigned count) {
    *reinterpret_cast<uint2*>(barrier) = uint2{count << 16, 0};
}

// The last to arrive begins the next phase: its arrivals come after this one is seen to be
// complete.
__device__ inline void mbarrier_arrive(unsigned long long* barrier) {
    unsigned* arrivals = reinterpret_cast<unsigned*>(barrier);
    volatile unsigned* phases = arrivals + 1;
    __threadfence_block();
    const unsigned before = atomicAdd(arrivals, 1u);
    if ((before & 0xffffu) + 1 < before >> 16) return;
    *arrivals = before & 0xffff0000u;
    __threadfence_block();
    *phases = *phases + 1;
}

__device__ inline bool mbarrier_test(unsigned long long* barrier, unsigned parity) {
    const bool is_complete = (reinterpret_cast<volatile unsigned*>(barrier)[1] & 1) != parity;
    if (is_complete) {
        __threadfence_block();
    } else {
        __nanosleep(20);
    }
    return is_complete;
}

__device__ inline void copy_async_arrive(unsigned long long* barrier) { mbarrier_arrive(barrier); }
