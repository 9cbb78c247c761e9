// With STOPS one_launch_layers.cu and one_launch_card.cu decide after each reported epoch whether
// the run is over. Each block has the state in shared memory and finds the same; of several
// RECORDERS each leaves its sums in memory, marked with the epoch.
#pragma once

#include "resident/record/stopping.cuh"
#include "resident/record/validation.cuh"

// Sums of a recorder's rows of the record, added one after the other, as engines/reports.py adds
// them.
struct Sums {
    double loss, weight, correct;

    // A row, of a pass whose rows weigh as much together.
    __device__ void add(const double (&row)[3], double of_pass) {
        loss = __dadd_rn(loss, __dmul_rn(row[0], of_pass));
        weight = __dadd_rn(weight, of_pass);
        correct = __dadd_rn(correct, row[2]);
    }
};

// What a recorder leaves for all blocks after an epoch that is reported.
struct alignas(16) WatchedPart {
    double loss, correct;
    unsigned epoch;  // of the run; of another one while the numbers have not come
    unsigned unused[3];
};

// What launches of a run hand on, and blocks of a launch leave each other. Nobody overwrites a part
// that another block has not seen: a recorder comes to the end of an epoch by numbers that all
// others have sent in it.
struct StoppingMemory {
    Stopping rule;
    WatchedPart parts[RECORDERS];
};

// What a block has in shared memory for it.
struct StoppingState {
    Stopping rule;
    Sums training, validation;  // of the epoch so far
    int is_better, is_over;     // the last reported epoch, and the run
    int unused[2];

    __device__ void add(const double (&row)[3], double of_pass, bool trains, bool is_first) {
        if (is_first) training = validation = Sums{};
        (trains ? training : validation).add(row, of_pass);
    }

    __device__ Sums& watched_sums() { return rule.of_validation ? validation : training; }

    // What is watched; without weight a loss is 0.
    __device__ double watched(const Sums& sums, int num_rows, int num_validated) const {
        if (rule.of_accuracy) return sums.correct / (rule.of_validation ? num_validated : num_rows);
        return sums.weight != 0 ? sums.loss / sums.weight : 0;
    }

    // One thread calls, when all sums of a reported epoch are there.
    __device__ void decide(double value, int epochs_done) {
        is_better = rule.decide(value, epochs_done);
        is_over = rule.is_over();
    }
};
