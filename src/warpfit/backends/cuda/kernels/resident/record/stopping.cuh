// The rules of `EarlyStopping` in training/callbacks.py and of `Convergence` in
// estimators/convergence.py, followed by a kernel, from the same doubles as the host: so both come
// to the same. One thread changes a rule; it lies in memory between launches, packed by the host
// (launch_settings.py).
#pragma once

// The rule, its state, and the result of a launch.
struct alignas(16) Stopping {
    double min_delta, best;
    int patience;
    short of_validation, of_accuracy;
    int keeps_best, any_gain_is_best, has_best, bad_epochs;
    int has_improved;  // in this launch
    int epochs_done;   // when it ended the run, else 0

    // Takes in what is watched of an epoch, the last of so many; returns whether it is better than
    // all before. One thread calls.
    __device__ bool decide(double value, int epochs) {
        const double gain = of_accuracy ? value - best : best - value;
        const bool is_better = !has_best || gain > (any_gain_is_best ? 0 : min_delta);
        const bool counts = any_gain_is_best ? !has_best || is_enough(value) : is_better;
        if (is_better) {
            best = value;
            has_best = has_improved = 1;
        }
        bad_epochs = counts ? 0 : bad_epochs + 1;
        if (!counts && bad_epochs >= patience) epochs_done = epochs;
        return is_better;
    }

    // Whether it is better by min_delta, rounded as the host does.
    __device__ bool is_enough(double value) const {
        return of_accuracy ? value >= best + min_delta : value <= best - min_delta;
    }

    __device__ bool is_over() const { return epochs_done > 0; }
};
