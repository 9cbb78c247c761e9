// Strips of float32 matrices that change on their way through shared memory, each a warp's own: 16
// rows of a line of 128 bytes, of ARRAYS matrices of one shape. They come by tensor copies, some
// strips before they are needed, and leave by tensor stores from where they are.
//
// A lane has of a strip what it has of a product's sums (ptx_sm90a.cuh): of each 8 columns a pair
// in two rows, 8 apart.
#pragma once

#include "mma/operand_tile.cuh"
#include "ptx/barriers.cuh"

constexpr int STRIP_ROWS = 16, STRIP_COLS = LINE_BYTES / sizeof(float);
constexpr int STRIP_BYTES = STRIP_ROWS * LINE_BYTES;

template <int SIZE, int ARRAYS>
struct StripRing {
    // How many strips may still have to leave their places when one is to come to that of the strip
    // before them.
    static constexpr int LAG = SIZE > 1;
    // How many strips come before the first one is used.
    static constexpr int AHEAD = SIZE - LAG;

    unsigned char (&places)[SIZE][ARRAYS][STRIP_BYTES];
    Barrier (&loaded)[SIZE];
    Cursor<SIZE> coming{0}, in_use{0};

    // One lane, always the same: the next strip begins to come.
    __device__ void load(const TensorMap* maps, int row, int col) {
        Barrier& barrier = loaded[coming.slot];
        bulk_wait_read<LAG>();
        mbarrier_expect(&barrier, ARRAYS * STRIP_BYTES);
#pragma unroll
        for (int i = 0; i < ARRAYS; ++i)
            copy_tensor(places[coming.slot][i], maps + i, row, col, &barrier);
        coming.template advance<1>();
    }

    __device__ void begin() { wait(loaded[in_use.slot], in_use.round); }

    // This lane's pair of a matrix in the strip in use.
    __device__ float2& pair(int matrix, int tile, int half) const {
        const int lane = threadIdx.x % 32, line = lane / 4 + 8 * half,
                  byte = (tile * 8 + lane % 4 * 2) * 4;
        unsigned char* place = places[in_use.slot][matrix] + line * LINE_BYTES;
        return *reinterpret_cast<float2*>(place + (byte / 16 ^ line % 8) * 16 + byte % 16);
    }

    // The strip in use begins to leave, to where it came from.
    __device__ void store(const TensorMap* maps, int row, int col) {
        fence_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
#pragma unroll
            for (int i = 0; i < ARRAYS; ++i)
                store_tensor(maps + i, places[in_use.slot][i], row, col);
            bulk_commit();
        }
        in_use.template advance<1>();
    }
};

// Four lanes that have four words each turn rows into columns: word i of lane j becomes word j of
// lane i.
__device__ inline void transpose_quad(unsigned (&words)[4]) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const bool is_upper = threadIdx.x & step;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & step) continue;
            const unsigned other =
                __shfl_xor_sync(0xffffffffu, is_upper ? words[i] : words[i + step], step);
            (is_upper ? words[i] : words[i + step]) = other;
        }
    }
}
