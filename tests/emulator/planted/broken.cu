// Mistakes that the emulator has to catch, one for each value of `bug`. `out` has one word a
// thread.
#include "base/block.cuh"

// Not inlined, so that only AddressSanitizer can know where the array ends.
template <class T>
__device__ __noinline__ T write_and_read(T* values, int i) {
    values[i] = T(i);
    __syncthreads();
    return values[i];
}

template <class T>
__device__ T past_the_end_of_a_template(int i) {
    __shared__ T values[32];
    return write_and_read(values, i);
}

// Needs a barrier between the two lines.
__device__ float no_barrier(int t, int n) {
    __shared__ float values[64];
    values[t] = 1.0f + t;
    return values[(t + 1) % n];
}

// Needs a barrier at the end of a round: a warp may be in the next one before another has read. The
// right result is 6.
__device__ float no_barrier_before_reuse(int t) {
    __shared__ float values[2];
    float value = 1.0f + t / 32;
    for (int round = 0; round < 2; ++round) {
        if (t % 32 == 0) values[t / 32] = value;
        __syncthreads();
        value = __shfl_sync(0xffffffffu, values[0] + values[1], 0);
    }
    return value;
}

__device__ float uninitialised(int t) {
    __shared__ float values[64];
    if (t != 5) values[t] = 1.0f;
    __syncthreads();
    return values[t];
}

__device__ float past_the_end_of_static(int i) {
    __shared__ float values[32];
    return write_and_read(values, i);
}

__device__ float past_the_end_of_a_row(int i) {
    __shared__ float values[2][32];
    values[0][i] = 2.0f;
    __syncthreads();
    return values[0][i];
}

__device__ float past_the_end_of_dynamic(int i) {
    DYNAMIC_SHARED(float, values);
    return write_and_read(values, i);
}

__device__ int deep(int depth) {
    volatile int local[1024];
    local[depth % 1024] = depth;
    return depth == 0 ? 0 : deep(depth - 1) + local[depth % 1024];
}

constexpr int THREADS = 64;

extern "C" __global__ void __launch_bounds__(2 * THREADS, 1)
    broken(float* out, int bug, int n, const float* bad_pointer, unsigned* flag) {
    const int t = threadIdx.x;
    float value = 0;
    if (bug == 1) value = no_barrier(t, n);
    if (bug == 2) value = uninitialised(t);
    if (bug == 3) value = past_the_end_of_a_template<float>(t + (t == n - 1));
    if (bug == 4) value = past_the_end_of_static(t + (t == n - 1));
    if (bug == 5) value = past_the_end_of_dynamic(t + (t == n - 1));
    if (bug == 6 && t == n - 1) out[n] = 1.0f;
    if (bug == 7 && t >= 32) __syncthreads();
    if (bug == 8) {
        if (t == 3) return;
        __syncthreads();
    }
    if (bug == 9) {
        if (t == 0)
            __syncthreads();
        else
            __syncthreads();
    }
    if (bug == 10) {
        if (t == 0)
            __syncwarp();
        else
            __syncthreads();
    }
    if (bug == 11 && t != 7) value = __shfl_down_sync(0xffffffffu, value, 1);
    if (bug == 12) value = __shfl_sync(1u, value, 0);
    if (bug == 13)
        while (atomicAdd(flag, 0) == 0);
    if (bug == 14) value = static_cast<float>(n / static_cast<int>(*flag));
    if (bug == 15) value = *bad_pointer;
    if (bug == 16) value = static_cast<float>(deep(1000));
    if (bug == 17) value = reinterpret_cast<const float4*>(out + 1)->x;
    if (bug == 18) value = static_cast<float>((n + 0x7fffffc0) * 2 + t);
    if (bug == 19) value = past_the_end_of_a_row(t + (t == n - 1));
    if (bug == 20) value = no_barrier_before_reuse(t);
    if (bug == 21) know_threads<THREADS / 2>();
    out[t] = value;
}
