"""What a run of the engine one_launch has for its kernels: for all launches, and for one of them.

A launch knows which of it its kernel takes (`ResidentLaunch.arguments`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warpfit.backends import Array
from warpfit.backends.launch_structs import STOPPING_FIELDS
from warpfit.data.order import domain_bits
from warpfit.engines.base import Plan, Stopping, TrainingData, TrainState
from warpfit.engines.launch_network import layers_of, parameter_names
from warpfit.engines.launch_scales import Exponents, exponents_of, layer_scales
from warpfit.engines.launch_settings import (
    dropout_settings,
    loss_settings,
    rule_settings,
    scale_of_weights,
    step_settings,
    stopping_settings,
)
from warpfit.engines.launch_talk import NEVER, Talk
from warpfit.random import DROPOUT, stream_key

if TYPE_CHECKING:
    from warpfit.backends.cuda.resident_launch import ResidentLaunch

# Blocks of the kernels that gather batches and find Gram matrices, with the threads and rows of the
# first's.
GATHER_BLOCKS, GATHER_THREADS, GATHER_ROWS = 2048, 256, 8


def kernels_of(launch: ResidentLaunch, source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the kernels of a run on x of dtype `source`, by name and defines, the longest first."""
    yield launch.kernel, launch.config.settings()
    yield "gather_batches", launch.gather_defines(source)
    yield "all_finite", {"DTYPE": "float32"}
    if launch.looks_ahead:
        yield "gram_batches", launch.gram_defines


class Batches:
    """Puts rows into batches as kernels take them, from x of dtype `source`."""

    def __init__(self, ops: Any, launch: ResidentLaunch, source: str) -> None:
        self.ops, self.launch = ops, launch
        self.kernel = ops.kernel("gather_batches", **launch.gather_defines(source))

    def of(
        self,
        x: Array,
        y: Array,
        sample_weight: Array | None,
        keys: npt.NDArray[np.uint32] | None = None,
        epochs: int = 1,
        scale: float = 1.0,
    ) -> tuple[Array, Array]:
        """Return batches and targets, one after the other: of rows in the orders of the keys, or as
        they lie; x times `scale` where numbers are sums of several.
        """
        ops, network = self.ops, self.launch.network
        num_batches = epochs * network.batches(len(x))
        batches = ops.empty((num_batches * self.launch.batch_bytes // 2,), network.dtype)
        targets = ops.empty((num_batches * network.batch, network.target_words), "float32")
        self.kernel(
            min(-(-num_batches * network.batch // GATHER_ROWS), GATHER_BLOCKS),
            GATHER_THREADS,
            x,
            y,
            sample_weight,
            None if keys is None else ops.asarray(keys[:epochs]),
            batches,
            targets,
            scale,
            len(x),
            domain_bits(len(x)),
            epochs,
        )
        return batches, targets


class Resident:
    """What all launches of a run have, a `LaunchedRun`: arrays are made when first taken."""

    def __init__(
        self,
        ops: Any,
        launch: ResidentLaunch,
        plan: Plan,
        state: TrainState,
        data: TrainingData,
        validation: TrainingData | None,
        rule: Stopping | None,
    ) -> None:
        self.ops, self.launch, self.plan = ops, launch, plan
        self._validated, self._rule, self._layers = validation, rule, layers_of(plan)
        self.names = parameter_names(plan)
        of_slots = [state.slots[name] for name in plan.optimizer.slot_names]
        self.parameters = [state.parameters[name] for name in self.names]
        self.slots = [[arrays[name] for name in self.names] for arrays in of_slots]
        self.report_every, self.last_epoch = plan.report_every, plan.epochs
        self.num_validated = 0 if validation is None else len(validation)
        self.clip_norm, self.l2 = plan.optimizer.clip_norm or 0.0, plan.optimizer.l2
        self.loss_scale, self.rule = float(plan.loss_scale), rule_settings(plan.optimizer)
        self.x_scale = 1.0
        self._exponents: list[Exponents] | None = None
        if launch.network.terms > 1:
            self._exponents = exponents_of(plan, state, data)
            (of_x, *_), (*_, of_gradients) = self._exponents[0], self._exponents[-1]
            self.x_scale, self.loss_scale = 2.0**-of_x, 2.0**-of_gradients
        self.loss = loss_settings(plan.loss, launch.network.outputs)
        self.dropout_key = stream_key(state.seed, DROPOUT)
        self.card, self.card_sums = 0, None

    @property
    def scale_of_weights(self) -> float:
        return scale_of_weights(self.plan)

    @cached_property
    def places(self) -> Array:
        groups = zip(self.parameters, *self.slots, strict=True)
        return self.ops.asarray(
            np.array([array.pointer for arrays in groups for array in arrays], np.int64)
        )

    @cached_property
    def dropouts(self) -> Array:
        settings = dropout_settings(layer.dropout for layer in self._layers)
        return self.ops.asarray(settings.view(np.uint8))

    @cached_property
    def scales(self) -> Array | None:
        if self._exponents is None:
            return None
        return self.ops.asarray(layer_scales(self._exponents).view(np.uint8))

    @cached_property
    def class_weights(self) -> Array | None:
        """The classes' weights and their mean (classes + 1,), if they have any."""
        weights = self.plan.loss.class_weights()
        if weights is None:
            return None
        return self.ops.asarray(np.array([*weights, np.mean(weights)], np.float32))

    @cached_property
    def validation(self) -> tuple[Array | None, Array | None]:
        """The validation data in batches, and their targets, in their own order."""
        data, ops = self._validated, self.ops
        if data is None:
            return None, None
        x, y = (in_one_piece(ops, array) for array in (data.x, data.y))
        ones = ops.asarray(np.ones(len(data), np.float32)) if self.launch.network.weighted else None
        batches = Batches(ops, self.launch, str(data.x.dtype))
        return batches.of(x, y, ones, scale=self.x_scale)

    @cached_property
    def stopping(self) -> Array | None:
        """The bytes of ``StoppingMemory``, which the kernel goes on with from launch to launch."""
        if self._rule is None:
            return None
        found = stopping_settings(self._rule)
        watched = np.zeros(self.launch.watched_bytes, np.uint8)
        return self.ops.asarray(np.concatenate([found.view(np.uint8), watched]))

    @cached_property
    def _best(self) -> list[Array]:
        return [self.ops.empty(array.shape, "float32") for array in self.parameters]

    @cached_property
    def best_places(self) -> Array | None:
        if self._rule is None or not self._rule.keeps_best:
            return None
        return self.ops.asarray(np.array([array.pointer for array in self._best], np.int64))

    def epochs_to_the_end(self) -> int:
        """Return after how many epochs of a launch the rule ended the run, 0 if it did not; it
        takes over the best.
        """
        if self._rule is None:
            return 0
        found = self.ops.to_numpy(self.stopping)[: STOPPING_FIELDS.itemsize].view(STOPPING_FIELDS)[
            0
        ]
        if found["has_improved"] and self._rule.keeps_best:
            # Copies, as the next launch may find better ones.
            kept = zip(self.names, self._best, strict=True)
            self._rule.best_arrays = {name: self.ops.copy(array) for name, array in kept}
        return int(found["epochs_done"])

    def zeros(self, nbytes: int) -> Array:
        return self.ops.zeros((nbytes,), "uint8")

    def empty(self, nbytes: int) -> Array:
        return self.ops.empty((nbytes,), "uint8")


@dataclass
class Steps:
    """What one launch has, a `LaunchedSteps`."""

    run: Resident
    # batches and targets: what it trains on: all rows of some epochs, or some rows of one.
    batches: Array
    targets: Array
    num_rows: int
    epochs: int
    first_step: int
    first_epoch: int
    first_update: int  # the optimizer's step that comes first, counted from 0
    of_rates: npt.NDArray[np.float64]  # (steps,) float64: the schedule's rate of each step
    record: Array | int
    told: Talk | None

    @property
    def rates(self) -> Array:
        return self.run.ops.asarray(self.of_rates.astype(np.float32))

    @property
    def settings(self) -> Array:
        return self.run.ops.asarray(
            step_settings(self.run.plan.optimizer, self.of_rates, self.first_update)
        )

    @property
    def talk(self) -> tuple[int | None, Array | None, int]:
        if self.told is None:
            return None, None, NEVER
        every = self.told.every
        places = self.run.ops.zeros((self.epochs // every, self.run.launch.replicas), "int32")
        return self.told.progress_pointer, places, every

    @property
    def gram(self) -> tuple[Array | None, Array | None]:
        launch, ops, count = self.run.launch, self.run.ops, len(self.of_rates)
        if not launch.looks_ahead:
            return None, None
        gram = ops.empty((count * launch.network.gram_bytes // 2,), launch.network.dtype)
        scales = ops.empty((count,), "float32")
        kernel = ops.kernel("gram_batches", **launch.gram_defines)
        kernel(
            min(count, GATHER_BLOCKS),
            launch.network.gram_threads,
            self.batches,
            gram,
            scales,
            count,
        )
        return gram, scales


def in_one_piece(ops: Any, array: Any) -> Any:
    """Return the array, or a contiguous copy of which 16 bytes can be loaded at once."""
    array = ops.contiguous(array)
    return array if array.pointer % 16 == 0 else ops.copy(array)
