"""How long a step of the engine `graph` takes: the guess by which `auto` chooses between it and `one_launch`."""

from __future__ import annotations

from math import prod

from warpfit.backends.base import HALF_DTYPES
from warpfit.engines.at_once import finds_targets, narrow_network
from warpfit.engines.base import Plan, TrainingData
from warpfit.nn.linear import LinearSpec
from warpfit.nn.network import NetworkSpec

__all__ = ["graph_microseconds"]

# Microseconds on an H200, fitted to benchmarks/widths.py: what a kernel adds to what it moves or multiplies, how much
# of it is hidden by the kernel before, and what an epoch costs.
KERNEL, HIDDEN, EPOCH = 2.5, 0.3, 100.0
CYCLES = 1755.0  # in a microsecond
BYTES, FLOP = 3.5e6, 6e8  # in a microsecond: read or written, computed
# Rows from which on few tiles of weights are not joined with their update, and what else of a step they then cost.
TALL_ROWS, TALL_KERNELS = 512, 4
# Of a step of a narrow network at once: its kernels, and FLOP in a microsecond.
NARROW_KERNELS, NARROW_FLOP = 18.5, 2.1e8


def graph_microseconds(plan: Plan, data: TrainingData) -> float | None:
    """Return about how long a step takes on an H200; None for networks of other layers than linear ones."""
    network = plan.network.fused if isinstance(plan.network, NetworkSpec) else None
    if network is None or not all(isinstance(spec, LinearSpec) for _, spec in network.layers):
        return None
    layers = [
        (spec.in_features, spec.out_features) for _, spec in network.layers if isinstance(spec, LinearSpec)
    ]
    rows, epoch = plan.batch_size, EPOCH / -(-len(data) // plan.batch_size)
    if _is_narrow(plan, data):
        flop = 6.0 * rows * sum(inputs * outputs for inputs, outputs in layers)
        return NARROW_KERNELS + flop / NARROW_FLOP + epoch
    itemsize = 2 if plan.precision in HALF_DTYPES else 4
    products = [(rows, outputs, inputs) for inputs, outputs in layers]
    products += [(rows, inputs, outputs) for inputs, outputs in layers[1:]]
    of_products = sum(_product_microseconds(plan, *sizes) for sizes in products)
    of_rows = prod(plan.network.input_shape) * (data.x.itemsize + itemsize)
    of_targets = 1 if finds_targets(plan, data) else 3  # read by the loss, or copied before
    of_loss = layers[-1][1] * (2 * itemsize + of_targets * data.y.itemsize)
    of_others = 2 * (KERNEL - HIDDEN) + rows * (of_rows + of_loss) / BYTES
    return of_products + of_others + _update_microseconds(plan, layers, rows) + epoch


def _is_narrow(plan: Plan, data: TrainingData) -> bool:
    """Return whether the step of such a network is taken at once."""
    network = narrow_network(plan, data)
    if network is None:
        return False
    from warpfit.backends.cuda.matmul import shared_bytes_of
    from warpfit.backends.cuda.narrow_step import choose

    return choose(network, min(plan.batch_size, len(data)), shared_bytes_of("sm_90a")) is not None


def _product_microseconds(plan: Plan, m: int, n: int, k: int) -> float:
    from warpfit.backends.cuda.matmul import expected_cycles

    dtype = plan.precision if plan.precision in HALF_DTYPES else "float32"
    precision = "tf32" if plan.precision == "tf32" else "float32"
    vector = not (n | k) % 8
    return expected_cycles(m, n, k, dtype, precision=precision, vector=vector) / CYCLES - HIDDEN


def _update_microseconds(plan: Plan, layers: list[tuple[int, int]], rows: int) -> float:
    """Return the time of the gradients of weights and of their update."""
    slots = len(plan.optimizer.slot_names)
    parameters = sum(inputs * outputs for inputs, outputs in layers)
    of_bytes = parameters * (10 + 8 * slots) / BYTES
    flop = 2.0 * rows * parameters
    if plan.precision not in HALF_DTYPES or rows > TALL_ROWS:
        of_bytes += rows * sum(inputs + outputs for inputs, outputs in layers) * 4 / BYTES
        return TALL_KERNELS * (KERNEL - HIDDEN) * len(layers) + of_bytes + flop / FLOP
    return KERNEL + 3.0 + max(of_bytes, flop / FLOP)
