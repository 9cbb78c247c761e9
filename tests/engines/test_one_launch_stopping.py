"""Early stopping within the launch, by the kernel that goes layer by layer: as the host would have
it, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from conftest import on_emulator
from support.devices import open_in_both_orders
from support.one_launch import BATCH, data, fit
from support.training import mlp
from warpfit import backends, losses, nn, optim
from warpfit.backends.cuda import one_launch_layers_layout
from warpfit.backends.cuda.one_launch_layers import choose_layers
from warpfit.backends.cuda.resident_launch import STOPPING_STATE_BYTES
from warpfit.engines import launch_talk, pace

pytestmark = [pytest.mark.usefixtures("by_layers"), pytest.mark.in_turns(6)]

SIZES = (6, 20, 9, 3)
X, LABELS = data(SIZES)
VALIDATION = data(SIZES, num_rows=2 * BATCH + 5)
EPOCHS = 40
# So large that the validation loss rises soon, and the training loss goes up and down.
RATE = 0.4


@pytest.fixture(autouse=True)
def freely(launches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the second launch have all other epochs, and launches talk after each."""
    monkeypatch.setattr(pace, "GROWTH", 64)
    monkeypatch.setattr(launch_talk, "PASSES_BETWEEN_TALKS", 1)


class Looks(wf.Callback):
    """Lets each reported epoch be a launch of its own, and the host decide."""

    def on_epoch_end(self, run: Any) -> None:
        pass


def run(
    *callbacks: wf.Callback,
    sizes: tuple[int, ...] = SIZES,
    make: Callable[[nn.Module], wf.optim.Optimizer] | None = None,
    rows: Any = (X, LABELS),
    **settings: Any,
) -> Any:
    """Train, and return the model, and what must not depend on who decides."""
    model = mlp(*sizes, activation=nn.Tanh)
    optimizer = make(model) if make else optim.SGD(model.parameters(), RATE, momentum=0.9)
    settings = {"epochs": EPOCHS, "validation_data": VALIDATION, "callbacks": callbacks, **settings}
    history = fit(model, *rows, optimizer, **settings)
    return model, (
        [replace(report, seconds=0) for report in history],
        history.stopped_by,
        optimizer.step_count,
        model.state_dict(),
        optimizer.state_dict(),
        [c.checkpoint_state() for c in callbacks if isinstance(c, wf.EarlyStopping)],
    )


def numbers(found: Any) -> Any:
    """Return what came out with device arrays as numbers."""
    *others, states = found
    on_host = [
        (known, {name: np.asarray(a) for name, a in arrays.items()}) for known, arrays in states
    ]
    return [*others, on_host]


def assert_decides_as_the_host(
    launches: list[int], epochs: int | None = None, **settings: Any
) -> Any:
    """Run with the kernel's decision and with the host's, which give the same, and return what that
    is.
    """
    rule = {name: settings.pop(name) for name in RULE if name in settings}
    (_, followed), first = run(wf.EarlyStopping(**rule), **settings), launches[:]
    launches.clear()
    _, decided = run(wf.EarlyStopping(**rule), Looks(), **settings)
    np.testing.assert_equal(numbers(followed), numbers(decided))
    assert first == [1, EPOCHS - 1]
    if epochs is not None:
        assert len(launches) == epochs
    return decided


RULE = ("monitor", "patience", "min_delta", "restore_best")


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    ("rule", "is_over"),
    [
        pytest.param({"patience": 3}, True, id="val_loss"),
        pytest.param({"patience": 2, "min_delta": 0.05, "restore_best": False}, True, id="delta"),
        pytest.param({"monitor": "loss", "patience": 4}, True, id="loss"),
        pytest.param({"monitor": "val_accuracy", "patience": 3}, True, id="val_accuracy"),
        pytest.param(
            {"monitor": "accuracy", "patience": 5, "min_delta": 0.01}, True, id="accuracy"
        ),
        pytest.param({"patience": 100}, False, id="patient", marks=pytest.mark.slow),
    ],
)
def test_it_decides_as_the_host(
    cuda: str, launches: list[int], rule: dict[str, Any], is_over: bool
) -> None:
    reports, reason, *_ = assert_decides_as_the_host(launches, **rule)
    assert (len(reports) < EPOCHS, reason.startswith("early stopping")) == (is_over, is_over)
    assert len(reports) > 3


def adam(model: nn.Module) -> wf.optim.Optimizer:
    return optim.Adam(model.parameters(), 0.05)


def penalized(model: nn.Module) -> wf.optim.Optimizer:
    return optim.SGD(model.parameters(), RATE, momentum=0.9, l2=0.02)


def clipped(model: nn.Module) -> wf.optim.Optimizer:
    return optim.SGD(model.parameters(), RATE, momentum=0.9, clip_norm=1.0)


OF_LOSS = {"monitor": "loss", "patience": 2, "min_delta": 0.02}
WEIGHTED = losses.SoftmaxCrossEntropy(0.1, class_weight=(0.5, 2.0, 1.0))
DEEPER: dict[str, Any] = {"sizes": (6, 40, 33, 3), "make": adam}
UNVALIDATED = {"validation_data": None, "precision": "bfloat16"}
SAMPLES = {"sample_weight": np.random.default_rng(0).random(len(X))}
SQUARES = {"loss": "mse", "rows": data(SIZES, "mse"), "validation_data": data(SIZES, "mse", 9)}


# The rules and the networks that follow decide alike.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("clusters", "settings"),
    [
        pytest.param((2,), {"make": adam, "report_every": 3}, id="adam"),
        pytest.param((4,), DEEPER, id="4", marks=pytest.mark.slow),
        pytest.param(
            (1,), {"sizes": (6, 3), "patience": 1}, id="no hidden layer", marks=pytest.mark.slow
        ),
        pytest.param(
            (1,), {"report_every": 7, "patience": 2}, id="one block", marks=pytest.mark.slow
        ),
        pytest.param(
            (8,), {"sizes": (6, 64, 3), "monitor": "loss"}, id="8", marks=pytest.mark.slow
        ),
        pytest.param((2,), {"make": penalized}, id="penalized", marks=pytest.mark.slow),
        pytest.param((2,), {"make": penalized, "monitor": "loss"}, id="penalty"),
        pytest.param(
            (1,),
            {"make": penalized, "monitor": "loss"},
            id="penalty, one block",
            marks=pytest.mark.slow,
        ),
        pytest.param((2,), {"make": clipped}, id="clipped", marks=pytest.mark.slow),
        pytest.param(
            (2,), {"loss": WEIGHTED, "batch_size": 70}, id="weighted", marks=pytest.mark.slow
        ),
        pytest.param(
            (2,), {"monitor": "loss", "loss": WEIGHTED}, id="weights", marks=pytest.mark.slow
        ),
        pytest.param(
            (2,),
            {"monitor": "accuracy", **UNVALIDATED},
            id="without validation",
            marks=pytest.mark.slow,
        ),
        pytest.param((2,), {"monitor": "loss", **SAMPLES}, id="samples", marks=pytest.mark.slow),
        pytest.param((2,), SQUARES, id="mse", marks=pytest.mark.slow),
    ],
)
def test_networks(
    cuda: str, only_cluster: Callable[..., None], launches: list[int], clusters: Any, settings: Any
) -> None:
    only_cluster(*clusters)
    reports, *_ = assert_decides_as_the_host(launches, **{"patience": 3, **settings})
    assert 1 < len(reports) < EPOCHS


@pytest.mark.parametrize(
    ("replicas", "clusters", "settings"),
    [
        pytest.param(2, (1,), {}, id="val_loss", marks=pytest.mark.slow),
        pytest.param(3, (2,), {"make": penalized, **OF_LOSS}, id="penalty"),
        pytest.param(2, (2,), OF_LOSS, id="loss", marks=pytest.mark.slow),
        pytest.param(
            3, (1,), {"monitor": "val_accuracy"}, id="val_accuracy", marks=pytest.mark.slow
        ),
        pytest.param(
            2,
            (2,),
            {"monitor": "accuracy", "min_delta": 0.01},
            id="accuracy",
            marks=pytest.mark.slow,
        ),
        pytest.param(3, (2,), {"make": adam, "report_every": 3}, id="adam", marks=pytest.mark.slow),
        pytest.param(3, (4,), {**DEEPER, "restore_best": False}, id="4", marks=pytest.mark.slow),
        pytest.param(2, (8,), {"sizes": (6, 64, 3)}, id="8", marks=pytest.mark.slow),
        pytest.param(
            3, (1,), {"sizes": (6, 3), "patience": 1}, id="no hidden layer", marks=pytest.mark.slow
        ),
        pytest.param(5, (1,), {"batch_size": 70}, id="one batch", marks=pytest.mark.slow),
        pytest.param(3, (2,), {"make": clipped}, id="clipped", marks=pytest.mark.slow),
        pytest.param(3, (2,), {"make": penalized}, id="penalized", marks=pytest.mark.slow),
        pytest.param(3, (2,), {"loss": WEIGHTED}, id="weighted", marks=pytest.mark.slow),
        pytest.param(3, (2,), {"loss": WEIGHTED, **OF_LOSS}, id="weights", marks=pytest.mark.slow),
        pytest.param(2, (2,), {**OF_LOSS, **SAMPLES}, id="samples", marks=pytest.mark.slow),
        pytest.param(3, (2,), {"precision": "float32"}, id="float32", marks=pytest.mark.slow),
        pytest.param(
            3, (2,), {**UNVALIDATED, **OF_LOSS}, id="without validation", marks=pytest.mark.slow
        ),
        pytest.param(2, (2,), SQUARES, id="mse", marks=pytest.mark.slow),
    ],
)
def test_replicas(
    cuda: str,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
    launches: list[int],
    replicas: int,
    clusters: Any,
    settings: Any,
) -> None:
    """Each knows the losses of its own rows; of the last batch of an epoch some have none."""
    only_cluster(*clusters)
    only_replicas(replicas)
    reports, *_ = assert_decides_as_the_host(
        launches, **{"patience": 3, "batch_size": 44, **settings}
    )
    assert 1 < len(reports) < EPOCHS


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_how_a_run_is_cut_into_launches_changes_no_bit(
    cuda: str,
    launches: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
    only_replicas: Callable[[int], None],
    replicas: int,
) -> None:
    """Nor does a resumed run, whose rule goes on where it stood."""
    only_replicas(replicas)
    settings: dict[str, Any] = {"batch_size": BATCH * replicas}
    whole = numbers(run(wf.EarlyStopping(patience=6), **settings)[1])
    checkpoint = wf.Checkpoint(tmp_path / "run", every=4)
    at_fourths = numbers(run(wf.EarlyStopping(patience=6), checkpoint, **settings)[1])
    assert launches[:5] == [1, EPOCHS - 1, 1, 3, 4]
    monkeypatch.setattr(pace, "LAUNCH_SECONDS", 0.0)
    launches.clear()
    one_by_one = numbers(run(wf.EarlyStopping(patience=6), **settings)[1])
    assert launches == [1] * len(whole[0])
    np.testing.assert_equal(at_fourths, whole)
    np.testing.assert_equal(one_by_one, whole)
    best = whole[-1][0][0]["best_epoch"]
    assert 1 < best < len(whole[0]) - 3
    for epochs in (best - 1, best + 2):
        monkeypatch.setattr(pace, "LAUNCH_SECONDS", np.inf)
        run(
            wf.EarlyStopping(patience=6),
            wf.Checkpoint(checkpoint.path, every=100),
            epochs=epochs,
            **settings,
        )
        resumed = numbers(
            run(wf.EarlyStopping(patience=6), resume_from=checkpoint.path, **settings)[1]
        )
        np.testing.assert_equal(resumed[0][epochs:], whole[0][epochs:])
        np.testing.assert_equal(resumed[1:], whole[1:])


def test_a_stopping_can_be_used_again(cuda: str) -> None:
    stopping = wf.EarlyStopping(patience=3)
    model, first = run(stopping)
    first = numbers(first)
    np.testing.assert_equal(numbers(run(stopping)[1]), first)
    # On the CPU too, where the host decides.
    history = fit(
        model,
        X,
        LABELS,
        adam(model),
        device="cpu",
        callbacks=[stopping],
        validation_data=VALIDATION,
    )
    assert stopping.best == min(history["val_loss"])


@pytest.mark.slow
def test_where_shared_memory_is_short(
    cuda: str,
    launches: list[int],
    only_cluster: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The optimizer state of a tile makes room, and the last byte of all is not taken."""
    only_cluster(2)
    settings: dict[str, Any] = {"sizes": (17, 33, 20, 3), "make": adam, "patience": 3}
    settings |= {"rows": data((17, 3)), "validation_data": data((17, 3), num_rows=20)}
    monkeypatch.setattr(one_launch_layers_layout, "UPDATING_REGISTERS", 200)
    found = []
    for limit in (None, 40_000):
        if limit:
            monkeypatch.setattr(backends.get(cuda).runtime, "max_shared_bytes", limit)
        choose_layers.cache_clear()
        found.append(numbers(assert_decides_as_the_host(launches, **settings)))
        launches.clear()
    np.testing.assert_equal(*found)


@on_emulator
@pytest.mark.slow
@pytest.mark.parametrize("cluster", [1, 4])
@pytest.mark.parametrize("replicas", [1, 3])
def test_the_order_of_threads_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
    cluster: int,
    replicas: int,
) -> None:
    only_cluster(cluster)
    only_replicas(replicas)
    settings: dict[str, Any] = {"sizes": (6, 40, 33, 3), "batch_size": BATCH * replicas}
    found = []
    for _ in open_in_both_orders(monkeypatch):
        found.append(numbers(run(wf.EarlyStopping(patience=3), **settings)[1]))
    np.testing.assert_equal(*found)


@on_emulator
def test_what_replicas_leave_each_other_may_come_late(
    monkeypatch: pytest.MonkeyPatch,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
) -> None:
    """In the reversed order writes without a fence do."""
    only_cluster(1)
    only_replicas(2)
    found = []
    for _ in open_in_both_orders(monkeypatch):
        found.append(numbers(run(wf.EarlyStopping(patience=3), batch_size=44)[1]))
    np.testing.assert_equal(*found)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_debug_builds(
    cuda: str,
    monkeypatch: pytest.MonkeyPatch,
    launches: list[int],
    only_replicas: Callable[[int], None],
    replicas: int,
) -> None:
    monkeypatch.setenv("WARPFIT_DEBUG", "1")
    only_replicas(replicas)
    assert_decides_as_the_host(launches, patience=3, batch_size=BATCH * replicas)


# -- what the host decides
# ------------------------------------------------------------------------------------


class Own(wf.EarlyStopping):
    """Someone's own, which may do anything."""


@pytest.mark.parametrize(
    ("callbacks", "settings"),
    [
        pytest.param([wf.EarlyStopping(), wf.EarlyStopping("loss")], {}, id="two"),
        pytest.param([Own()], {}, id="own"),
        pytest.param(
            [wf.EarlyStopping()],
            {"make": lambda model: optim.SGD(model.parameters(), optim.ReduceOnPlateau(0.1))},
            id="plateau",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [wf.EarlyStopping()],
            {"validation_data": (1e5 * X, LABELS)},
            id="beyond float16",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_is_the_hosts_where_the_kernel_does_not_know_all(
    cuda: str, launches: list[int], callbacks: list[wf.Callback], settings: dict[str, Any]
) -> None:
    run(*callbacks, epochs=3, **settings)
    assert launches == [1, 1, 1]


def test_it_is_the_hosts_where_shared_memory_has_no_room(cuda: str, launches: list[int]) -> None:
    shape = fit(mlp(*SIZES), X, LABELS, epochs=0).plan.prepared.launch
    assert shape.that_stops(shape.shared_bytes) is None
    assert shape.that_stops(shape.shared_bytes + STOPPING_STATE_BYTES).stops


@pytest.mark.slow
@pytest.mark.parametrize(
    ("monitor", "settings"),
    [
        ("val_loss", {"validation_data": None}),
        ("accuracy", {"loss": "mse", "rows": data(SIZES, "mse"), "validation_data": None}),
    ],
)
def test_what_is_not_reported_is_not_watched(
    cuda: str, monitor: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(wf.errors.ConfigError, match=f"expected reports of {monitor}, got none"):
        run(wf.EarlyStopping(monitor), **settings)
