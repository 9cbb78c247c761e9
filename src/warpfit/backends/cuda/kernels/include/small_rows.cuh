// Which rows a network in a group (small_network.cuh) trains on: found by a warp of its own, batch after batch, ahead of those
// that train.
#pragma once

#include "small_network.cuh"

// In which order an epoch takes rows: a lane walks on (permutation.cuh) from one of its positions to the next, so that where
// one's number lies beyond the last row, others need not wait for it. What they find lies in a ring.
struct Order {
    static constexpr int AT_ONCE = 4;  // walks of a lane

    int* ring;
    RoundTable table;
    int at[AT_ONCE];
    uint32 value[AT_ONCE];

    __device__ Order(int* ring, uint8* table) : ring(ring), table{table} {}

    __device__ static int own_lane() { return static_cast<int>(threadIdx.x % WARP); }

    __device__ void begin_epoch(const Network& network, int epoch) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) value[i] = at[i] = own_lane() + i * WARP;
        if (network.keys == nullptr || network.bits > RoundTable::MOST_BITS) return;
        __syncwarp();
        table.fill(network.bits, network.keys + 8 * epoch);
        __syncwarp();
    }

    __device__ int least() const { return min(min(at[0], at[1]), min(at[2], at[3])); }

    // Finds the numbers at `count` positions from the first that is still needed, and some ahead.
    __device__ void find(const Network& network, int epoch, int first, int count) {
        const int bits = network.bits;
        if (bits <= RoundTable::MOST_BITS) {
            walk(network, first, count, [&](uint32(&values)[AT_ONCE]) { table.feistel(values, bits); });
        } else {
            uint32 keys[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) keys[i] = network.keys[8 * epoch + i];
            walk(network, first, count, [&](uint32(&values)[AT_ONCE]) { feistel(values, bits, keys); });
        }
        __syncwarp();
    }

    template <class Step>
    __device__ void walk(const Network& network, int first, int count, Step step) {
        const int num_rows = network.num_rows, needed = min(first + count, num_rows),
                  end = min(first + ORDER_RING, num_rows);
        while (__any_sync(FULL_WARP, least() < needed)) {
            uint32 next[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) next[i] = value[i];
            step(next);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const bool walks = at[i] < end, arrives = walks && next[i] < static_cast<uint32>(num_rows);
                if (arrives) ring[at[i] % ORDER_RING] = static_cast<int>(next[i]);
                at[i] += arrives ? AT_ONCE * WARP : 0;
                value[i] = arrives ? at[i] : walks ? next[i] : value[i];
            }
        }
    }
};

struct RowWarp {
    static constexpr int COUNT = ROWS < WARP ? ROWS : WARP;  // rows at once

    Shared& shared;
    Order order;
    unsigned batches = 0, epochs = 0, networks = 0;  // so far
    int epochs_judged = 0;                           // of the network

    __device__ explicit RowWarp(Shared& shared) : shared(shared), order(shared.order, shared.rounds) {}

    // The numbers among all of the lane's rows of a batch, -1 for those that it does not have.
    __device__ void find_numbers(int (&numbers)[ROWS / COUNT], const Batch& batch) {
        const Network& network = shared.network;
        const bool trains = batch.trains(network);
        const int first = trains ? batch.idx * BATCH : (batch.idx - network.num_steps()) * ROWS,
                  count = batch.num_rows(network);
        const bool is_mixed = trains && network.keys != nullptr;
        if (is_mixed) order.find(network, batch.epoch, first, BATCH);
#pragma unroll
        for (int i = 0; i < ROWS / COUNT; ++i) {
            const int row = i * COUNT + Order::own_lane() % COUNT, position = first + row;
            numbers[i] = row >= count ? -1 : is_mixed ? order.ring[position % ORDER_RING] : position;
        }
        const int* rows = trains ? network.rows : network.validation_rows;
        if (rows == nullptr) return;
#pragma unroll
        for (int i = 0; i < ROWS / COUNT; ++i) numbers[i] = numbers[i] >= 0 ? rows[numbers[i]] : -1;
    }

    __device__ void hand_over_batch(const Batch& batch) {
        const unsigned stage = batches % STAGES;
        if (batch.idx == 0) order.begin_epoch(shared.network, batch.epoch);
        int numbers[ROWS / COUNT];
        find_numbers(numbers, batch);
        const Network& network = shared.network;
        StepSettings settings = {};
        if (batch.trains(network)) settings = *network.settings(batch.epoch, batch.idx);
        wait(shared.numbers_free[stage], batches / STAGES + 1);
        if (Order::own_lane() == 0) shared.settings[batches % (2 * STAGES)] = settings;
#pragma unroll
        for (int i = 0; i < ROWS / COUNT; ++i)
            shared.numbers[stage][i * COUNT + Order::own_lane() % COUNT] = numbers[i];
        arrive_warp(shared.numbers_full[stage]);
        ++batches;
    }

    // Whether a verdict, up to that on an epoch, has ended the run.
    __device__ bool is_over_at(int epoch) {
        while (epochs_judged <= epoch) {
            wait(shared.verdict_full, epochs + epochs_judged);
            if (shared.run.verdicts[epochs_judged++ % 2] & IS_OVER) return true;
        }
        return false;
    }

    // To a network's last epoch, or until a verdict ends it: that on an epoch may come when the first batch of the next has
    // been handed over, but no other. Once the last one is, the network is nobody's any more.
    __device__ void serve_network() {
        const int num_epochs = shared.network.num_epochs, num_batches = shared.run.batches;
        epochs_judged = 0;
        int last_begun = 0;
        bool is_over = false;
        for (int epoch = 0; epoch < num_epochs && !is_over; ++epoch) {
            for (int idx = 0; idx < num_batches; ++idx) {
                is_over = is_over_at(last_begun - 1);
                if (is_over) break;
                hand_over_batch({epoch, idx});
                last_begun = epoch;
            }
        }
        if (!is_over) is_over_at(num_epochs - 1);
        epochs += epochs_judged;
    }

    __device__ void serve() {
        for (;;) {
            wait(shared.network_full, networks++);
            if (shared.run.idx < 0) return;
            serve_network();
        }
    }
};

// Starts copies of the warp's own rows of a batch, and of their targets, by the numbers that are there in a stage.
__device__ inline void fetch_rows(Shared& shared, const T* x, const float* targets, unsigned stage) {
    const Thread own;
    constexpr unsigned PIECES = X_WIDTH / 8, ALL = OWN_ROWS * PIECES;
    constexpr bool ARE_WHOLE = WARP % PIECES == 0;  // rows in a warp's share of a copy
    const unsigned first = own.warp() * OWN_ROWS;
    if (first >= ROWS) return;
    const int* numbers = shared.numbers[stage] + first;
    unsigned char* lines = shared.x + (SHARES_LINES ? 0 : x_at(stage)) + first * LINE_BYTES;
    const unsigned first_piece = SHARES_LINES ? stage * (LINE_BYTES / STAGES / 16) : 0;
    const auto line_of = [&](unsigned i) {
        return ARE_WHOLE ? i / PIECES + own.lane() / PIECES : (i + own.lane()) / PIECES;
    };
    constexpr unsigned COPIES = (ALL + WARP - 1) / WARP;
    int rows[COPIES];  // before any copy, lest loads wait for each other
#pragma unroll
    for (unsigned i = 0; i < COPIES; ++i) rows[i] = numbers[line_of(i * WARP) % OWN_ROWS];
    const int row_of_lane = numbers[own.lane() % OWN_ROWS];
#pragma unroll
    for (unsigned i = 0; i < COPIES; ++i) {
        const unsigned line = line_of(i * WARP),
                       piece = (ARE_WHOLE ? own.lane() : i * WARP + own.lane()) % PIECES;
        if (ALL % WARP == 0 || i * WARP + own.lane() < ALL)
            copy_async_16(lines + line * LINE_BYTES + ((first_piece + piece) ^ line % 8) * 16,
                          x + piece * 8 + static_cast<int64>(rows[i]) * X_WIDTH, true);
    }
    if (own.lane() >= OWN_ROWS) return;
#pragma unroll
    for (int i = 0; i < TARGET_WORDS; ++i)
        copy_async_4(&shared.targets[stage][first + own.lane()][i],
                     targets + static_cast<int64>(max(row_of_lane, 0)) * TARGET_WORDS + i, true);
}
