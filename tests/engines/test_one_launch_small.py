"""The one_launch engine on small networks that one block trains."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from kernel_variants.runs import ADAM, network_of
from support.one_launch import (
    LIONS,
    OPTIMIZERS,
    Case,
    activated,
    assert_follows_numpy,
    data,
    fit,
    lion,
)
from support.training import assert_same_weights, mlp
from warpfit import optim
from warpfit.backends.cuda.cards import CARDS
from warpfit.engines import launch_plan

pytestmark = [pytest.mark.in_turns(6)]

CASES = [
    Case((20, 40, 33, 5), 32, (1, 2)),
    Case((20, 40, 3), 10, (1, 1), "mse", "momentum", ("silu",), "bfloat16"),
    Case((30, 40, 50, 17, 13), 33, (2, 3), "cross_entropy", "adam", ("gelu",)),
    Case((17, 64, 10), 130, (1, 4), "binary_cross_entropy", "nesterov", ("sigmoid",)),
    Case((64, 64, 64, 1), 80, (2, 1), "huber", "rmsprop, momentum", ("tanh",)),
    Case((9, 24, 24, 24, 4), 36, (4, 2), "absolute_error", "adamw", ("gelu",)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_follows_numpy(cuda: str, only_small: Callable[[int, int], None], case: Case) -> None:
    only_small(*case.blocks)
    case.assert_follows_numpy()


def test_lion(cuda: str, only_small: Callable[[int, int], None]) -> None:
    only_small(1, 2)
    make = partial(activated, (20, 40, 33, 5), ("tanh",))
    assert_follows_numpy((20, 40, 33, 5), make=make, optimizer=lion, times_limit=LIONS, num_rows=70)


# Where a sum begins undefined, a compiler may leave out one of two products.
def test_relu(cuda: str, only_small: Callable[[int, int], None]) -> None:
    only_small(1, 2)
    assert_follows_numpy((20, 40, 33, 5), optimizer={"lr": 0.02}, batch_size=70, times_limit=4.0)


# A sigmoid of 0 is not 0: what lies between a layer's units and the end of its tile must be. Rows
# of zeros train what would add up to biases alone.
@pytest.mark.parametrize("blocks", [(1, 2), (2, 1)], ids=str)
def test_units_that_a_layer_does_not_have_stay_out(
    cuda: str, only_small: Callable[[int, int], None], blocks: tuple[int, int]
) -> None:
    only_small(*blocks)
    sizes = (17, 41, 23, 10)
    x, y = data(sizes, "binary_cross_entropy", 128)
    assert_follows_numpy(
        sizes,
        rows=(np.zeros_like(x), y),
        batch_size=32,
        loss="binary_cross_entropy",
        make=partial(activated, sizes, ("sigmoid",)),
        optimizer=lambda model: optim.SGD(model.parameters(), 1.0, momentum=0.9, nesterov=True),
    )


@pytest.mark.parametrize("blocks", [(1, 3), (2, 2)], ids=str)
def test_no_cut_changes_a_bit(
    cuda: str,
    only_small: Callable[[int, int], None],
    launches: list[int],
    tmp_path: Any,
    blocks: tuple[int, int],
) -> None:
    only_small(*blocks)
    x, y = data((20, 40, 33, 5))
    whole, cut = mlp(20, 40, 33, 5), mlp(20, 40, 33, 5)
    make = OPTIMIZERS["adamw"]
    histories = [fit(whole, x, y, make(whole), epochs=6)]
    assert launches == [1, 5]
    launches.clear()
    checkpoints = [wf.Checkpoint(tmp_path / "run.ckpt", every=2)]
    histories.append(fit(cut, x, y, make(cut), epochs=6, callbacks=checkpoints))
    assert launches == [1, 1, 2, 2]
    np.testing.assert_array_equal(*(history.step_losses for history in histories))
    assert_same_weights(whole, cut)


@pytest.mark.parametrize(
    ("widths", "changes", "kernel"),
    [
        ((37, 53, 17, 3), {"batch": 48, **ADAM}, "one_launch_small_sm90"),
        ((64, 64, 1), {"batch": 256, "loss": "mse"}, "one_launch_small_sm90"),
        ((64, 64, 64, 64, 1), {"batch": 256, "loss": "mse", **ADAM}, "one_launch_small_sm90"),
        ((37, 53, 17, 3), {"batch": 48, "clips": True}, "one_launch_layers"),
        ((37, 53, 17, 3), {"batch": 48, "terms": 2}, "one_launch_layers"),
        ((65, 53, 17, 3), {"batch": 48}, "one_launch_layers"),
        ((64, 64, 17), {"batch": 48}, "one_launch"),
        ((64, 10), {"batch": 48}, "one_launch"),
    ],
    ids=str,
)
def test_who_runs_a_network(widths: tuple[int, ...], changes: dict[str, Any], kernel: str) -> None:
    network = network_of(*widths, **changes)
    assert launch_plan._chosen(network, CARDS["h200"], False).kernel == kernel
