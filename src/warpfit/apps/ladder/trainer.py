"""The step of the lower rungs, written out: one operation after the other, as each rung has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.apps.ladder.batches import Batches, Preloaded, Uploaded
from warpfit.apps.ladder.task import Task
from warpfit.backends import Activation, Array, Backend
from warpfit.backends.base import HALF_DTYPES, IDENTITY
from warpfit.backends.update_rules import UpdateNumbers
from warpfit.engines.scaling import resolve_loss_scale
from warpfit.errors import DivergedError

RELU = Activation("relu")

# Steps that are timed to estimate the others.
PROBE_STEPS = 20
# Steps that the device's time is taken of at once, and how often.
TIMED_STEPS, TIMED_ROUNDS = 20, 3

# Columns of a record.
LOSS, WEIGHT, CORRECT = 0, 1, 2


@dataclass(frozen=True)
class Recipe:
    """How a rung trains a step."""

    product_kernel: str | None  # of all matrix products; None is the one that suits each best
    feeding: type[Batches] = Uploaded  # how rows come to the device
    reads_every_step: bool = False  # its loss and accuracy; else the host does so once an epoch
    report_every: int = 1  # epochs of which one has loss and accuracy
    # Whether bias and activation join the products, the loss its gradient, and the updates each
    # other; such steps have their loss at no cost, and so all of them do.
    is_fused: bool = False
    precision: str = "float32"  # a half one in fused steps only

    def reports(self, epoch: int, epochs: int) -> bool:
        """Return whether an epoch, counted from 0, has loss and accuracy: the last always has."""
        return self.is_fused or epoch % self.report_every == 0 or epoch == epochs - 1


@dataclass(frozen=True)
class Epoch:
    """What came out of an epoch; without a report no more than its time."""

    seconds: float  # until the device had done all of it
    loss: float | None = None  # mean over its rows, each batch before its update
    accuracy: float | None = None  # share of rows that were right
    step_losses: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)


class StepByStep:
    """Trains a task by a recipe; `ops` may stand for the device's own backend."""

    def __init__(self, task: Task, device: str, recipe: Recipe, ops: Backend | None = None) -> None:
        self.task, self.recipe = task, recipe
        self.half = recipe.precision if recipe.precision in HALF_DTYPES else None
        self.ops: Backend = ops or backends.create(
            device,
            precision=recipe.precision,
            loss_scale=float(resolve_loss_scale("auto", recipe.precision, task.batch, len(task.x))),
            product_kernel=recipe.product_kernel,
        )
        self._weights: dict[int, Array] = {}
        self._start()

    def _start(self) -> None:
        """Go back to the initial values."""
        ops = self.ops
        self.parameters = [
            ops.copy(ops.asarray(start.data)) for start in self.task.model().parameters()
        ]
        self.copies = [
            ops.copy(ops.asarray(array, self.half)) for array in self.parameters if self.half
        ]
        arrays = self.copies or self.parameters
        self.layers = list(zip(arrays[::2], arrays[1::2], strict=True))

    def prepare(self) -> tuple[float, int]:
        """Compile what is needed, by a few steps and one of the last batch's size; return the
        seconds of some more, and how many they were.
        """
        num_rows, batch = len(self.task.x), self.task.batch
        list(self.run(min(num_rows, 2 * batch + num_rows % batch), 1))
        steps = min(PROBE_STEPS, self.task.steps)
        (probe,) = self.run(min(num_rows, steps * batch), 1)
        return probe.seconds, steps

    def run(self, rows: int, epochs: int) -> Iterator[Epoch]:
        """Train from the initial values on the first rows, and yield each epoch.

        Raises
        ------
        DivergedError
            If a parameter is NaN or infinite after an epoch.
        """
        self._start()
        dtype = self.half or "float32"
        batches = self.recipe.feeding(self.ops, self.task, rows, dtype)
        try:
            for epoch in range(epochs):
                yield self._epoch(batches, epoch, rows, self.recipe.reports(epoch, epochs))
        finally:
            batches.close()

    def device_seconds(self) -> float | None:
        """Return how long the device works on a step, without waits; None if it is the host.

        The kernels of some steps are captured and started together. They are those of a step that
        is reported, on a batch that is there; nothing is read back.
        """
        if self.ops.synchronous:
            return None
        ops: Any = self.ops
        self._start()
        batch = min(self.task.batch, len(self.task.x))
        x, y = ops.asarray(self.task.x[:batch]), ops.asarray(self.task.y[:batch])
        if self.half and self.recipe.feeding is Preloaded:  # in the precision of steps
            x = ops.copy(ops.asarray(x, self.half))
        record = ops.zeros((1, 3), "float64")

        def step() -> None:
            ops.begin_step()
            if self.recipe.is_fused:
                self._fused_step(x, y, record, 0)
            else:
                self._separate_step(x, y, record if self.recipe.report_every == 1 else None, 0)

        step()  # compiles, and makes the buffers
        with ops.runtime.capture() as graph:
            for _ in range(TIMED_STEPS):
                step()
        return min(ops.runtime.seconds_of(graph.launch) for _ in range(TIMED_ROUNDS)) / TIMED_STEPS

    def _epoch(self, batches: Batches, epoch: int, rows: int, is_reported: bool) -> Epoch:
        start, ops = perf_counter(), self.ops
        steps = -(-rows // self.task.batch)
        record = self._record(steps) if is_reported else None
        step = self._fused_step if self.recipe.is_fused else self._separate_step
        ops.begin_step()
        for idx, (x, y) in enumerate(batches.epoch(epoch)):
            step(x, y, record, idx)
            ops.begin_step()
        found = record if record is None or self.recipe.reads_every_step else ops.to_numpy(record)
        is_finite = bool(ops.to_numpy(ops.all_finite(self.parameters)))  # which waits for all steps
        seconds = perf_counter() - start
        if not is_finite:
            raise DivergedError(
                epoch=epoch + 1, step=(epoch + 1) * steps, lr=self.task.lr, last_finite_loss=None
            )
        if found is None:
            return Epoch(seconds)
        losses, weights = found[:, LOSS], found[:, WEIGHT]
        loss = float((losses * weights).sum() / weights.sum())
        return Epoch(seconds, loss, float(found[:, CORRECT].sum()) / rows, losses.copy())

    def _record(self, steps: int) -> Array:
        """Return where losses go: on the host if each is read back, else on the device."""
        if self.recipe.reads_every_step:
            return np.zeros((steps, 3))
        return self.ops.zeros((steps, 3), "float64")

    # -- the textbook's step

    def _separate_step(self, x: Array, y: Array, record: Array | None, idx: int) -> None:
        """Train on a batch with a kernel for every operation."""
        ops = self.ops
        inputs = [x]
        for w, b in self.layers:
            z = ops.binary("add", ops.matmul(inputs[-1], w), b)
            inputs.append(ops.activation_forward(RELU, z) if len(inputs) < len(self.layers) else z)
        logits = inputs.pop()
        probabilities = ops.softmax_forward(logits)
        if record is not None:
            self._report(logits, y, record, idx)
        dz = ops.softmax_cross_entropy_backward(probabilities, y, self._weight_of(len(y)))
        gradients: list[Array] = []
        for place in reversed(range(len(self.layers))):
            own = ops.matmul(inputs[place], dz, transpose_a=True), ops.sum_columns(dz)
            gradients = [*own, *gradients]
            if place:
                dx = ops.matmul(dz, self.layers[place][0], transpose_b=True)
                dz = ops.activation_backward(RELU, dx, inputs[place], None)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            ops.update_parameters("sgd", [parameter], [gradient], [], UpdateNumbers(self.task.lr))

    def _report(self, logits: Array, y: Array, record: Array, idx: int) -> None:
        """Compute loss and accuracy of a batch, and read them, or note them on the device."""
        ops = self.ops
        loss, weight, _ = ops.softmax_cross_entropy_forward(logits, y)
        correct = ops.count_correct(logits, y)
        if isinstance(record, np.ndarray):
            record[idx] = float(ops.to_numpy(loss)), len(y), int(ops.to_numpy(correct))
        else:
            ops.record_step(record, idx, loss, weight, correct, None)

    def _weight_of(self, num_rows: int) -> Array:
        """Return the number of rows, () float32, on the device."""
        if num_rows not in self._weights:
            self._weights[num_rows] = self.ops.asarray(np.float32(num_rows))
        return self._weights[num_rows]

    # -- the fused step

    def _fused_step(self, x: Array, y: Array, record: Any, idx: int) -> None:
        """Train on a batch with as few kernels as the operations of the backend allow."""
        ops, scale = self.ops, 1.0
        if self.half is not None:
            scale = ops.loss_scale
            ops.cast_into(self.copies, self.parameters)
            x = x if x.dtype == self.layers[0][0].dtype else ops.cast(x, self.half)
        inputs = [x]
        for w, b in self.layers:
            is_hidden = len(inputs) < len(self.layers)
            y_of_layer, _ = ops.linear_forward(inputs[-1], w, b, RELU if is_hidden else IDENTITY)
            inputs.append(y_of_layer)
        dz = ops.softmax_cross_entropy_step(inputs.pop(), y, record, idx, scale=scale)
        gradients: list[Array] = []
        for place in reversed(range(len(self.layers))):
            activation = RELU if place else IDENTITY
            dz, *own = ops.linear_backward(
                dz,
                inputs[place],
                self.layers[place][0],
                needs_dx=place > 0,
                x_activation=activation,
            )
            gradients = [*own, *gradients]
        ops.update_parameters("sgd", self.parameters, gradients, [], UpdateNumbers(self.task.lr))
