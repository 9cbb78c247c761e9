"""Checkpoints, which are runs between two epochs, as files that `storage` writes and reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from warpfit.backends import Array, Backend
from warpfit.engines.base import EpochReport, Plan, TrainState
from warpfit.engines.scaling import LossScale
from warpfit.errors import ConfigError, FileFormatError, WarpfitError
from warpfit.optim.schedules import PlateauState
from warpfit.training.same_run import check_same_run
from warpfit.training.storage import (
    CHECKPOINT,
    OF_CALLBACKS,
    HostArrays,
    PathLike,
    read_file,
    write_file,
)


class CallbackState(NamedTuple):
    """The state of a kind of callback: JSON-ready numbers, and arrays."""

    kind: str
    numbers: dict[str, Any]
    arrays: dict[str, Array]


@dataclass(frozen=True)
class Snapshot:
    """A run between two epochs: its state, reports so far, the state of each callback, and the
    precisions that it went on in, by their first epochs.
    """

    state: TrainState
    reports: list[EpochReport]
    callbacks: list[CallbackState]
    later_precisions: dict[int, str] = field(default_factory=dict)


def save_checkpoint(
    path: PathLike, plan: Plan, snapshot: Snapshot, ops: Backend, data: Mapping[str, str]
) -> None:
    """Write a run between two epochs, with the identity of its plan and the digests of its data."""
    state = snapshot.state
    named = {f"parameters/{name}": array for name, array in state.parameters.items()}
    named |= {f"buffers/{name}": array for name, array in state.buffers.items()}
    for slot, arrays in state.slots.items():
        named |= {f"slots/{slot}/{name}": array for name, array in arrays.items()}
    for idx, callback in enumerate(snapshot.callbacks):
        named |= {f"{OF_CALLBACKS}{idx}/{name}": array for name, array in callback.arrays.items()}
    host = {name: _native(path, name, ops.to_numpy(array)) for name, array in named.items()}
    host |= {f"losses/{report.epoch}": report.step_losses for report in snapshot.reports}
    header = {
        "plan": plan.identity(),
        "data": dict(data),
        "step": state.step,
        "epoch": state.epoch,
        "seed": state.seed,
        "plateau": asdict(state.plateau),
        "loss_scale": asdict(state.loss_scale),
        "exponents": [list(own) for own in state.exponents],
        "reports": [
            {name: value for name, value in vars(report).items() if name != "step_losses"}
            for report in snapshot.reports
        ],
        "callbacks": [
            {"kind": kind, "numbers": numbers} for kind, numbers, _ in snapshot.callbacks
        ],
        "later_precisions": [list(own) for own in snapshot.later_precisions.items()],
    }
    write_file(path, CHECKPOINT, host, header)


def _native(path: PathLike, name: str, array: Any) -> Any:
    """Return an array in this machine's byte order, or raise ConfigError unless a file can hold it:
    it may be that of a user's callback.
    """
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise ConfigError(
            f"cannot write {path}: expected an array of numbers as {name}, got {array.dtype}"
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def load_checkpoint(
    path: PathLike,
    plan_for: Callable[[Mapping[str, Any]], Plan],
    like: TrainState,
    ops: Backend,
    check_data: Callable[[Mapping[str, Any]], None],
) -> Snapshot:
    """Return the run in a checkpoint, for a run of the same plan.

    Parameters
    ----------
    path : path of the file
    plan_for : function
        Given the JSON text, it returns the plan of the run that goes on.
    like : TrainState
        A state with the names and shapes to expect.
    ops : Backend
        Where the arrays are to live.
    check_data : function
        Given the JSON text, it raises ConfigError if the data are not those to go on with.

    Raises
    ------
    FileFormatError
        If the file is no whole checkpoint.
    ConfigError
        If it comes from another plan or seed, or from other data.
    """
    header, arrays = read_file(path, CHECKPOINT)
    try:
        check_same_run(path, header, plan_for(header), like.seed)
        check_data(header)
        return Snapshot(
            _state(header, arrays, like, ops),
            [_report(arrays, **report) for report in header["reports"]],
            [
                _callback(stored, _under(arrays, f"{OF_CALLBACKS}{idx}/"), ops)
                for idx, stored in enumerate(header["callbacks"])
            ],
            {_count(epoch): str(own) for epoch, own in header.get("later_precisions", ())},
        )
    except WarpfitError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileFormatError(
            f"{path} holds no whole checkpoint, wrong or missing is: {error}"
        ) from error


def _state(
    header: Mapping[str, Any], arrays: HostArrays, like: TrainState, ops: Backend
) -> TrainState:
    """Return the state of a run, with the names and shapes of another."""
    return TrainState(
        parameters=_take(arrays, "parameters/", like.parameters, ops),
        buffers=_take(arrays, "buffers/", like.buffers, ops),
        slots={
            slot: _take(arrays, f"slots/{slot}/", known, ops) for slot, known in like.slots.items()
        },
        step=_count(header["step"]),
        epoch=_count(header["epoch"]),
        seed=like.seed,
        plateau=_plateau(**header["plateau"]),
        loss_scale=_loss_scale(**header["loss_scale"]),
        exponents=[_exponents(*own) for own in header.get("exponents", ())],
    )


def _callback(stored: Mapping[str, Any], arrays: HostArrays, ops: Backend) -> CallbackState:
    on_device = {name: ops.asarray(array) for name, array in arrays.items()}
    return CallbackState(str(stored["kind"]), dict(stored["numbers"]), on_device)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"count {value!r}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"number {value!r}")
    return float(value)


def _plateau(*, scale: Any, best: Any, bad_epochs: Any, cooldown: Any) -> PlateauState:
    return PlateauState(_number(scale), _number(best), _count(bad_epochs), _count(cooldown))


def _loss_scale(*, value: Any, good_steps: Any) -> LossScale:
    return LossScale(_number(value), _count(good_steps))


def _exponents(inputs: Any, weights: Any, gradients: Any) -> tuple[int, int, int]:
    found = inputs, weights, gradients
    if not all(type(own) is int and -128 <= own < 128 for own in found):
        raise ValueError(f"exponents {found!r}")
    return found


def _report(
    arrays: HostArrays, *, epoch: Any, num_rows: Any, metrics: Any = (), **numbers: Any
) -> EpochReport:
    optional = ("accuracy", "val_loss", "val_accuracy")
    checked: dict[str, Any] = {
        name: None if value is None and name in optional else _number(value)
        for name, value in numbers.items()
    }
    losses = arrays[f"losses/{epoch}"].astype(np.float64).reshape(-1)
    return EpochReport(
        epoch=_count(epoch),
        num_rows=_count(num_rows),
        step_losses=losses,
        metrics={
            str(name): None if value is None else _number(value)
            for name, value in dict(metrics).items()
        },
        **checked,
    )


def _under(arrays: HostArrays, prefix: str) -> HostArrays:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _take(arrays: HostArrays, prefix: str, like: Mapping[str, Any], ops: Backend) -> dict[str, Any]:
    found = _under(arrays, prefix)
    if {name: array.shape for name, array in found.items()} != {
        name: tuple(a.shape) for name, a in like.items()
    }:
        raise FileFormatError(
            f"expected the arrays {sorted(like)} under {prefix} in the model's shapes, found others"
        )
    return {name: ops.copy(ops.asarray(found[name], str(like[name].dtype))) for name in like}
