"""Losses of a step that find targets by an epoch's order: the bits that they have from copies,
wherever these lie.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.element_losses import ElementOperation
from warpfit.backends.cuda import CudaBackend
from warpfit.backends.cuda.next_batch import StepSource

BATCH, STEPS = 37, 3  # of as many rows, losses take several blocks
LOSSES: dict[str, dict[str, Any]] = {
    "mse": {},
    "absolute_error": {},
    "huber": {"delta": 0.7},
    "binary_cross_entropy": {},
}


@pytest.fixture(scope="module")
def ops(kernel_runtime_of_any_order: Any) -> CudaBackend:
    return CudaBackend(kernel_runtime_of_any_order)


def num_rows_of(batch: int) -> int:
    """Return the rows of an epoch, whose last batch is short."""
    return batch * (STEPS - 1) + 11


NUM_ROWS = num_rows_of(BATCH)


def order_of(is_shuffled: bool, num_rows: int = NUM_ROWS) -> Any:
    return np.random.default_rng(1).permutation(num_rows) if is_shuffled else np.arange(num_rows)


def shifted(ops: Any, host: Any, shift: int) -> Any:
    """Return an array that begins so many bytes past a multiple of 16."""
    skipped = shift // host.itemsize
    room = ops.asarray(np.concatenate([np.zeros(skipped, host.dtype), host.reshape(-1)]))
    array = ops.reshape(room[skipped:], host.shape)
    assert array.pointer % 16 == shift
    return array


class Setting:
    """Outputs and targets, the latter where the data lies, for a loss of the steps of an epoch."""

    def __init__(
        self,
        ops: Any,
        op: str,
        outputs: Any,
        targets: Any,
        order: Any,
        dtype: str,
        shift: int,
        batch: int = BATCH,
    ) -> None:
        self.ops, self.op, self.hosts, self.order = ops, op, (outputs, targets), order
        self.batch = batch
        self.outputs = ops.asarray(ops.asarray(outputs), dtype)
        x, y = ops.asarray(np.zeros((len(order), 1), "f4")), shifted(ops, targets, shift)
        table = ops.asarray(np.arange(STEPS, dtype="f8").reshape(-1, 1))
        sources = [(x, "float32"), (y, str(targets.dtype))]
        self.source = StepSource(ops, sources, ops.asarray(order), batch, table, in_place=(1,))
        self.record = ops.zeros((STEPS, 3), "float64")

    def rows_of(self, step: int) -> slice:
        return slice(step * self.batch, min((step + 1) * self.batch, len(self.order)))

    def run(self, step: int, targets: Any, **options: Any) -> tuple[Any, Any]:
        """Return gradient and record of the loss of a step's outputs."""
        outputs = self.ops.copy(self.outputs[self.rows_of(step)])
        loss = self.ops.softmax_cross_entropy_step
        if self.op != "softmax_cross_entropy":
            loss = ElementOperation(self.ops, self.op, "step")
        gradient = loss(outputs, targets, self.record, step, scale=8.0, **options)
        return self.ops.to_numpy(self.ops.cast(gradient, "float64")).copy(), self.record.numpy()[
            step
        ].copy()

    def check(self, **options: Any) -> None:
        """Assert that every step has the bits of copies that begin at any address."""
        for step in range(STEPS):
            rows, own = self.rows_of(step), dict(options)
            if "sample_weight" in own:
                own["sample_weight"] = self.ops.copy(own["sample_weight"][rows])
            self.source.begin(step // 2)
            _, by_order = self.source.take(step - step // 2, rows.stop - rows.start, (0, 0))
            found = self.run(step, by_order, **own)
            assert found[0].any()
            taken = self.hosts[1][self.order[rows]]
            for shift in (0, taken.itemsize):
                expected = self.run(step, shifted(self.ops, taken, shift % 16), **own)
                np.testing.assert_array_equal(found[0], expected[0])
                np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.in_turns(120)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("columns", [1, 3, 4, 12, 40])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_element_losses(ops: Any, name: str, columns: int, dtype: str, is_shuffled: bool) -> None:
    rng, of_targets = np.random.default_rng(0), np.dtype("f8" if dtype == "float64" else "f4")
    outputs = rng.standard_normal((NUM_ROWS, columns))
    targets = rng.uniform(0, 1, (NUM_ROWS, columns)).astype(of_targets)
    weights = ops.asarray(rng.uniform(0.5, 2, NUM_ROWS).astype(of_targets))
    for shift in (0, of_targets.itemsize):
        setting = Setting(ops, name, outputs, targets, order_of(is_shuffled), dtype, shift)
        setting.check(**LOSSES[name])
        setting.check(sample_weight=weights, **LOSSES[name])


@pytest.mark.in_turns(20)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [3, 16, 600])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_labels(ops: Any, columns: int, smoothing: float, dtype: str, is_shuffled: bool) -> None:
    rng, batch = np.random.default_rng(0), BATCH if columns < 600 else 13  # 600: each its block
    num_rows = num_rows_of(batch)
    outputs, labels = rng.standard_normal((num_rows, columns)), rng.integers(0, columns, num_rows)
    order = order_of(is_shuffled, num_rows)
    setting = Setting(ops, "softmax_cross_entropy", outputs, labels, order, dtype, 8, batch)
    weights = ops.asarray(rng.uniform(0.5, 2, num_rows).astype("f4"))
    of_classes = ops.asarray(rng.uniform(0.5, 2, columns).astype("f4"))
    setting.check(label_smoothing=smoothing)
    setting.check(label_smoothing=smoothing, sample_weight=weights, class_weight=of_classes)


def test_the_same_rows_are_those_of_the_step_that_comes(ops: Any) -> None:
    rng, order = np.random.default_rng(0), order_of(True)
    outputs, targets = (
        rng.standard_normal((NUM_ROWS, 8)),
        rng.standard_normal((NUM_ROWS, 8)).astype("f4"),
    )
    setting = Setting(ops, "mse", outputs, targets, order, "float32", 0)
    setting.source.begin(0)
    _, y = setting.source.take(0, BATCH, (0, 0))
    out = ops.copy(setting.outputs[:BATCH])
    for step in (1, 0):
        setting.source.begin(step)
        found = ElementOperation(ops, "mse", "step")(out, y, setting.record, 0)
        taken = ops.asarray(targets[order[step * BATCH :][:BATCH]])
        expected = ElementOperation(ops, "mse", "step")(out, taken, setting.record, 1)
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
