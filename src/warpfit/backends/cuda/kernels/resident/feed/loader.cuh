// The loader of one_launch.cu: it copies tiles of x, and targets, to shared memory.
// Owns a slot of the ring from x_empty to x_full. Tiles are 16 rows, X_STRIDE apart, as
// gather_batches left them in memory; targets come beside them, for the rows whose loss this block
// finds.
// Users: one_launch.cu.
#pragma once

#include "resident/layout/trained_block.cuh"

// Starts to copy rows of x, which lie one after the other. The barrier counts one arrival beside
// those of the lanes, and the bytes if it can.
__device__ inline void copy_rows(T (&slot)[16][X_STRIDE], const T* rows, int count, Barrier& full) {
    const int lane = threadIdx.x % 32;
    if constexpr (GENERATION >= 90) {
        if (lane > 0) return;
        const unsigned bytes = count * X_STRIDE * sizeof(T);
        mbarrier_expect(&full, bytes);
        if (REPLICAS == 1 || bytes > 0) copy_bulk(slot, rows, bytes, &full);
    } else {
        for (int i = lane; i < count * X_STRIDE / 8; i += 32)
            copy_async_16(&slot[0][0] + i * 8, rows + i * 8, true);
        if (lane == 0) mbarrier_arrive(&full);
    }
}

// The targets of the rows of tile r that are this block's, if it has any there.
__device__ inline void copy_targets(float (&place)[OWN_ROWS][TARGET_WORDS], const float* targets,
                                    int r) {
    if (!is_own(r)) return;
    const int first = own_rank() * OWN_ROWS, num_rows = own_rows(BATCH);
    const int begin = OWN_ROWS < 16 ? first : r * 16;
    for (int i = threadIdx.x % 32; i < OWN_OF_TILE * TARGET_WORDS; i += 32) {
        const int row = begin + i / TARGET_WORDS, word = i % TARGET_WORDS;
        const bool is_there = row < num_rows;
        copy_async_4(&place[row - first][word],
                     targets + (is_there ? row * TARGET_WORDS + word : 0), is_there);
    }
}

// Keeps the ring full. Whoever hangs, the loader waits for in the end, and gives up.
__device__ inline void load_batches(OneLaunchShared& shared, const OneLaunchRun& run,
                                    const T* batches, const float* targets) {
    const int num_steps = run.first_step().num_steps;
    batches += ((HIDDEN ? 0 : static_cast<int64>(own_rank()) * BATCH) + first_row()) * X_STRIDE;
    targets += first_row() * TARGET_WORDS;
    Cursor<X_SLOTS> cursor(0);
    Cursor<GROUP * GROUPS_AHEAD> in_groups(0);
    for (int step = 0, load = 0; step < num_steps;) {
        const int r = load < ROW_TILES ? load : load - ROW_TILES;
        Barrier& full = shared.x_full[in_groups.slot / GROUP];
        wait_or_give_up(shared.x_empty[cursor.slot], cursor.round + 1);
        copy_rows(shared.x[cursor.slot], batches + r * 16 * X_STRIDE,
                  clamped(own_rows(BATCH) - r * 16, 16), full);
        if (load < ROW_TILES) copy_targets(shared.targets[step % TARGET_STEPS], targets, r);
        copy_async_arrive(&full);
        cursor.advance<1>();
        in_groups.advance<1>();
        if (++load < LOADS) continue;
        load = 0;
        ++step;
        batches += static_cast<int64>(PARTS) * BATCH * X_STRIDE;
        targets += BATCH * TARGET_WORDS;
    }
#pragma unroll 1
    for (int i = 0; i < X_SLOTS; ++i, cursor.advance<1>())
        wait_or_give_up(shared.x_empty[cursor.slot], cursor.round + 1);
}
