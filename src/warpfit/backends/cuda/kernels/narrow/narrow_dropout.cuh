// Dropout of a warp's 16 rows on their way through narrow layers (narrow_pass.cuh), for a network
// among many. Changes the sums that a lane has; masks follow from step, layer, row and unit, and
// lie nowhere.
#pragma once

#include "narrow/narrow_layers.cuh"
#include "ops/dropout/dropout.cuh"

struct RowDropout {
    const NetworkDropout* of_layers;
    uint32 step, first_row;  // of the warp's, in the batch

    // Leaves units of layer L out, and their derivatives. The four units that a word of bits is of,
    // two lanes have, of two rows: each finds the bits of one row.
    template <int L>
    __device__ void drop(RowSums<padded(L + 1)>& values,
                         RowSums<padded(L + 1)>& derivatives) const {
        const NetworkDropout own = of_layers[L];
        const int lane = own_lane(), place = lane % 2 * 2;
        const uint32 row = first_row + lane / 4 + 8 * (lane % 2);
#pragma unroll
        for (int tile = 0; tile < RowSums<padded(L + 1)>::TILES; ++tile) {
            const unsigned found = own.kept(step, row, 2 * tile + lane % 4 / 2);
            const unsigned others = __shfl_xor_sync(FULL_WARP, found, 1);
            const unsigned of_rows[2] = {lane % 2 ? others : found, lane % 2 ? found : others};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const bool is_kept = of_rows[i / 2] >> (place + i % 2) & 1;
                const float factor = is_kept ? own.of_layer.scale : 0;
                values.sums[tile][i] *= factor;
                derivatives.sums[tile][i] *= factor;
            }
        }
    }
};
