"""Whether a checkpoint belongs to a run: by its plan, its seed, and digests of its data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np

from warpfit.backends import Array
from warpfit.backends.transfer import to_host
from warpfit.checks import brief
from warpfit.engines.base import Plan, TrainingData
from warpfit.errors import ConfigError
from warpfit.files import PathLike

SAMPLED_BYTES = 1 << 24  # of each array
SHOWN = 3  # differences that a message names
VALIDATION = "validation "


def data_digests(data: TrainingData, validation: TrainingData | None) -> dict[str, str]:
    """Return a digest of each array of a run's data, by names for messages."""
    arrays = {"x": data.x, "y": data.y, "sample_weight": data.sample_weight}
    if validation is not None:
        arrays |= {f"{VALIDATION}x": validation.x, f"{VALIDATION}y": validation.y}
    return {name: _digest(array) for name, array in arrays.items() if array is not None}


def _digest(rows: Array) -> str:
    """Return the SHA-256 of an array's shape and dtype, and of its rows, wherever it lives.

    Of an array of more than 16 MiB it is every k-th row, beginning with the first, k so that they
    make no more than that, and the last.
    """
    every = max(1, -(-rows.nbytes // SAMPLED_BYTES))
    digest = hashlib.sha256()
    for part in (rows[::every], rows[-1:]):
        host = to_host(part)
        digest.update(f"{rows.shape} {host.dtype.name}".encode())
        array = np.asarray(host, host.dtype.newbyteorder("<"), order="C")
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def check_same_data(
    path: PathLike,
    header: Mapping[str, Any],
    plan: Plan,
    digests: Mapping[str, str],
    *,
    decides: bool,
) -> None:
    """Raise ConfigError unless a checkpoint is of a run on the data that have these digests.

    Validation rows must be the same if they decide how the run goes on, and both runs have
    some.
    """
    stored, num_rows = dict(header["data"]), header["plan"]["num_rows"]
    others = [
        name
        for name in sorted(digests.keys() | stored.keys())
        if digests.get(name) != stored.get(name)
        and (not name.startswith(VALIDATION) or (decides and name in digests and name in stored))
    ]
    if others:
        counts = (
            f" ({num_rows} rows there, {plan.num_rows} here)" if num_rows != plan.num_rows else ""
        )
        raise ConfigError(
            f"resume_from: expected the data that {path} was trained on, got another "
            f"{', '.join(others)}{counts}; "
            "to go on with new data on purpose, give new_data=True (--new-data)"
        )


def check_same_run(path: PathLike, header: Mapping[str, Any], plan: Plan, seed: int) -> None:
    """Raise ConfigError, naming what differs, unless a checkpoint has the same plan and seed."""
    ours, theirs = {**plan.identity(), "seed": seed}, {**header["plan"], "seed": header["seed"]}
    for identity in (ours, theirs):
        identity.pop("num_rows", None)  # is the data's
    # Through JSON and back, so that tuples and lists compare alike.
    found = list(_differences(json.loads(json.dumps(ours, default=np.generic.item)), theirs))
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise ConfigError(
            f"resume_from: expected a checkpoint of the same run, but {path} differs in "
            f"{', '.join(found[:SHOWN])}{more}"
        )


def _differences(ours: Any, theirs: Any, place: str = "") -> Iterator[str]:
    """Yield in words, by their place, where two JSON values differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and _kind(ours) == _kind(theirs):
        for key in {**ours, **theirs}:
            inner = f"{place}.{key}" if place else key
            yield from _differences(ours.get(key), theirs.get(key), inner)
    elif (
        isinstance(ours, list)
        and isinstance(theirs, list)
        and any(isinstance(v, dict) for v in ours)
    ):
        if len(ours) != len(theirs):
            yield f"the number of {place} ({len(theirs)} there, {len(ours)} here)"
        for idx, (own, other) in enumerate(zip(ours, theirs, strict=False)):
            yield from _differences(own, other, f"{place}[{idx}]")
    elif isinstance(ours, str) and isinstance(theirs, str) and "\n" in ours:
        for own, other in zip_longest(ours.splitlines(), theirs.splitlines(), fillvalue=""):
            if own != other:
                yield (
                    f"{place} ({other.strip() or 'nothing'!r} there, "
                    f"{own.strip() or 'nothing'!r} here)"
                )
    elif ours != theirs:
        yield f"{place} ({_in_short(theirs)} there, {_in_short(ours)} here)"


def _kind(description: dict[str, Any]) -> Any:
    """Return what of a description says which entries it has; without such, their names."""
    return description.get("kind", description.get("name", ", ".join(description)))


def _in_short(value: Any) -> str:
    return brief(_kind(value) if isinstance(value, dict) else value)
