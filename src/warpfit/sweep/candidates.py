"""The candidates of a sweep: every combination of a grid, or a list given as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from warpfit.errors import ConfigError, DivergedError, WarpfitError

Candidate = dict[str, Any]

# What a candidate may set of `fit` by its name; every other name is for `build` alone.
FIT_ARGUMENTS = (
    "batch_size",
    "class_weight",
    "engine",
    "epochs",
    "loss",
    "loss_scale",
    "precision",
    "report_every",
    "seed",
    "shuffle",
)


def as_candidates(grid: Any, candidates: Any) -> list[Candidate]:
    """Return the candidates of a grid, or those that are given, one of which must be.

    Parameters
    ----------
    grid : mapping of str to sequence, or sequence of such
        Every combination of a mapping's values, the last name varying fastest; mappings one after
        the other.
    candidates : iterable of mapping of str to value

    Raises
    ------
    ConfigError
        If it is neither or both, holds something else, or is empty.
    """
    if (grid is None) == (candidates is None):
        raise ConfigError(
            f"expected grid or candidates, got {'neither' if grid is None else 'both'}"
        )
    found = _given(candidates) if grid is None else _combinations(grid)
    if not found:
        raise ConfigError("expected at least one candidate, got none")
    return found


def _given(candidates: Any) -> list[Candidate]:
    if isinstance(candidates, Mapping | str) or not isinstance(candidates, Iterable):
        raise ConfigError(f"expected candidates as a sequence of mappings, got {candidates!r}")
    found = []
    for candidate in candidates:
        if not isinstance(candidate, Mapping):
            raise ConfigError(f"expected every candidate to be a mapping, got {candidate!r}")
        _check_names(candidate)
        found.append(dict(candidate))
    return found


def _combinations(grid: Any) -> list[Candidate]:
    grids = [grid] if isinstance(grid, Mapping) else grid
    if not isinstance(grids, Sequence) or not all(isinstance(each, Mapping) for each in grids):
        raise ConfigError(
            f"expected grid as a mapping of names to values, or several, got {grid!r}"
        )
    found = []
    for each in grids:
        _check_names(each)
        values = [_values(name, each[name]) for name in each]
        found += [dict(zip(each, combination, strict=True)) for combination in product(*values)]
    return found


def _values(name: str, values: Any) -> list[Any]:
    is_list = isinstance(values, Sequence | np.ndarray) and not isinstance(values, str | bytes)
    if not is_list or getattr(values, "ndim", 1) == 0 or len(values) == 0:
        raise ConfigError(f"grid: expected a sequence of values for {name!r}, got {values!r}")
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _check_names(candidate: Mapping[Any, Any]) -> None:
    strange = [name for name in candidate if not isinstance(name, str)]
    if strange:
        raise ConfigError(
            f"expected the names of a candidate's values to be strings, got {strange[0]!r}"
        )


def fit_arguments(candidate: Candidate, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `fit` for a candidate: its own, and the sweep's for the rest."""
    return {**defaults, **{name: candidate[name] for name in FIT_ARGUMENTS if name in candidate}}


def candidate_name(candidate: Candidate) -> str:
    """Return a candidate in one line: ``lr=0.1 width=64``."""
    return (
        " ".join(f"{name}={value_text(value)}" for name, value in candidate.items())
        or "(no values)"
    )


def error_of_candidate(name: str, error: WarpfitError) -> WarpfitError:
    """Return an error of the same kind that names the candidate, which has not trained yet, let
    alone diverged.
    """
    kind = ConfigError if isinstance(error, DivergedError) else type(error)
    return kind(f"candidate {name}: {error}")


def value_text(value: Any) -> str:
    """Return a value in a few characters: four digits of a float, widths joined by hyphens, ``-``
    for None.
    """
    if value is None:
        return "-"
    if isinstance(value, tuple | list):
        return "-".join(map(str, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
