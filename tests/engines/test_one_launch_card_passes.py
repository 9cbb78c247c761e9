"""Validation and early stopping within the launch, on a whole card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engines.test_one_launch_card import CASES
from engines.test_one_launch_stopping import (
    DEEPER,
    EPOCHS,
    OF_LOSS,
    UNVALIDATED,
    assert_decides_as_the_host,
)
from engines.test_one_launch_validation import assert_validates_as_numpy
from support.one_launch import Case, data, fit
from support.training import mlp
from warpfit import nn, optim
from warpfit.backends.cuda.resident_launch import STOPPING_STATE_BYTES
from warpfit.engines import pace
from warpfit.optim import Optimizer

pytestmark = [pytest.mark.in_turns(6)]

IN_CLUSTERS, APART = (2, 2, 2), (2, 2, 8, True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_validates_as_numpy(
    cuda: str, only_card: Callable[..., None], launches: list[int], case: Case
) -> None:
    only_card(*case.blocks)
    x, y = data(case.sizes, case.loss, 3 * case.batch_size + 2 * case.batch_size // 3 + 6)
    assert_validates_as_numpy(case, launches, (x[4:], y[4:]))


# Places of the forward pass are used more often than those of the backward pass: by any number.
@pytest.mark.parametrize("batches", [1, 2, 3, 4])
@pytest.mark.parametrize("blocks", [IN_CLUSTERS, APART], ids=str)
def test_any_number_of_batches(
    cuda: str,
    only_card: Callable[..., None],
    launches: list[int],
    blocks: tuple[Any, ...],
    batches: int,
) -> None:
    only_card(*blocks)
    case = Case((20, 40, 33, 5), 16, blocks, optimizer="momentum")
    assert_validates_as_numpy(case, launches, data(case.sizes, num_rows=16 * batches - 3))


def plain(model: nn.Module) -> Optimizer:
    return optim.SGD(model.parameters(), 0.8)


@pytest.mark.parametrize(
    ("blocks", "settings"),
    [
        pytest.param(IN_CLUSTERS, {}, id="val_loss"),
        pytest.param(IN_CLUSTERS, {**DEEPER, "report_every": 3}, id="adam"),
        pytest.param(
            IN_CLUSTERS, {"monitor": "val_accuracy", "restore_best": False}, id="val_accuracy"
        ),
        pytest.param(IN_CLUSTERS, {**UNVALIDATED, "monitor": "accuracy"}, id="accuracy"),
        pytest.param(APART, OF_LOSS, id="apart"),
        pytest.param((*APART, "held"), {"make": plain}, id="held"),
        pytest.param((*APART, "streamed"), {"make": plain}, id="streamed"),
    ],
)
def test_it_decides_as_the_host(
    cuda: str,
    only_card: Callable[..., None],
    launches: list[int],
    monkeypatch: pytest.MonkeyPatch,
    blocks: tuple[Any, ...],
    settings: dict[str, Any],
) -> None:
    monkeypatch.setattr(pace, "GROWTH", 64)  # the second launch has all other epochs
    only_card(*blocks)
    reports, *_ = assert_decides_as_the_host(launches, **{"patience": 3, **settings})
    assert 1 < len(reports) < EPOCHS


def test_shared_memory_has_room_for_the_rule(cuda: str, only_card: Callable[..., None]) -> None:
    only_card(*IN_CLUSTERS)
    x, y = data((20, 40, 33, 5))
    shape = fit(mlp(20, 40, 33, 5), x, y, epochs=0).plan.prepared.launch
    assert shape.that_stops(shape.shared_bytes) is None
    assert shape.that_stops(shape.shared_bytes + 8 + STOPPING_STATE_BYTES).stops
    assert np.isfinite(shape.microseconds)
