// Where a block stands in a run of epochs, whose batches of BATCH rows come one after the other.
// Values only: each warp counts for itself, and all count alike.
#pragma once

// The nearest number from 0 to `most`.
__device__ inline int clamped(int number, int most) {
    return number < 0 ? 0 : number < most ? number : most;
}

// Where a warp stands in the run.
struct Step {
    int num_rows, steps_of_epoch, num_steps;
    int index = 0, of_epoch = 0;

    __device__ Step(int num_rows, int num_epochs)
        : num_rows(num_rows),
          steps_of_epoch((num_rows + BATCH - 1) / BATCH),
          num_steps(num_epochs * steps_of_epoch) {}

    __device__ bool is_there() const { return index < num_steps; }
    __device__ bool is_first_of_epoch() const { return of_epoch == 0; }
    __device__ bool is_last_of_epoch() const { return of_epoch + 1 == steps_of_epoch; }
    __device__ int count() const {
        const int left = num_rows - of_epoch * BATCH;
        return left < BATCH ? left : BATCH;
    }

    __device__ void advance() {
        ++index;
        if (++of_epoch == steps_of_epoch) of_epoch = 0;
    }
};
