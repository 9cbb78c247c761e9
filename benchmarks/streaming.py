"""What does it cost when the training data stays on the host?

Each network is trained by the one_launch engine twice, on the same rows: with all on the device,
and with memory there for no more than some pieces, as something else takes the rest. Microseconds a
step are those of whole epochs, the least of some. Prints a table and writes results/streaming.json.

    python benchmarks/streaming.py
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import warpfit as wf
from harness import Options, run_command, write_results
from warpfit import nn, optim
from warpfit.backends.cuda.runtime import open_device

EPOCHS = 3  # and one before
SPARE_BYTES = 600 << 20


class Case(NamedTuple):
    """A network, its batch, and rows whose numbers have a dtype."""

    sizes: tuple[int, ...]
    batch: int
    rows: int
    dtype: str

    def __str__(self) -> str:
        return f"{'-'.join(map(str, self.sizes))}, {self.dtype}"


CASES = (
    Case((784, 256, 10), 64, 1_500_000, "uint8"),
    Case((784, 256, 10), 512, 1_500_000, "uint8"),
    Case((32, 256, 256, 8), 256, 8_000_000, "float32"),
)


def rows_of(case: Case) -> tuple[Any, Any]:
    """Return rows (N, features) and labels (N,)."""
    rng, shape = np.random.default_rng(0), (case.rows, case.sizes[0])
    whole = case.dtype == "uint8"
    x = rng.integers(0, 256, shape, dtype="u1") if whole else rng.random(shape, dtype="f4")
    return x, rng.integers(0, case.sizes[-1], case.rows)


@contextmanager
def memory_taken() -> Iterator[None]:
    """Leave the device SPARE_BYTES of memory."""
    runtime = open_device(0)
    taken = runtime.allocate(runtime.memory_left() - SPARE_BYTES)
    yield
    del taken


def train(case: Case, x: Any, y: Any) -> tuple[float, str]:
    """Return the microseconds of a step, and what the plan says."""
    layers: list[Any] = []
    for inputs, outputs in pairwise(case.sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    history = wf.fit(
        model,
        x,
        y,
        optimizer=optim.SGD(model.parameters(), 0.1),
        epochs=1 + EPOCHS,
        batch_size=case.batch,
        device="cuda",
        engine="one_launch",
        precision="float16",
        verbose=False,
    )
    steps = -(-case.rows // case.batch)
    return min(history["seconds"][1:]) / steps * 1e6, history.plan.reason


def measure(case: Case) -> dict[str, Any]:
    """Return a case's microseconds a step with the rows on the device and on the host."""
    x, y = rows_of(case)
    resident, _ = train(case, x, y)
    with memory_taken():
        streamed, reason = train(case, x, y)
    if "x stays on the host" not in reason:
        raise SystemExit(f"expected rows that stay on the host, got a plan that says: {reason}")
    rate = (x.nbytes + y.nbytes) / case.rows * case.batch / streamed / 1e3
    return {
        "case": str(case),
        "batch": case.batch,
        "rows": case.rows,
        "resident": resident,
        "streamed": streamed,
        "gb_per_second": rate,
    }


def main() -> None:
    Options(__doc__).parse_args()
    rows = []
    for case in CASES:
        rows.append(measure(case))
        print(
            (
                "{case}, batch {batch}: {resident:.2f} µs a step, streamed {streamed:.2f}, "
                "{gb_per_second:.1f} GB/s"
            ).format(**rows[-1]),
            flush=True,
        )
    print(write_results("streaming", {"rows": rows}))


if __name__ == "__main__":
    run_command(main)
