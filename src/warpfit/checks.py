"""Checks of arguments that any part of the package may need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from functools import cache
from math import inf
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.errors import ConfigError, DataError, DTypeError, ShapeError, WarpfitError

# On the host: of any dtype, and of rows.
Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

NUMERIC = "fiub"
LONGEST = 80
DECLARED: dict[str, tuple[type, str]] = {
    "float": (Real, "a number"),
    "int": (Integral, "an integer"),
    "bool": (bool, "True or False"),
    "str": (str, "a string"),
}
RANGES: dict[str, Callable[[Any], bool]] = {
    "above 0": lambda value: value > 0,
    "of at least 0": lambda value: value >= 0,
    "of at least 0 and finite": lambda value: 0 <= value < inf,
    "of at least 1": lambda value: value >= 1,
    "in [0, 1]": lambda value: 0 <= value <= 1,
    "in [0, 1)": lambda value: 0 <= value < 1,
    "in (0, 1]": lambda value: 0 < value <= 1,
    "in (0, 1)": lambda value: 0 < value < 1,
}
ENCODE = (
    "; encode them with numpy.unique(y, return_inverse=True), or train a warpfit.MLPClassifier, "
    "which takes labels as they are"
)


def check_count(name: str, value: Any, lowest: int) -> int:
    """Return `value` as an int, or raise ConfigError unless an integer of at least `lowest`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < lowest:
        raise ConfigError(
            f"expected {name} to be an integer of at least {lowest}, got {brief(value)}"
        )
    return int(value)


def check_number(name: str, value: Any, lowest: float) -> None:
    """Raise ConfigError unless `value` is a number of at least `lowest`."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not float(value) >= lowest:
        raise ConfigError(
            f"expected {name} to be a number of at least {lowest}, got {brief(value)}"
        )


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise ConfigError unless `value` is one of the strings."""
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"expected {name} among {', '.join(choices)}, got {brief(value)}")


def check_flag(name: str, value: Any) -> bool:
    """Return `value` as a bool, or raise ConfigError unless it is True or False, or 1 or 0."""
    if not isinstance(value, bool | np.bool_ | int) or value not in (0, 1):
        raise ConfigError(f"expected {name} to be True or False, got {brief(value)}")
    return bool(value)


def as_integers(name: str, value: Any, lowest: int = -(2**63)) -> tuple[int, ...]:
    """Return integers of at least `lowest`, one or several, as a tuple, or raise ShapeError."""
    parts = as_tuple(value if isinstance(value, Iterable) else [value], Integral)
    if parts is None or not all(lowest <= int(part) < 2**63 for part in parts):
        raise ShapeError(
            f"expected {name} as an integer or several of at least {lowest}, got {brief(value)}"
        )
    return tuple(int(part) for part in parts)


def ranged(words: str, default: Any) -> Any:
    """Return a dataclass's field whose number `check_fields` holds to one of `RANGES`."""
    return field(default=default, metadata={"range": words})


def check_fields(owner: str, settings: Any) -> None:
    """Raise ConfigError unless what a frozen dataclass declares as a number, a bool or a string is
    one, and each number in its range.

    NumPy's scalars become Python's, which go into files.
    """
    kind: Any = type(settings)
    for name, declared, may_be_none, within in _declared_fields(kind):
        value = getattr(settings, name)
        if value is None and may_be_none:
            continue
        if isinstance(value, np.generic):
            value = value.item()
            object.__setattr__(settings, name, value)
        expected, words = DECLARED[declared]
        if not isinstance(value, expected) or isinstance(value, bool) != (expected is bool):
            raise ConfigError(f"{owner}: expected {name} to be {words}, got {brief(value)}")
        if within is not None and not RANGES[within](value):
            raise ConfigError(f"{owner}: expected {name} {within}, got {value!r}")


@cache
def _declared_fields(kind: Any) -> list[tuple[str, str, bool, str | None]]:
    """Return a class's fields that are checked: name, declared type, whether None is one, range."""
    found = []
    for each in fields(kind):
        own, _, other = str(each.type).partition(" | ")
        if own in DECLARED:
            found.append((each.name, own, other == "None", _range_of(kind, each.name)))
    return found


def _range_of(kind: Any, name: str) -> str | None:
    """Return the range of a field, also where a derived class has given it another default."""
    declared = (getattr(own, "__dataclass_fields__", {}).get(name) for own in kind.__mro__)
    return next((each.metadata["range"] for each in declared if each and each.metadata), None)


def as_tuple(value: Any, kind: type) -> tuple[Any, ...] | None:
    """Return a sequence of values of a kind, none a bool, as a tuple; None if it is none."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return None
    try:
        parts = tuple(value)
    except TypeError:  # an array without axes, say
        return None
    strange = bool | np.timedelta64  # which are integers, too
    return (
        parts
        if all(isinstance(part, kind) and not isinstance(part, strange) for part in parts)
        else None
    )


def some(names: Sequence[str], most: int = 8) -> str:
    """Return names separated by commas, of many the first and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def brief(value: Any) -> str:
    """Return a value in one short line, an array as its shape."""
    if isinstance(value, np.generic):
        value = value.item()
    if (
        not isinstance(value, type)
        and hasattr(value, "shape")
        and hasattr(value, "dtype")
        and value.shape != ()
    ):
        return f"an array of shape {tuple(value.shape)}"
    line = " ".join(repr(value).split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def kind_of(value: Any) -> str:
    """Return what an object is, in a few words: its class, and whose that is if another package's.

    Layers and optimizers of other packages have the names of this one's.
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str | Real):
        return brief(value)
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    other = package not in ("builtins", "warpfit", "__main__")
    return f"{kind.__name__} of {package}" if other else kind.__name__


def check_readable(name: str, value: Any) -> Any:
    """Return `value`, or raise if it is a masked array, or a list of such, or a tensor that
    requires a gradient.

    NumPy would go on with what lies under the mask, and does not read such a tensor.
    """
    if _requires_grad(value):
        raise DTypeError(
            f"expected {name} without a gradient to track, got a tensor; its detach() is one"
        )
    parts = value if isinstance(value, list | tuple) else [value]
    masked = sum(
        int(np.ma.count_masked(part)) for part in parts if isinstance(part, np.ma.MaskedArray)
    )
    if masked:
        raise DataError(
            f"expected {name} without masked values, got {masked} masked; fill them with "
            f"{name.split()[-1]}.filled(value), or leave out their rows"
        )
    return value


def as_numbers(value: Any, name: str = "") -> npt.NDArray[Any]:
    """Return what lies on the host as an array of numbers, uncopied if it is one; errors call it by
    its name.

    Raises
    ------
    DTypeError
        If it holds something else, or is none of what NumPy makes an array of.
    ShapeError
        If its rows differ in length.
    DataError
        If some of it is masked.
    """
    array = as_array(value, name)
    if array.dtype.kind not in NUMERIC:
        raise DTypeError(f"{_numbers(name)}, got {_content_of(array)}{_remedy(name, array)}")
    return array


def _numbers(name: str) -> str:
    return f"expected {name} to hold numbers" if name else "expected numbers"


def as_array(value: Any, name: str = "") -> npt.NDArray[Any]:
    """Return a value on the host as an array of its own dtype, or raise as `as_numbers` does."""
    if type(value) is np.ndarray:
        return value
    strange = _strange(value)
    if strange is not None:
        raise DTypeError(f"{_numbers(name)}, got {strange}")
    check_readable(name or "numbers", value)
    try:
        if hasattr(value, "dtypes") and hasattr(value, "to_numpy"):
            return _of_frame(value, name)
        # np.asarray of an object with __dlpack__ alone would give an array of one object.
        exports = hasattr(value, "__dlpack__") and not hasattr(value, "__array__")
        return np.from_dlpack(value) if exports else np.asarray(value)
    except WarpfitError:
        raise
    except Exception as error:  # other libraries' arrays raise almost anything
        if str(getattr(value, "dtype", "")) == "torch.bfloat16":  # which NumPy lacks
            raise DTypeError(
                f"{_numbers(name)} of a dtype of NumPy's, got a tensor of bfloat16; its float() is "
                "one"
            ) from None
        told = " ".join(str(error).split())
        expected = f"expected {name} to be an array of rows" if name else "expected an array"
        raise ShapeError(f"{expected}, but {told}{_parts_of(value)}") from None


def _strange(value: Any) -> str | None:
    """Return what a value is that looks like data and is no array, with what to do, or None."""
    kind = type(value).__name__
    if hasattr(value, "toarray") and hasattr(value, "nnz"):
        return f"a sparse {kind}; its toarray() is one"
    if isinstance(value, Iterator):
        return f"a {kind}, which can be read only once; make a list of it"
    if _requires_grad(value):
        return f"a {kind} that requires a gradient; its detach() is one"
    if value is None or isinstance(value, str | bytes):
        return brief(value)
    known = isinstance(value, Real | complex | np.generic) or hasattr(value, "__array__")
    has_rows = (
        hasattr(value, "__getitem__")
        and hasattr(value, "__len__")
        and not isinstance(value, Mapping)
    )
    if known or has_rows or hasattr(value, "__dlpack__"):
        return None
    batches = "; pass its rows x and y" if kind.endswith("Loader") else ""
    return f"a {kind}{batches}"


def _requires_grad(value: Any) -> bool:
    """Return whether a value is a tensor of PyTorch's that is to track a gradient."""
    return getattr(value, "requires_grad", False) is True and hasattr(value, "layout")


def _of_frame(frame: Any, name: str) -> npt.NDArray[Any]:
    """Return the numbers of a table of pandas, or one of its columns; missing ones as NaN."""
    columns = getattr(frame, "columns", None)
    if columns is None:  # one column
        plain = getattr(frame.dtype, "numpy_dtype", None)  # of pandas' own nullable integers
        if plain is None:
            return np.asarray(frame)
        if _is_numeric(plain) and frame.isna().any():
            return frame.to_numpy(dtype="float64", na_value=np.nan)
        return frame.to_numpy(dtype=plain)
    foreign = [
        f"{column!r} ({kind})" for column, kind in frame.dtypes.items() if not _is_numeric(kind)
    ]
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise DTypeError(
            f"{_numbers(name)}, got other columns: {', '.join(foreign[:3])}{more}; "
            "wf.data.TablePreprocessor encodes them"
        )
    array = np.asarray(frame)
    return (
        array if array.dtype.kind in NUMERIC else frame.to_numpy(dtype="float64", na_value=np.nan)
    )


def _is_numeric(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in NUMERIC


def _content_of(array: npt.NDArray[Any]) -> str:
    """Return what an array holds that is no numbers, in a few words."""
    example = array.reshape(-1)[0] if array.size else None
    if isinstance(example, str | bytes):
        return f"text such as {brief(str(example))}"
    if array.dtype.kind in "mM":
        return f"dates or times ({array.dtype})"
    if array.dtype.kind == "c":
        return f"complex numbers ({array.dtype})"
    held = f" of {type(example).__name__}" if array.dtype.kind == "O" and array.size else ""
    return f"dtype {array.dtype}{held}"


def _remedy(name: str, array: npt.NDArray[Any]) -> str:
    is_text = array.size > 0 and isinstance(array.reshape(-1)[0], str | bytes)
    return ENCODE if is_text and name.split()[-1:] in (["y"], ["targets"]) else ""


def _parts_of(value: Any) -> str:
    """Return of which parts a tuple or list of arrays consists, if they differ."""
    if not isinstance(value, list | tuple):
        return ""
    shapes = [
        np.shape(part) if hasattr(part, "shape") else (len(part),)
        for part in value
        if hasattr(part, "__len__")
    ]
    if len(set(shapes)) < 2:
        return ""
    kind = type(value).__name__
    return f" (a {kind} of {len(value)} parts, of shapes {brief(shapes)})"


def register(kind: type, attribute: str, registry: dict[str, Any]) -> None:
    """Enter a class under a name that it sets itself; one that would only inherit a name has its
    class's, and no entry.

    So a class that derives from one of the package does not replace it, in files and by its name.
    """
    own = vars(kind).get(attribute)
    if own is None:
        setattr(kind, attribute, kind.__name__)
    elif own:
        registry[own] = kind
