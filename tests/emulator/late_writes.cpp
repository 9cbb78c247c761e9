// Writes to global memory that other blocks see as late as CUDA lets them, in memory that is
// watched: so a fence that is missing shows.
//
// What a block writes is its own until one of its threads calls a fence, and then one of them has
// an atomic operation or a relaxed store; or until the grid ends. Atomic operations are seen at
// once, each relaxed store after some rounds: without a fence between two of them, the second may
// overtake the first. The fence of a thread is taken for one of its block. What is not seen: loads
// that come too early, and barriers of a block that are missing beside a fence.
#include <algorithm>
#include <map>
#include <random>

#include "threads.h"

namespace emulator {

bool writes_are_late = false;

namespace {

constexpr unsigned long long NOT_YET = ~0ull;
constexpr unsigned MOST_ROUNDS = 4;  // until a relaxed store is seen

struct Region {
    unsigned char* begin;
    std::vector<unsigned char> seen;  // by all blocks
};

struct Write {
    Region* region;
    size_t at;
    unsigned char value;
};

struct OfBlock {
    std::vector<Write> own;     // which no other block has seen, while others have their turn
    std::vector<Write> fenced;  // which others see with what comes next
};

std::vector<Region> regions;
std::map<unsigned, OfBlock> of_blocks;  // that take turns
OfBlock* of_block = nullptr;            // whose turn it is
std::vector<Write> left;                // by blocks that have ended
std::minstd_rand delays;

std::vector<Write> changes() {
    constexpr size_t PIECE = 256;  // most of a region is as it was
    std::vector<Write> found;
    for (Region& region : regions) {
        const size_t bytes = region.seen.size();
        for (size_t first = 0; first < bytes; first += PIECE) {
            const size_t end = std::min(first + PIECE, bytes);
            if (std::memcmp(region.begin + first, &region.seen[first], end - first) == 0) continue;
            for (size_t i = first; i < end; ++i)
                if (region.begin[i] != region.seen[i])
                    found.push_back({&region, i, region.begin[i]});
        }
    }
    return found;
}

void see_fenced() {
    for (const Write& write : of_block->fenced) write.region->seen[write.at] = write.value;
    of_block->fenced.clear();
}

void see(const void* place, size_t bytes) {
    const auto* first = static_cast<const unsigned char*>(place);
    for (Region& region : regions)
        if (first >= region.begin && first < region.begin + region.seen.size())
            std::memcpy(&region.seen[first - region.begin], first, bytes);
}

void write(const std::vector<Write>& writes) {
    for (const Write& write : writes) write.region->begin[write.at] = write.value;
}

}  // namespace

void fence() {
    if (writes_are_late) of_block->fenced = changes();
}

void see_atomic(const void* place, size_t bytes) {
    see_fenced();
    see(place, bytes);
}

void store_late(const void* place, size_t bytes) {
    see_fenced();
    current->relaxed.push_back({place, bytes, NOT_YET});
}

void Thread::end_turn(unsigned long long round) {
    size_t kept = 0;
    for (RelaxedStore store : relaxed) {
        if (store.round == NOT_YET) store.round = round + delays() / 16 % MOST_ROUNDS;
        if (store.round <= round) {
            see(store.place, store.bytes);
            ++progress;
        } else {
            relaxed[kept++] = store;
        }
    }
    relaxed.resize(kept);
}

void hide_writes(bool has_run) {
    if (has_run) {
        of_block->own = changes();
    } else {  // what others see may have come to be the same
        auto& own = of_block->own;
        const auto is_seen = [](const Write& write) {
            return write.region->seen[write.at] == write.value;
        };
        own.erase(std::remove_if(own.begin(), own.end(), is_seen), own.end());
    }
    for (const Write& write : of_block->own)
        write.region->begin[write.at] = write.region->seen[write.at];
}

void show_writes(unsigned block) {
    of_block = &of_blocks[block];
    write(of_block->own);
}

void end_blocks() {
    for (const auto& each : of_blocks)
        left.insert(left.end(), each.second.own.begin(), each.second.own.end());
    of_blocks.clear();
}

void end_late_writes() {
    write(left);
    left.clear();
    delays.seed();
}

}  // namespace emulator

// Watches memory in the launches to come; none for a count of 0.
extern "C" void emulator_watch(unsigned char* const* begins, const unsigned long long* sizes,
                               unsigned count) {
    using namespace emulator;
    regions.clear();
    for (unsigned i = 0; i < count; ++i)
        regions.push_back({begins[i], {begins[i], begins[i] + sizes[i]}});
    writes_are_late = count > 0;
}
