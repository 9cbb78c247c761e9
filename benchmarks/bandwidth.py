"""How near are the kernels that only move memory to the card's copy bandwidth?

Each operation on 256 MiB of float32, its bytes (every input read once, every result written once)
over its time, beside a plain copy on the device. Prints a table and writes results/bandwidth.json.

    python benchmarks/bandwidth.py
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from harness import Options, run_command, write_results
from warpfit.backends import Activation
from warpfit.backends.base import LossTerms
from warpfit.backends.cuda import CudaBackend
from warpfit.backends.cuda.runtime import open_device
from warpfit.backends.update_rules import UpdateNumbers

SIZE = 1 << 26
ROUNDS = 20
MEAN_SQUARE = LossTerms("mse")


class Bench:
    """The device, four arrays of numbers on it, and a clock."""

    def __init__(self) -> None:
        self.runtime = open_device(0)
        self.ops = CudaBackend(self.runtime, reuse=True)
        numbers = np.random.default_rng(0).random(SIZE, dtype=np.float32)
        self.arrays = [self.ops.copy(self.ops.asarray(numbers)) for _ in range(4)]

    def matrix(self, rows: int, columns: int, idx: int = 0) -> Any:
        return self.ops.reshape(self.arrays[idx][: rows * columns], (rows, columns))

    def seconds(self, call: Callable[[], Any]) -> float:
        """Return the median time of a call on the device."""
        from cuda.core import EventOptions

        for _ in range(3):
            self._call(call)
        options = EventOptions(timing_enabled=True)
        events = [self.runtime.stream.record(options=options)]
        for _ in range(ROUNDS):
            self._call(call)
            events.append(self.runtime.stream.record(options=options))
        events[-1].sync()
        return median((after - before) / 1e3 for before, after in pairwise(events))

    def _call(self, call: Callable[[], Any]) -> None:
        self.ops.begin_step()
        call()


def cases(bench: Bench) -> dict[str, tuple[Callable[[], Any], float]]:
    """Return calls by name, each with how many arrays of SIZE float32 it has to read and write."""
    ops, matrix = bench.ops, bench.matrix
    x, y, z, w = bench.arrays
    relu, gelu = Activation("relu"), Activation("gelu")
    a, b, square = matrix(1 << 16, 1 << 10), matrix(1 << 16, 1 << 10, 1), matrix(1 << 13, 1 << 13)
    running, drop = (y[:1024], z[:1024]), {"p": 0.5, "seed": 0, "step": 0, "layer_idx": 0}
    found: dict[str, tuple[Callable[[], Any], float]] = {
        "relu forward": (lambda: ops.activation_forward(relu, x), 2),
        "relu backward": (lambda: ops.activation_backward(relu, x, y, None), 3),
        "gelu forward": (lambda: ops.activation_forward(gelu, x), 2),
        "exp": (lambda: ops.unary("exp", x), 2),
        "add": (lambda: ops.binary("add", x, y), 3),
        "add a row": (lambda: ops.binary("add", a, y[:1024]), 2),
        "cast to float16": (lambda: ops.cast(x, "float16"), 1.5),
        "dropout": (lambda: ops.dropout_forward(a, **drop), 3),
        "mean squared error": (lambda: ops.element_loss_forward(a, b, MEAN_SQUARE), 2),
        "layer norm": (lambda: ops.layer_norm_forward(a, None, None), 2),
        "batch norm": (lambda: ops.batch_norm_forward(a, None, None, *running, training=True), 2),
        "transposed copy": (lambda: ops.contiguous(ops.transpose(square)), 2),
        "sum of all": (lambda: ops.reduce("sum", x), 1),
        "sum of rows": (lambda: ops.reduce("sum", a, 1), 1),
        "sgd": (lambda: ops.update_parameters("sgd", [x], [y], [], UpdateNumbers(0.0)), 3),
        "sgd with momentum": (
            lambda: ops.update_parameters("sgd", [x], [y], [[z]], UpdateNumbers(0.0, momentum=0.5)),
            5,
        ),
        "adam": (
            lambda: ops.update_parameters(
                "adam", [x], [y], [[z], [w]], UpdateNumbers(0.0, 1e-8, of_mean=0.9, of_square=0.999)
            ),
            7,
        ),
        "rmsprop": (
            lambda: ops.update_parameters(
                "rmsprop", [x], [y], [[z]], UpdateNumbers(0.0, 1e-8, of_square=0.99)
            ),
            5,
        ),
    }
    for rows, columns in ((1 << 22, 10), (1 << 19, 128), (1 << 16, 1 << 10), (1 << 10, 1 << 16)):
        call = partial(ops.softmax_forward, matrix(rows, columns))
        found[f"softmax {rows} x {columns}"] = (call, 2 * rows * columns / SIZE)
    for rows, columns in ((1 << 20, 64), (1 << 16, 1 << 10), (1 << 10, 1 << 16)):
        found[f"column sums {rows} x {columns}"] = (
            partial(ops.sum_columns, matrix(rows, columns)),
            1,
        )
    return found


def main() -> None:
    Options(__doc__).parse_args()
    bench = Bench()
    x, y = bench.arrays[:2]
    copy = 2 * x.nbytes / bench.seconds(lambda: bench.runtime.copy(y.pointer, x.pointer, x.nbytes))
    print(f"copy on the device: {copy / 1e9:.0f} GB/s")
    rows = {}
    for name, (call, arrays) in cases(bench).items():
        seconds = bench.seconds(call)
        rate = arrays * 4 * SIZE / seconds
        rows[name] = {"us": seconds * 1e6, "gb_per_second": rate / 1e9, "of_copy": rate / copy}
        print(f"{name:28} {seconds * 1e6:8.1f} us {rate / 1e9:7.0f} GB/s {rate / copy:6.2f}")
    print(write_results("bandwidth", {"copy_gb_per_second": copy / 1e9, "rows": rows}))


if __name__ == "__main__":
    run_command(main)
