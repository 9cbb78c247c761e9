"""Models and checkpoints as safetensors files; reading one never runs code.

Both kinds are named arrays plus one JSON text: ``format``, ``version``, and what is described at `save` and
`save_checkpoint`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.backends import Backend
from warpfit.backends.base import FLOAT_DTYPES
from warpfit.engines.base import EpochReport, Plan, TrainState
from warpfit.errors import ConfigError, FileFormatError, WarpfitError
from warpfit.files import atomic_path
from warpfit.nn.network import NetworkSpec, Sequential
from warpfit.nn.spec import LayerSpec
from warpfit.optim.schedules import PlateauState

__all__ = ["StoredCheckpoint", "load", "load_checkpoint", "load_metadata", "save", "save_checkpoint"]

MODEL, CHECKPOINT = "warpfit-model", "warpfit-checkpoint"
VERSION = 1
HEADER = "warpfit"

HostArrays = dict[str, npt.NDArray[Any]]
PathLike = str | os.PathLike[str]


def _write(path: PathLike, kind: str, arrays: HostArrays, header: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    text = json.dumps({"format": kind, "version": VERSION, **header})
    with atomic_path(path) as temporary:
        save_file(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary, {HEADER: text}
        )


def _read(path: PathLike, kind: str) -> tuple[dict[str, Any], HostArrays]:
    """Return the JSON text and the arrays of a file of `kind`, or raise FileFormatError."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileFormatError(f"expected a {kind} file, found none at {path}")
    try:
        with safe_open(str(path), framework="numpy") as file:
            text = (file.metadata() or {}).get(HEADER)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(text) if text is not None else {}
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{path} is no readable {kind} file: {error}") from error
    found = header.get("format") if isinstance(header, dict) else None
    if found != kind:
        raise FileFormatError(f"expected {path} to be a {kind} file, found format {found!r}")
    if header.get("version") != VERSION:
        raise FileFormatError(f"expected {path} to have version {VERSION}, found {header.get('version')!r}")
    for name, array in arrays.items():
        if str(array.dtype) not in FLOAT_DTYPES:
            raise FileFormatError(f"{path}: expected float32 or float64 in {name}, found {array.dtype}")
    return header, arrays


# -- models --------------------------------------------------------------------------------------------------


def save(model: Sequential, path: PathLike, *, metadata: Mapping[str, Any] | None = None) -> None:
    """Write a model: its layers as JSON, its arrays as they are.

    Parameters
    ----------
    model : Sequential
        A chain of the package's layers.
    path : path of the file, by convention ending in .safetensors
    metadata : mapping, optional
        JSON-ready; `load_metadata` returns it.

    Raises
    ------
    ConfigError
        If the model holds modules of other kinds, or the file cannot be written.
    """
    layers = model.flat_layers() if type(model) is Sequential else None
    if layers is None:
        raise ConfigError(
            "save: expected a Sequential of warpfit's layers, got one with other modules; "
            "state_dict() and load_state_dict() serve any model"
        )
    header = {
        "layers": [{"name": name, **layer.spec.to_dict()} for name, layer in layers],
        "dtype": model.dtype,
        "metadata": dict(metadata or {}),
    }
    _write(path, MODEL, model.state_dict(), header)


def load(path: PathLike) -> Sequential:
    """Return the model in a file that `save` wrote.

    Raises
    ------
    FileFormatError
        If the file is missing, cut short, of another kind, or its arrays do not fit its layers.
    """
    header, arrays = _read(path, MODEL)
    network = NetworkSpec.from_dict({"layers": header.get("layers"), "input_shape": ()})
    dtype = header.get("dtype")
    if dtype not in FLOAT_DTYPES or any(str(array.dtype) != dtype for array in arrays.values()):
        raise FileFormatError(
            f"{path}: expected all arrays in its dtype, float32 or float64, found {dtype!r}"
        )
    _check_sizes(path, [spec for _, spec in network.layers], arrays)
    try:
        return Sequential.from_spec(network, arrays, dtype=dtype)
    except WarpfitError as error:
        raise FileFormatError(f"{path}: the arrays do not fit the layers: {error}") from error


def _check_sizes(path: PathLike, specs: Sequence[LayerSpec], arrays: HostArrays) -> None:
    """Raise FileFormatError before a forged layer size could ask for more memory than the file holds."""
    described = 0
    for spec in specs:
        for part in (*spec.parameters().values(), *spec.buffers().values()):
            described += int(np.prod([int(size) for size in part.shape], dtype=object))
    held = sum(array.size for array in arrays.values())
    if described > held * max(1, len(specs)):
        raise FileFormatError(f"{path}: expected {described} numbers for its layers, found {held}")


def load_metadata(path: PathLike) -> dict[str, Any]:
    """Return the metadata that `save` was given, or raise FileFormatError."""
    header, _ = _read(path, MODEL)
    metadata = header.get("metadata")
    if not isinstance(metadata, dict):
        raise FileFormatError(f"{path}: expected metadata as a JSON object, found {type(metadata).__name__}")
    return metadata


# -- checkpoints ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredCheckpoint:
    """A run as a checkpoint holds it: state, reports so far, and what each callback remembered."""

    state: TrainState
    reports: list[EpochReport]
    callbacks: list[tuple[dict[str, Any], HostArrays]]


def save_checkpoint(
    path: PathLike,
    plan: Plan,
    state: TrainState,
    reports: Sequence[EpochReport],
    callbacks: Sequence[tuple[dict[str, Any], dict[str, Any]]],
    ops: Backend,
) -> None:
    """Write a run between two epochs, with the identity of its plan."""
    named = {f"parameters/{name}": array for name, array in state.parameters.items()}
    named |= {f"buffers/{name}": array for name, array in state.buffers.items()}
    for slot, arrays in state.slots.items():
        named |= {f"slots/{slot}/{name}": array for name, array in arrays.items()}
    for idx, (_, arrays) in enumerate(callbacks):
        named |= {f"callbacks/{idx}/{name}": array for name, array in arrays.items()}
    host = {name: ops.to_numpy(array) for name, array in named.items()}
    host |= {f"losses/{report.epoch}": report.step_losses for report in reports}
    header = {
        "plan": plan.identity(),
        "step": state.step,
        "epoch": state.epoch,
        "seed": state.seed,
        "plateau": asdict(state.plateau),
        "reports": [
            {key: value for key, value in asdict(report).items() if key != "step_losses"}
            for report in reports
        ],
        "callbacks": [numbers for numbers, _ in callbacks],
    }
    _write(path, CHECKPOINT, host, header)


def load_checkpoint(path: PathLike, plan: Plan, like: TrainState, ops: Backend) -> StoredCheckpoint:
    """Return the run in a checkpoint, for a run of the same plan.

    Parameters
    ----------
    path : path of the file
    plan : Plan
        The plan of the run that goes on.
    like : TrainState
        A state with the names and shapes to expect.
    ops : Backend
        Where the arrays are to live.

    Raises
    ------
    FileFormatError
        If the file is no whole checkpoint.
    ConfigError
        If it comes from another plan or seed.
    """
    header, arrays = _read(path, CHECKPOINT)
    try:
        _check_same_run(path, header, plan, like.seed)
        state = TrainState(
            parameters=_take(arrays, "parameters/", like.parameters, ops),
            buffers=_take(arrays, "buffers/", like.buffers, ops),
            slots={slot: _take(arrays, f"slots/{slot}/", known, ops) for slot, known in like.slots.items()},
            step=int(header["step"]),
            epoch=int(header["epoch"]),
            seed=like.seed,
            plateau=PlateauState(**header["plateau"]),
        )
        reports = [
            EpochReport(**report, step_losses=arrays[f"losses/{report['epoch']}"])
            for report in header["reports"]
        ]
        callbacks = [
            (
                dict(numbers),
                {name: ops.asarray(array) for name, array in _under(arrays, f"callbacks/{idx}/").items()},
            )
            for idx, numbers in enumerate(header["callbacks"])
        ]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, WarpfitError):
            raise
        raise FileFormatError(f"{path}: expected a whole checkpoint, found one without {error}") from error
    return StoredCheckpoint(state, reports, callbacks)


def _under(arrays: HostArrays, prefix: str) -> HostArrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _take(arrays: HostArrays, prefix: str, like: Mapping[str, Any], ops: Backend) -> dict[str, Any]:
    found = _under(arrays, prefix)
    if {name: array.shape for name, array in found.items()} != {
        name: tuple(a.shape) for name, a in like.items()
    }:
        raise FileFormatError(
            f"expected the arrays {sorted(like)} under {prefix} in the model's shapes, found others"
        )
    return {name: ops.copy(ops.asarray(found[name], str(like[name].dtype))) for name in like}


def _check_same_run(path: PathLike, header: Mapping[str, Any], plan: Plan, seed: int) -> None:
    # Through JSON and back, so that tuples and lists compare alike.
    ours: dict[str, Any] = json.loads(json.dumps({**plan.identity(), "seed": seed}))
    theirs = {**header["plan"], "seed": header["seed"]}
    differing = sorted(key for key in ours if ours[key] != theirs.get(key))
    if differing:
        key = differing[0]
        raise ConfigError(
            f"resume_from: expected a checkpoint of the same run, but {path} differs in {', '.join(differing)} "
            f"({key}: expected {ours[key]!r}, found {theirs.get(key)!r})"
        )
