// Rules of stopping and of SGD, each with numbers of its own, a thread each.
//
// Layout:   rules (N,) and values (N, M): what each sees of M epochs; verdicts (N, M, 3) int32:
//           whether an epoch is better than all before, the epochs since one was, and whether the
//           run is over. numbers (N, 7): weight, velocity, gradient, rate, decay, momentum, and one
//           that is 0; found (N, 2): the weight after a step, as it is updated, and by its
//           forecast.
#include "resident/record/stopping.cuh"
#include "resident/update/forecast.cuh"

extern "C" __global__ void rules(Stopping* rules, const double* values, int* verdicts,
                                 int num_epochs, const float* numbers, float* found) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    Stopping& rule = rules[i];
    for (int epoch = 0; epoch < num_epochs; ++epoch) {
        int* verdict = verdicts + 3 * (i * num_epochs + epoch);
        verdict[0] = rule.decide(values[i * num_epochs + epoch], epoch + 1);
        verdict[1] = rule.bad_epochs;
        verdict[2] = rule.is_over();
    }
    const float *own = numbers + 7 * i, gradient = own[2];
    float weight = own[0], slots[SLOT_PLACES] = {own[1]};
    const StepSettings step = {own[3], 0, 1, own[6]};
    const RuleSettings of_all = {own[4], own[5], 0, 0};
    const Forecast forecast = forecast_of(step.rate, of_all);
    found[2 * i + 1] = forecast.value(weight, slots[0]) + forecast.of_gradient * gradient;
    update_parameter(weight, slots, gradient, 1, step, of_all);
    found[2 * i] = weight;
}
