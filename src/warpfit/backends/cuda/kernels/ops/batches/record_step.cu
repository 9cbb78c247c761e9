// Computes: record[row] = (loss + penalty, weight, correct), one row of an epoch's record.
// Layout:   record (steps, 3) float64; loss and weight () DTYPE; correct () int64 or null; penalty
//   () float64 or null.
// Launch:   one thread; no shared memory; define DTYPE.
// Numerics: exact, but for the rounding of the sum.
// Cost:     some 50 bytes: a launch and nothing more.
// Reference: record_step of backends/numpy/arrays.py.
#include "base/scalar.cuh"
#include "base/types.cuh"

extern "C" __global__ void record_step(double* record, Scalar row, const DTYPE* loss,
                                       const DTYPE* weight, const int64* correct,
                                       const double* penalty) {
    take_turn();
    double* to = record + 3 * static_cast<int64>(read(row));
    to[0] = load(*loss) + (penalty ? *penalty : 0.0);
    to[1] = load(*weight);
    to[2] = correct ? static_cast<double>(*correct) : 0.0;
}
