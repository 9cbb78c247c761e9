// What is a network's own where a kernel trains many: its rows, their orders, its rates, and where its record goes.
#pragma once

#include "permutation.cuh"
#include "reduce.cuh"
#include "update_rules.cuh"

// The mean loss of some rows, and how many of them are right.
struct EpochSums {
    double loss, correct;

    __device__ bool is_finite() const { return loss - loss == 0; }
};

// A step of a network's optimizer.
struct Step {
    StepSettings settings;
    RuleSettings rule;
    float unscale;

    // Of a parameter; slot(i) is where what is remembered of it lies.
    template <class Slots>
    __device__ void update(float& w, Slots slot, float sum) const {
        float slots[SLOT_PLACES];
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) slots[i] = slot(i);
        update_parameter(w, slots, sum, unscale, settings, rule);
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) slot(i) = slots[i];
    }
};

struct alignas(16) Network {
    const StepSettings* steps;   // (steps,) of all its epochs
    const uint32* keys;          // (epochs, 8) of its orders; null for rows one after the other
    const int* rows;             // (num_rows,) among all; null for the first
    const int* validation_rows;  // (num_validated,) among all
    double* record;              // (epochs, 4): loss, and rows that are right, of training and of validation
    int* epochs_done;            // fewer than its epochs if its loss is no number any more
    float scale;                 // of gradients, a power of two
    int num_rows, bits, num_epochs, num_validated;
    RuleSettings rule;

    __device__ int num_steps() const { return (num_rows + BATCH - 1) / BATCH; }

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

    // Of an epoch's training rows, or of the validation rows after it.
    __device__ void write_record(int epoch, bool is_validation, const EpochSums& sums) const {
        double* to = record + 4 * epoch + 2 * is_validation;
        to[0] = sums.loss;
        to[1] = sums.correct;
    }
};

static_assert(sizeof(Network) == 96, "many_networks.py packs this struct");
