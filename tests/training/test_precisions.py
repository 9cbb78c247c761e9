"""Runs that go on in another precision where float16, which the engine chose, overflows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import warpfit as wf
from support.one_launch import Spike, activated, data
from support.training import InterruptAt, assert_same_weights, unchanged
from warpfit import nn, optim
from warpfit.engines import pace
from warpfit.errors import DivergedError

SIZES, BATCH, EPOCHS = (9, 20, 14, 3), 16, 7
X, LABELS = data(SIZES)  # five batches
VALIDATION = data(SIZES, num_rows=20)
STEPS = 5


# After this step of the fourth epoch units are beyond float16.
SPIKE = Spike(0.05, at=3 * STEPS + 2, peak=1e3)
IN_TWO = {1: "float16", 4: "bfloat16"}


class Hears(wf.Callback):
    """Notes which epochs it hears of, in which precision; lets epochs be trained at once."""

    needs_run = False

    def __init__(self) -> None:
        self.epochs: list[tuple[int, str]] = []

    def on_epoch_end(self, run: wf.Run) -> None:
        self.epochs.append((run.report.epoch, run.plan.precision))


class Looks(Hears):
    """Does so between epochs."""

    needs_run = True


def network(sizes: tuple[int, ...] = SIZES) -> nn.Sequential:
    return activated(sizes, ("gelu", "gelu", "leaky_relu"))


def train(model: nn.Module, *callbacks: wf.Callback, **settings: Any) -> wf.History:
    asked: dict[str, Any] = {
        "epochs": EPOCHS,
        "batch_size": BATCH,
        "seed": 3,
        "device": "cuda",
        "verbose": False,
        **settings,
    }
    optimizer = asked.pop("optimizer", None) or optim.SGD(model.parameters(), SPIKE)
    x, labels = asked.pop("data", (X, LABELS))
    return wf.fit(model, x, labels, optimizer=optimizer, callbacks=callbacks, **asked)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Say whether as many epochs as may be are trained at once, or one at a time."""

    def choose(many: bool) -> None:
        monkeypatch.setattr(pace, "LAUNCH_SECONDS", np.inf if many else 0.0)

    return choose


def without_seconds(history: wf.History) -> Any:
    return [replace(report, seconds=0) for report in history], history.step_losses.tolist()


# Networks that PyTorch trains in float32.
OVERFLOWING: dict[str, Any] = {
    "67-65-42-64-9": {"batch_size": 1, "rows": 12, "momentum": 0.7},
    "26-196-156-176-152-5": {"batch_size": 16, "rows": 64, "momentum": 0.0},
}


@pytest.mark.slow
@pytest.mark.in_turns(2)
@pytest.mark.parametrize("name", OVERFLOWING)
def test_a_run_that_overflows_goes_on_in_bfloat16(cuda: str, name: str) -> None:
    case, sizes = OVERFLOWING[name], tuple(map(int, name.split("-")))

    def fit(precision: str) -> wf.History:
        model = network(sizes)
        rule = optim.RMSprop(model.parameters(), 0.05, momentum=case["momentum"])
        rows = data(sizes, num_rows=case["rows"])
        settings = {"batch_size": case["batch_size"], "precision": precision, "epochs": 2}
        return train(model, data=rows, optimizer=rule, **settings)

    history = fit("auto")
    assert history.precisions == {1: "bfloat16"}
    assert np.isfinite(history["loss"]).all()
    assert history["loss"] == fit("bfloat16")["loss"]
    with pytest.raises(DivergedError, match="precision='float32'"):
        fit("float16")


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("engine", ["auto", "graph"])
def test_epochs_before_stay_and_no_epoch_is_told_twice(cuda: str, engine: str) -> None:
    model, hears, looks = network(), Hears(), Looks()
    history = train(model, hears, looks, engine=engine)
    assert history.precisions == IN_TWO
    expected = [(epoch, "float16" if epoch < 4 else "bfloat16") for epoch in range(1, EPOCHS + 1)]
    assert hears.epochs == looks.epochs == expected
    assert history["epoch"] == list(range(1, EPOCHS + 1))
    assert history.plan.precision == "float16"
    chosen = history.plan.engine
    assert f"epoch 4 was not finite in float16 ({chosen}), bfloat16" in history.plan.reason
    before, after = network(), network()
    alone = train(before, engine=engine, epochs=3)
    assert without_seconds(alone)[0] == without_seconds(history)[0][:3]
    assert all(np.isfinite(array).all() for array in model.to("cpu").state_dict().values())
    with pytest.raises(DivergedError):
        train(after, Looks(), engine=engine, precision="float16")
    assert_same_weights(after.to("cpu"), before.to("cpu"))


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("more", [{}, {"validation_data": VALIDATION}, {"report_every": 2}])
def test_bits_do_not_depend_on_how_many_epochs_were_trained_at_once(
    cuda: str, at_once: Callable[[bool], None], more: dict[str, Any]
) -> None:
    found = []
    for many in (True, False):
        at_once(many)
        model, hears = network(), Hears()
        history = train(model, hears, **more)
        assert history.precisions == IN_TWO
        assert [epoch for epoch, _ in hears.epochs] == history["epoch"]
        found.append((model, without_seconds(history)))
    assert_same_weights(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_an_update_that_ends_an_epoch_may_be_the_one_too_large(
    cuda: str, at_once: Callable[[bool], None]
) -> None:
    spike = replace(SPIKE, at=3 * STEPS - 1)
    models = [network(), network()]
    for many, model in zip((True, False), models, strict=True):
        at_once(many)
        history = train(model, optimizer=optim.SGD(model.parameters(), spike))
        assert history.precisions == IN_TWO
    assert_same_weights(*models)


def test_the_plan_gives_the_same_run_again(cuda: str) -> None:
    first, again = network(), network()
    history = train(first)
    repeated = train(again, plan=history.plan)
    assert_same_weights(first, again)
    assert repeated.precisions == history.precisions
    assert repeated.plan == history.plan


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("epochs", [2, 4, 5])
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(
    cuda: str, tmp_path: Path, epochs: int
) -> None:
    whole, part, resumed = network(), network(), network()
    expected = train(whole)
    path = tmp_path / "run"
    train(part, wf.Checkpoint(path, every=epochs), InterruptAt(1 << 30), epochs=epochs)
    history = train(resumed, resume_from=path)
    assert_same_weights(resumed, whole)
    assert history.precisions == expected.precisions
    assert without_seconds(history) == without_seconds(expected)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("followed", [True, False])
def test_early_stopping_keeps_the_best_of_both_precisions(
    cuda: str, at_once: Callable[[bool], None], followed: bool
) -> None:
    best = []
    for many in (True, False):
        at_once(many)
        stopping, model = wf.EarlyStopping(patience=3), network()
        others = [] if followed else [Looks()]
        history = train(model, stopping, *others, validation_data=VALIDATION, epochs=30)
        assert history.precisions == IN_TWO
        assert history.stopped_by.startswith("early stopping")
        assert stopping.best == min(history["val_loss"])
        assert history["epoch"] == list(range(1, len(history) + 1))
        best.append((stopping.best_epoch, model, without_seconds(history)))
    assert best[0][0] == best[1][0]
    assert best[0][2] == best[1][2]
    assert_same_weights(best[0][1], best[1][1])


def test_batches_of_a_loader_are_not_read_anew(cuda: str) -> None:
    read = []

    class Loader:
        def __iter__(self) -> Any:
            read.append(len(read) + 1)
            for first in range(0, len(X), BATCH):
                yield X[first : first + BATCH], LABELS[first : first + BATCH]

    model, expected = network(), network()
    optimizer = optim.SGD(model.parameters(), SPIKE)
    history = wf.fit(
        model, Loader(), optimizer=optimizer, epochs=EPOCHS, device="cuda", verbose=False
    )
    assert history.precisions == IN_TWO
    assert len(read) == EPOCHS
    train(expected, shuffle=False)
    assert_same_weights(model, expected)


def test_a_run_that_no_precision_holds_ends_as_any_other(cuda: str) -> None:
    model, expected = network(), network()
    optimizer = optim.SGD(model.parameters(), replace(SPIKE, peak=1e30))
    with pytest.raises(DivergedError) as error:
        train(model, Looks(), optimizer=optimizer)
    assert error.value.epoch == 4
    assert error.value.remedies == "a lower learning rate or clip_norm"
    assert error.value.__context__ is None
    train(expected, epochs=3)
    assert_same_weights(model.to("cpu"), expected.to("cpu"))


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_precision_that_was_asked_for_stays(cuda: str, precision: str) -> None:
    peak = 1e3 if precision == "float16" else 1e30
    model = network()
    optimizer = optim.SGD(model.parameters(), replace(SPIKE, peak=peak))
    with pytest.raises(DivergedError):
        train(model, optimizer=optimizer, precision=precision)


@pytest.mark.parametrize("engine", ["auto", "one_launch"])
def test_float32_of_one_launch_goes_on_in_graphs(cuda: str, engine: str) -> None:
    history = train(network(), precision="float32", engine=engine)
    assert history.precisions == {1: "float32"}
    assert "float32 (graph) goes on" in history.plan.reason


# Such a callback trains a network of its own.
OF_ANOTHER = DivergedError(epoch=4, step=17, lr=0.1, last_finite_loss=None)


@pytest.mark.parametrize("error", [RuntimeError("no paper"), OF_ANOTHER])
def test_an_error_of_a_callback_leaves_the_last_epoch(cuda: str, error: Exception) -> None:
    class Fails(wf.Callback):
        def on_epoch_end(self, run: wf.Run) -> None:
            if run.report.epoch == 2:
                raise error

    model, expected = network(), network()
    with pytest.raises(type(error)) as raised:
        train(model, Fails())
    assert raised.value is error
    train(expected, epochs=1)
    assert_same_weights(model.to("cpu"), expected.to("cpu"))


def test_a_network_on_the_cpu_has_one_precision() -> None:
    model = network()
    optimizer = optim.SGD(model.parameters(), replace(SPIKE, peak=1e38))
    with pytest.raises(DivergedError):
        train(model, optimizer=optimizer, device="cpu")
    model = network()
    optimizer = optim.SGD(model.parameters(), 0.1)
    with unchanged(model, optimizer):
        history = train(model, optimizer=optimizer, device="cpu", epochs=0)
    assert history.precisions == {1: "float32"}


@pytest.mark.slow
def test_an_estimator_goes_on_as_well(cuda: str) -> None:
    x = 400 * X
    settings: dict[str, Any] = {
        "hidden_layer_sizes": (20, 14),
        "solver": "sgd",
        "momentum": 0.0,
        "learning_rate_init": 0.5,
        "batch_size": BATCH,
        "max_iter": 3,
        "random_state": 0,
        "device": "cuda",
    }
    estimator = wf.MLPClassifier(**settings)
    with pytest.warns(ConvergenceWarning, match="Maximum iterations"):
        estimator.fit(x, LABELS)
    assert np.isfinite(estimator.loss_curve_).all()
    with pytest.raises(ValueError, match="non-finite"):
        estimator.set_params(precision="float16").fit(x, LABELS)
