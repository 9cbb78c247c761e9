// The batches of a network's run, where a kernel trains many: those of each epoch's steps, then
// those of the validation rows. Values only. A batch of validation follows the steps of its epoch,
// with ROWS rows at most.
#pragma once

#include "resident/feed/many_rows.cuh"

// One of them. Products take ROWS rows; a step has BATCH at most, validation takes all.
template <int ROWS>
struct RunBatch {
    int epoch, idx;

    // Of an epoch.
    __device__ static int count(const Network& network) {
        return network.num_steps() + (network.num_validated + ROWS - 1) / ROWS;
    }

    template <class Shared>
    __device__ bool is_last(const Shared& shared) const {
        return idx + 1 == shared.run.batches;
    }

    template <class Shared>
    __device__ RunBatch after(const Shared& shared) const {
        return is_last(shared) ? RunBatch{epoch + 1, 0} : RunBatch{epoch, idx + 1};
    }

    __device__ bool trains(const Network& network) const { return idx < network.num_steps(); }

    __device__ int num_rows(const Network& network) const {
        return trains(network)
                   ? min(BATCH, network.num_rows - idx * BATCH)
                   : min(ROWS, network.num_validated - (idx - network.num_steps()) * ROWS);
    }

    // The number among all of one of ROWS rows, -1 for those that it does not have.
    __device__ int row(const Network& network, int own) const {
        if (!trains(network))
            return network.validation_row((idx - network.num_steps()) * ROWS + own);
        return own < BATCH ? network.row(epoch, idx * BATCH + own) : -1;
    }
};
