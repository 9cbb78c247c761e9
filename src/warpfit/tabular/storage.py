"""Fitted estimators as safetensors files: what they know as JSON, numbers as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from warpfit.errors import ConfigError, FileFormatError
from warpfit.files import PathLike
from warpfit.tabular.members import Shape, Trained
from warpfit.tabular.methods import METHODS
from warpfit.tabular.network import Columns
from warpfit.tabular.parameters import settings_of
from warpfit.tabular.preprocessing import Preprocessor
from warpfit.tabular.targets import Classes, Numbers, Targets
from warpfit.training.storage import ESTIMATOR, MALFORMED, HostArrays, read_file, write_file

Array = npt.NDArray[Any]
E = TypeVar("E")

OF_NUMBERS = ("mean", "std", "low", "high")
OF_FOLDS = ("folds", "out of fold")
LABEL_DTYPES = "iufb"


def save_estimator(
    estimator: Any, path: PathLike, *, metadata: Mapping[str, str | None] | None = None
) -> None:
    """Write a fitted estimator, with more about it; see `BaseTabular.save`."""
    try:  # as `load` will
        estimator._validate_params()
        settings_of(estimator)
    except ValueError as error:
        raise ConfigError(f"save: {error}") from error
    arrays: HostArrays = {}
    header = {
        "estimator": type(estimator).__name__,
        "parameters": {name: _plain(name, each) for name, each in estimator.get_params().items()},
        "table": {
            "method": estimator.method_,
            "num_features": estimator.n_features_in_,
            "names": _names_of(estimator),
            "labels": _described_labels(getattr(estimator, "classes_", None)),
            "categories": estimator.preprocessor_.described(),
            "left_out": estimator.left_out_,
        },
        "members": [
            _described(idx, member, arrays) for idx, member in enumerate(estimator.members_)
        ],
    }
    if metadata is not None:
        header["metadata"] = dict(metadata)
    if hasattr(estimator, "folds_"):
        arrays["folds"] = estimator.folds_.astype(np.float64)
        arrays["out of fold"] = np.nan_to_num(getattr(estimator, estimator._out_of_fold))
    if hasattr(estimator, "_importances"):
        arrays["importances"] = estimator._importances
    write_file(path, ESTIMATOR, arrays, header)


def load_estimator(kind: type[E], path: PathLike) -> E:
    """Return the estimator in a file; see `BaseTabular.load`."""
    return load_with_metadata((kind,), path)[0]


def load_with_metadata(kinds: Sequence[type[E]], path: PathLike) -> tuple[E, dict[str, Any]]:
    """Return the estimator in a file, of one of some classes, and what else the file says."""
    header, arrays = read_file(path, ESTIMATOR)
    kind = {each.__name__: each for each in kinds}.get(str(header.get("estimator")))
    if kind is None:
        expected = " or ".join(each.__name__ for each in kinds)
        raise FileFormatError(
            f"expected {path} to hold a {expected}, found {header.get('estimator')!r}"
        )
    metadata = header.get("metadata", {})
    try:
        _expect("metadata as an object", metadata, isinstance(metadata, dict))
        return _estimator_of(kind, header, arrays), metadata
    except MALFORMED as error:
        raise FileFormatError(f"{path} holds no {kind.__name__}: {error}") from error


# -- writing


def _plain(name: str, value: Any) -> Any:
    """Return a parameter as JSON has it, or raise ConfigError."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, tuple):
        value = list(value)
    parts = value if isinstance(value, list) else [value]
    if not all(part is None or isinstance(part, bool | int | float | str) for part in parts):
        raise ConfigError(
            f"save: expected parameters of plain numbers and strings, got {name} of type "
            f"{type(value).__name__}; pickle stores any"
        )
    return value


def _names_of(estimator: Any) -> list[str] | None:
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else names.tolist()


def _described_labels(labels: Array | None) -> dict[str, Any] | None:
    if labels is None:
        return None
    are_texts = all(isinstance(label, str) for label in labels.tolist())
    if not are_texts and labels.dtype.kind not in LABEL_DTYPES:
        raise ConfigError(
            f"save: expected classes that are numbers or strings, got dtype {labels.dtype}; "
            "pickle stores any"
        )
    dtype = str(labels.dtype) if labels.dtype.kind in LABEL_DTYPES else labels.dtype.kind
    return {"values": labels.tolist(), "dtype": dtype}


def _described(idx: int, member: Trained, arrays: HostArrays) -> dict[str, Any]:
    """Put a network's arrays among the others, and return what else there is of it."""
    own = {f"network/{name}": each for name, each in member.network.state_dict().items()}
    own |= {name: getattr(member.preprocessor, name) for name in member.preprocessor.SCALES}
    if isinstance(member.targets, Numbers):
        own |= {name: getattr(member.targets, name) for name in OF_NUMBERS}
    arrays.update({f"{idx}/{name}": each for name, each in own.items()})
    return {
        "hidden": list(member.shape.hidden),
        "activation": member.shape.activation,
        "num_bins": member.shape.num_bins,
        "losses": member.losses,
        "errors": member.errors,
        "best_epoch": member.best_epoch,
        "seed": member.seed,
        "is_2d": isinstance(member.targets, Numbers) and member.targets.is_2d,
    }


# -- reading


def _estimator_of(kind: Any, header: Mapping[str, Any], arrays: HostArrays) -> Any:
    table, members = header["table"], header["members"]
    estimator = kind(**{str(name): value for name, value in header["parameters"].items()})
    estimator._validate_params()
    settings_of(estimator)
    _expect("a method", table["method"], table["method"] in METHODS)
    _expect("members", members, isinstance(members, list) and len(members) > 0)
    num_features = _count("num_features", table["num_features"], 1)
    labels = _labels_of(table["labels"])
    _expect("classes of a classifier only", labels, (labels is not None) == kind._are_classes)
    preprocessor = METHODS[table["method"]].preprocessor
    most = len(table["categories"]["texts"]) + arrays[f"0/{preprocessor.SCALES[-1]}"].size
    _expect("no more features than the arrays have", num_features, num_features <= most)
    first = preprocessor.of_described(table["categories"], num_features)
    estimator.method_, estimator.n_features_in_ = table["method"], num_features
    if table["names"] is not None:
        estimator.feature_names_in_ = _names(table["names"], num_features)
    if labels is not None:
        estimator.classes_ = labels
    estimator._keep_members(
        [
            _member_of(idx, text, table["method"], first, labels, _own(arrays, f"{idx}/"))
            for idx, text in enumerate(members)
        ],
        [_count("left_out", each, 0) for each in table["left_out"]],
    )
    _check_alike(estimator.members_)
    others = sorted(name for name in arrays if "/" not in name)
    if "folds" in others:
        _take_folds(estimator, arrays)
    if "importances" in others:
        shape = arrays["importances"].shape
        _expect(f"{num_features} importances", shape, shape == (num_features,))
        estimator._importances = arrays["importances"]
    num_known = sum(len(_own(arrays, f"{idx}/")) for idx in range(len(members))) + len(others)
    is_whole = num_known == len(arrays) and {*others} <= {*OF_FOLDS, "importances"}
    is_whole &= len({*OF_FOLDS}.intersection(others)) in (0, len(OF_FOLDS))
    _expect("no other arrays", sorted(arrays), is_whole)
    return estimator


def _own(arrays: HostArrays, prefix: str) -> HostArrays:
    return {
        name.removeprefix(prefix): each for name, each in arrays.items() if name.startswith(prefix)
    }


def _expect(what: str, found: Any, is_right: bool) -> None:
    if not is_right:
        raise ValueError(f"expected {what}, found {str(found)[:100]}")


def _count(name: str, value: Any, lowest: int) -> int:
    _expect(f"{name} as a count", value, type(value) is int and lowest <= value < 2**63)
    return int(value)


def _names(names: Any, num_features: int) -> Array:
    are_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    _expect(f"{num_features} names", names, are_names and len(names) == num_features)
    _expect("names that differ", names, len(set(names)) == num_features)
    return np.array(names, object)


def _labels_of(text: Any) -> Array | None:
    if text is None:
        return None
    values, dtype = text["values"], text["dtype"]
    _expect("a dtype of classes", dtype, isinstance(dtype, str))
    if dtype in ("U", "O"):
        labels = np.array([str(value) for value in values], object if dtype == "O" else str)
    else:
        _expect("a dtype of numbers", dtype, np.dtype(dtype).kind in LABEL_DTYPES)
        labels = np.array(values, dtype)
    _expect("classes", values, labels.ndim == 1 and len(labels) > 0)
    _expect("classes in order", values, np.array_equal(np.unique(labels), labels))
    return labels


def _member_of(
    idx: int,
    text: Mapping[str, Any],
    method: str,
    preprocessor: Preprocessor,
    labels: Array | None,
    arrays: HostArrays,
) -> Trained:
    """Return a network, or raise what its malformed description does."""
    targets = _targets_of(text, labels, arrays)
    hidden = tuple(_count("hidden", size, 1) for size in text["hidden"])
    _expect("an activation", text["activation"], isinstance(text["activation"], str))
    preprocessor = preprocessor.with_scales(*(arrays[name] for name in preprocessor.SCALES))
    num_bins = _count("num_bins", text.get("num_bins", 0), 0)
    outputs = (targets.num_outputs, hidden, text["activation"], labels is not None)
    shape = Shape(preprocessor.columns, *outputs, num_bins)
    weights = _own(arrays, "network/")
    _check_size(shape, sum(each.size for each in weights.values()))
    network = METHODS[method].network(shape, _count("seed", text["seed"], 0))
    network.load_state_dict(weights)
    network.eval()
    num_known = (
        len(weights) + len(preprocessor.SCALES) + (0 if labels is not None else len(OF_NUMBERS))
    )
    _expect(f"{num_known} arrays of network {idx}", sorted(arrays), len(arrays) == num_known)
    losses, errors = _curve(text["losses"]), _curve(text["errors"])
    best_epoch = _count("best_epoch", text["best_epoch"], 1)
    _expect("curves of equal length", len(errors), len(errors) == len(losses) >= best_epoch)
    return Trained(
        network=network,
        shape=shape,
        preprocessor=preprocessor,
        targets=targets,
        losses=losses,
        errors=errors,
        best_epoch=best_epoch,
        seed=text["seed"],
    )


def _targets_of(text: Mapping[str, Any], labels: Array | None, arrays: HostArrays) -> Targets:
    if labels is not None:
        return Classes(labels)
    values = [arrays[name] for name in OF_NUMBERS]
    is_2d, shape = text["is_2d"], values[0].shape
    _expect("is_2d as true or false", is_2d, isinstance(is_2d, bool))
    _expect("a number for each output", shape, {each.shape for each in values} == {shape})
    _expect("outputs", shape, len(shape) == 1 and shape[0] > 0 and (is_2d or shape == (1,)))
    mean, std, low, high = values
    return Numbers(mean, std, low, high, is_2d)


def _check_size(shape: Shape, num_numbers: int) -> None:
    """Raise ValueError if a network is larger than its file, before there is memory for it."""
    columns: Columns = shape.columns
    widths = (columns.num_plain + len(columns.num_codes), *shape.hidden, shape.num_outputs)
    least = columns.num_numbers * shape.num_bins + sum(columns.num_codes)
    least += sum(fan_in * fan_out for fan_in, fan_out in pairwise(widths))
    _expect(f"at least {least} weights of {asdict(shape)}", num_numbers, least <= num_numbers)


def _curve(values: Any) -> list[float]:
    are_numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
    _expect("a list of numbers", values, are_numbers)
    return list(values)


def _check_alike(members: list[Trained]) -> None:
    first = members[0].targets
    for member in members:
        is_alike = member.targets.num_outputs == first.num_outputs
        if isinstance(member.targets, Numbers) and isinstance(first, Numbers):
            is_alike &= member.targets.is_2d == first.is_2d
        _expect("networks with the same outputs", member.targets, is_alike)


def _take_folds(estimator: Any, arrays: HostArrays) -> None:
    folds, predicted = arrays["folds"], arrays["out of fold"]
    are_folds = folds.ndim == 1 and np.isin(folds, np.arange(len(folds))).all()
    _expect("a fold for each row", folds.shape, bool(are_folds))
    targets = estimator.members_[0].targets
    is_1d = isinstance(targets, Numbers) and not targets.is_2d
    shape = (len(folds),) if is_1d else (len(folds), targets.num_outputs)
    _expect(f"predictions out of fold of shape {shape}", predicted.shape, predicted.shape == shape)
    is_known = (folds < len(estimator.members_)).reshape(-1, *[1] * (len(shape) - 1))
    estimator._keep_folds(folds.astype(np.int64), np.where(is_known, predicted, np.nan))
