// The rule of `EarlyStopping` in training/callbacks.py, followed by a kernel, from the same doubles as the host: so both come to
// the same.
#pragma once

// The rule, what it remembers, and what came out of a launch.
struct alignas(16) Stopping {
    double min_delta, best;
    int patience, of_validation, of_accuracy, keeps_best;
    int has_best, bad_epochs;
    int has_improved;  // in this launch
    int epochs_done;   // when it ended the run, else 0

    // Takes in what is watched of an epoch, the last of so many; returns whether it is better than all before. One thread calls.
    __device__ bool decide(double value, int epochs) {
        const double gain = of_accuracy ? value - best : best - value;
        const bool is_better = !has_best || gain > min_delta;
        if (is_better) {
            best = value;
            has_best = has_improved = 1;
            bad_epochs = 0;
        } else {
            ++bad_epochs;
        }
        if (!is_better && bad_epochs >= patience) epochs_done = epochs;
        return is_better;
    }

    __device__ bool is_over() const { return epochs_done > 0; }
};
