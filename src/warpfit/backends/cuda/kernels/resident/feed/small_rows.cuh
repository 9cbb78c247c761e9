// The rows that a network in a group (small_network.cuh) trains on: found and copied by a warp of
// its own, batch after batch, ahead of those that train. That warp owns the ring of numbers, and
// stages from batch_free to batch_full.
#pragma once

#include "resident/layout/small_network.cuh"

// In which order an epoch takes rows: a lane walks on (permutation.cuh) from one of its positions
// to the next, so that where one's number lies beyond the last row, others need not wait for it.
// What they find lies in a ring.
struct Order {
    static constexpr int AT_ONCE = 2;  // walks of a lane

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

    __device__ int least() const { return min(at[0], at[1]); }

    // Finds the numbers at `count` positions from the first that is still needed, and some ahead.
    __device__ void find(const Network& network, int epoch, int first, int count) {
        const int bits = network.bits;
        if (bits <= RoundTable::MOST_BITS) {
            walk(network, first, count,
                 [&](uint32(&values)[AT_ONCE]) { table.feistel(values, bits); });
        } else {
            uint32 keys[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) keys[i] = network.keys[8 * epoch + i];
            walk(network, first, count,
                 [&](uint32(&values)[AT_ONCE]) { feistel(values, bits, keys); });
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
                const bool walks = at[i] < end,
                           arrives = walks && next[i] < static_cast<uint32>(num_rows);
                if (arrives) ring[at[i] % ORDER_RING] = static_cast<int>(next[i]);
                at[i] += arrives ? AT_ONCE * WARP : 0;
                value[i] = arrives ? at[i] : walks ? next[i] : value[i];
            }
        }
    }
};

struct RowWarp {
    static constexpr int COUNT = ROWS < WARP ? ROWS : WARP;  // rows at once

    GroupShared& shared;
    const T* x;
    const float* targets;
    Order order;
    unsigned batches = 0, networks = 0;  // so far
    unsigned verdicts = 0;               // the parity of the next of even epochs, and of odd ones
    int epochs_judged = 0;               // of the network
    bool is_under_way = false;           // whether the last batch is

    __device__ RowWarp(GroupShared& shared, const T* x, const float* targets)
        : shared(shared), x(x), targets(targets), order(shared.order, shared.rounds) {}

    // The numbers among all of the lane's rows of a batch, -1 for those that it does not have.
    __device__ void find_numbers(int (&numbers)[ROWS / COUNT], const Batch& batch) {
        const Network& network = shared.network;
        const bool trains = batch.trains(network);
        const int first = trains ? batch.idx * BATCH : (batch.idx - network.num_steps()) * ROWS,
                  count = batch.num_rows(network);
        const bool is_mixed = trains && network.keys != nullptr;
        if (is_mixed) {
            order.find(network, batch.epoch, first, BATCH / 2);
            hand_over_batch();  // not later: it is awaited
            order.find(network, batch.epoch, first, BATCH);
        }
#pragma unroll
        for (int i = 0; i < ROWS / COUNT; ++i) {
            const int row = i * COUNT + Order::own_lane() % COUNT, position = first + row;
            numbers[i] = row >= count ? -1
                         : is_mixed   ? order.ring[position % ORDER_RING]
                                      : position;
        }
        const int* rows = trains ? network.rows : network.validation_rows;
        if (rows == nullptr) return;
#pragma unroll
        for (int i = 0; i < ROWS / COUNT; ++i) numbers[i] = numbers[i] >= 0 ? rows[numbers[i]] : -1;
    }

    __device__ void start_batch(const Batch& batch) {
        const unsigned stage = batches % STAGES;
        if (batch.idx == 0) order.begin_epoch(shared.network, batch.epoch);
        int numbers[ROWS / COUNT];
        find_numbers(numbers, batch);
        const Network& network = shared.network;
        StepSettings settings = {};
        if (batch.trains(network)) settings = *network.settings(batch.epoch, batch.idx);
        hand_over_batch();
        wait_or_give_up(shared.batch_free[stage], batches / STAGES + 1);
        if (Order::own_lane() == 0) shared.settings[stage] = settings;
        copy_rows(numbers, stage);
        copy_targets(numbers, stage);
        copy_async_commit();
        is_under_way = true;
        ++batches;
    }

    // Once all of it is there.
    __device__ void hand_over_batch() {
        if (!is_under_way) return;
        copy_async_wait<0>();
        fence_async();
        arrive_warp(shared.batch_full[(batches - 1) % STAGES]);
        is_under_way = false;
    }

    // Lanes copy 16 bytes each. Eight write at once, of rows of which no two meet in a bank.
    __device__ void copy_rows(const int (&numbers)[ROWS / COUNT], unsigned stage) const {
        constexpr int PIECES = X_WIDTH / 8,
                      OF_ROW = PIECES <= 2   ? 2
                               : PIECES <= 4 ? 4
                                             : 8,
                      ROWS_AT_ONCE = WARP / OF_ROW;
        const int lane = Order::own_lane(), piece = lane % OF_ROW, eight = lane / 8,
                  row_of_lane = eight / OF_ROW * 8 + lane % 8 / OF_ROW * OF_ROW + eight % OF_ROW;
        const auto* from = unforeseen(reinterpret_cast<const unsigned char*>(x + 8 * piece));
        unsigned char* lines = shared.x + (SHARES_LINES ? 0 : x_at(stage));
        const int first_piece = SHARES_LINES ? stage * (LINE_BYTES / STAGES / 16) : 0;
#pragma unroll
        for (int i = 0; i < ROWS / ROWS_AT_ONCE; ++i) {
            const int row = i * ROWS_AT_ONCE + row_of_lane,
                      number =
                          __shfl_sync(FULL_WARP, numbers[i * ROWS_AT_ONCE / COUNT], row % COUNT);
            if (PIECES == OF_ROW || piece < PIECES)
                copy_async_16(lines + row * LINE_BYTES + ((first_piece + piece) ^ row % 8) * 16,
                              from + static_cast<int64>(number) * (X_WIDTH * sizeof(T)), true);
        }
    }

    __device__ void copy_targets(const int (&numbers)[ROWS / COUNT], unsigned stage) const {
        const int lane = Order::own_lane();
        if (lane >= COUNT) return;
#pragma unroll
        for (int i = 0; i < ROWS / COUNT; ++i) {
            const float* from = targets + static_cast<int64>(max(numbers[i], 0)) * TARGET_WORDS;
#pragma unroll
            for (int word = 0; word < TARGET_WORDS; ++word)
                copy_async_4(&shared.targets[stage][i * COUNT + lane][word], from + word, true);
        }
    }

    // Whether a verdict, up to that on an epoch, has ended the run.
    __device__ bool is_over_at(int epoch) {
        if (epochs_judged <= epoch) hand_over_batch();
        while (epochs_judged <= epoch) {
            const int odd = epochs_judged++ % 2;
            wait(shared.verdict_full[odd], verdicts >> odd);
            verdicts ^= 1u << odd;
            if (shared.run.verdicts[odd] & IS_OVER) return true;
        }
        return false;
    }

    // To a network's last epoch, or until a verdict ends it: that on an epoch may come when the
    // first batch of the next has been handed over, but no other. Once the last one is, the network
    // is nobody's any more.
    __device__ void serve_network() {
        const int num_epochs = shared.network.num_epochs, num_batches = shared.run.batches;
        epochs_judged = 0;
        int last_begun = 0;
        bool is_over = false;
        for (int epoch = 0; epoch < num_epochs && !is_over; ++epoch) {
            for (int idx = 0; idx < num_batches; ++idx) {
                is_over = is_over_at(last_begun - 1);
                if (is_over) break;
                start_batch({epoch, idx});
                last_begun = epoch;
            }
        }
        if (!is_over) is_over_at(num_epochs - 1);
        hand_over_batch();
    }

    __device__ void serve() {
        for (;;) {
            wait(shared.network_full, networks++);
            if (shared.run.idx < 0) return;
            serve_network();
        }
    }
};
