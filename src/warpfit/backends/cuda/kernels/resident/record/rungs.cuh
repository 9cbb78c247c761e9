// Which network a block, or a cluster, takes next; and with HALVES, which go on from rung to rung:
// `_decide` of sweep/halving.py from the same doubles, so that both come to the same.
//
// Networks have their numbers by candidate, then by fold. In the queue those of a rung are followed
// by those of the next. Who takes a place in it before there is a network there, waits for one; who
// brings back the last network of a rung leaves those of the next there. Nobody waits who has a
// network: so those that a rung still lacks are being trained, and it ends, however few blocks are
// resident.
#pragma once

#include "base/choice.cuh"
#include "base/math.cuh"
#include "ptx/barriers.cuh"
#include "resident/feed/many_rows.cuh"

constexpr int NO_RUNG = 0x7fffffff;
// Others may train for hours.
constexpr unsigned MOST_LOOKS_AT_RUNG = BOUNDED_WAITS ? ~0u : NO_END;

// How a candidate stands at a rung, by the mean over its folds; less is better.
struct Candidate {
    double mean, loss;
    int is_compared, has_result;

    // If neither is, who comes first is better.
    __device__ bool is_better_than(const Candidate& other, bool comes_first) const {
        if (mean != other.mean) return mean < other.mean;
        if (loss != other.loss) return loss < other.loss;
        return comes_first;
    }
};

struct RungQueue {
    double factor;       // one in so many candidates goes on
    const int* rungs;    // the epochs after which networks are compared; then NO_RUNG
    int* numbers;        // of networks, room for all of them for each rung
    Candidate* results;  // (num_candidates,)
    int num_folds, of_validation, of_accuracy;  // by what networks are compared
    int rung;                                   // where all of them are
    unsigned taken, end,
        returned;        // places that somebody has; that have a network; whose network is back
    unsigned published;  // the end as others may know it, with NO_MORE if it is the last

    static constexpr unsigned NO_MORE = 1u << 31;

    // A place in it. One thread of a cluster calls.
    __device__ unsigned take() { return atomicAdd(&taken, 1u); }

    // The number of the network at a place, -1 if there will be none. One thread of each block
    // calls, which then sees what others have left of it.
    __device__ int network_at(unsigned place, int) const {
        for (Patience patience;; patience.wait(MOST_LOOKS_AT_RUNG)) {
            const unsigned found = load_relaxed(&published), known = found & ~NO_MORE;
            if (place < known || found != known) {
                __threadfence();  // with the load, an acquire
                return place < known ? numbers[place] : -1;
            }
            __nanosleep(500);
        }
    }

    // What of a run is left up to the rung.
    __device__ Network part_of(const Network& whole) const {
        Network part = whole;
        const int first = whole.standing->epochs_done;
        part.steps = whole.settings(first, 0);
        if (whole.keys != nullptr) part.keys = whole.keys + 8 * static_cast<int64>(first);
        part.record = whole.record + 4 * static_cast<int64>(first);
        part.num_epochs = min(whole.num_epochs, rungs[rung]) - first;
        return part;
    }

    // A network is back; returns whether it is the last one of a rung. One thread calls, when all
    // of the block, or the cluster, have left in memory what they have of it, and met.
    __device__ bool hand_back() {
        if (published & NO_MORE) return false;
        __threadfence();
        const bool is_last = atomicAdd(&returned, 1u) + 1 == published;
        __threadfence();
        return is_last;
    }

    // Decides who goes on. All threads that meet() call, of which `num_threads`, numbered from 0,
    // are at work.
    template <bool IS_AT_WORK, class Meet>
    __device__ void decide(const Network* networks, int num_networks, int thread, int num_threads,
                           Meet meet) {
        const int num_candidates = num_networks / num_folds;
        if constexpr (IS_AT_WORK) {
            for (int i = thread; i < num_candidates; i += num_threads)
                results[i] = result_of(networks, i);
        }
        meet();
        if constexpr (IS_AT_WORK) {
            for (int i = thread; i < num_candidates; i += num_threads)
                go_on(networks, i, num_candidates);
        }
        meet();
        if (thread == 0) publish();
    }

    __device__ bool is_paused(const Network& network) const {
        const int done = network.standing->epochs_done;
        return done == rungs[rung] && done < network.num_epochs && !network.is_stopped();
    }

    // What a network is compared by.
    __device__ double value_of(const Network& network) const {
        const EpochSums& sums =
            of_validation ? network.standing->validated : network.standing->trained;
        return of_accuracy
                   ? sums.correct / (of_validation ? network.num_validated : network.num_rows)
                   : sums.loss;
    }

    // Those that are through are compared with those that are not; those of which a fold was left
    // behind are neither.
    __device__ Candidate result_of(const Network* networks, int idx) const {
        double sum = 0, loss = 0;
        bool is_in_play = false, are_right = true, are_finite = true;
#pragma unroll 1
        for (int i = idx * num_folds; i < (idx + 1) * num_folds; ++i) {
            const Network& network = networks[i];
            const Standing& own = *network.standing;
            const bool pauses = is_paused(network);
            is_in_play |= pauses;
            are_right &= pauses || (own.epochs_done > 0 && (network.is_stopped() ||
                                                            own.epochs_done == network.num_epochs));
            const double value = value_of(network);
            const double own_loss =
                network.num_validated > 0 ? own.validated.loss : own.trained.loss;
            are_finite &= value - value == 0;
            sum += value;
            loss += own_loss == own_loss ? own_loss : infinity();
        }
        const double mean = sum / num_folds;
        return {of_accuracy ? -mean : mean, loss / num_folds, is_in_play || are_right,
                are_right && are_finite};
    }

    // A candidate's networks come into the queue, or stay behind.
    __device__ void go_on(const Network* networks, int idx, int num_candidates) {
        const Candidate own = results[idx];
        if (!own.is_compared) return;
        int num_compared = 0, num_better = 0;
        for (int i = 0; i < num_candidates; ++i) {
            const Candidate other = results[i];
            num_compared += other.is_compared;
            num_better +=
                other.is_compared && other.has_result && other.is_better_than(own, i < idx);
        }
        const bool goes_on =
            own.has_result && num_better < max(1, static_cast<int>(ceil(num_compared / factor)));
#pragma unroll 1
        for (int i = idx * num_folds; i < (idx + 1) * num_folds; ++i) {
            if (!is_paused(networks[i])) continue;
            if (goes_on) {
                numbers[atomicAdd(&end, 1u)] = i;
            } else {
                Standing& standing = *networks[i].standing;
                standing.halved_after = rungs[rung];
                standing.place = own.has_result ? num_better + 1 : 0;
                standing.num_compared = num_compared;
            }
        }
    }

    __device__ void publish() {
        const bool is_last = end == published || rungs[++rung] == NO_RUNG;
        __threadfence();  // with the store, a release
        store_relaxed(&published, end | (is_last ? NO_MORE : 0));
    }
};

static_assert(sizeof(Candidate) == 24 && sizeof(RungQueue) == 64,
              "launch_structs.py has these structs");

// Of networks that nobody compares.
struct PlainQueue {
    unsigned taken;

    __device__ unsigned take() { return atomicAdd(&taken, 1u); }

    __device__ int network_at(unsigned place, int num_networks) const {
        return place < static_cast<unsigned>(num_networks) ? static_cast<int>(place) : -1;
    }

    __device__ const Network& part_of(const Network& whole) const { return whole; }
    __device__ bool hand_back() { return false; }

    template <bool IS_AT_WORK, class Meet>
    __device__ void decide(const Network*, int, int, int, Meet) {}
};

using Queue = choice<HALVES, RungQueue, PlainQueue>;
