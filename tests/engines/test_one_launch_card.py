"""The one_launch engine on networks whose weights all blocks of a card partition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.one_launch import (
    BATCH,
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
from warpfit.backends import Activation
from warpfit.backends.cuda.cards import CARDS
from warpfit.backends.cuda.trained_network import TrainedNetwork
from warpfit.engines import launch_plan

pytestmark = [pytest.mark.in_turns(6)]

CASES = [
    Case((20, 40, 33, 5), 32, (2, 2, 2)),
    Case((20, 70, 3), 10, (2, 2, 1), "mse", "momentum", ("silu",), "bfloat16"),
    Case((100, 40, 90, 17, 33, 18), 33, (3, 4, 2), "cross_entropy", "adam", ("gelu", "tanh")),
    Case((17, 130, 70, 10), 64, (1, 8, 4), "binary_cross_entropy", "nesterov", ("sigmoid",)),
    Case((50, 300, 100), 80, (9, 8, 2), "huber", "rmsprop, momentum", ("tanh", "mish")),
    Case((9, 40, 40, 40, 4), 16, (2, 16, 1), "absolute_error", "adamw", ("gelu", "selu")),
    Case((20, 40, 33, 5), 32, (2, 2, 4, True)),
    Case((30, 90, 120, 65, 7), 32, (2, 4, 4, True, "held"), activations=("gelu", "tanh")),
    Case((150, 300, 250, 140, 7), 32, (2, 2, 8, True, "streamed"), activations=("gelu", "tanh")),
    Case((50, 130, 20), 60, (2, 8, 4, True, "far"), "huber", "rmsprop", ("mish",), "bfloat16"),
    # With dropout a thread has one unit of a layer, several, or those of several rows.
    Case((20, 40, 33, 5), 32, (2, 2, 2), dropout=0.3),
    Case((20, 70, 3), 10, (2, 2, 1), "mse", "adam", ("silu",), "bfloat16", 0.5),
    Case((30, 90, 120, 65, 7), 32, (2, 4, 4, True, "held"), dropout=0.2),
    Case((150, 300, 250, 140, 7), 32, (2, 2, 8, True, "streamed"), dropout=0.1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_follows_numpy(cuda: str, only_card: Callable[..., None], case: Case) -> None:
    only_card(*case.blocks)
    case.assert_follows_numpy()


def test_lion(cuda: str, only_card: Callable[..., None]) -> None:
    only_card(2, 2, 2)
    make = partial(activated, (20, 40, 33, 5), ("tanh",))
    assert_follows_numpy((20, 40, 33, 5), make=make, optimizer=lion, times_limit=LIONS, num_rows=70)


# A sigmoid of 0 is not 0: what lies between a layer's units and the end of its tile must be. Rows
# of zeros train what would add up to biases alone.
def test_units_that_a_layer_does_not_have_stay_out(
    cuda: str, only_card: Callable[..., None]
) -> None:
    case = CASES[3]
    only_card(*case.blocks)
    x, y = data(case.sizes, case.loss, 4 * case.batch_size)
    assert_follows_numpy(
        case.sizes,
        rows=(np.zeros_like(x), y),
        batch_size=case.batch_size,
        loss=case.loss,
        make=case.make,
        optimizer=lambda model: optim.SGD(model.parameters(), 1.0, momentum=0.9, nesterov=True),
    )


@pytest.mark.parametrize(
    ("blocks", "optimizer"),
    [
        ((3, 2, 2), "momentum"),
        pytest.param((2, 2, 8, True, "held"), "sgd", marks=pytest.mark.slow),
        ((2, 2, 8, True, "streamed"), "sgd"),
    ],
    ids=str,
)
def test_no_cut_changes_a_bit(
    cuda: str,
    only_card: Callable[..., None],
    launches: list[int],
    tmp_path: Any,
    blocks: tuple[Any, ...],
    optimizer: str,
) -> None:
    only_card(*blocks)
    # Enough weights that at each cut some lie in the middle of two float16 numbers.
    x, y = data((20, 256, 256, 5), num_rows=BATCH + 9)
    whole, cut = mlp(20, 256, 256, 5), mlp(20, 256, 256, 5)
    make = OPTIMIZERS[optimizer]
    histories = [fit(whole, x, y, make(whole), epochs=4)]
    assert launches == [1, 3]
    launches.clear()
    checkpoints = [wf.Checkpoint(tmp_path / "run.ckpt", every=2)]
    histories.append(fit(cut, x, y, make(cut), epochs=4, callbacks=checkpoints))
    assert launches == [1, 1, 2]
    np.testing.assert_array_equal(*(history.step_losses for history in histories))
    assert_same_weights(whole, cut)


# Steps that change nothing: what comes back is what two halves of 16 bits hold.
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_two_halves_hold_weights(cuda: str, only_card: Callable[..., None], precision: str) -> None:
    only_card(2, 2, 2)
    model = mlp(20, 40, 33, 5)
    given = model.state_dict()
    name = next(name for name, array in given.items() if array.shape == (40, 33))
    given[name][0] = [2.0**-power for power in range(33)]
    model.load_state_dict(given)
    fit(model, *data((20, 40, 33, 5)), optim.SGD(model.parameters(), 1e-30), precision=precision)
    found = model.to("cpu").state_dict()[name]
    if precision == "bfloat16":
        np.testing.assert_array_equal(found, given[name])
    else:
        np.testing.assert_allclose(found, given[name], rtol=2.0**-23, atol=2.0**-36)


@pytest.mark.parametrize(
    ("widths", "changes", "kernel"),
    [
        ((784, 256, 10), {"batch": 64}, "one_launch"),
        ((784, 256, 10), {"batch": 64, "optimizer": "adam", "slots": 2}, "one_launch"),
        ((784, 512, 10), {"optimizer": "adam", "slots": 2}, "one_launch_card"),
        ((784, 256, 256, 256, 10), {}, "one_launch_layers"),
        ((784, 256, 256, 256, 10), {"optimizer": "adam", "slots": 2}, "one_launch_card"),
        ((784, 512, 512, 512, 10), {}, "one_launch_card"),
        ((784, 512, 512, 512, 10), {"drops": (True, True, True)}, "one_launch_card"),
        ((784, 1024, 1024, 1024, 10), {}, "one_launch_card"),
        ((784, 2048, 2048, 2048, 10), {}, "one_launch_card"),
        ((64, 64, 64, 64, 1), {"batch": 128}, "one_launch_small_sm90"),
    ],
    ids=str,
)
def test_who_runs_a_network(widths: tuple[int, ...], changes: dict[str, Any], kernel: str) -> None:
    assert launch_plan._chosen(network(*widths, **changes), CARDS["h200"], False).kernel == kernel


@pytest.mark.parametrize(
    ("widths", "changes", "words"),
    [
        ((784, 512, 512, 512, 10), {"clips": True}, "expected no clipping for weights that"),
        (
            (784, 768, 768, 768, 10),
            {"clips": True, "batch": 256},
            "expected no clipping and batches of at most 128 rows for weights that no cluster",
        ),
        ((784, 3072, 3072, 10), {}, "bytes of shared memory for a tile of each layer"),
        ((784, 3072, 3072, 10), {"clips": True}, "bytes of weights for the registers of a block"),
        ((784, 128, 128, 10), {"batch": 8192}, "bytes of shared memory for a batch and its units"),
    ],
    ids=str,
)
def test_what_nobody_runs_says_what_is_in_the_way_of_who_came_nearest(
    widths: tuple[int, ...], changes: dict[str, Any], words: str
) -> None:
    found = launch_plan._chosen(network(*widths, **changes), CARDS["h200"], False)
    assert words in str(found)


def network(*widths: int, **changes: Any) -> TrainedNetwork:
    hidden = len(widths) - 2
    known: dict[str, Any] = {"dtype": "float16", "batch": 32, "loss": "cross_entropy"}
    known |= {"activations": (Activation("relu"),) * hidden, "drops": (False,) * hidden}
    return TrainedNetwork(widths=widths, **{**known, **changes})
