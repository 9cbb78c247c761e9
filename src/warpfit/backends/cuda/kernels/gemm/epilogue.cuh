// What is done with the sums of a matrix product on their way to memory, shared by all matmul
// kernels.
//
// EPILOGUE names the function, by default epilogue_store (acc = a sum, all arrays (m, n) with
// leading dimension ldc):
//   epilogue_store       c = alpha acc
//   epilogue_activation  c = f(z), z = acc + bias[column] if HAS_BIAS; z is kept too if STORE_Z
//   epilogue_mask        c = acc f'(saved), saved being y, or z where f needs_input
// f is ACTIVATION. A kernel fills an Epilogue and calls `write_sums<WIDTH>(epilogue, row, col,
// sums)` with WIDTH adjacent sums of a row: it leaves out what lies outside of (m, n), and moves 16
// bytes at once where VECTOR = 1 promises that all rows (and bias) begin and end at multiples of 16
// bytes. col must be a multiple of WIDTH.
#pragma once

#include "base/types.cuh"
#include "ops/activation/activation.cuh"

#ifndef OUT
#define OUT DTYPE
#endif
#ifndef EPILOGUE
#define EPILOGUE epilogue_store
#endif
#ifndef ACTIVATION
#define ACTIVATION identity
#endif
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef STORE_Z
#define STORE_Z 0
#endif
#ifndef VECTOR
#define VECTOR 0
#endif

static_assert(Activation::ACTIVATION >= Activation::identity, "of the list, used or not");

using T = DTYPE;
using Out = OUT;
using Acc = accumulator<T>;

// WIDTH numbers that are loaded and stored as one, at most 16 bytes.
template <class E, int WIDTH>
struct alignas(sizeof(E) * WIDTH) Pack {
    E at[WIDTH];
};

template <int WIDTH, class E>
__device__ inline Pack<E, WIDTH> load_pack(const E* from) {
    return *reinterpret_cast<const Pack<E, WIDTH>*>(from);
}

struct Epilogue {
    Out* c;
    const T* bias;
    const T* saved;
    Out* z;
    Acc alpha;
    Acc slope;
    int m, n, ldc;
};

template <int WIDTH>
__device__ inline void store_sums(Out* to, const Acc (&values)[WIDTH]) {
    Pack<Out, WIDTH> pack;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) pack.at[j] = store<Out>(values[j]);
    *reinterpret_cast<Pack<Out, WIDTH>*>(to) = pack;
}

// Each makes of the sums of WIDTH columns from `col` on, at element `at` of C, the numbers to be
// stored there.

template <int WIDTH>
__device__ inline void epilogue_store(const Epilogue& e, int64 at, int, Acc (&sums)[WIDTH]) {
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) sums[j] *= e.alpha;
}

template <int WIDTH>
__device__ inline void epilogue_activation(const Epilogue& e, int64 at, int col,
                                           Acc (&sums)[WIDTH]) {
    if (HAS_BIAS) {
        const Pack<T, WIDTH> bias = load_pack<WIDTH>(e.bias + col);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) sums[j] += load(bias.at[j]);
    }
    if (STORE_Z) store_sums(e.z + at, sums);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) sums[j] = activate<Activation::ACTIVATION>(sums[j], e.slope);
}

template <int WIDTH>
__device__ inline void epilogue_mask(const Epilogue& e, int64 at, int, Acc (&sums)[WIDTH]) {
    const Pack<T, WIDTH> saved = load_pack<WIDTH>(e.saved + at);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
        const Acc value = load(saved.at[j]);  // y or z: a derivative reads the one that is kept
        sums[j] *= activation_derivative<Activation::ACTIVATION>(value, value, e.slope);
    }
}

// Numbers in 16 bytes of what is loaded and what is stored.
constexpr int LARGEST_PACK = 16 / (sizeof(T) > sizeof(Out) ? sizeof(T) : sizeof(Out));

// Hands the sums of (row, col), (row, col + 1), ... to EPILOGUE; those outside of (m, n) are left
// out.
// WHOLE: packs never lie partly outside, as n is a multiple of 16 bytes.
template <int WIDTH, bool WHOLE = false>
__device__ inline void write_sums(const Epilogue& e, int row, int col, const Acc (&sums)[WIDTH]) {
    constexpr int PACK = !VECTOR ? 1 : WIDTH < LARGEST_PACK ? WIDTH : LARGEST_PACK;
    if (row >= e.m) return;
    const int64 at = static_cast<int64>(row) * e.ldc + col;
#pragma unroll
    for (int part = 0; part < WIDTH; part += PACK) {
        Acc some[PACK];
#pragma unroll
        for (int j = 0; j < PACK; ++j) some[j] = sums[part + j];
        if (col + part + PACK <= e.n) {
            EPILOGUE<PACK>(e, at + part, col + part, some);
            store_sums(e.c + at + part, some);
        } else if (!WHOLE) {
#pragma unroll
            for (int j = 0; j < PACK; ++j) {
                Acc one[1] = {some[j]};
                if (col + part + j >= e.n) continue;
                EPILOGUE<1>(e, at + part + j, col + part + j, one);
                store_sums(e.c + at + part + j, one);
            }
        }
    }
}
