// Barriers of shared memory: who has arrived, what is still to land, and which phase is complete.
//
// What lies at a barrier's place is only a mark; its state is kept here. Copies and stores that
// arrive by themselves land as late as allowed: when somebody waits for a phase that has all its
// arrivals and bytes.
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "threads.h"

namespace emulator {
namespace {

constexpr unsigned MOST_ARRIVALS = (1u << 20) - 1;
constexpr unsigned long long MARK = 0x72656972726162dbull;

// A thread's arrival when its first `copies` have landed.
struct LateArrival {
    Thread* thread;
    unsigned copies;
};

// Its bytes, or where another block's shared memory has them when they land.
struct LateStore {
    unsigned char* target;
    unsigned bytes;
    std::vector<unsigned char> data;
    const unsigned char* source;

    void land() const {
        std::memcpy(target, source ? source : data.data(), bytes);
        see_copied(target, target + bytes);
    }
};

// The ends of all late stores that have not landed, by where they begin. No two may have a byte in
// common: which of them comes last is open.
std::map<const unsigned char*, const unsigned char*> under_way;
std::set<const unsigned char*> copied;  // where copies from global memory begin, of these

bool is_under_way(const unsigned char* begin, const unsigned char* end) {
    const auto next = under_way.upper_bound(begin);
    return (next != under_way.end() && next->first < end) ||
           (next != under_way.begin() && std::prev(next)->second > begin);
}

// What a phase has of arrivals and bytes.
struct Phase {
    unsigned arrived = 0;
    unsigned long long bytes_expected = 0, bytes_sent = 0;
    std::vector<LateArrival> arrivals;
    std::vector<LateStore> stores;

    bool nothing_is_late() const { return arrivals.empty() && stores.empty(); }

    void land() {
        for (const auto& arrival : arrivals)
            arrival.thread->land([&](const auto& copy) { return copy.number < arrival.copies; });
        for (const auto& store : stores) {
            store.land();
            under_way.erase(store.target);
            copied.erase(store.target);
        }
    }
};

// What is noted of a barrier that is made, waited for, arrived at, or sent bytes to, while somebody
// asks for it: emulator/recording.py.
enum class What { made, wait, arrival, bytes };
bool is_recording = false;
std::vector<long long> records;

struct Mbarrier {
    const void* place;
    unsigned count;
    unsigned block = 0, number = 0;  // whose it is, and of how many that it made before
    unsigned parity = 0;             // of the phase that is not complete yet
    Phase phase{};
    bool last_was_seen = true;  // whether a thread knows that the phase before is complete

    bool has_all() const {
        return phase.arrived == count && phase.bytes_sent == phase.bytes_expected;
    }

    void complete() {
        phase.land();
        phase = Phase();
        parity ^= 1;
        last_was_seen = false;
        ++progress;
    }

    // Before something is counted, which may belong to the phase after one that nobody has looked
    // at.
    void begin_count() {
        if (has_all() && phase.nothing_is_late()) complete();
    }

    void end_count(const char* name) const {
        if (phase.arrived > count)
            fail(
                "%s: expected %u arrivals in a phase of the barrier at %s, got one more, while "
                "copies or "
                "bytes are "
                "under way",
                name, count, shared_text(place).c_str());
        if (phase.arrived == count && phase.bytes_sent > phase.bytes_expected)
            fail("%s: expected %llu bytes in a phase of the barrier at %s, got %llu", name,
                 phase.bytes_expected, shared_text(place).c_str(), phase.bytes_sent);
        if (has_all() && !last_was_seen)
            fail(
                "%s: expected %u arrivals in a phase of the barrier at %s, got as many again "
                "before any "
                "thread has "
                "waited for it",
                name, count, shared_text(place).c_str());
    }
};

std::unordered_map<const void*, Mbarrier> mbarriers;
std::unordered_map<unsigned, unsigned> made;  // by each block

void note(What what, const Mbarrier& barrier, long long number) {
    if (!is_recording) return;
    records.insert(records.end(), {static_cast<long long>(what), blockIdx.x, threadIdx.x,
                                   barrier.block, barrier.number, number});
}

void check_place(const char* name, const unsigned long long* place) {
    if (reinterpret_cast<uintptr_t>(place) % sizeof *place != 0 || !is_shared(place, sizeof *place))
        fail("%s: expected a barrier in 8 aligned bytes of shared memory, got %p", name, place);
}

Mbarrier& mbarrier_at(const char* name, const void* place) {
    const auto found = mbarriers.find(place);
    if (found == mbarriers.end())
        fail("%s: expected a barrier that mbarrier_init made, got none at %s", name,
             shared_text(place).c_str());
    if (std::memcmp(place, &MARK, sizeof MARK) != 0)
        fail("%s: the barrier at %s was overwritten", name, shared_text(place).c_str());
    return found->second;
}

Mbarrier& own_mbarrier(const char* name, const unsigned long long* place) {
    check_place(name, place);
    return mbarrier_at(name, place);
}

// The end of a phase: the one of the other parity is under way then.
struct PhaseEnd : Condition {
    Mbarrier& barrier;
    unsigned parity;

    PhaseEnd(const char* name, Site site, Mbarrier& barrier, unsigned parity)
        : Condition(name, site), barrier(barrier), parity(parity) {}

    bool holds() override {
        if (barrier.parity == parity && barrier.has_all()) barrier.complete();
        if (barrier.parity == parity) return false;
        return barrier.last_was_seen = true;
    }

    std::string detail() const override {
        const Phase& phase = barrier.phase;
        std::string text = " for parity " + std::to_string(parity) + " of the barrier at " +
                           shared_text(barrier.place) + ", with " + std::to_string(phase.arrived) +
                           " of " + std::to_string(barrier.count) + " arrivals";
        if (phase.bytes_expected > 0 || phase.bytes_sent > 0)
            text += " and " + std::to_string(phase.bytes_sent) + " of " +
                    std::to_string(phase.bytes_expected) + " bytes";
        return text;
    }
};

// A barrier of some of a block's threads.
struct NumberedBarrier {
    unsigned arrived = 0, count = 0;
    unsigned long long meetings = 0;
};

std::map<std::pair<const void*, unsigned>, NumberedBarrier> numbered_barriers;

struct MeetingEnd : Condition {
    const NumberedBarrier& barrier;
    unsigned long long meeting;

    MeetingEnd(const char* name, Site site, const NumberedBarrier& barrier)
        : Condition(name, site), barrier(barrier), meeting(barrier.meetings) {}

    bool holds() override { return barrier.meetings > meeting; }

    std::string detail() const override {
        return ", where " + std::to_string(barrier.arrived) + " of " +
               std::to_string(barrier.count) + " threads are";
    }
};

}  // namespace

void meet_some(const char* name, unsigned number, unsigned count, Site site) {
    constexpr unsigned MOST_NUMBERS = 16;
    if (number < 1 || number >= MOST_NUMBERS || count % warpSize != 0)
        fail("%s: expected a number from 1 to 15 and whole warps, got %u and %u threads", name,
             number, count);
    NumberedBarrier& barrier = numbered_barriers[{dynamic_shared, number}];
    if (barrier.arrived > 0 && barrier.count != count)
        fail("%s: expected %u threads at barrier %u, as others do, got %u", name, barrier.count,
             number, count);
    barrier.count = count;
    MeetingEnd end(name, site, barrier);
    if (++barrier.arrived < count) return wait_for(end);
    barrier.arrived = 0;
    ++barrier.meetings;
    ++progress;
}

void forget_mbarriers() {
    mbarriers.clear();
    made.clear();
    numbered_barriers.clear();
    under_way.clear();
    copied.clear();
}

void init_mbarrier(unsigned long long* place, unsigned count) {
    check_place("mbarrier_init", place);
    if (count < 1 || count > MOST_ARRIVALS)
        fail("mbarrier_init: expected 1 to %u arrivals, got %u", MOST_ARRIVALS, count);
    const auto [found, is_new] = mbarriers.emplace(place, Mbarrier{place, count});
    if (!is_new)
        fail("mbarrier_init: there is a barrier at %s already", shared_text(place).c_str());
    *place = MARK;
    found->second.block = blockIdx.x;
    found->second.number = made[blockIdx.x]++;
    note(What::made, found->second, count);
}

namespace {

void count_arrival(const char* name, Mbarrier& barrier, unsigned bytes) {
    note(What::arrival, barrier, bytes);
    barrier.begin_count();
    ++barrier.phase.arrived;
    barrier.phase.bytes_expected += bytes;
    barrier.end_count(name);
}

}  // namespace

void arrive(const char* name, unsigned long long* place, unsigned bytes) {
    count_arrival(name, own_mbarrier(name, place), bytes);
}

void arrive_at(const char* name, unsigned address) {
    count_arrival(name, mbarrier_at(name, at_cluster_address(name, address, sizeof MARK)), 0);
}

void arrive_after_copies(const char* name, unsigned long long* place) {
    Mbarrier& barrier = own_mbarrier(name, place);
    note(What::arrival, barrier, 0);
    barrier.begin_count();
    ++barrier.phase.arrived;
    barrier.phase.arrivals.push_back({current, current->copies_issued});
    barrier.end_count(name);
}

void wait_for_phase(const char* name, unsigned long long* place, unsigned parity, Site site) {
    if (parity > 1) fail("%s: expected a parity of 0 or 1, got %u", name, parity);
    Mbarrier& barrier = own_mbarrier(name, place);
    note(What::wait, barrier, parity);
    PhaseEnd end(name, site, barrier, parity);
    if (!end.holds()) wait_for(end);
}

namespace {

void store_late(const char* name, unsigned char* target, const void* source, unsigned bytes,
                Mbarrier& barrier, bool reads_late = false) {
    if (is_under_way(target, target + bytes))
        fail(
            "%s: something is on its way already to the %u bytes from %s on, for which nobody has "
            "waited",
            name, bytes, shared_text(target).c_str());
    note(What::bytes, barrier, bytes);
    barrier.begin_count();
    const auto* begin = static_cast<const unsigned char*>(source);
    if (reads_late)
        barrier.phase.stores.push_back({target, bytes, {}, begin});
    else
        barrier.phase.stores.push_back({target, bytes, {begin, begin + bytes}, nullptr});
    under_way[target] = target + bytes;
    std::memset(target, 0xff, bytes);
    barrier.phase.bytes_sent += bytes;
    barrier.end_count(name);
}

}  // namespace

void store_for_mbarrier(const char* name, unsigned address, const void* words, unsigned bytes,
                        unsigned barrier_address, bool reads_late) {
    unsigned char* target = at_cluster_address(name, address, bytes);
    const void* place = at_cluster_address(name, barrier_address, sizeof MARK);
    if (rank_of_address(address) != rank_of_address(barrier_address))
        fail("%s: expected a barrier of block %u, to which the bytes go, got one of block %u", name,
             rank_of_address(address), rank_of_address(barrier_address));
    store_late(name, target, words, bytes, mbarrier_at(name, place), reads_late);
}

void copy_for_mbarrier(const char* name, void* target, const void* source, unsigned bytes,
                       unsigned long long* place) {
    auto* to = static_cast<unsigned char*>(target);
    copied.insert(to);
    store_late(name, to, source, bytes, own_mbarrier(name, place));
}

void check_copied(const char* name, const void* begin, unsigned bytes) {
    const auto* first = static_cast<const unsigned char*>(begin);
    const auto next = under_way.upper_bound(first + bytes - 1);
    if (next == under_way.begin()) return;
    const auto& [target, end] = *std::prev(next);
    if (end > first && copied.count(target))
        fail("%s: a copy for which nobody has waited is in flight to the %u bytes from %s on", name,
             bytes, shared_text(first).c_str());
}

void copy_to_blocks(const char* name, void* target, const void* source, unsigned bytes,
                    unsigned long long* place, unsigned chosen) {
    check_place(name, place);
    if (chosen == 0) fail("%s: expected at least one block of the cluster, got none", name);
    for (unsigned rank = 0; chosen >> rank != 0; ++rank) {
        if (!((chosen >> rank) & 1u)) continue;
        unsigned char* own_target =
            at_cluster_address(name, to_cluster_address(name, target, rank), 16);
        const void* own_place =
            at_cluster_address(name, to_cluster_address(name, place, rank), sizeof MARK);
        store_late(name, own_target, source, bytes, mbarrier_at(name, own_place));
    }
}

unsigned bytes_under_way(const unsigned char* begin, const unsigned char* end) {
    unsigned bytes = 0;
    for (auto store = under_way.lower_bound(begin); store != under_way.end() && store->first < end;
         ++store)
        bytes += static_cast<unsigned>(store->second - store->first);
    return bytes;
}

}  // namespace emulator

extern "C" void emulator_record(bool on) {
    emulator::is_recording = on;
    emulator::records.clear();
}

extern "C" const long long* emulator_records(size_t* count) {
    *count = emulator::records.size();
    return emulator::records.data();
}
