// Atomic operations on integers. Threads take turns on one CPU thread, so plain reads and writes
// are atomic.
//
// There is no atomicAdd on floating point: its result would depend on the order of the threads.
#pragma once

#include <type_traits>

#include "fibers.h"

namespace emulator {

template <class T>
struct Identity {
    using type = T;
};

// The argument of this type converts to the type of the pointer instead of taking part in its
// deduction.
template <class T>
using As = typename Identity<T>::type;

template <class T, class Change>
T change(T* address, Change change) {
    static_assert(std::is_integral<T>::value && sizeof(T) >= 4,
                  "atomics take integers of 32 or 64 bits");
    count_atomic();
    const T old = *address;
    *address = change(old);
    if (*address != old) ++progress;
    if (writes_are_late) see_atomic(address, sizeof *address);
    return old;
}

template <class T>
using Unsigned = typename std::make_unsigned<T>::type;

}  // namespace emulator

template <class T>
T atomicAdd(T* address, emulator::As<T> value) {
    using U = emulator::Unsigned<T>;
    return emulator::change(address, [=](T old) { return static_cast<T>(U(old) + U(value)); });
}

template <class T>
T atomicSub(T* address, emulator::As<T> value) {
    using U = emulator::Unsigned<T>;
    return emulator::change(address, [=](T old) { return static_cast<T>(U(old) - U(value)); });
}

template <class T>
T atomicMax(T* address, emulator::As<T> value) {
    return emulator::change(address, [=](T old) { return old < value ? value : old; });
}

template <class T>
T atomicMin(T* address, emulator::As<T> value) {
    return emulator::change(address, [=](T old) { return value < old ? value : old; });
}

template <class T>
T atomicExch(T* address, emulator::As<T> value) {
    return emulator::change(address, [=](T) { return value; });
}

template <class T>
T atomicCAS(T* address, emulator::As<T> compare, emulator::As<T> value) {
    return emulator::change(address, [=](T old) { return old == compare ? value : old; });
}

template <class T>
T atomicAnd(T* address, emulator::As<T> value) {
    return emulator::change(address, [=](T old) { return old & value; });
}

template <class T>
T atomicOr(T* address, emulator::As<T> value) {
    return emulator::change(address, [=](T old) { return old | value; });
}

template <class T>
T atomicXor(T* address, emulator::As<T> value) {
    return emulator::change(address, [=](T old) { return old ^ value; });
}

inline unsigned atomicInc(unsigned* address, unsigned limit) {
    return emulator::change(address, [=](unsigned old) { return old >= limit ? 0 : old + 1; });
}

inline unsigned atomicDec(unsigned* address, unsigned limit) {
    return emulator::change(
        address, [=](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}
