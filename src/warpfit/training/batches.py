"""Batches that the user's own iterable gives, as the rows of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.backends import Array
from warpfit.backends.transfer import to_host
from warpfit.checks import brief, kind_of
from warpfit.engines.base import Plan, TrainingData
from warpfit.errors import ConfigError, DataError, ShapeError
from warpfit.training.inputs import as_rows, check_finite, check_same_length
from warpfit.training.place import where_they_run

Numbers = npt.NDArray[Any]
RESTARTS = "an iterable that restarts in every epoch, or a function that returns an iterator"


class Batches:
    """The batches (x, y) of an iterable that is read once an epoch, each epoch into memory.

    Batches of one size, but for a shorter last one, are the same as their rows in order, and that
    is what every engine trains on.

    Parameters
    ----------
    source : iterable of (x, y), or function that returns one
        A loader of PyTorch, of this package, a list, ...

    Attributes
    ----------
    size : int
        Rows of a batch.

    Raises
    ------
    ConfigError, ShapeError, DTypeError, DataError
        If it is none, can be read only once, or its batches differ.
    """

    def __init__(self, source: Any) -> None:
        if isinstance(source, Iterator):
            raise ConfigError(
                f"expected x without y as {RESTARTS}, got a {type(source).__name__}, which can be "
                "read only once; make a list of its batches, or pass the function that makes it"
            )
        if isinstance(source, list | tuple) and _is_pair(source):
            raise ConfigError("expected x and y as two arguments, got one pair of them as x")
        if hasattr(source, "__getitem__") and not isinstance(source, Iterable | Callable):
            raise ConfigError(
                f"expected batches (x, y), got a {kind_of(source)} of single samples; a DataLoader "
                "of it gives batches"
            )
        if not gives_batches(source) and not isinstance(source, list | tuple):
            raise ConfigError(
                f"expected y beside x, or x as batches (x, y): {RESTARTS}; got {brief(source)} "
                "alone"
            )
        self._source, self._epoch = source, 0
        self.first = self._read()
        self.size = self._sizes[0]

    def next_data(self, plan: Plan, class_weight: Array | None) -> TrainingData:
        """Return the rows of the next epoch where the plan wants them, with these class weights."""
        rows, y = self._next()
        check_finite("x", rows, plan.dtype)
        check_finite("y", y, plan.dtype)
        targets = plan.loss.prepare_targets(y, plan.network.output_shape, plan.dtype)
        data = TrainingData(rows, targets, class_weight=class_weight)
        return where_they_run(plan, data, None)[0]

    def _next(self) -> tuple[Numbers, Numbers]:
        """Return the rows x and y of the next epoch, or raise unless they are like the first's."""
        found = self._read()
        for name, rows, like in zip("xy", found, self.first, strict=True):
            if rows.shape != like.shape or rows.dtype != like.dtype:
                raise DataError(
                    f"expected the same rows of {name} in every epoch, {_shown(like)}, got "
                    f"{_shown(rows)} in epoch {self._epoch}"
                )
        self._check_size(self.size)
        return found

    def check_alone(
        self,
        batch_size: int,
        default: int,
        *,
        plan: Plan | None,
        resumes: bool,
        others: Mapping[str, Any],
    ) -> None:
        """Raise ConfigError if `fit` is asked for what batches leave no choice of.

        Parameters
        ----------
        batch_size, default : int
            What is asked for, which may be what is if nothing is.
        plan : Plan, optional
        resumes : bool
            Whether the run goes on from a checkpoint, of the same data.
        others : mapping of str to Any
            Arguments that go with arrays only, None where they are not given.
        """
        if batch_size not in (default, self.size):
            raise ConfigError(
                f"expected no batch_size beside batches of {self.size} rows, got {batch_size}"
            )
        for name, value in others.items():
            if value is not None:
                raise ConfigError(f"expected no {name} beside batches (x, y), got {brief(value)}")
        if plan is not None and (plan.shuffle or plan.batch_size != self.size):
            raise ConfigError(
                f"expected the plan of a run on batches of {self.size} rows, got one of rows"
            )
        if resumes:
            raise ConfigError(
                "expected arrays x and y to resume a run: a checkpoint does not know which batches "
                "come next; pass new_data=True to go on with those that come now"
            )

    def _read(self) -> tuple[Numbers, Numbers]:
        """Return all rows of the epoch that comes."""
        self._epoch += 1
        batches = enumerate(_begun(self._source), 1)
        pairs = [_pair(batch, f"batch {number}") for number, batch in batches]
        if not pairs:
            raise DataError(f"expected batches (x, y) in epoch {self._epoch}, got none")
        self._sizes = [len(x) for x, _ in pairs]
        self._check_size(self._sizes[0])
        return _joined("x", [x for x, _ in pairs]), _joined("y", [y for _, y in pairs])

    def _check_size(self, size: int) -> None:
        *whole, last = self._sizes
        if any(found != size for found in whole) or last > size:
            found = ", ".join(map(str, self._sizes[:8]))
            raise ShapeError(
                f"expected batches of one size, here {size} rows, and a shorter one at the end at "
                f"most, got {found}{', ...' if len(self._sizes) > 8 else ''} in epoch {self._epoch}"
            )


def gives_batches(value: Any) -> bool:
    """Return whether a value, which is no list, is what one gets batches from: it is no array."""
    is_data = isinstance(value, str | bytes | Mapping | Set | list | tuple)
    if is_data or hasattr(value, "shape") or hasattr(value, "__array__"):
        return False
    return isinstance(value, Iterable) or callable(value)


def as_validation_data(value: Any) -> Any:
    """Return data to validate on as `fit` takes it; of a loader its rows, which are read once."""
    return joined_batches(value, "validation ") if gives_batches(value) else value


def joined_batches(source: Any, name: str = "") -> tuple[Numbers, Numbers]:
    """Return the rows x and y of all batches, which are read once; errors call both by `name`.

    Raises
    ------
    ConfigError, ShapeError, DTypeError, DataError
        If there are none, or they are no batches, or differ.
    """
    if not gives_batches(source) and (not isinstance(source, list | tuple) or _is_pair(source)):
        raise ConfigError(f"expected y beside x, or x as batches (x, y), got {brief(source)} alone")
    batches = enumerate(_begun(source), 1)
    pairs = [_pair(batch, f"{name}batch {number}") for number, batch in batches]
    if not pairs:
        raise DataError(f"expected {name}batches (x, y), got none")
    xs, ys = zip(*pairs, strict=True)
    return _joined(f"{name}x", xs), _joined(f"{name}y", ys)


def check_no_pairs(value: Any) -> None:
    """Raise ConfigError at a list or tuple of batches (x, y): where x may be alone, it is rows."""
    if not isinstance(value, list | tuple) or not value:
        return
    pairs = [part for part in value if isinstance(part, list | tuple) and _is_pair(part)]
    if len(pairs) == len(value) and all(x.shape != y.shape for x, y in pairs):
        count = f"{len(value)} pair{'' if len(value) == 1 else 's'}"
        raise ConfigError(
            "expected x as rows, or an iterator of batches, got a "
            f"{type(value).__name__} of {count} (x, y); iter() of it is one"
        )


def rows_of_batches(source: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows x of each batch: of a pair (x, y), or of x alone."""
    for number, batch in enumerate(source, 1):
        if isinstance(batch, list | tuple) and len(batch) not in (1, 2):
            raise ConfigError(f"expected batch {number} as x or a pair (x, y), got {brief(batch)}")
        yield batch[0] if isinstance(batch, list | tuple) else batch


def _begun(source: Any) -> Iterable[Any]:
    """Return what goes through the batches: of a function, what it returns."""
    if isinstance(source, Iterable):
        return source
    begun = source()
    if not isinstance(begun, Iterable):
        raise ConfigError(f"expected a function that returns an iterator, got {brief(begun)} of it")
    return begun


def _is_pair(value: Any) -> bool:
    """Return whether a list or tuple is x and y, and not two batches."""
    return len(value) == 2 and all(
        hasattr(part, "shape") and hasattr(part, "dtype") for part in value
    )


def _pair(batch: Any, name: str) -> tuple[Numbers, Numbers]:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise ConfigError(f"expected {name} as a pair (x, y), got {brief(batch)}")
    x, y = (
        to_host(as_rows(f"{part} of {name}", rows, dtype=None))
        for part, rows in zip("xy", batch, strict=True)
    )
    check_same_length(f"y of {name}", y, len(x))
    return x, y


def _joined(name: str, parts: Any) -> Numbers:
    """Return the rows of all batches, or raise ShapeError unless they are alike."""
    first = parts[0]
    for number, part in enumerate(parts, 1):
        if part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
            raise ShapeError(
                f"expected {name} alike in all batches, {_shown(first)} in batch 1, got "
                f"{_shown(part)} in batch {number}"
            )
    return np.concatenate(parts)


def _shown(rows: Numbers) -> str:
    return f"{rows.dtype} of shape {rows.shape}"
