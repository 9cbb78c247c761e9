// Lets g++ compile the kernels unchanged, to run on a CPU: the words and built-ins of CUDA C++ that
// they use.
//
// A block's threads are fibers on one thread of the CPU, which change over at barriers and warp
// collectives (scheduler.cpp); blocks run one after another, but for those of a cluster. Static
// shared memory is one copy, poisoned before every block.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#include "atomics.h"
#include "device_math.h"
#include "fibers.h"
#include "vector_types.h"
#include "warp.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __noinline__ __attribute__((noinline))
#define __builtin_assume(condition) \
    ((condition) ? void() : emulator::fail("__builtin_assume: expected %s", #condition))

#define DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(emulator::dynamic_shared)

#include "ptx_twins.h"
#define WARPFIT_PTX_CUH

// glibc declares some of these names; the kernels use no fast approximations.
#pragma GCC poison __expf __exp10f __logf __log2f __log10f
#pragma GCC poison __sinf __cosf __tanf __sincosf __powf __fdividef
