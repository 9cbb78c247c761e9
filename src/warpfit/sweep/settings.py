"""The settings of a sweep, as ``warpfit sweep`` gives them: a training's, some of them with several
values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, get_args, get_type_hints

from warpfit.checks import check_count
from warpfit.errors import ConfigError
from warpfit.sweep.candidates import Candidate, as_candidates
from warpfit.sweep.halving import Halving
from warpfit.training.settings import SWEPT, TrainSettings, merged_settings, parse_hidden

MOST_CANDIDATES = 100_000


@dataclass(frozen=True)
class SweepSettings:
    """The settings of ``warpfit sweep``."""

    base: TrainSettings  # what all candidates have in common
    grid: dict[str, list[Any]]  # names of `TrainSettings` with the values to try
    folds: int = 0  # 0 for none: a tenth of the training rows is held out instead
    halving: Halving | None = None
    jobs: int = -1  # `fit_many`'s `n_jobs`
    metric: str | None = None

    def candidates(self) -> list[Candidate]:
        """Return every combination of the grid; one that is empty without a grid."""
        return as_candidates(self.grid, None) if self.grid else [{}]

    def of(self, candidate: Candidate) -> TrainSettings:
        """Return the settings of a candidate, or raise ConfigError if they do not go together."""
        return replace(self.base, **candidate)


def sweep_settings(flags: Mapping[str, Any]) -> SweepSettings:
    """Return checked settings from options: None means not given, those in `SWEPT` are text.

    Raises
    ------
    ConfigError
        If a value is unknown, out of range, or goes with no other.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    folds = check_count("folds", given.pop("folds", 0), 0)
    if folds == 1:
        raise ConfigError("expected 0 folds or at least 2, got 1")
    factor = given.pop("halving", 0.0)
    seeds = check_count("seeds", given.pop("seeds", 1), 1)
    jobs, metric = given.pop("jobs", -1), given.pop("metric", None)
    grid: dict[str, list[Any]] = {}
    for name in SWEPT:
        if name in given:
            values = _parsed(name, given.pop(name))
            if len(values) > 1:
                grid[name] = values
            else:
                given[name] = values[0]
    if "optimizer" in grid:
        # Other settings are checked beside each optimizer, when the candidates are known.
        given.setdefault("optimizer", grid["optimizer"][0])
    base = merged_settings(given)
    if seeds > 1:
        grid["seed"] = [base.seed + idx for idx in range(seeds)]
    if prod(map(len, grid.values())) > MOST_CANDIDATES:
        raise ConfigError(
            f"expected at most {MOST_CANDIDATES:,} candidates, got "
            f"{prod(map(len, grid.values())):,}"
        )
    settings = SweepSettings(base, grid, folds, Halving(factor) if factor else None, jobs, metric)
    for candidate in settings.candidates():
        settings.of(candidate)
    return settings


def _parsed(name: str, text: str) -> list[Any]:
    """Return the values in an option's text; layers of a network are joined by a hyphen:
    ``64,128-64``.
    """
    values = [_value(name, part.strip()) for part in text.split(",")]
    return list(dict.fromkeys(values))


def _value(name: str, text: str) -> Any:
    if name == "hidden":
        return parse_hidden(text, "-")
    hint = get_type_hints(TrainSettings)[name]
    kind = next(each for each in (*get_args(hint), hint) if each in (int, float, str))
    try:
        return kind(text)
    except ValueError:
        words = {int: "integers", float: "numbers"}[kind]
        raise ConfigError(f"expected {name} as {words} separated by commas, got {text!r}") from None
