// Types that follow from a kernel's settings: one of two, and parts of a struct that are there or
// not. Values only.
#pragma once

// One of two types.
template <bool IS_FIRST, class First, class Second>
struct Choice {
    using type = First;
};

template <class First, class Second>
struct Choice<false, First, Second> {
    using type = Second;
};

template <bool IS_FIRST, class First, class Second>
using choice = typename Choice<IS_FIRST, First, Second>::type;

// A part of a struct, as a base class: where it is not there, it takes no room. It stands behind
// all that is always there, whose places a compiler then finds as without it.
template <class Part>
struct Without {};

template <bool IS_THERE, class Part>
using part_if = choice<IS_THERE, Part, Without<Part>>;

// That part. Code that asks a struct without it compiles, but cannot run: there is no second body.
template <class Part>
__device__ inline Part& optional_part(Part& part) {
    return part;
}

template <class Part>
__device__ Part& optional_part(Without<Part>& nothing);

// The same of the parts, a Rest, that lie behind all of `shared` (whose places are numbers then: as
// a base class of the whole they would cost registers).
template <class Part, class Rest, class Shared>
__device__ inline Part& part_behind(const Shared& shared) {
    static_assert(sizeof(Shared) % alignof(Rest) == 0, "they lie next to each other");
    return optional_part<Part>(*reinterpret_cast<Rest*>(const_cast<Shared*>(&shared) + 1));
}
