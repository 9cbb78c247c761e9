// Blocks of a cluster send each other two numbers a thread, `steps` times, and replace them by half
// of the sum over the blocks, plus the own rank. Two buffers and barriers take turns: whoever sends
// for step s + 2 has all of step s + 1, which others sent when they had read step s. Mistakes, one
// for each value of BUG:
enum Bug {
    NONE,
    LATE_WAIT,
    ONE_PLACE,
    NO_WAIT,
    WRONG_PARITY,
    NO_LAST_WAIT,
    TOO_FEW_BYTES,
    TOO_MANY_BYTES,
    OTHER_BARRIER,
    NO_FIRST_BARRIER,
    BARRIER_OF_BLOCK,
    LEAVES_EARLY,
    LEAVES_AFTER_A_STEP,
    STORES_LATE,
    PAST_THE_END,
    MISALIGNED,
    NO_ADDRESS,
    NO_SUCH_BLOCK
};
#include "base/types.cuh"

constexpr int THREADS = 64;

struct Inbox {
    alignas(8) float numbers[2][CLUSTER][THREADS][2];
    unsigned long long barriers[2];
};

__device__ void send(Inbox& inbox, int slot, const float (&own)[2], unsigned to) {
    const unsigned place = cluster_address(
        inbox.numbers[BUG == ONE_PLACE ? 0 : slot][cluster_rank()][threadIdx.x], to);
    const unsigned barrier =
        cluster_address(&inbox.barriers[slot], BUG == OTHER_BARRIER ? (to + 1) % CLUSTER : to);
    const unsigned first = __float_as_uint(own[0]), second = __float_as_uint(own[1]);
    store_async_pair(place, first, second, barrier);
}

__device__ void wait_for_step(Inbox& inbox, int step) {
    const unsigned parity = step / 2 % 2;
    while (!mbarrier_test(&inbox.barriers[step % 2], BUG == WRONG_PARITY ? parity ^ 1 : parity)) {
    }
}

__device__ void exchange_once(Inbox& inbox, int step, bool is_last, float (&own)[2]) {
    constexpr unsigned BYTES = 8 * CLUSTER * THREADS;
    if (threadIdx.x == 0)
        mbarrier_expect(&inbox.barriers[step % 2],
                        BYTES - 4 * (BUG == TOO_FEW_BYTES) + 4 * (BUG == TOO_MANY_BYTES));
    for (unsigned to = 0; to < CLUSTER; ++to) send(inbox, step % 2, own, to);
    const bool waits = BUG != NO_WAIT && (BUG != NO_LAST_WAIT || !is_last);
    if (BUG != LATE_WAIT && waits) wait_for_step(inbox, step);
    float sums[2] = {};
    for (int rank = 0; rank < CLUSTER; ++rank) {
        const float (&numbers)[2] =
            inbox.numbers[BUG == ONE_PLACE ? 0 : step % 2][rank][threadIdx.x];
        sums[0] += numbers[0];
        sums[1] += numbers[1];
    }
    if (BUG == LATE_WAIT) wait_for_step(inbox, step);
    for (int i = 0; i < 2; ++i) own[i] = sums[i] / 2 + cluster_rank();
}

__device__ void store_wrongly(Inbox& inbox) {
    const unsigned next = (cluster_rank() + 1) % CLUSTER;
    const unsigned address = cluster_address(&inbox, BUG == NO_SUCH_BLOCK ? next + CLUSTER : next);
    const unsigned barrier = cluster_address(inbox.barriers, cluster_rank());
    if (BUG == PAST_THE_END) store_async_pair(address + sizeof(Inbox), 1, 2, barrier);
    if (BUG == MISALIGNED) store_async_pair(address + 4, 1, 2, barrier);
    if (BUG == NO_ADDRESS) store_async_pair(16, 1, 2, barrier);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    exchange(float* target, const float* source, int steps) {
    DYNAMIC_SHARED(Inbox, inbox);
    if (threadIdx.x < 2) mbarrier_init(&inbox->barriers[threadIdx.x], 1);
    fence_mbarrier_init();
    if (BUG == LEAVES_EARLY && blockIdx.x == 1) return;
    if (BUG != NO_FIRST_BARRIER) BUG == BARRIER_OF_BLOCK ? __syncthreads() : cluster_barrier();
    if (BUG >= PAST_THE_END) store_wrongly(*inbox);
    const int i = 2 * (blockIdx.x * THREADS + threadIdx.x);
    float own[2] = {source[i], source[i + 1]};
    for (int step = 0; step < steps; ++step) {
        exchange_once(*inbox, step, step == steps - 1, own);
        if (BUG == LEAVES_AFTER_A_STEP && cluster_rank() == 1) return;
    }
    target[i] = own[0];
    target[i + 1] = own[1];
    if (BUG == STORES_LATE && cluster_rank() == 1) {
        for (int turn = 0; turn < 3; ++turn) let_others_run();
        store_async_pair(cluster_address(inbox, 0), 1, 2, cluster_address(inbox->barriers, 0));
    }
}
