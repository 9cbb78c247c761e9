"""Which engine runs a training, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from warpfit import backends
from warpfit.backends.base import FLOAT_DTYPES, HALF_DTYPES, PRECISIONS
from warpfit.checks import brief, check_choice
from warpfit.engines.base import Engine, Plan, Prepared, Stopping, TrainingData, TrainState
from warpfit.engines.graph import GraphEngine
from warpfit.engines.layerwise import Layerwise
from warpfit.engines.one_launch import OneLaunchEngine
from warpfit.engines.replicas import arrays_of
from warpfit.engines.scaling import resolve_loss_scale
from warpfit.errors import ConfigError, Obstacle
from warpfit.nn.network import NetworkSpec

AUTO = "auto"
ENGINES: dict[str, type[Engine]] = {
    engine.name: engine for engine in (Layerwise, GraphEngine, OneLaunchEngine)
}
# On a GPU.
BEST_FIRST = (OneLaunchEngine.name, GraphEngine.name, Layerwise.name)


def resolve_precision(precision: str, dtype: str, device: str) -> str:
    """Return the precision that `precision` stands for, as far as the parameters' dtype decides it.

    ``'auto'`` is float64 for parameters in float64. It stays open for those in float32, until
    `plan` has an engine.

    Raises
    ------
    ConfigError
        If the device does not compute in it.
    """
    if isinstance(precision, str) and precision == AUTO:
        return AUTO if dtype == "float32" else dtype
    known = FLOAT_DTYPES if device == "cpu" else PRECISIONS
    if not isinstance(precision, str) or precision not in known:
        raise ConfigError(
            f"expected precision 'auto', {' or '.join(map(repr, known))} on device {device!r}, "
            f"got {brief(precision)}"
        )
    return precision


def plan(
    draft: Plan,
    state: TrainState,
    data: TrainingData,
    validation: TrainingData | None = None,
    stopping: Stopping | None = None,
) -> Plan:
    """Return the draft with its engine, its precision, what was prepared, its memory and the reason
    filled in.

    Parameters
    ----------
    draft : Plan
        What is to be run; its engine is a name or ``'auto'``. A reason that is there stays.
    state : TrainState
    data, validation : TrainingData
        Where they were found. Unless the plan `is_streamed`, data is on the device afterwards
        (`TrainingData.on`).
    stopping : Stopping, optional
        The rule by which a callback ends the run, if nothing else looks at the run between epochs.

    Raises
    ------
    ConfigError
        If there is no such engine, it cannot run the draft, or a batch of the epoch is too small
        for a layer.
    """
    backends.resolve_device(draft.device)
    _check_last_batch(draft, len(data))
    check_choice("an engine", draft.engine, (AUTO, *ENGINES))
    asked = draft.engine
    names = (
        (asked,) if asked != AUTO else (Layerwise.name,) if draft.device == "cpu" else BEST_FIRST
    )
    obstacles: list[str] = []
    for name in names:
        prepared = _prepared(ENGINES[name](), draft, data, validation, stopping)
        if isinstance(prepared, Prepared):
            return _planned(draft, name, prepared, obstacles, state, data)
        obstacles.append(
            f"{name}: {prepared}" if asked == AUTO else f"engine {asked!r}: {prepared}"
        )
    raise ConfigError(obstacles[-1] if asked != AUTO else str(prepared))


def _prepared(
    engine: Engine,
    draft: Plan,
    data: TrainingData,
    validation: TrainingData | None,
    stopping: Stopping | None,
) -> Prepared | Obstacle:
    if draft.num_ranks > 1 and not engine.has_ranks:
        return Obstacle(f"expected one device, got {draft.num_ranks}")
    return engine.prepare(draft, data, validation, stopping)


def _planned(
    draft: Plan,
    engine: str,
    prepared: Prepared,
    obstacles: Sequence[str],
    state: TrainState,
    data: TrainingData,
) -> Plan:
    """Return the draft for an engine, with nothing left open; those before had obstacles."""
    rows = data if prepared.is_streamed else data.on(draft.device)
    chosen = replace(
        draft,
        engine=engine,
        precision=prepared.precision,
        loss_scale=_loss_scale(draft, prepared.precision, rows),
        prepared=prepared,
        asked=draft.asked or (draft.engine, draft.precision),
    )
    _check_half_precision(chosen)
    ranks = f"{draft.num_ranks} ranks share each batch" if draft.num_ranks > 1 else ""
    reason = "; ".join(filter(None, (*_why(draft, engine, obstacles), prepared.reason, ranks)))
    return replace(
        chosen, bytes=_bytes(chosen, prepared, state, data), reason=draft.reason or reason
    )


def _why(draft: Plan, engine: str, obstacles: Sequence[str]) -> tuple[str, ...]:
    if draft.engine != AUTO:
        return (f"engine {engine!r} was asked for",)
    if draft.device == "cpu":
        return (f"on the CPU there is one engine, {engine}",)
    return (*(() if engine == Layerwise.name else (f"{engine} runs it",)), *obstacles)


def _loss_scale(draft: Plan, precision: str, data: TrainingData) -> float | str:
    """Return the loss scale for gradients in a precision; outputs may be as far off as x first."""
    derivative, loss = 1.0, draft.loss
    if precision == "float16" and draft.loss_scale == AUTO and loss.largest_derivative(inf) > 1:
        derivative = loss.largest_derivative(max(data.largest_x, data.largest_y))
    return resolve_loss_scale(draft.loss_scale, precision, draft.batch_size, len(data), derivative)


def engine_of(plan: Plan) -> Engine:
    """Return the engine that a plan names."""
    return ENGINES[plan.engine]()


def _check_half_precision(draft: Plan) -> None:
    """Raise ConfigError for a network that half precision does not suit."""
    if draft.precision in HALF_DTYPES and draft.network.num_indices is not None:
        raise ConfigError(
            "expected precision 'float32', 'tf32' or 'float64' for indices, which half precision "
            f"rounds, got {draft.precision!r}"
        )
    if draft.precision in HALF_DTYPES and not isinstance(draft.network, NetworkSpec):
        raise ConfigError(
            "expected precision 'float32', 'tf32' or 'float64' for a module that is no Sequential "
            f"of known layers, got {draft.precision!r}"
        )


def _check_last_batch(draft: Plan, num_rows: int) -> None:
    """Raise ConfigError early if the epoch's last batch would fail after all others."""
    last, ranks = num_rows % draft.batch_size or draft.batch_size, draft.num_ranks
    among = f" among {ranks} devices" if ranks > 1 else ""
    for name, spec in draft.network.layers if isinstance(draft.network, NetworkSpec) else ():
        # Statistics are of each rank's own rows, unless they are synchronized.
        is_whole = ranks == 1 or getattr(spec, "synchronized", True)
        if (last if is_whole else last // ranks) < spec.least_rows:
            raise ConfigError(
                f"layer {name} ({spec.kind}) expects batches of at least {spec.least_rows} rows, "
                f"but {num_rows} rows in batches of {draft.batch_size} leave {last}{among} for "
                "the last; another batch_size will do"
            )


def _bytes(draft: Plan, prepared: Prepared, state: TrainState, data: TrainingData) -> int:
    """Return the device's bytes of data and copies, state, gradients and activations."""
    itemsize = 2 if draft.precision in HALF_DTYPES else np.dtype(draft.dtype).itemsize
    shapes = (
        draft.network.shapes
        if isinstance(draft.network, NetworkSpec)
        else (draft.network.input_shape,)
    )
    activations = sum(int(np.prod(shape)) for shape in shapes) * 2 * itemsize
    activations *= draft.most_of_rank(draft.batch_size)
    rows: list[Any] = [] if prepared.is_streamed else [data.x, data.y, data.sample_weight]
    gradients = [state.parameters[name] for name in draft.trained]
    held = [*rows, *arrays_of(state), *gradients]
    return (
        activations
        + prepared.copied_bytes
        + sum(int(array.nbytes) for array in held if array is not None)
    )
