"""Fitted estimators as safetensors files: parameters and attributes as JSON, arrays as they are.

What JSON has not is written as an object of one key that says what it is: ``{"tuple": [...]}``,
``{"array": name}``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from sklearn.preprocessing import LabelBinarizer

from warpfit import losses
from warpfit.backends.base import FLOAT_DTYPES
from warpfit.checks import Array
from warpfit.errors import ConfigError, FileFormatError
from warpfit.estimators.binarizer import OneLabelBinarizer, as_label_binarizer, as_ours
from warpfit.estimators.fitted import COUNTS, CURVES, NUMBERS, WEIGHTS
from warpfit.files import PathLike
from warpfit.losses import Loss
from warpfit.optim.schedules import Schedule, as_schedule
from warpfit.training.storage import ESTIMATOR, MALFORMED, read_file, write_file

E = TypeVar("E")


def save_estimator(estimator: Any, path: PathLike) -> None:
    """Write a fitted estimator; see `BaseMLP.save`."""
    writer = _Writer(estimator)
    parameters = estimator.get_params(deep=False)
    header = {
        "estimator": type(estimator).__name__,
        "parameters": {name: writer.described(name, value) for name, value in parameters.items()},
        "fitted": writer.fitted(estimator),
    }
    write_file(path, ESTIMATOR, writer.arrays, header)


def load_estimator(kind: type[E], path: PathLike) -> E:
    """Return the estimator in a file; see `BaseMLP.load`."""
    header, arrays = read_file(path, ESTIMATOR)
    if header.get("estimator") != kind.__name__:
        raise FileFormatError(
            f"expected {path} to hold a {kind.__name__}, found {header.get('estimator')!r}"
        )
    try:
        return _Reader(kind, header["parameters"], arrays).estimator(header["fitted"])
    except MALFORMED as error:
        raise FileFormatError(f"{path} holds no {kind.__name__}: {error}") from error


class _Writer:
    """Describes values for JSON; `arrays` are those of floats that they hold, each once."""

    def __init__(self, estimator: Any) -> None:
        self.kind = type(estimator)
        self.arrays: dict[str, Array] = {}
        self._names: dict[int, str] = {}

    def fitted(self, estimator: Any, prefix: str = "") -> dict[str, Any]:
        """Return what is not a parameter among the attributes of an estimator."""
        parameters = estimator.get_params(deep=False)
        attributes = {
            name: value for name, value in vars(estimator).items() if name not in parameters
        }
        return {name: self.described(prefix + name, value) for name, value in attributes.items()}

    def described(self, name: str, value: Any) -> Any:
        """Return a value as JSON has it, or raise ConfigError."""
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, np.ndarray):
            return self._array(name, value)
        if isinstance(value, (list, tuple)):
            items = [self.described(f"{name}/{idx}", item) for idx, item in enumerate(value)]
            return {"tuple": items} if isinstance(value, tuple) else items
        if isinstance(value, dict):
            return {
                "dict": [
                    [self.described(name, key), self.described(f"{name}/{key}", item)]
                    for key, item in value.items()
                ]
            }
        if isinstance(value, Schedule | Loss) and type(value).__module__.startswith("warpfit."):
            return {"schedule" if isinstance(value, Schedule) else "loss": value.to_dict()}
        if isinstance(value, LabelBinarizer | OneLabelBinarizer):
            return {"label_binarizer": self.described(name, vars(as_label_binarizer(value)))}
        if type(value) is self.kind:
            random_state = self.described(f"{name}/random_state", value.random_state)
            return {
                "network": {"random_state": random_state, "fitted": self.fitted(value, f"{name}/")}
            }
        raise _unknown(name, type(value).__name__)

    def _array(self, name: str, array: Array) -> Any:
        if str(array.dtype) in FLOAT_DTYPES:
            known = self._names.setdefault(id(array), name)
            self.arrays[known] = array
            return {"array": known}
        if array.dtype.kind == "U" or (
            array.dtype.kind == "O" and all(isinstance(item, str) for item in array)
        ):
            return {"strings": array.tolist(), "is_object": array.dtype.kind == "O"}
        if array.dtype.kind in "iub":
            return {"numbers": array.tolist(), "dtype": str(array.dtype)}
        raise _unknown(name, f"array of {array.dtype}")


def _unknown(name: str, kind: str) -> ConfigError:
    return ConfigError(
        "save: expected parameters and attributes of plain numbers, strings, arrays of them, and "
        "schedules and losses "
        f"of warpfit, got {name} with a value of type {kind}; pickle stores any"
    )


class _Reader:
    """Makes values, and the estimator, of what a `_Writer` described."""

    def __init__(self, kind: Any, parameters: dict[str, Any], arrays: dict[str, Array]) -> None:
        self.kind, self.arrays = kind, arrays
        self.parameters = {str(name): self.value(text) for name, text in parameters.items()}

    def estimator(self, fitted: dict[str, Any], **own: Any) -> Any:
        """Return the estimator of the file's parameters, or its `own`, with these attributes."""
        estimator = self.kind(**{**self.parameters, **own})
        estimator._validate_params()
        for name, text in fitted.items():
            if hasattr(self.kind, name) or name in self.parameters:
                raise ValueError(f"expected names of attributes, found {name}")
            setattr(estimator, name, self.value(text))
        _check_fitted(estimator)
        if hasattr(estimator, "_label_binarizer"):
            estimator._label_binarizer = as_ours(estimator._label_binarizer)
        return estimator

    def value(self, text: Any) -> Any:
        if isinstance(text, list):
            return [self.value(item) for item in text]
        if not isinstance(text, dict):
            return text
        match text:
            case {"array": name}:
                return self.arrays[name]
            case {"numbers": numbers, "dtype": dtype}:
                if dtype not in INTEGERS:
                    raise ValueError(
                        f"expected a dtype among {', '.join(INTEGERS)}, found {dtype!r}"
                    )
                return np.array(numbers, dtype)
            case {"strings": strings, "is_object": is_object}:
                return np.array([str(item) for item in strings], object if is_object else str)
            case {"tuple": items}:
                return tuple(self.value(items))
            case {"dict": pairs}:
                return {self.value(key): self.value(item) for key, item in pairs}
            case {"schedule": description}:
                return as_schedule(description)
            case {"loss": description}:
                return losses.resolve(description)
            case {"label_binarizer": attributes}:
                binarizer = LabelBinarizer()
                binarizer.__dict__.update(self.value(attributes))
                return binarizer
            case {"network": {"random_state": seed, "fitted": fitted}}:
                return self.estimator(fitted, random_state=self.value(seed), n_ensemble=1)
        raise ValueError(
            f"expected a description of a value, found an object with {', '.join(text)}"
        )


INTEGERS = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
BINARIZED = ("binary", "multiclass", "multilabel-indicator")


def _check_fitted(estimator: Any) -> None:
    """Raise ValueError, or what a bad attribute raises, unless the estimator can predict."""
    for names, is_right, expected in ATTRIBUTES:
        for name in names:
            value = getattr(estimator, name, None)
            if not (value is None or is_right(value)):
                raise ValueError(f"expected {name} to be {expected}, found {type(value).__name__}")
    _check_network(estimator)
    if hasattr(estimator, "classes_") or hasattr(estimator, "_label_binarizer"):
        _check_classes(estimator)
    if estimator.out_activation_ != (expected := estimator._targets.out_activation):
        raise ValueError(
            f"expected out_activation_ {expected!r}, found {estimator.out_activation_!r}"
        )
    _check_members(estimator)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _are_arrays(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value)


def _are_weights(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_are_arrays, value))


# What attributes must be, if they are there and not None.
ATTRIBUTES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("n_features_in_", *COUNTS), _is_count, "a count"),
    (NUMBERS, _is_number, "a number"),
    (
        CURVES,
        lambda value: isinstance(value, list) and all(map(_is_number, value)),
        "a list of numbers",
    ),
    (WEIGHTS, _are_arrays, "a list of arrays"),
    (("_best_weights",), _are_weights, "two lists of arrays"),
    (
        ("feature_names_in_", "classes_"),
        lambda value: _are_arrays([value]) and value.ndim == 1,
        "an array",
    ),
)


def _check_network(estimator: Any) -> None:
    """Raise ValueError unless the weights are one network's from the features to the outputs."""
    weights, biases = estimator.coefs_, estimator.intercepts_
    sizes = [estimator.n_features_in_, *(bias.size for bias in biases)]
    is_whole = (
        len(weights) > 0
        and min(sizes) > 0
        and [weight.shape for weight in weights] == list(pairwise(sizes))
        and [bias.shape for bias in biases] == [(size,) for size in sizes[1:]]
        and sizes[-1] == estimator.n_outputs_
        and len(sizes) == estimator.n_layers_
        and len({array.dtype for array in (*weights, *biases)}) == 1
        and len(getattr(estimator, "feature_names_in_", range(sizes[0]))) == sizes[0]
    )
    if not is_whole:
        shapes = [weight.shape for weight in weights]
        raise ValueError(
            f"expected weights from {sizes[0]} features to {estimator.n_outputs_} outputs, found "
            f"{shapes}"
        )


def _check_classes(estimator: Any) -> None:
    """Raise ValueError unless classes and outputs go together."""
    binarizer, classes = estimator._label_binarizer, estimator.classes_
    expected = 1 if binarizer.y_type_ == "binary" else len(binarizer.classes_)
    is_whole = (
        type(binarizer) is LabelBinarizer
        and binarizer.y_type_ in BINARIZED
        and (binarizer.neg_label, binarizer.pos_label) == (0, 1)
        and binarizer.sparse_output is False
        and binarizer.sparse_input_ in (False, True)
        and len(binarizer.classes_) == len(classes)
        and np.array_equal(np.unique(classes), classes)
        and np.array_equal(np.unique(binarizer.classes_), binarizer.classes_)
        and (
            binarizer.y_type_ == "multilabel-indicator"
            or np.array_equal(classes, binarizer.classes_)
        )
        and (binarizer.y_type_ != "binary" or len(classes) <= 2)
        and estimator.n_outputs_ == expected
    )
    if not is_whole:
        raise ValueError(
            f"expected {expected} outputs of the {binarizer.y_type_} classes {binarizer.classes_}, "
            f"found {estimator.n_outputs_} of {classes}"
        )


def _check_members(estimator: Any) -> None:
    """Raise ValueError unless an ensemble's networks are alike; after Ctrl-C they are fewer."""
    members = getattr(estimator, "estimators_", None)
    if members is None:
        return
    alike = ("n_features_in_", "n_outputs_", "out_activation_")
    is_whole = isinstance(members, list) and len(members) > 0
    for member in members:
        is_whole &= type(member) is type(estimator) and not hasattr(member, "estimators_")
        is_whole &= all(getattr(member, name, None) == getattr(estimator, name) for name in alike)
    if not is_whole:
        raise ValueError(
            f"expected estimators_ to be a list of networks like the first, found {len(members)}"
        )
