"""Files of the package, models among them, as safetensors; reading one never runs code.

All kinds are named arrays plus one JSON text: ``format``, ``version``, and what is described at
`save`, at `checkpoints.save_checkpoint` and in `estimators/storage.py`. The text ends with the
SHA-256 of itself and the arrays (`checksum`), which is checked on reading.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from warpfit import losses
from warpfit.backends.base import FLOAT_DTYPES
from warpfit.callers import warn
from warpfit.checks import brief
from warpfit.errors import (
    ConfigError,
    DataError,
    DataWarning,
    FileFormatError,
    ShapeError,
    WarpfitError,
)
from warpfit.files import PathLike, as_path, atomic_path, check_is_file
from warpfit.losses import Loss
from warpfit.nn.module import Module
from warpfit.nn.network import NetworkSpec
from warpfit.nn.sequential import Sequential
from warpfit.nn.spec import LayerSpec, Shape
from warpfit.training.own_modules import UnknownClassError, check_classes, described, made

MODEL, ESTIMATOR, CHECKPOINT = "warpfit-model", "warpfit-estimator", "warpfit-checkpoint"
VERSION = 2
HEADER = "warpfit"
# Names of what callbacks keep in a checkpoint, in any dtype, begin so.
OF_CALLBACKS = "callbacks/"
# One entry of the metadata holds all: of several, safetensors would write now one first, now
# another.
SEAL = ', "sha256": "'

# What reading raises if an estimator's description is none.
MALFORMED = (
    WarpfitError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    RecursionError,
)


class Kind(NamedTuple):
    """A kind of file in words, and the function that reads it."""

    noun: str
    reader: str


KINDS = {
    MODEL: Kind("a model", "warpfit.load"),
    ESTIMATOR: Kind("an estimator", "{estimator}.load"),
    CHECKPOINT: Kind("a checkpoint", "fit(..., resume_from=...)"),
}

HostArrays = dict[str, npt.NDArray[Any]]


def write_file(path: PathLike, kind: str, arrays: HostArrays, header: dict[str, Any]) -> None:
    """Write arrays and one JSON text as a file of `kind`, or raise ConfigError."""
    from safetensors.numpy import save as to_bytes

    try:
        text = json.dumps({"format": kind, "version": VERSION, **header}, default=_plain)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"cannot write {path}: expected what JSON can hold, but {error}"
        ) from error
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    content = to_bytes(arrays, {HEADER: sealed(text, arrays)})
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def sealed(text: str, arrays: HostArrays) -> str:
    """Return a JSON object's text with the checksum of it and the arrays as its last entry."""
    return f'{text[:-1]}{SEAL}{checksum(text, arrays)}"}}'


def unsealed(text: str) -> tuple[str, str | None]:
    """Return the text that was sealed, and its checksum, None if it has none."""
    before, seal, after = text.rpartition(SEAL)
    return (
        (before + "}", after.removesuffix('"}')) if seal and after.endswith('"}') else (text, None)
    )


def checksum(text: str, arrays: HostArrays) -> str:
    """Return the SHA-256 of a file's JSON text and arrays, in hexadecimal.

    Hashed are ``[text, [[name, dtype, shape], ...]]`` as compact JSON in UTF-8, the arrays by
    ascending name, and then their bytes, little-endian and in C order. Where in the file they lie
    does not matter.
    """
    described = [[name, str(arrays[name].dtype), arrays[name].shape] for name in sorted(arrays)]
    digest = hashlib.sha256(
        json.dumps([text, described], separators=(",", ":"), ensure_ascii=False).encode()
    )
    for name in sorted(arrays):
        array = np.asarray(arrays[name], arrays[name].dtype.newbyteorder("<"), order="C")
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as JSON's number."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"got an object of type {type(value).__name__}")


def _int64(digits: str) -> int:
    """Return an integer that NumPy can compute with; a seed may need all 64 bits."""
    if len(digits) > 20 or abs(value := int(digits)) >= 2**64:
        raise ValueError(f"expected integers of 64 bits, found {digits[:25]}")
    return value


def read_file(path: PathLike, kind: str) -> tuple[dict[str, Any], HostArrays]:
    """Return the JSON text and the arrays of a file of `kind`, or raise FileFormatError.

    DataWarning is issued where an array holds NaN or infinity.
    """
    text, stored_checksum, arrays = _read_safetensors(as_path("path", path), kind)
    header = _parsed(text, path, kind)
    if header.get("format") != kind:
        raise FileFormatError(_of_another_kind(path, kind, header))
    if type(header.get("version")) is not int or header["version"] != VERSION:
        raise FileFormatError(
            f"expected {path} to have version {VERSION}, found {header.get('version')!r}"
        )
    if stored_checksum != checksum(text, arrays):
        raise FileFormatError(
            f"{path} is damaged: its content is not what its checksum was computed from"
        )
    for name, array in arrays.items():
        is_free = kind == CHECKPOINT and name.startswith(OF_CALLBACKS)
        if str(array.dtype) not in FLOAT_DTYPES and not is_free:
            raise FileFormatError(
                f"{path}: expected float32 or float64 in {name}, found {array.dtype}"
            )
    _warn_unless_finite(path, arrays)
    return header, arrays


def kind_of(path: PathLike) -> str | None:
    """Return the kind of a file by its own word, None if it says none that is known, or raise
    FileFormatError where it is no readable file.
    """
    from safetensors import SafetensorError, safe_open

    path = as_path("path", path)
    check_is_file(path, f"{KINDS[MODEL].noun} file")
    try:
        with safe_open(str(path), framework="numpy") as file:
            text, _ = unsealed((file.metadata() or {}).get(HEADER, "{}"))
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise FileFormatError(f"{path} is no readable {MODEL} file: {error}") from error
    found = _parsed(text, path, MODEL).get("format")
    return found if isinstance(found, str) and found in KINDS else None


def _warn_unless_finite(path: PathLike, arrays: HostArrays) -> None:
    names = [name for name, array in arrays.items() if not np.isfinite(array).all()]
    if names:
        more = f" and {len(names) - 1} other arrays" if len(names) > 1 else ""
        warn(f"{path} holds NaN or infinity in {names[0]}{more}", DataWarning)


def _read_safetensors(path: Path, kind: str) -> tuple[str, str | None, HostArrays]:
    """Return our JSON text, its checksum and the arrays, as far as a file has them."""
    from safetensors import SafetensorError, safe_open

    check_is_file(path, f"{KINDS[kind].noun} file")
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (
        SafetensorError,
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise FileFormatError(f"{path} is no readable {kind} file: {error}") from error
    except MemoryError as error:
        size = path.stat().st_size / 2**30
        raise DataError(
            f"{path} is too large for this machine's memory: its arrays take {size:,.1f} GiB"
        ) from error
    return *unsealed(metadata.get(HEADER, "{}")), arrays


def _parsed(text: str, path: PathLike, kind: str) -> dict[str, Any]:
    try:
        header = json.loads(text, parse_int=_int64)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is no readable {kind} file: {error}") from error
    return header if isinstance(header, dict) else {}


def _of_another_kind(path: PathLike, kind: str, header: Mapping[str, Any]) -> str:
    """Return that the file is of another kind, and what reads it, if anything of ours does."""
    found = header.get("format")
    if not isinstance(found, str) or found not in KINDS:
        return f"expected {path} to be a {kind} file, found format {found!r}"
    estimator = header.get("estimator")
    named = isinstance(estimator, str) and estimator.isidentifier()
    reader = KINDS[found].reader.format(estimator=estimator if named else "MLPClassifier")
    return f"expected {path} to be a {kind} file, found a {found} file, which {reader} reads"


# -- models


def save(model: Module, path: PathLike, *, metadata: Mapping[str, Any] | None = None) -> None:
    """Write a model: its layers and its loss as JSON, its arrays as they are.

    Of a module of one's own the import path of its class is written, and the arguments that make it
    again: none, or what the class's method ``config`` returns, by name and as JSON has them.

    Parameters
    ----------
    model : Module
        A chain of the package's layers, a module of one's own, or a chain of both.
    path : path of the file, by convention ending in .safetensors
    metadata : mapping, optional
        JSON-ready; `load_metadata` returns it.

    Raises
    ------
    ConfigError
        If a module cannot be made again by its class, or the file cannot be written.

    Examples
    --------
    >>> wf.save(model, "model.safetensors", metadata={"trained on": "digits"})

    A module that takes arguments, and says which:

    >>> class Residual(nn.Module):
    ...     def __init__(self, width):
    ...         self.inner = nn.Linear(width, width)
    ...     def forward(self, x):
    ...         return x + self.inner(x)
    ...     def config(self):
    ...         return {"width": self.inner.spec.in_features}
    >>> wf.save(Residual(64), "residual.safetensors")
    >>> wf.load("residual.safetensors", modules=[Residual])(x).shape
    (200, 64)
    """
    if not isinstance(model, Module):
        raise ConfigError(f"save: expected a model, got {brief(model)}")
    if not isinstance(metadata, Mapping | None):
        raise ConfigError(f"save: expected metadata as a mapping or None, got {brief(metadata)}")
    header = {
        **_structure(model),
        "dtype": model.dtype,
        "loss": _description(model.loss),
        "metadata": {} if metadata is None else dict(metadata),
    }
    write_file(path, MODEL, model.state_dict(), header)


def _structure(model: Module) -> dict[str, Any]:
    """Return what a model consists of: all layers, or a module of one's own."""
    layers = model.flat_layers() if type(model) is Sequential else None
    if layers is None:
        return {"module": described(model)}
    return {"layers": [{"name": name, **layer.spec.to_dict()} for name, layer in layers]}


def _description(loss: Any) -> Any:
    """Return a model's loss, however it is given, as JSON has it."""
    if isinstance(loss, Loss):
        return loss.to_dict()
    return {"name": loss} if isinstance(loss, str) else loss


def _loss(description: Any) -> Any:
    """Return the loss of a description, or that itself if its class is not here; or ConfigError."""
    name = description.get("name") if isinstance(description, dict) else None
    if description is not None and not isinstance(name, str):
        raise ConfigError(f"expected a loss by its name, found {description!r}")
    return losses.resolve(description) if name in Loss.by_name else description


@overload
def load(path: PathLike) -> Sequential: ...
@overload
def load(path: PathLike, modules: Collection[type[Module]]) -> Module: ...
def load(path: PathLike, modules: Collection[type[Module]] = ()) -> Module:
    """Return the model in a file that `save` wrote.

    Of a table that ``warpfit train`` has prepared it is the network alone, and warns of that: it
    takes and gives standardised numbers. `load_trained` returns it with its preprocessing.

    Nothing is imported for a file. Of the classes in `modules` those that it names are made, by
    their own code, with arguments from the file.

    Parameters
    ----------
    path : path of the file
    modules : collection of type, optional
        Classes of one's own modules, for a file that holds such.

    Raises
    ------
    ConfigError
        If the file holds a module whose class is not given.
    FileFormatError
        If the file is missing, cut short, damaged (its content is not that of its checksum), of
        another kind, or its arrays do not fit its layers.

    Warns
    -----
    DataWarning
        If a weight is NaN or infinite.

    Examples
    --------
    >>> wf.save(model, "model.safetensors")
    >>> np.array_equal(wf.load("model.safetensors")(x), model(x))
    True
    """
    classes = check_classes(modules)
    header, arrays = read_file(path, MODEL)
    metadata = header.get("metadata")
    if isinstance(metadata, dict) and metadata.get("table"):
        warn(
            f"{path} was trained on prepared data: rows and outputs of its network are "
            "standardised; wf.load_trained applies what the file says",
            DataWarning,
        )
    if "module" in header:
        return _module_of(path, header, arrays, classes)
    return model_of(path, header, arrays)


def _module_of(
    path: PathLike, header: Mapping[str, Any], arrays: HostArrays, classes: Sequence[type[Module]]
) -> Module:
    """Return the module of one's own that a file describes, or raise FileFormatError."""
    dtype = _dtype_of(path, header, arrays)
    num_numbers = sum(array.size for array in arrays.values())
    try:
        module = made(header["module"], classes, dtype=dtype, num_numbers=num_numbers)
        module.load_state_dict(arrays)
        module.loss = _loss(header.get("loss"))
        return module
    except UnknownClassError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (WarpfitError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FileFormatError(f"{path} holds no model: {error}") from error


def model_of(path: PathLike, header: Mapping[str, Any], arrays: HostArrays) -> Sequential:
    """Return the chain that a file's JSON text and arrays describe, or raise FileFormatError."""
    dtype = _dtype_of(path, header, arrays)
    if "module" in header:
        raise FileFormatError(
            f"expected {path} to hold layers of warpfit alone, found a module that wf.load reads, "
            "given its class"
        )
    try:
        network = NetworkSpec.from_dict({"layers": header.get("layers"), "input_shape": ()})
        _check_arrays(network, arrays)
        model = Sequential.from_spec(network, arrays, dtype=dtype)
        model.loss = _loss(header.get("loss"))
        return model
    except (WarpfitError, TypeError, ValueError, OverflowError) as error:
        raise FileFormatError(f"{path} holds no model: {error}") from error


def _dtype_of(path: PathLike, header: Mapping[str, Any], arrays: HostArrays) -> str:
    """Return the dtype of all arrays of a model's file, or raise FileFormatError."""
    dtype = header.get("dtype")
    if dtype not in FLOAT_DTYPES or any(str(array.dtype) != dtype for array in arrays.values()):
        raise FileFormatError(
            f"{path}: expected all arrays in its dtype, float32 or float64, found {dtype!r}"
        )
    return str(dtype)


def _check_arrays(network: NetworkSpec, arrays: HostArrays) -> None:
    """Raise ShapeError unless arrays are the layers': a forged size then asks for no memory."""
    specs: dict[str, LayerSpec] = {}
    expected: dict[str, Shape] = {}
    for name, spec in network.layers:
        if specs.setdefault(name, spec) != spec:
            raise ConfigError(f"expected one layer of the name {name!r}, found two that differ")
        parts = {**spec.parameters(), **spec.buffers()}
        expected |= {f"{name}.{own}": part.shape for own, part in parts.items()}
    found = {name: array.shape for name, array in arrays.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise ShapeError(
                f"expected shape {expected.get(name)} for {name}, found {found.get(name)} (None: "
                "no such array)"
            )


def load_metadata(path: PathLike) -> dict[str, Any]:
    """Return the metadata that `save` was given, or raise FileFormatError.

    Examples
    --------
    >>> wf.save(model, "model.safetensors", metadata={"trained on": "digits"})
    >>> wf.load_metadata("model.safetensors")
    {'trained on': 'digits'}
    """
    return metadata_of(path, read_file(path, MODEL)[0])


def metadata_of(path: PathLike, header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata in a file's JSON text, or raise FileFormatError."""
    metadata = header.get("metadata")
    if not isinstance(metadata, dict):
        raise FileFormatError(
            f"{path}: expected metadata as a JSON object, found {type(metadata).__name__}"
        )
    return metadata
