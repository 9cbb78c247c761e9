// Matrices of which the threads of a warp hold fragments, and the numbers in them: loads, stores
// and products (ldmatrix, stmatrix, mma).
#include "fragments.h"

#include <cstring>

#include "device_math.h"

float half_to_float(unsigned short bits) {
    const unsigned sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u,
                   fraction = bits & 0x3ffu;
    if (exponent == 31) return __uint_as_float(fraction ? 0x7fffffffu : sign | 0x7f800000u);
    if (exponent == 0) {
        const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return __uint_as_float(sign | ((exponent + 112) << 23) | (fraction << 13));
}

unsigned short float_to_half(float value) {
    const unsigned word = __float_as_uint(value), sign = (word >> 16) & 0x8000u,
                   magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x477ff000u)
        return static_cast<unsigned short>(sign | 0x7c00u);  // 65520 and more
    if (magnitude <
        0x38800000u) {  // below 2^-14: a multiple of 2^-24, which rintf finds, to the nearest even
        const float steps = rintf(__uint_as_float(magnitude) * 0x1p24f);
        return static_cast<unsigned short>(sign | static_cast<unsigned>(steps));
    }
    const unsigned rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<unsigned short>(sign | ((rounded >> 13) - (112u << 10)));
}

namespace emulator {

constexpr unsigned WHOLE_WARP = 0xffffffffu;

// ---------------------------------------------------------------------------------- loads, stores

namespace {

struct LoadMatrix : Request {
    const unsigned char* row;
    unsigned result[4];
};

unsigned element(Request* const* lanes, int matrix, int row, int column) {
    unsigned short value;
    std::memcpy(&value, static_cast<const LoadMatrix*>(lanes[8 * matrix + row])->row + 2 * column,
                sizeof value);
    return value;
}

// Rows of which nothing is used must have come, too: racecheck reports them.
template <bool TRANSPOSED>
void execute_load_matrix(Request* const* lanes) {
    for (int lane = 0; lane < warpSize; ++lane)
        check_copied(lanes[lane]->name, static_cast<const LoadMatrix*>(lanes[lane])->row, 16);
    for (int lane = 0; lane < warpSize; ++lane) {
        for (int matrix = 0; matrix < 4; ++matrix) {
            const int along = 2 * (lane % 4), across = lane / 4;
            const unsigned low = TRANSPOSED ? element(lanes, matrix, along, across)
                                            : element(lanes, matrix, across, along);
            const unsigned high = TRANSPOSED ? element(lanes, matrix, along + 1, across)
                                             : element(lanes, matrix, across, along + 1);
            static_cast<LoadMatrix*>(lanes[lane])->result[matrix] = low | (high << 16);
        }
    }
}

struct StoreMatrix : Request {
    unsigned char* row;
    const unsigned* words;
};

template <bool TRANSPOSED>
void execute_store_matrix(Request* const* lanes) {
    for (int lane = 0; lane < warpSize; ++lane) {
        for (int matrix = 0; matrix < 4; ++matrix) {
            const unsigned word = static_cast<const StoreMatrix*>(lanes[lane])->words[matrix];
            for (int half = 0; half < 2; ++half) {
                const int along = 2 * (lane % 4) + half, across = lane / 4;
                const int row = TRANSPOSED ? along : across, column = TRANSPOSED ? across : along;
                const auto number = static_cast<unsigned short>(word >> 16 * half);
                std::memcpy(static_cast<StoreMatrix*>(lanes[8 * matrix + row])->row + 2 * column,
                            &number, sizeof number);
            }
        }
    }
}

}  // namespace

template <bool TRANSPOSED>
void load_matrix(const char* name, unsigned* const (&registers)[4], const void* row, Site site) {
    check_shared(name, row, 16, 16);
    LoadMatrix request{{name, WHOLE_WARP, site, execute_load_matrix<TRANSPOSED>},
                       static_cast<const unsigned char*>(row),
                       {}};
    collective(request, true);
    for (int i = 0; i < 4; ++i) *registers[i] = request.result[i];
}

template <bool TRANSPOSED>
void store_matrix(const char* name, void* row, const unsigned (&words)[4], Site site) {
    check_shared(name, row, 16, 16);
    StoreMatrix request{{name, WHOLE_WARP, site, execute_store_matrix<TRANSPOSED>},
                        static_cast<unsigned char*>(row),
                        words};
    collective(request, true);
}

template void load_matrix<false>(const char*, unsigned* const (&)[4], const void*, Site);
template void load_matrix<true>(const char*, unsigned* const (&)[4], const void*, Site);
template void store_matrix<false>(const char*, void*, const unsigned (&)[4], Site);
template void store_matrix<true>(const char*, void*, const unsigned (&)[4], Site);

// -------------------------------------------------------------------------------------- products

struct F16 {
    static constexpr int PER_REGISTER = 2;
    static float value(unsigned word, int part) {
        return half_to_float(static_cast<unsigned short>(word >> (16 * part)));
    }
};

struct Bf16 {
    static constexpr int PER_REGISTER = 2;
    static float value(unsigned word, int part) {
        return __uint_as_float(word >> (16 * part) << 16);
    }
};

struct Tf32 {
    static constexpr int PER_REGISTER = 1;
    static float value(unsigned word, int) { return __uint_as_float(word & 0xffffe000u); }
};

namespace {

struct Multiply : Request {
    float* d;
    const unsigned* a;
    const unsigned* b;
};

template <int K>
struct Operands {
    double a[16][K], b[K][8];
};

template <class Type, int K>
void gather(Request* const* lanes, Operands<K>& operands) {
    constexpr int N = Type::PER_REGISTER, A_REGISTERS = K / (2 * N), B_REGISTERS = K / (4 * N);
    for (int lane = 0; lane < warpSize; ++lane) {
        const auto* fragment = static_cast<const Multiply*>(lanes[lane]);
        const int group = lane / 4, k = N * (lane % 4);
        for (int part = 0; part < N; ++part) {
            for (int i = 0; i < A_REGISTERS; ++i)
                operands.a[group + 8 * (i % 2)][k + 4 * N * (i / 2) + part] =
                    Type::value(fragment->a[i], part);
            for (int i = 0; i < B_REGISTERS; ++i)
                operands.b[k + 4 * N * i + part][group] = Type::value(fragment->b[i], part);
        }
    }
}

// Of a row all eight columns at a time: one sum would wait for its own last term.
template <class Type, int K>
void execute_multiply(Request* const* lanes) {
    Operands<K> operands;
    gather<Type, K>(lanes, operands);
    for (int row = 0; row < 16; ++row) {
        const auto number = [&](int column) -> float& {
            return static_cast<Multiply*>(lanes[row % 8 * 4 + column / 2])
                ->d[2 * (row / 8) + column % 2];
        };
        double sums[8];
        for (int column = 0; column < 8; ++column) sums[column] = number(column);
        for (int k = 0; k < K; ++k)
            for (int column = 0; column < 8; ++column)
                sums[column] += operands.a[row][k] * operands.b[k][column];
        for (int column = 0; column < 8; ++column)
            number(column) = static_cast<float>(sums[column]);
    }
}

template <class Type>
float number_at(const unsigned char* place) {
    unsigned word = 0;
    std::memcpy(&word, place, 4 / Type::PER_REGISTER);
    return Type::value(word, 0);
}

}  // namespace

template <class Type, int K>
void multiply(const char* name, float* d, const unsigned* a, const unsigned* b, Site site) {
    Multiply request{{name, WHOLE_WARP, site, execute_multiply<Type, K>}, d, a, b};
    collective(request, true);
}

template void multiply<F16, 8>(const char*, float*, const unsigned*, const unsigned*, Site);
template void multiply<F16, 16>(const char*, float*, const unsigned*, const unsigned*, Site);
template void multiply<Bf16, 8>(const char*, float*, const unsigned*, const unsigned*, Site);
template void multiply<Bf16, 16>(const char*, float*, const unsigned*, const unsigned*, Site);
template void multiply<Tf32, 8>(const char*, float*, const unsigned*, const unsigned*, Site);

const NumberType f16_numbers{2, number_at<F16>}, bf16_numbers{2, number_at<Bf16>},
    tf32_numbers{4, number_at<Tf32>};

}  // namespace emulator
