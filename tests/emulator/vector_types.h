// CUDA's vector types, dim3 and their make functions.
#pragma once

#define EMULATOR_VECTORS(NAME, ELEMENT, ALIGN2, ALIGN4)                                  \
    struct NAME##1 { ELEMENT x; };                                                       \
    struct alignas(ALIGN2) NAME##2 { ELEMENT x, y; };                                    \
    struct NAME##3 { ELEMENT x, y, z; };                                                 \
    struct alignas(ALIGN4) NAME##4 { ELEMENT x, y, z, w; };                              \
    inline NAME##1 make_##NAME##1(ELEMENT x) { return {x}; }                             \
    inline NAME##2 make_##NAME##2(ELEMENT x, ELEMENT y) { return {x, y}; }               \
    inline NAME##3 make_##NAME##3(ELEMENT x, ELEMENT y, ELEMENT z) { return {x, y, z}; } \
    inline NAME##4 make_##NAME##4(ELEMENT x, ELEMENT y, ELEMENT z, ELEMENT w) { return {x, y, z, w}; }

EMULATOR_VECTORS(char, signed char, 2, 4)
EMULATOR_VECTORS(uchar, unsigned char, 2, 4)
EMULATOR_VECTORS(short, short, 4, 8)
EMULATOR_VECTORS(ushort, unsigned short, 4, 8)
EMULATOR_VECTORS(int, int, 8, 16)
EMULATOR_VECTORS(uint, unsigned int, 8, 16)
EMULATOR_VECTORS(longlong, long long, 16, 16)
EMULATOR_VECTORS(ulonglong, unsigned long long, 16, 16)
EMULATOR_VECTORS(float, float, 8, 16)
EMULATOR_VECTORS(double, double, 16, 16)

#undef EMULATOR_VECTORS

struct dim3 {
    unsigned int x = 1, y = 1, z = 1;
};
