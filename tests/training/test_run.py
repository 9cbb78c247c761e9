"""What callbacks see of the network: as it is by then, in the user's own model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.at_once import AtOnce
from support.sweeps import build
from support.training import InterruptAt, Taped, adam, assert_same_weights, blobs, mlp, unchanged
from warpfit import nn
from warpfit.backends.cuda.array import DeviceArray
from warpfit.errors import ConfigError, DivergedError
from warpfit.training.plan import ENGINES

X, LABELS = blobs(60)
VALIDATION = blobs(30, seed=1)


def fit(model: nn.Module, **settings: Any) -> wf.History:
    asked = {
        "epochs": 4,
        "batch_size": 16,
        "seed": 5,
        "device": "cpu",
        "verbose": False,
        **settings,
    }
    optimizer = asked.pop("optimizer", None) or adam(model)
    return wf.fit(model, X, LABELS, optimizer=optimizer, validation_data=VALIDATION, **asked)


class Looks(wf.Callback):
    """Evaluates a network, or the run's, wherever it is called."""

    def __init__(self, model: Any = None) -> None:
        self.model = model
        self.seen: list[wf.Evaluation] = []
        self.at_start: list[Any] = []
        self.at_end: list[Any] = []

    def look(self, run: wf.Run) -> wf.Evaluation:
        return wf.evaluate(self.model or run.model, *VALIDATION)

    def on_start(self, run: wf.Run) -> None:
        self.at_start.append(self.look(run))

    def on_epoch_end(self, run: wf.Run) -> None:
        self.seen.append(self.look(run))

    def on_end(self, run: wf.Run) -> None:
        self.at_end.append(self.look(run))


def assert_seen_as_reported(looks: Looks, history: wf.History, rel: float = 0.0) -> None:
    reported = [(report.val_loss, report.val_accuracy) for report in history.reports]
    found = [(result.loss, result.accuracy) for result in looks.seen]
    np.testing.assert_allclose(found, reported, rtol=rel)
    assert len({result.loss for result in looks.seen}) == len(history) > 1


@pytest.mark.parametrize("wrap", [lambda model: model, Taped])
def test_a_callback_sees_the_users_own_model_trained(wrap: Any) -> None:
    model = wrap(mlp(6, 8, 3))
    before = wf.evaluate(model, *VALIDATION)
    looks, of_run = Looks(model), Looks()
    history = fit(model, callbacks=[looks, of_run])
    assert_seen_as_reported(looks, history)
    assert (looks.seen, looks.at_start, looks.at_end) == (
        of_run.seen,
        of_run.at_start,
        of_run.at_end,
    )
    assert looks.at_start == [before]
    assert looks.at_end == [looks.seen[-1]] == [wf.evaluate(model, *VALIDATION)]


@pytest.mark.parametrize(
    ("engine", "precision"),
    [("layerwise", "float32"), ("graph", "float16"), ("one_launch", "float16")],
)
def test_on_a_device(cuda: str, engine: str, precision: str) -> None:
    model = mlp(6, 8, 3)
    looks = Looks(model)
    history = fit(model, callbacks=[looks], device=cuda, engine=engine, precision=precision)
    assert_seen_as_reported(looks, history, rel=1e-2)


def test_nothing_is_copied_to_be_seen(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Holds(wf.Callback):
        def on_epoch_end(self, run: wf.Run) -> None:
            for name, holder in run.model.named_arrays().items():
                assert isinstance(holder.data, DeviceArray)
                assert holder.data is run.state.arrays[name]

    fit(mlp(6, 8, 3), callbacks=[Holds()], device=cuda, engine="layerwise")


def test_a_model_that_a_callback_moves_is_up_to_date_at_the_next_border() -> None:
    model = mlp(6, 8, 3)

    class Moves(Looks):
        def look(self, run: wf.Run) -> wf.Evaluation:
            return wf.evaluate(model.to(dtype="float64"), *VALIDATION)

    looks = Moves()
    assert_seen_as_reported(looks, fit(model, callbacks=[looks]), rel=1e-5)
    assert model.dtype == "float32"


def test_a_callback_knows_what_outputs_mean() -> None:
    model, seen = mlp(6, 8, 1), []

    class Labels(wf.Callback):
        def on_start(self, run: wf.Run) -> None:
            seen.append(wf.predict(model, X, kind="labels"))

        def on_epoch_end(self, run: wf.Run) -> None:
            seen.append(wf.predict(run.model, X, kind="labels"))

    first = (LABELS == 0).astype(int)
    settings: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 16,
        "loss": "binary_cross_entropy",
        "device": "cpu",
    }
    wf.fit(model, X, first, optimizer=adam(model), callbacks=[Labels()], verbose=False, **settings)
    assert [labels.shape for labels in seen] == [(60,)] * 3


def test_a_resumed_run_shows_where_it_goes_on(tmp_path: Path) -> None:
    path, whole = tmp_path / "run.safetensors", Looks()
    fit(mlp(6, 8, 3), callbacks=[whole])
    fit(mlp(6, 8, 3), epochs=2, callbacks=[wf.Checkpoint(path)])
    model = mlp(6, 8, 3)
    resumed = Looks(model)
    fit(model, callbacks=[resumed], resume_from=path)
    assert [*resumed.at_start, *resumed.seen] == whole.seen[1:]


def test_the_best_weights_are_seen_at_the_end() -> None:
    model = mlp(6, 8, 3)
    stopping, looks = wf.EarlyStopping(patience=2), Looks(model)
    history = fit(model, callbacks=[stopping, looks], epochs=30, optimizer=adam(model, 0.5))
    best = min(history["val_loss"])
    assert looks.at_end[0].loss == best == wf.evaluate(model, *VALIDATION).loss
    assert history["val_loss"][-1] > best


def test_ctrl_c_goes_back_in_what_is_seen_as_well() -> None:
    model = mlp(6, 8, 3)
    looks = Looks(model)
    history = fit(model, callbacks=[looks, InterruptAt(11)])
    assert history.stopped_by == "interrupt"
    assert looks.at_end == [looks.seen[-1]] == [wf.evaluate(model, *VALIDATION)]
    assert looks.seen[-1].loss == history["val_loss"][-1]


class Raises(wf.Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_start(self, run: wf.Run) -> None:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_an_error_before_the_first_epoch_changes_nothing(
    error: BaseException, tmp_path: Path
) -> None:
    path, model = tmp_path / "run.safetensors", mlp(6, 8, 3)
    fit(mlp(6, 8, 3), callbacks=[wf.Checkpoint(path)])
    held = {name: holder.data for name, holder in model.named_arrays().items()}
    with pytest.raises(type(error)):
        fit(model, epochs=8, callbacks=[Raises(error)], resume_from=path)
    assert all(holder.data is held[name] for name, holder in model.named_arrays().items())
    assert model.loss is None
    assert_same_weights(model, mlp(6, 8, 3))


def test_a_run_that_is_stopped_as_it_starts_trains_nothing() -> None:
    class Stops(wf.Callback):
        def on_start(self, run: wf.Run) -> None:
            run.stop("at once")

    model = mlp(6, 8, 3)
    optimizer = adam(model)
    with unchanged(model, optimizer):
        history = fit(model, optimizer=optimizer, callbacks=[Stops()])
    assert (len(history), history.stopped_by) == (0, "at once")


def test_a_run_that_diverges_leaves_the_last_epoch_that_was_seen() -> None:
    model = mlp(6, 8, 3)
    looks = Looks(model)

    class Spoils(wf.Callback):
        def on_step(self, step: int, steps_per_epoch: int) -> None:
            if len(looks.seen) == 2:
                model[0].weight.data[...] = np.nan

    with pytest.raises(DivergedError):
        fit(model, callbacks=[looks, Spoils()])
    assert wf.evaluate(model, *VALIDATION) == looks.seen[-1]


def test_who_only_reads_reports_may_see_a_later_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "layerwise", AtOnce)

    class Listens(Looks):
        needs_run = False

    model = mlp(6, 8, 3)
    looks = Listens(model)
    asked: dict[str, Any] = {"epochs": 4, "batch_size": 16, "device": "cpu", "verbose": False}
    wf.fit(model, X, LABELS, optimizer=adam(model), callbacks=[looks], **asked)
    assert looks.seen == [wf.evaluate(model, *VALIDATION)] * 4


@pytest.mark.parametrize("names", [("0.weight",), ("0.weight", "0.bias", "2.weight", "2.bias")])
def test_parameters_cannot_be_frozen_on_the_way(names: Any) -> None:
    class Freezes(wf.Callback):
        def on_epoch_end(self, run: wf.Run) -> None:
            for name, parameter in run.model.named_parameters():
                parameter.requires_grad = name not in names

    model = mlp(6, 8, 3)
    with pytest.raises(
        ConfigError, match="the same parameters to train from the first epoch to the last"
    ):
        fit(model, callbacks=[Freezes()])


# -- others who train
# ----------------------------------------------------------------------------------------


def many(device: str, callback: wf.Callback, **settings: Any) -> wf.Sweep:
    asked = {"grid": {"lr": [0.05, 0.2]}, "epochs": 3, "batch_size": 16, "n_jobs": 1, **settings}
    given = {
        "validation_data": VALIDATION,
        "callbacks": [callback],
        "device": device,
        "verbose": False,
    }
    return wf.fit_many(build, X, LABELS, **given, **asked)


class Saves(wf.Callback):
    """Keeps the weights of each network at its end, by those at its start."""

    found: dict[str, Any] = {}  # noqa: RUF012  (the networks' copies share it)

    def on_start(self, run: wf.Run) -> None:
        self.start = str(run.model.state_dict()) + str(run.plan.optimizer.lr)

    def on_end(self, run: wf.Run) -> None:
        self.found[self.start] = run.model.state_dict()


class SavesAfterwards(Saves):
    needs_run = False
    needs_step_losses = False


@pytest.mark.parametrize("kind", [Saves, SavesAfterwards])
def test_networks_of_a_sweep_are_seen_by_their_own_callbacks(kind: Any) -> None:
    assert_each_sees_its_own("cpu", kind())


@pytest.mark.parametrize("kind", [Saves, SavesAfterwards])
def test_networks_of_a_sweep_on_a_device(cuda: str, kind: Any) -> None:
    assert_each_sees_its_own(cuda, kind())


def assert_each_sees_its_own(device: str, callback: Saves) -> None:
    Saves.found.clear()
    found = many(device, callback)
    assert len(Saves.found) == 2
    for model, weights in zip(found.models, Saves.found.values(), strict=True):
        for name, array in model.state_dict().items():
            np.testing.assert_array_equal(array, weights[name])


def test_epochs_of_a_sweeps_network_are_seen() -> None:
    seen: list[float] = []

    class Notes(Looks):
        def on_epoch_end(self, run: wf.Run) -> None:
            seen.append(self.look(run).loss)

    found = many("cpu", Notes(), grid={"lr": [0.1]})
    assert seen == found.best_history["val_loss"]
