// What the lanes of a warp do together: shuffles and votes.
#include "warp.h"

namespace emulator {
namespace {

struct Shuffle : Request {
    unsigned long long value, result;
    unsigned source;
};

void execute_shuffle(Request* const* lanes) {
    for (int lane = 0; lane < warpSize; ++lane) {
        if (!lanes[lane]) continue;
        auto* target = static_cast<Shuffle*>(lanes[lane]);
        const auto* source = static_cast<const Shuffle*>(lanes[target->source]);
        target->result = source ? source->value : ~0ull;
    }
}

struct Vote : Request {
    bool predicate;
    unsigned ballot;
};

void execute_vote(Request* const* lanes) {
    unsigned ballot = 0;
    for (int lane = 0; lane < warpSize; ++lane)
        if (lanes[lane] && static_cast<Vote*>(lanes[lane])->predicate) ballot |= 1u << lane;
    for (int lane = 0; lane < warpSize; ++lane)
        if (lanes[lane]) static_cast<Vote*>(lanes[lane])->ballot = ballot;
}

void execute_nothing(Request* const*) {}

// This lane's place in its part of the warp.
unsigned place_within(const char* name, int width) {
    if (width < 1 || width > warpSize || (width & (width - 1)) != 0)
        fail("%s: expected a width of 1, 2, 4, 8, 16 or 32, got %d", name, width);
    return lane() & (width - 1u);
}

}  // namespace

unsigned long long shuffle_bits(const char* name, unsigned mask, unsigned long long bits,
                                unsigned source, Site site) {
    Shuffle request{{name, mask, site, execute_shuffle}, bits, 0, source};
    collective(request, false);
    return request.result;
}

unsigned lane_at(const char* name, int source, int width) {
    return lane() - place_within(name, width) + (source & (width - 1u));
}

unsigned lane_below(const char* name, unsigned delta, int width) {
    return delta <= place_within(name, width) ? lane() - delta : lane();
}

unsigned lane_above(const char* name, unsigned delta, int width) {
    const unsigned left = width - 1u - place_within(name, width);
    return delta <= left ? lane() + delta : lane();
}

unsigned lane_across(const char* name, int lane_mask, int width) {
    const unsigned last = lane() - place_within(name, width) + width - 1u,
                   source = lane() ^ lane_mask;
    return source <= last ? source : lane();
}

unsigned vote(const char* name, unsigned mask, bool predicate, Site site) {
    Vote request{{name, mask, site, execute_vote}, predicate, 0};
    collective(request, false);
    return request.ballot;
}

void meet_warp(const char* name, unsigned mask, Site site) {
    Request request{name, mask, site, execute_nothing};
    collective(request, false);
}

}  // namespace emulator
