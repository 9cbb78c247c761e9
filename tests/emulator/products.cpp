// Products of groups of four warps, of matrices in shared memory of which descriptors tell (wgmma).
//
// A warp computes its 16 of the 64 rows when it waits: only then it reads shared memory. From the
// first product on until then, the threads' registers are poisoned.
//
// Reference: PTX ISA, 9.7.15.5.
#include <algorithm>
#include <cstring>
#include <vector>

#include "device_math.h"
#include "fragments.h"
#include "threads.h"

namespace emulator {
namespace {

constexpr unsigned WHOLE_WARP = 0xffffffffu, GROUP = 4 * warpSize;
constexpr unsigned LINE_BYTES = 128, SLICE_BYTES = 32, MOST_K = 16;
constexpr unsigned PIECE_BYTES = 16;
constexpr unsigned char POISON = 0xff;

// ---------------------------------------------------------------------------------------- operands

// What a descriptor tells of a matrix whose rows (of b: columns) each have a slice of k.
struct Matrix {
    unsigned address, panel_bytes, atom_bytes;
    const NumberType& type;
    bool across;
    unsigned line_bytes;  // that the swizzle is of; 0 without one

    Matrix(unsigned long long descriptor, const NumberType& type, bool across)
        : address(field(descriptor, 0)),
          panel_bytes(field(descriptor, 16)),
          atom_bytes(field(descriptor, 32)),
          type(type),
          across(across),
          line_bytes(descriptor >> 62 == 0 ? 0 : 2 * LINE_BYTES >> (descriptor >> 62)) {}

    static unsigned field(unsigned long long descriptor, unsigned bit) {
        return static_cast<unsigned>(descriptor >> bit & 0x3fff) << 4;
    }

    // Without the swizzle, matrices of 8 by 16 bytes lie in 128 bytes each: panel_bytes lead from
    // one to the next along k, atom_bytes from one to the next along the rows.
    unsigned place_in_planes(unsigned row, unsigned k) const {
        const unsigned in_piece = PIECE_BYTES / type.bytes;
        return across ? address + row / in_piece * atom_bytes + k / 8 * panel_bytes +
                            k % 8 * PIECE_BYTES + row % in_piece * type.bytes
                      : address + row / 8 * atom_bytes + k / in_piece * panel_bytes +
                            row % 8 * PIECE_BYTES + k % in_piece * type.bytes;
    }

    unsigned place(unsigned row, unsigned k) const {
        if (line_bytes == 0) return place_in_planes(row, k);
        const unsigned line = line_bytes / type.bytes;
        const unsigned logical =
            across ? address + row / line * panel_bytes + k / 8 * atom_bytes + k % 8 * line_bytes +
                         row % line * type.bytes
                   : address + row / 8 * atom_bytes + row % 8 * line_bytes + k * type.bytes;
        return logical ^ ((logical >> 3) & (line_bytes - PIECE_BYTES));
    }

    double number(unsigned row, unsigned k) const {
        return type.value(at_shared_address(place(row, k)));
    }
};

unsigned k_of(const Product& product) { return SLICE_BYTES / product.type->bytes; }

void check_operand(const char* name, const char* which, unsigned long long descriptor,
                   const Product& product, bool across, unsigned num_rows) {
    constexpr unsigned long long USED = 0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 3ull << 62;
    if (descriptor & ~USED)
        fail("%s: expected a descriptor of %s with no flag but its swizzle's, got 0x%016llx", name,
             which, descriptor);
    const Matrix matrix(descriptor, *product.type, across);
    if (matrix.line_bytes != 0 && matrix.address / matrix.line_bytes % 8 != 0)
        fail("%s: expected the atoms of %s at multiples of %u bytes, got address %u", name, which,
             8 * matrix.line_bytes, matrix.address);
    for (const unsigned place :
         {matrix.place(0, 0), matrix.place(num_rows - 1, k_of(product) - 1)}) {
        const unsigned unit = matrix.line_bytes ? matrix.line_bytes : PIECE_BYTES;
        const unsigned char* line = at_shared_address(place / unit * unit);
        if (line < dynamic_shared || !is_shared(line, unit))
            fail("%s: expected all of %s in dynamic shared memory, got address %u", name, which,
                 place);
    }
}

// The operands of a warp's 16 rows, as numbers.
struct Numbers {
    double a[16][MOST_K], b[256][MOST_K];  // b by columns

    Numbers(const Product* const* of_lanes, unsigned first_row) {
        const Product& product = *of_lanes[0];
        const Matrix b_matrix(product.b, *product.type, product.b_across);
        for (unsigned k = 0; k < k_of(product); ++k) {
            for (unsigned column = 0; column < product.num_columns(); ++column)
                b[column][k] = b_matrix.number(column, k);
        }
        if (product.a_registers)
            read_registers(of_lanes);
        else
            read_shared(product, first_row);
    }

    void read_shared(const Product& product, unsigned first_row) {
        const Matrix matrix(product.a, *product.type, product.a_across);
        for (unsigned k = 0; k < k_of(product); ++k) {
            for (unsigned row = 0; row < 16; ++row) a[row][k] = matrix.number(first_row + row, k);
        }
    }

    // Register 2 i + h of a lane is row lane / 4 + 8 h, of 4 columns from 4 i on, or 8 from 8 i on
    // with two in each, the next ones of those of the lane before.
    void read_registers(const Product* const* of_lanes) {
        const unsigned num_bytes = of_lanes[0]->type->bytes, in_register = 4 / num_bytes;
        for (unsigned lane = 0; lane < warpSize; ++lane) {
            const Product& product = *of_lanes[lane];
            for (unsigned i = 0; i < 4 * in_register; ++i) {
                const unsigned idx = i / in_register,
                               column = lane % 4 * in_register + i % in_register;
                const auto* number =
                    reinterpret_cast<const unsigned char*>(&product.a_registers[idx]) +
                    i % in_register * num_bytes;
                a[lane / 4 + 8 * (idx % 2)][column + 4 * in_register * (idx / 2)] =
                    product.type->value(number);
            }
        }
    }

    // FNV-1a, over numbers in place of bytes.
    unsigned long long digest(const Product& product) const {
        unsigned long long found = 0xcbf29ce484222325ull;
        const auto include = [&](const double* row) {
            for (unsigned k = 0; k < k_of(product); ++k) {
                unsigned long long bits;
                std::memcpy(&bits, &row[k], sizeof bits);
                found = (found ^ bits) * 0x100000001b3ull;
                found ^= found >> 32;
            }
        };
        for (const double* row : a) include(row);
        for (unsigned column = 0; column < product.num_columns(); ++column) include(b[column]);
        return found;
    }
};

unsigned first_row_of_warp() { return linear_thread() / warpSize % 4 * 16; }

// --------------------------------------------------------------------------------------- registers

Accumulator* accumulator_of(Thread& thread, const float* d) {
    const auto found = std::find_if(thread.accumulators.begin(), thread.accumulators.end(),
                                    [&](const Accumulator& each) { return each.d == d; });
    return found == thread.accumulators.end() ? nullptr : &*found;
}

void take_registers(const char* name, Thread& thread, const Product& product) {
    Accumulator* held = accumulator_of(thread, product.d);
    if (!held) {
        if (!thread.gave_registers)
            fail(
                "%s: expected wgmma_fence before a product with registers that the thread used, "
                "got none",
                name);
        thread.accumulators.push_back({product.d, {product.d, product.d + product.count}, 0});
        held = &thread.accumulators.back();
        std::memset(product.d, POISON, product.count * sizeof(float));
    }
    if (held->values.size() != product.count)
        fail(
            "%s: expected a product of as many columns as the one under way with the same "
            "registers, got %u "
            "instead of %zu",
            name, 2 * product.count, 2 * held->values.size());
    ++held->num_products;
}

void give_registers_back(const char* name, Thread& thread, Accumulator& held) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(held.d);
    const size_t num_bytes = held.values.size() * sizeof(float);
    if (std::any_of(bytes, bytes + num_bytes, [](unsigned char byte) { return byte != POISON; }))
        fail(
            "%s: expected the registers of a product to stay as they are until then, got them "
            "written",
            name);
    std::memcpy(held.d, held.values.data(), num_bytes);
    thread.accumulators.erase(thread.accumulators.begin() + (&held - thread.accumulators.data()));
    thread.gave_registers = false;
}

// ----------------------------------------------------------------------------------- a warp's part

struct Part : Request {
    Thread* thread;
    Product product;
    unsigned most_pending;
};

Part& part_of(Request* lane) { return *static_cast<Part*>(lane); }

bool is_same(const Product& first, const Product& second) {
    return first.type == second.type && first.a == second.a &&
           !first.a_registers == !second.a_registers && first.b == second.b &&
           first.adds == second.adds && first.a_across == second.a_across &&
           first.b_across == second.b_across && first.count == second.count &&
           first.in_halves == second.in_halves;
}

void execute_begin(Request* const* lanes) {
    const Product* of_lanes[warpSize];
    for (int lane = 0; lane < warpSize; ++lane) {
        of_lanes[lane] = &part_of(lanes[lane]).product;
        if (!is_same(*of_lanes[lane], *of_lanes[0]))
            fail("%s: expected the same product in all lanes of the warp, got another in lane %d",
                 lanes[lane]->name, lane);
    }
    const unsigned long long operands = Numbers(of_lanes, first_row_of_warp()).digest(*of_lanes[0]);
    for (int lane = 0; lane < warpSize; ++lane) {
        Part& part = part_of(lanes[lane]);
        Thread& thread = *part.thread;
        part.product.group = thread.product_groups;
        part.product.operands = operands;
        take_registers(part.name, thread, part.product);
        thread.products.push_back(part.product);
        ++thread.products_issued;
    }
}

// A sum among a thread's words.
float sum_at(const Product& product, const std::vector<float>& words, unsigned i) {
    if (!product.in_halves) return words[i];
    return half_to_float(static_cast<unsigned short>(__float_as_uint(words[i / 2]) >> i % 2 * 16));
}

void put_sum(const Product& product, std::vector<float>& words, unsigned i, float sum) {
    if (!product.in_halves) {
        words[i] = sum;
        return;
    }
    const unsigned shift = i % 2 * 16, other = __float_as_uint(words[i / 2]) & ~(0xffffu << shift);
    words[i / 2] = __uint_as_float(other | unsigned{float_to_half(sum)} << shift);
}

// Adds a lane's sums: d[4 j + 2 h + i] is row lane / 4 + 8 h, column 8 j + 2 (lane % 4) + i. Four at
// a time: one would wait for its own last term.
void add(const Numbers& numbers, const Product& product, unsigned lane, std::vector<float>& words) {
    const unsigned num_k = k_of(product);
    const double *above = numbers.a[lane / 4], *below = numbers.a[lane / 4 + 8];
    for (unsigned first = 0; first < product.num_columns() / 2; first += 4) {
        const double* left = numbers.b[2 * first + 2 * (lane % 4)];
        const double* right = left + MOST_K;
        double sums[4];
        for (unsigned i = 0; i < 4; ++i)
            sums[i] = product.adds ? sum_at(product, words, first + i) : 0.0;
        for (unsigned k = 0; k < num_k; ++k) {
            sums[0] += above[k] * left[k];
            sums[1] += above[k] * right[k];
            sums[2] += below[k] * left[k];
            sums[3] += below[k] * right[k];
        }
        for (unsigned i = 0; i < 4; ++i)
            put_sum(product, words, first + i, static_cast<float>(sums[i]));
    }
}

bool is_due(const Thread& thread, unsigned most_pending) {
    return !thread.products.empty() &&
           thread.products.front().group + most_pending < thread.product_groups;
}

// The first product of all lanes, which they began together.
void land_first(Request* const* lanes) {
    const Product* of_lanes[warpSize];
    for (int lane = 0; lane < warpSize; ++lane)
        of_lanes[lane] = &part_of(lanes[lane]).thread->products.front();
    const Product& first = *of_lanes[0];
    const Numbers numbers(of_lanes, first_row_of_warp());
    if (numbers.digest(first) != first.operands)
        fail(
            "%s: expected the operands of a product to stay as they are until then, got them "
            "written",
            lanes[0]->name);
    for (int lane = 0; lane < warpSize; ++lane) {
        Thread& thread = *part_of(lanes[lane]).thread;
        const Product product = thread.products.front();
        Accumulator& held = *accumulator_of(thread, product.d);
        add(numbers, product, lane, held.values);
        thread.products.erase(thread.products.begin());
        if (--held.num_products == 0) give_registers_back(lanes[lane]->name, thread, held);
    }
}

void execute_wait(Request* const* lanes) {
    const Part& first = part_of(lanes[0]);
    while (is_due(*first.thread, first.most_pending)) land_first(lanes);
}

void execute_nothing(Request* const*) {}

void check_group(const char* name) {
    const unsigned first = linear_thread() / GROUP * GROUP,
                   threads = blockDim.x * blockDim.y * blockDim.z;
    if (first + GROUP > threads)
        fail("%s: expected a group of four whole warps, got one of %u threads", name,
             threads - first);
}

void meet_warp(const char* name, Site site) {
    check_group(name);
    Request request{name, WHOLE_WARP, site, execute_nothing};
    collective(request, true);
}

}  // namespace

// --------------------------------------------------------------------------------------- interface

void fence_products(const char* name, Site site) {
    meet_warp(name, site);
    current->gave_registers = true;
}

void begin_product(const char* name, const Product& product, Site site) {
    check_group(name);
    if (!product.a_registers) check_operand(name, "a", product.a, product, product.a_across, 64);
    check_operand(name, "b", product.b, product, product.b_across, product.num_columns());
    Part part{{name, WHOLE_WARP, site, execute_begin}, current, product, 0};
    collective(part, true);
}

void commit_products(const char* name, Site site) {
    meet_warp(name, site);
    ++current->product_groups;
}

void wait_for_products(const char* name, unsigned most_pending, Site site) {
    check_group(name);
    if (is_due(*current, most_pending)) yield(name, site);
    Part part{{name, WHOLE_WARP, site, execute_wait}, current, {}, most_pending};
    collective(part, true);
}

void end_products() {
    if (!current->products.empty())
        fail(
            "the thread leaves while %zu products of its group of warps are under way, for which "
            "it has not "
            "waited",
            current->products.size());
}

}  // namespace emulator
