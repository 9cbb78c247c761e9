// The warpgroup of a block that brings the batches: rows of x, in boxes as products read them,
// targets, and what a step needs. Owns the stages of x from x_free to x_full, and the rows' numbers
// and targets beside them. Boxes lie as wgmma reads them (operand_tile.cuh); order and weights
// follow from the network (many_rows.cuh).
#pragma once

#include "resident/layout/cluster_network.cuh"
#include "resident/loss/output_losses.cuh"

struct BatchWarps {
    ClusterShared& shared;
    const T* x;
    const float *targets, *weights;        // of all rows
    const float* class_weights;            // of each network, and their mean
    unsigned x_batches = 0, meetings = 0;  // so far, over all networks

    __device__ BatchWarps(ClusterShared& shared, const T* x, const float* targets,
                          const float* weights, const float* class_weights)
        : shared(shared), x(x), targets(targets), weights(weights), class_weights(class_weights) {}

    __device__ void meet() {
        arrive_warp(shared.bringers_met);
        wait(shared.bringers_met, meetings++);
    }

    // By half of the warps.
    __device__ void find_rows(const Batch& batch, unsigned stage) {
        const Thread own;
        if (own.of_group() < ROWS) return;
        const unsigned row = own.of_group() - ROWS;
        shared.rows[stage][row] =
            batch.row(shared.network, static_cast<int>((own.rank * BLOCK_ROWS + row) % ROWS));
    }

    // Copies the block's features of all rows, and what else a batch needs. A thread has 16 bytes
    // of some rows, of one column after the other. Row -1 is zeros.
    __device__ void fetch(const Batch& batch, unsigned stage) {
        constexpr int PIECES = PARTS_OF_BLOCK * PART_WIDTH / 8;
        constexpr int LANES = PIECES <= 32   ? 32
                              : PIECES <= 64 ? 64
                                             : GROUP_THREADS,
                      SHARES = GROUP_THREADS / LANES;
        const Thread own;
        const unsigned share = own.of_group() / LANES;
        const T* first = x + own.rank * PARTS_OF_BLOCK * PART_WIDTH;
        for (unsigned piece = own.of_group() % LANES; piece < PIECES; piece += LANES) {
            const unsigned of_part = piece % (PART_WIDTH / 8);
            const unsigned at = box_at(stage, piece / (PART_WIDTH / 8), of_part / 8);
            copy_column(shared.x + at / LINE_BYTES * LINE_BYTES, of_part % 8 + at % LINE_BYTES / 16,
                        reinterpret_cast<const char*>(first + piece * 8),
                        &shared.rows[stage][share * (ROWS / SHARES)], share * (ROWS / SHARES),
                        ROWS / SHARES);
        }
        fetch_targets(own, stage);
        weigh(own, stage);
        const Network& network = shared.network;
        if (own.of_group() == 0 && batch.trains(network)) {
            copy_async_16(&shared.settings[stage], network.settings(batch.epoch, batch.idx), true);
        }
        copy_async_commit();
    }

    // A piece of 16 bytes of `count` rows, the first of which is row `first` of the lines.
    __device__ static void copy_column(unsigned char* lines, unsigned piece, const char* column,
                                       const int* numbers, unsigned first, unsigned count) {
        constexpr int AT_ONCE = 4;
#pragma unroll 2
        for (unsigned row = 0; row < count; row += AT_ONCE) {
            const uint4 rows = *reinterpret_cast<const uint4*>(numbers + row);
            const unsigned own[AT_ONCE] = {rows.x, rows.y, rows.z, rows.w};
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const unsigned line = first + row + i;
                copy_async_16(lines + line * LINE_BYTES + (piece ^ line % 8) * 16,
                              column + static_cast<int64>(static_cast<int>(own[i])) *
                                           static_cast<int>(X_WIDTH * sizeof(T)),
                              true);
            }
        }
    }

    __device__ void fetch_targets(const Thread& own, unsigned stage) {
        for (unsigned i = own.of_group(); i < BLOCK_ROWS * TARGET_WORDS; i += GROUP_THREADS) {
            const int row = shared.rows[stage][i / TARGET_WORDS];
            copy_async_4(
                &shared.targets[stage][0][0] + i,
                targets + static_cast<int64>(max(row, 0)) * TARGET_WORDS + i % TARGET_WORDS, true);
        }
    }

    // Adds up the weights of the batch's rows, in all blocks in the same order. One warp does.
    __device__ void weigh(const Thread& own, unsigned stage) {
        if (!HAS_WEIGHTS || own.of_group() >= WARP) return;
        float sum = 0;
#pragma unroll
        for (unsigned i = 0; i < ROWS; i += WARP) {
            const int row =
                shared.rows[stage][(i + own.lane() + ROWS - own.rank * BLOCK_ROWS) % ROWS];
            sum += row < 0 ? 0 : weight_of(row);
        }
        sum = reduce_warp<Sum>(sum);
        if (own.lane() == 0) part_of<BatchWeights>(shared).of_stages[stage] = sum;
    }

    __device__ float weight_of(int row) const {
        const float own = WEIGHTED ? weights[row] : 1;
        if (!CLASS_WEIGHTS) return own;
        const int label = label_of(targets + static_cast<int64>(row) * TARGET_WORDS);
        return own * own_numbers(class_weights, shared, OUTPUTS + 1)[label];
    }

    // The copies are there, for all.
    __device__ void hand_over(unsigned stage) {
        copy_async_wait<0>();
        fence_async();
        arrive_warp(shared.x_full[stage]);
    }

    // -- the run

    // To its last epoch, or until a verdict ends it.
    __device__ void train() {
        const Network& network = shared.network;
        if (network.num_epochs == 0) return;
        const Batch first = {0, 0};
        find_rows(first, x_batches % STAGES);
        for (Batch batch = first; batch.epoch < network.num_epochs; batch = batch.after(shared)) {
            // That of the next epoch as well, before the verdict on this one.
            bring(batch, batch.after(shared));
            if (batch.idx == 0 && batch.epoch > 0 && verdict_on(shared, batch.epoch - 1) & IS_OVER)
                return;
        }
        verdict_on(shared, network.num_epochs - 1);
    }

    __device__ void bring(const Batch& batch, const Batch& next) {
        const unsigned stage = x_batches % STAGES;
        meet();  // rows are found
        wait(shared.x_free[stage], x_batches / STAGES + 1);
        fetch(batch, stage);
        find_rows(next, stage ^ 1);
        hand_over(stage);
        ++x_batches;
    }
};
