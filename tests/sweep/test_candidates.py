from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warpfit.errors import ConfigError
from warpfit.sweep.candidates import FIT_ARGUMENTS, as_candidates, candidate_name, fit_arguments


def test_grid_is_every_combination_the_last_name_fastest() -> None:
    found = as_candidates({"lr": [0.1, 1.0], "width": (8, 16)}, None)
    assert found == [
        {"lr": 0.1, "width": 8},
        {"lr": 0.1, "width": 16},
        {"lr": 1.0, "width": 8},
        {"lr": 1.0, "width": 16},
    ]


def test_several_grids_follow_one_another() -> None:
    grids = [{"optimizer": ["sgd"], "momentum": [0.0, 0.9]}, {"optimizer": ["adam"]}]
    assert as_candidates(grids, None) == [
        {"optimizer": "sgd", "momentum": 0.0},
        {"optimizer": "sgd", "momentum": 0.9},
        {"optimizer": "adam"},
    ]


def test_arrays_give_plain_numbers() -> None:
    (first, second) = as_candidates({"lr": np.array([0.5, 1.0])}, None)
    assert type(first["lr"]) is float
    assert second["lr"] == 1.0


def test_candidates_are_taken_as_they_come_and_copied() -> None:
    mine = {"lr": 0.1}
    (found,) = as_candidates(None, (each for each in [mine]))
    assert found == mine
    assert found is not mine


@pytest.mark.parametrize(
    ("grid", "candidates", "words"),
    [
        (None, None, "expected grid or candidates, got neither"),
        ({"lr": [1]}, [{"lr": 1}], "got both"),
        ({"lr": 0.1}, None, "expected a sequence of values for 'lr', got 0.1"),
        ({"optimizer": "sgd"}, None, "expected a sequence of values for 'optimizer', got 'sgd'"),
        ({"lr": []}, None, "expected a sequence of values for 'lr'"),
        ([], None, "expected at least one candidate"),
        (3, None, "expected grid as a mapping"),
        (None, [], "expected at least one candidate"),
        (None, {"lr": 0.1}, "expected candidates as a sequence of mappings"),
        (None, [3], "expected every candidate to be a mapping, got 3"),
        (None, [{1: 2}], "names of a candidate's values to be strings, got 1"),
    ],
)
def test_what_is_no_list_of_candidates(grid: Any, candidates: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        as_candidates(grid, candidates)


def test_candidates_set_arguments_of_fit_by_name() -> None:
    defaults = {"epochs": 10, "batch_size": 64, "device": "cpu"}
    found = fit_arguments({"epochs": 3, "width": 8, "device": "cuda"}, defaults)
    assert found == {"epochs": 3, "batch_size": 64, "device": "cpu"}
    assert "device" not in FIT_ARGUMENTS


def test_names_are_short() -> None:
    assert candidate_name({"lr": 0.30000000001, "width": 8}) == "lr=0.3 width=8"
    assert candidate_name({}) == "(no values)"
