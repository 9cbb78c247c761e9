"""Mistakes planted in a copy of the kernel that a whole card runs: the emulator catches each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import on_emulator
from support.devices import open_emulated
from support.one_launch import data, fit
from support.training import assert_same_weights, mlp
from warpfit.backends.cuda import jit
from warpfit.errors import DeviceError, DivergedError

pytestmark = [on_emulator, pytest.mark.usefixtures("launches"), pytest.mark.in_turns(4)]

SIZES = (20, 40, 33, 20, 3)
X, LABELS = data(SIZES)
KERNEL = "one_launch_card"

# What is replaced by what, each once in the source of the kernel with all its headers.
Mistake = dict[str, str]

WAITS_FOR_BYTES = "    wait_or_give_up(full, phase);\n}"
HAS_NUMBERS = """missing |= comes(i) ? missing_marks(words[i], turn) : 0;
        if (missing == 0) break;"""
FIRST_BARRIER = "barrier_of_cluster();  // no block sends to another that has not begun"
LAST_BARRIER = "barrier_of_cluster();  // nor to one that has left"
MARKS_UNITS = "marked(number, use.turn())"
AFTER_BACK = "multiply_back<L>(shared, run, ring, now);\n        __syncthreads();"
AFTER_OUTPUTS = "receive_outputs(shared, run, now);\n    __syncthreads();"
AFTER_INPUTS = "meet_for_products();\n        train_from<L + 1>"
SLOT = "int slot() const { return number % 2; }"


@pytest.fixture
def train(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, only_card: Callable[..., None]
) -> Callable[..., Any]:
    """Trains by a copy of the kernel with a mistake, in two clusters of two blocks, and returns the
    model.
    """

    def train_wrongly(mistake: Mistake, reverse: bool) -> Any:
        source = jit.flattened(KERNEL, ())
        for right, wrong in mistake.items():
            assert source.count(right) == 1, right
            source = source.replace(right, wrong)
        (tmp_path / f"{KERNEL}.cu").write_text(source)
        open_emulated(monkeypatch, folder=tmp_path, reverse=reverse)
        only_card(2, 2, 4)
        model = mlp(*SIZES)
        fit(model, X, LABELS, epochs=3, batch_size=16)
        return model.to("cpu")

    return train_wrongly


@pytest.mark.slow
def test_a_copy_without_a_mistake(train: Callable[..., Any]) -> None:
    assert_same_weights(*(train({}, reverse) for reverse in (False, True)))


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        pytest.param(
            {WAITS_FOR_BYTES: "}"}, "arrivals in a phase|something is on its way", id="no wait"
        ),
        pytest.param(
            {WAITS_FOR_BYTES: "    wait_or_give_up(full, phase + 1);\n}"},
            "arrivals in a phase|something is on its way",
            id="parity",
        ),
        pytest.param({FIRST_BARRIER: "__syncthreads();"}, "has not begun", id="has not begun"),
        pytest.param(
            {MARKS_UNITS: "marked(number, use.turn() + 1)"},
            "wait at let_others_run",
            id="mark of units",
        ),
    ],
)
def test_what_is_told(train: Callable[..., Any], mistake: Mistake, message: str) -> None:
    for reverse in (False, True):
        with pytest.raises(DeviceError, match=message):
            train(mistake, reverse)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(
            {HAS_NUMBERS: HAS_NUMBERS.replace("if (missing == 0) ", "")}, id="no look at marks"
        ),
        pytest.param({AFTER_BACK: AFTER_BACK.replace("__syncthreads();", "")}, id="weights in use"),
        pytest.param({AFTER_OUTPUTS: AFTER_OUTPUTS.replace("__syncthreads();", "")}, id="outputs"),
        pytest.param({AFTER_INPUTS: AFTER_INPUTS.replace("meet_for_products();", "")}, id="inputs"),
        pytest.param({SLOT: "int slot() const { return 0; }"}, id="one place for all passes"),
    ],
)
def test_what_changes_numbers(train: Callable[..., Any], mistake: Mistake) -> None:
    right = train({}, False).state_dict()
    found = []
    for reverse in (False, True):
        try:
            wrong = train(mistake, reverse).state_dict()
        except (DeviceError, DivergedError):
            found.append(True)
            continue
        found.append(any(not np.array_equal(wrong[name], right[name]) for name in right))
    assert any(found)
