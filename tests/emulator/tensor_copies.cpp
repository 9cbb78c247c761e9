// Copies of boxes of matrices between global and shared memory, as tensor maps tell of them.
//
// In shared memory a box is lines of 128 bytes, each a row, whose 16-byte pieces change places by
// the 128-byte swizzle: bits 4 to 6 of an address by exclusive or with bits 7 to 9.
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "threads.h"

namespace emulator {
namespace {

constexpr uint64_t MARK = 0x70616d5f726f736eull;  // as in EmulatedRuntime.tensor_map
constexpr unsigned LINE_BYTES = 128, PIECE_BYTES = 16;

unsigned swizzled(unsigned address) { return address ^ ((address >> 3) & 0x70u); }

unsigned bytes_of_box(const MatrixMap& map) { return map.box_rows * LINE_BYTES; }

void check_box(const char* name, const MatrixMap* map, const void* shared) {
    check_map(name, map);
    if (map->box_columns * map->number_bytes != LINE_BYTES)
        fail("%s: expected boxes with %u bytes in a row, got %u numbers of %u bytes", name,
             LINE_BYTES, map->box_columns, map->number_bytes);
    const auto* byte = static_cast<const unsigned char*>(shared);
    if (byte < dynamic_shared || !is_shared(byte, bytes_of_box(*map)))
        fail("%s: expected %u bytes of dynamic shared memory, got %p", name, bytes_of_box(*map),
             shared);
    if (to_shared_address(byte) % LINE_BYTES != 0)
        fail("%s: expected an address aligned to %u bytes, got %s", name, LINE_BYTES,
             shared_text(byte).c_str());
}

// Calls visit(byte in the box, byte of the matrix, bytes) for each row of the part of a box that
// lies in the matrix.
template <class Visit>
void for_each_row(const MatrixMap& map, long long row, long long column, Visit visit) {
    const long long num_columns = static_cast<long long>(map.columns);
    const long long first = column < 0 ? 0 : column, end = column + map.box_columns < num_columns
                                                               ? column + map.box_columns
                                                               : num_columns;
    if (first >= end) return;
    for (long long i = 0; i < map.box_rows; ++i) {
        if (row + i < 0 || row + i >= static_cast<long long>(map.rows)) continue;
        visit(i * LINE_BYTES + (first - column) * map.number_bytes,
              map.numbers + (row + i) * map.row_bytes + first * map.number_bytes,
              (end - first) * map.number_bytes);
    }
}

// To the nearest number with 10 bits of mantissa; of two, to the one whose last bit is 0.
void round_to_tf32(unsigned char* number) {
    uint32_t word;
    std::memcpy(&word, number, sizeof word);
    const bool is_finite = (word & 0x7f800000u) != 0x7f800000u;
    if (is_finite) word = (word + 0xfffu + (word >> 13 & 1)) & 0xffffe000u;
    std::memcpy(number, &word, sizeof word);
}

// The bytes of a box, its rows one after another, those outside of the matrix zero.
std::vector<unsigned char> box_of_matrix(const MatrixMap& map, int row, int column) {
    std::vector<unsigned char> box(bytes_of_box(map));
    for_each_row(map, row, column, [&](long long at, const unsigned char* from, size_t bytes) {
        std::memcpy(&box[at], from, bytes);
    });
    if (map.is_tf32) {
        for (size_t at = 0; at < box.size(); at += sizeof(float)) round_to_tf32(&box[at]);
    }
    return box;
}

// The bytes of a box of images, its pixels one after another, those outside of the images zero.
std::vector<unsigned char> box_of_images(const MatrixMap& map, const Corner& corner) {
    std::vector<unsigned char> box(bytes_of_box(map));
    const auto [images, height, width] = map.box;
    for (unsigned line = 0; line < map.box_rows; ++line) {
        const long long image = corner.image + static_cast<long long>(line / (height * width)),
                        row = corner.row + line / width % height * map.steps[0],
                        column = corner.column + line % width * map.steps[1];
        const auto is_in = [](long long at, unsigned size) { return at >= 0 && at < size; };
        if (!is_in(image, map.images) || !is_in(row, map.height) || !is_in(column, map.width))
            continue;
        MatrixMap pixel = map;
        pixel.box_rows = 1;
        for_each_row(pixel, (image * map.height + row) * map.width + column, corner.channel,
                     [&](long long at, const unsigned char* from, size_t bytes) {
                         std::memcpy(&box[line * LINE_BYTES + at], from, bytes);
                     });
    }
    return box;
}

// Where byte `at` of a box lies that begins at `address`, counted from there.
unsigned place_in_shared(unsigned address, unsigned at) { return swizzled(address + at) - address; }

// The bytes as they lie in shared memory from `address` on.
std::vector<unsigned char> laid_out(const std::vector<unsigned char>& box, unsigned address) {
    std::vector<unsigned char> lines(box.size());
    for (unsigned at = 0; at < box.size(); at += PIECE_BYTES)
        std::memcpy(&lines[place_in_shared(address, at)], &box[at], PIECE_BYTES);
    return lines;
}

void load_lines(const char* name, void* target, const std::vector<unsigned char>& box,
                unsigned long long* barrier, unsigned blocks) {
    const std::vector<unsigned char> lines = laid_out(box, to_shared_address(target));
    if (blocks == OWN_BLOCK)
        copy_for_mbarrier(name, target, lines.data(), lines.size(), barrier);
    else
        copy_to_blocks(name, target, lines.data(), lines.size(), barrier, blocks);
}

std::vector<unsigned char> box_of_shared(const unsigned char* source, unsigned bytes) {
    std::vector<unsigned char> box(bytes);
    const unsigned address = to_shared_address(source);
    for (unsigned at = 0; at < bytes; at += PIECE_BYTES)
        std::memcpy(&box[at], source + place_in_shared(address, at), PIECE_BYTES);
    return box;
}

// What copies see where boxes were stored from: as it was when a thread last called the fence. The
// first store from a place is taken to see everything.
std::map<const unsigned char*, std::vector<unsigned char>> seen;

void see(const unsigned char* begin, std::vector<unsigned char>& bytes) {
    std::memcpy(bytes.data(), begin, bytes.size());
}

void check_fenced(const char* name, const unsigned char* begin, unsigned bytes) {
    const auto found = seen.emplace(begin, std::vector<unsigned char>(begin, begin + bytes)).first;
    if (std::memcmp(found->second.data(), begin, found->second.size()) != 0)
        fail("%s: expected fence_async after what was written to the %u bytes from %s on, got none",
             name, bytes, shared_text(begin).c_str());
}

// The part of a box in shared memory that lies in the matrix, row by row.
std::vector<LateWrite> rows_in_shared(const PendingStore& store) {
    std::vector<LateWrite> rows;
    const std::vector<unsigned char> box = box_of_shared(store.source, bytes_of_box(store.map));
    for_each_row(store.map, store.row, store.column,
                 [&](long long at, unsigned char* to, size_t bytes) {
                     rows.push_back({to, {box.begin() + at, box.begin() + at + bytes}});
                 });
    return rows;
}

void read(const char* name, const PendingStore& store) {
    if (!(rows_in_shared(store) == store.rows))
        fail(
            "%s: expected the %u bytes from %s on to stay as they are until stored, got them "
            "written",
            name, bytes_of_box(store.map), shared_text(store.source).c_str());
    std::vector<LateWrite>& late = current->late_writes;
    late.insert(late.end(), store.rows.begin(), store.rows.end());
}

}  // namespace

void check_map(const char* name, const MatrixMap* map) {
    if (map->mark != MARK) fail("%s: expected a tensor map, got other bytes at %p", name, map);
}

void load_box(const char* name, void* target, const MatrixMap* map, int row, int column,
              unsigned long long* barrier, unsigned blocks) {
    check_box(name, map, target);
    if (map->images != 0) fail("%s: expected the map of a matrix, got one of images", name);
    load_lines(name, target, box_of_matrix(*map, row, column), barrier, blocks);
}

void load_images(const char* name, void* target, const MatrixMap* map, Corner corner,
                 unsigned long long* barrier, unsigned blocks) {
    check_box(name, map, target);
    if (map->images == 0) fail("%s: expected the map of images, got one of a matrix", name);
    load_lines(name, target, box_of_images(*map, corner), barrier, blocks);
}

void store_box(const char* name, const MatrixMap* map, const void* source, int row, int column) {
    check_box(name, map, source);
    const auto* begin = static_cast<const unsigned char*>(source);
    check_fenced(name, begin, bytes_of_box(*map));
    for_each_row(*map, row, column,
                 [](long long, unsigned char* to, size_t bytes) { std::memset(to, 0xff, bytes); });
    current->stores.push_back({*map, begin, row, column, current->store_groups, {}});
    PendingStore& store = current->stores.back();
    store.rows = rows_in_shared(store);
}

void commit_stores() { ++current->store_groups; }

void wait_for_stores(const char* name, unsigned most_pending, Site site) {
    Thread& thread = *current;
    const auto is_due = [&] {
        return !thread.stores.empty() &&
               thread.stores.front().group + most_pending < thread.store_groups;
    };
    if (is_due()) yield(name, site);
    while (is_due()) {
        read(name, thread.stores.front());
        thread.stores.erase(thread.stores.begin());
    }
}

void end_stores() {
    if (!current->stores.empty())
        fail("the thread leaves while %zu of its stores of boxes have still to read shared memory",
             current->stores.size());
    for (const LateWrite& late : current->late_writes)
        std::memcpy(late.target, late.data.data(), late.data.size());
}

void fence_copies() {
    for (auto& place : seen)
        if (is_shared(place.first, place.second.size())) see(place.first, place.second);
}

void see_copied(const unsigned char* begin, const unsigned char* end) {
    for (auto& place : seen)
        if (place.first < end && begin < place.first + place.second.size())
            see(place.first, place.second);
}

void forget_fences() { seen.clear(); }

}  // namespace emulator
