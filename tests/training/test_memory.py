"""Memory: buffers are used again from step to step, and the data is not copied."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import Taped, adam, mlp
from warpfit import nn
from warpfit.training.run import Run

ROWS, FEATURES, BATCH = 4000, 300, 250


class Peaks(wf.Callback):
    """Notes the most memory in use in each epoch."""

    def __init__(self) -> None:
        self.values: list[int] = []

    def on_epoch_end(self, run: Run) -> None:
        self.values.append(tracemalloc.get_traced_memory()[1])
        gc.collect()  # empties the interpreter's own stores of small objects
        tracemalloc.reset_peak()


def epoch_peaks(model: nn.Module, x: Any, **settings: Any) -> list[int]:
    peaks = Peaks()
    optimizer = adam(model)
    labels = np.arange(len(x)) % 10
    tracemalloc.start()
    try:
        wf.fit(
            model,
            x,
            labels,
            optimizer=optimizer,
            epochs=5,
            batch_size=BATCH,
            verbose=False,
            callbacks=[peaks],
            **settings,
        )
    finally:
        tracemalloc.stop()
    return peaks.values


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(0).random((ROWS, FEATURES), dtype=np.float32)


@pytest.mark.parametrize("wrap", [lambda model: model, pytest.param(Taped, marks=pytest.mark.slow)])
def test_memory_does_not_grow_from_epoch_to_epoch(x: np.ndarray, wrap: Any) -> None:
    peaks = epoch_peaks(
        wrap(mlp(FEATURES, 32, 10)), x, validation_data=(x[:500], np.arange(500) % 10)
    )
    assert peaks[4] <= peaks[1] + 40_000  # far less than a batch


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow), "uint8"]
)
def test_the_data_is_not_copied(x: np.ndarray, dtype: str) -> None:
    given = (x * 255).astype(dtype)
    model = mlp(FEATURES, 32, 10)
    # A batch as it is and in float32, activations and gradients; Adam's slots, gradients and copies
    # of the state.
    batch_bytes = given[:BATCH].nbytes + 4 * BATCH * (FEATURES + 4 * 32)
    state_bytes = 10 * 4 * model.num_parameters
    assert max(epoch_peaks(model, given)) - batch_bytes - state_bytes < given.nbytes / 4


@pytest.mark.slow
def test_data_in_another_order_is_copied_once_and_not_at_every_step(x: np.ndarray) -> None:
    # NumPy's take copies the whole array at every call if it is not in C order.
    contiguous = epoch_peaks(mlp(FEATURES, 32, 10), x)
    fortran = epoch_peaks(mlp(FEATURES, 32, 10), np.asfortranarray(x))
    assert fortran[4] < contiguous[4] + 1.2 * x.nbytes


def test_a_step_reuses_its_buffers(x: np.ndarray) -> None:
    """A step on its own allocates far less than its activations take."""
    seen: list[int] = []

    class Steps(wf.Callback):
        def on_step(self, step: int, steps_per_epoch: int) -> None:
            seen.append(tracemalloc.get_traced_memory()[1] - self.before if step > 1 else 0)
            tracemalloc.reset_peak()
            self.before = tracemalloc.get_traced_memory()[0]

        before = 0

    model = mlp(FEATURES, 256, 10)
    tracemalloc.start()
    try:
        wf.fit(
            model,
            x,
            np.arange(ROWS) % 10,
            optimizer=adam(model),
            epochs=2,
            batch_size=BATCH,
            verbose=False,
            callbacks=[Steps()],
        )
    finally:
        tracemalloc.stop()
    batch, hidden = 4 * BATCH * FEATURES, 4 * BATCH * 256
    assert max(seen[3:]) < min(batch, hidden)
