"""The one_launch engine: all steps of an epoch in one kernel, which keeps the network in registers and shared memory.

It runs networks of one or two linear layers whose batches and weights fit a block or a cluster of them;
`trained_network` says what it takes, and its errors what is in the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, log2
from time import perf_counter
from typing import Any, cast

import numpy as np

from warpfit import backends
from warpfit.backends import Array
from warpfit.backends.base import HALF_DTYPES
from warpfit.data.order import domain_bits, round_keys
from warpfit.engines.base import Engine, EpochReport, Plan, StepListener, TrainingData, TrainState
from warpfit.engines.reports import Reports
from warpfit.errors import ConfigError
from warpfit.losses import MeanSquaredError, SoftmaxCrossEntropy
from warpfit.nn.linear import LinearSpec
from warpfit.nn.network import NetworkSpec
from warpfit.optim.sgd import SGDSpec

__all__ = ["OneLaunchEngine", "launch_of", "trained_network"]


class OneLaunchEngine(Engine):
    """Runs an epoch as one kernel."""

    name = "one_launch"
    needs_gpu = True

    def explain(self, plan: Plan, data: TrainingData) -> str:
        return str(launch_of(plan, data))

    def copied_bytes(self, plan: Plan, data: TrainingData) -> int:
        """Return the bytes of the rows in half precision, with zeros after the features."""
        return 2 * len(data) * int(launch_of(plan, data).x_width)

    def run(
        self,
        plan: Plan,
        state: TrainState,
        data: TrainingData,
        epochs: int,
        on_step: StepListener | None = None,
    ) -> Iterator[EpochReport]:
        run = _Run(plan, state, data)
        for _ in range(epochs):
            report = run.epoch()
            if on_step is not None:
                on_step(run.reports.steps_per_epoch, run.reports.steps_per_epoch)
            yield report


def _require(condition: bool, expected: str, got: Any) -> None:
    if not condition:
        raise ConfigError(f"engine 'one_launch': expected {expected}, got {got}")


def _linear_layers(plan: Plan) -> list[tuple[str, LinearSpec]]:
    """Return the names and settings of the plan's one or two layers, or raise ConfigError."""
    network = plan.network
    _require(isinstance(network, NetworkSpec), "a Sequential of known layers", "another module")
    found = []
    for name, spec in network.fused.layers:  # type: ignore[union-attr]
        if not isinstance(spec, LinearSpec):
            raise ConfigError(f"engine 'one_launch': expected linear layers and activations, got {spec.kind}")
        _require(spec.bias, "layers with a bias", f"{name} without")
        found.append((name, spec))
    _require(len(found) in (1, 2), "one linear layer or two", len(found))
    _require(len({name for name, _ in found}) == len(found), "different layers", "one layer twice")
    _require(
        found[-1][1].activation.name == "identity", "no activation at the end", found[-1][1].activation.name
    )
    return found


def trained_network(plan: Plan, data: TrainingData) -> Any:
    """Return the kernel's settings for a plan, a `TrainedNetwork`.

    Raises
    ------
    ConfigError
        If the engine does not run such a network, loss, optimizer, precision or data.
    """
    from warpfit.backends.cuda.one_launch import TrainedNetwork

    _require(plan.device != "cpu", "a CUDA device", plan.device)
    _require(plan.precision in HALF_DTYPES, "precision 'float16' or 'bfloat16'", repr(plan.precision))
    _require(isinstance(plan.loss_scale, float), "a fixed loss_scale", plan.loss_scale)
    layers, loss, optimizer = _linear_layers(plan), plan.loss, plan.optimizer
    _require(
        loss == SoftmaxCrossEntropy() or loss == MeanSquaredError(),
        "cross_entropy without weights and smoothing, or mse",
        loss,
    )
    if not isinstance(optimizer, SGDSpec):
        raise ConfigError(f"engine 'one_launch': expected optimizer SGD, got {optimizer.kind}")
    _require(
        optimizer.clip_norm is None and not optimizer.l2 and not optimizer.lr_in_velocity,
        "SGD without clip_norm, l2 and lr_in_velocity",
        optimizer,
    )
    _require(data.sample_weight is None, "no sample_weight", "some")
    names = {f"{name}.{part}" for name, _ in layers for part in ("weight", "bias")}
    _require(set(plan.trained) == names, "an optimizer over all parameters", f"one over {len(plan.trained)}")
    first, last = layers[0][1], layers[-1][1]
    _require(
        min(first.in_features, first.out_features, last.out_features) > 0, "layers of size 1 or more", "0"
    )
    return TrainedNetwork(
        dtype=plan.precision,
        features=first.in_features,
        hidden=first.out_features if len(layers) == 2 else 0,
        outputs=last.out_features,
        batch=plan.batch_size,
        activation=first.activation,
        cross_entropy=isinstance(loss, SoftmaxCrossEntropy),
        momentum=optimizer.momentum > 0,
        nesterov=optimizer.nesterov,
    )


def launch_of(plan: Plan, data: TrainingData) -> Any:
    """Return the `OneLaunch` of a plan, or raise ConfigError with what is in the way."""
    from warpfit.backends.cuda.one_launch import choose

    network = trained_network(plan, data)
    runtime = cast(Any, backends.get(plan.device)).runtime
    return choose(network, runtime.arch, runtime.max_shared_bytes)


class _Run:
    """One run: the plan bound to its state and data."""

    def __init__(self, plan: Plan, state: TrainState, data: TrainingData) -> None:
        self.ops = cast(Any, backends.get(plan.device))
        self.plan, self.state, self.data = plan, state, data
        self.launch = launch_of(plan, data)
        self.kernel = self.ops.kernel("one_launch", **self.launch.defines)
        self.reports = Reports(plan, state, len(data))
        self.x = _padded_rows(self.ops, data.x, self.launch)
        names = [f"{name}.{part}" for name, _ in _linear_layers(plan) for part in ("weight", "bias")]
        velocities = state.slots.get("velocity", {})
        # A network without a hidden layer has two arrays, not four; without momentum there are no velocities.
        self.parameters = _four([state.parameters[name] for name in names])
        self.velocities = _four([velocities[name] for name in names] if velocities else [])

    def epoch(self) -> EpochReport:
        start = perf_counter()
        plan, state, ops, num_rows = self.plan, self.state, self.ops, len(self.data)
        steps = self.reports.steps_per_epoch
        rates = np.array([self.reports.lr(idx) for idx in range(steps)], np.float32)
        keys = ops.asarray(round_keys(state.seed, state.epoch)) if plan.shuffle else None
        record = ops.zeros((steps, 3), "float64")
        optimizer: Any = plan.optimizer
        if num_rows:
            self.kernel(
                self.launch.cluster,
                self.launch.threads,
                self.x,
                self.data.y,
                ops.asarray(rates),
                keys,
                *self.parameters,
                *self.velocities,
                record,
                num_rows,
                domain_bits(num_rows),
                1,
                _scale(plan, float(rates.max())),
                optimizer.momentum,
                optimizer.weight_decay,
                self.launch.network.activation.slope,
                shared_bytes=self.launch.shared_bytes,
                cluster=self.launch.cluster,
            )
        host_record = ops.to_numpy(record)
        self.reports.check_finite(host_record, 0)
        self.reports.check_arrays(ops)
        state.step += steps
        state.epoch += 1
        return self.reports.report(host_record, perf_counter() - start)


def _four(arrays: list[Array]) -> list[Array | None]:
    return [*arrays, *[None] * (4 - len(arrays))]


def _scale(plan: Plan, largest_rate: float) -> float:
    """Return the power of two that weights are held times.

    Gradients are then near the plan's loss scale times their mean over the batch, whether they come times the
    learning rate, without momentum, or not.
    """
    scale = float(plan.loss_scale)
    if plan.optimizer.momentum or not largest_rate:  # type: ignore[attr-defined]
        return scale
    return float(2.0 ** floor(log2(scale / largest_rate)))


def _padded_rows(ops: Any, x: Array, launch: Any) -> Array:
    """Return rows (N, x_width) in half precision, with zeros after the features."""
    rows = ops.zeros((len(x), launch.x_width), launch.network.dtype)
    if len(x):
        ops.assign(rows[:, : launch.network.features], x)
    return rows
