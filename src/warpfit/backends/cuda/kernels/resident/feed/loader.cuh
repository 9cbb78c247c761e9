// The loader of one_launch.cu: it copies tiles of x, and targets, to shared memory.
// Owns a slot of the ring from x_empty to x_full. Tiles are 16 rows, X_STRIDE apart, as
// gather_batches left them in memory; targets come beside them, for the rows whose loss this block
// finds.
#pragma once

#include "resident/layout/trained_block.cuh"

// Tiles that a turn of the loader copies: turns of a single tile would be what a step without a
// hidden layer waits for.
constexpr int TURN = X_SLOTS % GROUP == 0 ? GROUP : 1;

// Starts to copy rows of x, which lie one after the other, as do their slots. The barrier counts
// one arrival beside those of the lanes, and the bytes if it can.
__device__ inline void copy_rows(T (&slot)[SLOT_ROWS][X_STRIDE], const T* rows, int count,
                                 Barrier& full) {
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

// A piece of a batch, in chunks of features.
__device__ inline void copy_piece(OneLaunchShared& shared, const T* batch, int slot, int piece,
                                  Barrier& full) {
    constexpr int NUMBERS = PIECE_TILES * 16 * ROWS;
    if (threadIdx.x % 32 > 0) return;
    const int first = piece * NUMBERS, left = ROWS * X_WIDTH - first;
    const unsigned bytes = (left < NUMBERS ? left : NUMBERS) * sizeof(T);
    mbarrier_expect(&full, bytes);
    copy_bulk(&shared.x[slot][0][0] + first, batch + first, bytes, &full);
}

// Batches that are brought to the L2 cache before they are copied, by one of the blocks that have
// the same features.
constexpr int BATCHES_NEAR = 4;

__device__ inline void bring_near(const T* batch, int steps_left) {
    if (threadIdx.x % 32 > 0 || own_rank() >= FEATURE_PARTS || steps_left <= BATCHES_NEAR) return;
    prefetch_bulk(batch + static_cast<int64>(BATCHES_NEAR) * PARTS * BATCH * X_STRIDE,
                  ROWS * X_WIDTH * sizeof(T));
}

// Keeps the ring full. Whoever hangs, the loader waits for in the end, and gives up.
__device__ inline void load_batches(OneLaunchShared& shared, const OneLaunchRun& run,
                                    const T* batches, const float* targets) {
    const int num_steps = run.first_step().num_steps;
    const int part = HIDDEN ? own_part() : own_rank();
    batches += (static_cast<int64>(part) * BATCH + first_row()) * X_STRIDE;
    targets += first_row() * TARGET_WORDS;
    Cursor<RING> cursor(0);
    Cursor<GROUP * GROUPS_AHEAD> in_groups(0);
    for (int step = 0, load = 0; step < num_steps;) {
        const int r = load < ROW_TILES ? load : load - ROW_TILES;
        Barrier& full = shared.x_full[in_groups.slot / GROUP];
        for (int tile = 0; tile < TURN; ++tile)
            wait_or_give_up(shared.x_empty[cursor.slot + tile], cursor.round + 1);
        if constexpr (DIVIDED) {
            copy_piece(shared, batches, cursor.slot / PIECES, load, full);
            if (load == 0) {
                bring_near(batches, num_steps - step);
                for (int tile = 0; tile < ROW_TILES; ++tile)
                    copy_targets(shared.targets[step % TARGET_STEPS], targets, tile);
            }
        } else {
            copy_rows(shared.x[cursor.slot], batches + r * 16 * X_STRIDE,
                      clamped(own_rows(BATCH) - r * 16, 16 * TURN), full);
            for (int tile = r; load < ROW_TILES && tile < r + TURN; ++tile)
                copy_targets(shared.targets[step % TARGET_STEPS], targets, tile);
        }
        copy_async_arrive(&full);
        cursor.advance<TURN>();
        in_groups.advance<TURN>();
        if ((load += TURN) < LOADS) continue;
        load = 0;
        ++step;
        batches += static_cast<int64>(PARTS) * BATCH * X_STRIDE;
        targets += BATCH * TARGET_WORDS;
    }
#pragma unroll 1
    for (int i = 0; i < RING; ++i, cursor.advance<1>())
        wait_or_give_up(shared.x_empty[cursor.slot], cursor.round + 1);
}
