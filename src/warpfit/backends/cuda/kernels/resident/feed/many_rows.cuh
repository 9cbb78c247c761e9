// What is a network's own where a kernel trains many: its rows, their orders, its rates, and where
// its record goes. The structs lie in memory as the host packs them (engines, many_networks.py):
// who trains a network owns its record and its standing; everything else is only read.
#pragma once

#include "base/permutation.cuh"
#include "base/reduce.cuh"
#include "resident/loss/output_losses.cuh"
#include "resident/record/stopping.cuh"
#include "resident/update/parameters.cuh"

// The mean loss of some rows, and how many of them are right.
struct EpochSums {
    double loss, correct;

    __device__ bool is_finite() const { return loss - loss == 0; }
};

// A step of a network's optimizer.
struct NetworkStep {
    StepSettings settings;
    RuleSettings rule;
    float unscale;

    // That of weights: half of the penalty times their squares, over so many rows, joins the loss
    //   with PENALIZED.
    __device__ NetworkStep of_weights(float num_rows) const {
        NetworkStep found = *this;
        if (PENALIZED) found.rule.decay += settings.penalty / num_rows;
        return found;
    }

    // Of a parameter; slot(i) is where its optimizer state lies.
    template <class Slots>
    __device__ void update(float& w, Slots slot, float sum) const {
        update_in_place(w, slot, sum, unscale, settings, rule);
    }
};

// What follows from an epoch's losses, as bits: its parameters are to be kept; the run is over; and
// that because a loss is no number.
enum Verdict : int { IS_BETTER = 1, IS_OVER = 2, IS_NO_NUMBER = 4 };

// What came of a network.
struct Standing {
    int epochs_done;  // fewer than its epochs if it was stopped, or its loss is no number any more
    // With HALVES: after which epoch it was left behind, else 0; as which, 0 if a fold has no
    //   result; of how many.
    int halved_after, place, num_compared;
    EpochSums trained, validated;  // likewise: of the epoch whose parameters it ends with
};

struct alignas(16) Network {
    const StepSettings* steps;   // of all its epochs' steps, or one for all
    const uint32* keys;          // (epochs, 8) of its orders; null for rows one after the other
    const int* rows;             // (num_rows,) among all; null for the first
    const int* validation_rows;  // (num_validated,) among all
    double* record;  // (epochs, 4): loss, and rows that are right, of training and of validation
    Standing* standing;
    Stopping* stopping;  // one for each block of a cluster; null to go on to the last epoch
    float scale;         // of gradients, a power of two
    int num_rows, bits, num_epochs, num_validated;
    int step_stride;  // of `steps`: 1, or 0
    RuleSettings rule;

    __device__ int num_steps() const { return (num_rows + BATCH - 1) / BATCH; }

    __device__ const StepSettings* settings(int epoch, int step) const {
        return steps + step_stride * (static_cast<int64>(epoch) * num_steps() + step);
    }

    // The number among all rows of the one at a position of an epoch, -1 beyond the last.
    __device__ int row(int epoch, int position) const {
        if (position >= num_rows || epoch >= num_epochs) return -1;
        int found = position;
        if (keys != nullptr) {
            uint32 own[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) own[i] = keys[8 * epoch + i];
            found = static_cast<int>(permuted(position, num_rows, bits, own));
        }
        return rows != nullptr ? rows[found] : found;
    }

    __device__ int validation_row(int position) const {
        return position < num_validated ? validation_rows[position] : -1;
    }

    // Leaves the record of an epoch, counted from 0, and judges it. One thread of a block of this
    // rank in its cluster calls.
    __device__ int end_epoch(int epoch, int rank, const EpochSums& trained,
                             const EpochSums& validated) const {
        if (rank == 0) {
            write_record(epoch, false, trained);
            write_record(epoch, true, validated);
        }
        return judge(epoch, rank, trained, validated);
    }

    __device__ int judge(int epoch, int rank, const EpochSums& trained,
                         const EpochSums& validated) const {
        if (!trained.is_finite()) return IS_OVER | IS_NO_NUMBER;
        const int verdict =
            stopping == nullptr ? 0 : follow(stopping[rank], epoch, trained, validated);
        if (HALVES && rank == 0 &&
            (stopping == nullptr || !stopping->keeps_best || (verdict & IS_BETTER))) {
            standing->trained = trained;
            standing->validated = validated;
        }
        return verdict;
    }

    __device__ int follow(Stopping& own, int epoch, const EpochSums& trained,
                          const EpochSums& validated) const {
        const EpochSums& watched = own.of_validation ? validated : trained;
        const int rows_watched = own.of_validation ? num_validated : num_rows;
        const bool is_better =
            own.decide(own.of_accuracy ? watched.correct / rows_watched : watched.loss, epoch + 1);
        return (is_better && own.keeps_best ? IS_BETTER : 0) | (own.is_over() ? IS_OVER : 0);
    }

    // With HALVES, the steps of its run before this rung.
    __device__ uint32 steps_before() const {
        return HALVES ? standing->epochs_done * num_steps() : 0;
    }

    __device__ bool is_stopped() const { return stopping != nullptr && stopping->is_over(); }

    // By one thread, after so many epochs of a rung, or of the run.
    __device__ void leave(int epochs_done) const {
        if (HALVES) epochs_done += standing->epochs_done;
        standing->epochs_done = epochs_done;
    }

    // Of an epoch's training rows, or of the validation rows after it.
    __device__ void write_record(int epoch, bool is_validation, const EpochSums& sums) const {
        double* to = record + 4 * epoch + 2 * is_validation;
        to[0] = sums.loss;
        to[1] = sums.correct;
    }
};

// Whether rows weigh something else than 1: because of themselves, or of their classes.
constexpr bool HAS_WEIGHTS = WEIGHTED || CLASS_WEIGHTS;

// What the rows weigh that a network is trained on, or validated: of two weights, or, without any,
// their number.
__device__ inline auto weight_of_rows([[maybe_unused]] const Network& network,
                                      [[maybe_unused]] const double* weights, bool of_validation) {
    if constexpr (HAS_WEIGHTS) {
        return weights[of_validation];
    } else {
        return of_validation ? network.num_validated : network.num_rows;
    }
}
