// With STOPS one_launch_layers.cu itself finds out after each reported epoch whether the run is over, by the rule of
// `EarlyStopping` in training/callbacks.py, from the same doubles as the host: so both come to the same.
#pragma once

#include "validation.cuh"

// Sums of rows of the record, added one after the other, as engines/reports.py adds them.
struct Sums {
    double loss, weight, correct;

    __device__ void add(const double (&row)[3]) {
        loss = __dadd_rn(loss, __dmul_rn(row[0], row[1]));
        weight = __dadd_rn(weight, row[1]);
        correct = __dadd_rn(correct, row[2]);
    }
};

// The rule, what it remembers, and what came out of a launch.
struct alignas(16) Stopping {
    double min_delta, best;
    int patience, of_validation, of_accuracy, keeps_best;
    int has_best, bad_epochs;
    int has_improved;  // in this launch
    int epochs_done;   // when it ended the run, else 0
};

// What a block has in shared memory for it.
struct StoppingState {
    Stopping rule;
    Sums training, validation;  // of the epoch so far
    int is_better, is_over;     // the last reported epoch, and the run
    int unused[2];

    __device__ void add(const double (&row)[3], bool trains, bool is_first) {
        if (is_first) training = validation = Sums{};
        (trains ? training : validation).add(row);
    }

    // What is watched; without weight a loss is 0.
    __device__ double watched(int num_rows, int num_validated) const {
        const Sums& sums = rule.of_validation ? validation : training;
        if (rule.of_accuracy) return sums.correct / (rule.of_validation ? num_validated : num_rows);
        return sums.weight != 0 ? sums.loss / sums.weight : 0;
    }

    // One thread calls, when all sums of a reported epoch are there.
    __device__ void decide(double value, int epochs_done) {
        const double gain = rule.of_accuracy ? value - rule.best : rule.best - value;
        is_better = !rule.has_best || gain > rule.min_delta;
        if (is_better) {
            rule.best = value;
            rule.has_best = rule.has_improved = 1;
            rule.bad_epochs = 0;
        } else {
            ++rule.bad_epochs;
        }
        is_over = !is_better && rule.bad_epochs >= rule.patience;
        if (is_over) rule.epochs_done = epochs_done;
    }
};
