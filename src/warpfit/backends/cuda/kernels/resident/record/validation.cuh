// What a block of one_launch_layers.cu and one_launch_card.cu goes over: the batches of each epoch,
// and with VALIDATES, after each epoch that is reported, those of the validation data, only
// forward. Without VALIDATES a pass is a step.
// Values only: each block counts for itself, and all count alike.
#pragma once

#include "resident/record/steps.cuh"

// Which epochs of the run, counted from 1, are reported: each of `every`, and the last.
struct Reported {
    int every, last;

    __device__ bool has(int epoch) const { return epoch % every == 0 || epoch == last; }
};

// Where a block stands in all passes of a launch.
struct Passes {
    Step training;  // during validation the last step of the epoch
    int num_validated, epoch;
    Reported reported;
    int batch = -1;  // of the validation data; -1 in training
    int past = 0,
        left_out =
            0;  // of the epochs before: passes over validation data, and those that would have been

    __device__ Passes(const Step& training, int num_validated, int first_epoch,
                      const Reported& reported)
        : training(training),
          num_validated(num_validated),
          epoch(first_epoch + 1),
          reported(reported) {}

    __device__ bool is_there() const { return training.is_there(); }
    __device__ bool trains() const { return !VALIDATES || batch < 0; }
    __device__ int index() const { return training.index + (VALIDATES ? past + batch + 1 : 0); }
    // The place in the record, which has room for validation after each epoch.
    __device__ int row() const { return index() + (VALIDATES ? left_out : 0); }
    __device__ int count() const {
        return trains() ? training.count() : clamped(num_validated - batch * BATCH, BATCH);
    }

    __device__ void advance() {
        if (VALIDATES) {
            const bool validates = training.is_last_of_epoch() && reported.has(epoch);
            if (trains() ? validates : batch + 1 < batches_validated()) {
                ++batch;
                return;
            }
            if (training.is_last_of_epoch()) (trains() ? left_out : past) += batches_validated();
            batch = -1;
        }
        if (training.is_last_of_epoch()) ++epoch;
        training.advance();
    }

    // Whether it is the last pass of its epoch, and of one that is reported.
    __device__ bool ends_epoch() const {
        const int last = VALIDATES && reported.has(epoch) ? batches_validated() - 1 : -1;
        return training.is_last_of_epoch() && (!VALIDATES || batch == last);
    }
    __device__ bool ends_reported() const { return ends_epoch() && reported.has(epoch); }

    __device__ Passes next() const {
        Passes following = *this;
        following.advance();
        return following;
    }

  private:
    __device__ int batches_validated() const { return (num_validated + BATCH - 1) / BATCH; }
};
