from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

import warpfit as wf
from support.sweeps import build
from support.training import InterruptAt, assert_same_weights, blobs, mlp, same_weights, sgd
from warpfit.errors import ConfigError, DataError, DeviceError, ShapeError
from warpfit.random import next_seed

X, Y = blobs(90)
GRID = {"lr": [0.05, 0.3], "width": [4, 8]}


def sweep(grid: Any = None, **arguments: Any) -> wf.Sweep:
    if "candidates" not in arguments:
        arguments["grid"] = GRID if grid is None else grid
    given = {
        "epochs": 3,
        "batch_size": 16,
        "n_jobs": 1,
        "device": "cpu",
        "verbose": False,
        **arguments,
    }
    return wf.fit_many(given.pop("build", build), X, given.pop("y", Y), **given)


def to_one(candidate: dict[str, Any]) -> Any:
    """Return a network of one output, and its optimizer."""
    model = wf.nn.Sequential(wf.nn.Linear(X.shape[1], 4), wf.nn.Tanh(), wf.nn.Linear(4, 1))
    return model, "adam"


def alone(
    candidate: dict[str, Any], x: Any = X, y: Any = Y, seed: int = 0, **arguments: Any
) -> Any:
    """Return model and history of a candidate that `fit` trains by itself."""
    wf.manual_seed(seed)
    model, optimizer = build(candidate)
    given = {"epochs": 3, "batch_size": 16, "device": "cpu", "verbose": False, **arguments}
    return model, wf.fit(model, x, y, optimizer=optimizer, seed=seed, **given)


SMOOTHED = wf.losses.SoftmaxCrossEntropy(label_smoothing=0.1)


def diverging(candidate: dict[str, Any]) -> Any:
    model = mlp(6, 3)
    wf.fit(model, X, Y, optimizer=sgd(model, 1e38), epochs=3, device="cpu", verbose=False)


def test_every_network_has_the_bits_of_one_that_is_trained_alone() -> None:
    candidates = [
        {"lr": 0.05, "width": 4},
        {"lr": 0.3, "momentum": 0.9, "dropout": 0.3, "seed": 5},
        {"lr": 0.01, "optimizer": "adam", "batch_size": 32, "epochs": 2},
    ]
    found = sweep(candidates=candidates, validation_data=(X[:20], Y[:20]))
    for idx, candidate in enumerate(candidates):
        own = {
            name: candidate[name] for name in ("seed", "batch_size", "epochs") if name in candidate
        }
        model, history = alone(candidate, validation_data=(X[:20], Y[:20]), **own)
        assert_same_weights(found.models[idx], model)
        np.testing.assert_array_equal(found.histories[idx].step_losses, history.step_losses)
        record = found.records[idx]
        assert record["candidate"] == candidate
        assert record["epochs"] == len(history)
        for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
            assert record[name] == history[name][-1]
        assert (record["status"], record["message"], record["fold"]) == ("done", "", None)


def test_folds_train_on_their_rows_and_are_validated_on_the_others() -> None:
    rows = np.arange(len(X))
    folds = [(rows[30:], rows[:30]), (rows[:60], rows[60:])]
    found = sweep({"lr": [0.1, 0.3]}, folds=folds)
    assert [(r["candidate"]["lr"], r["fold"]) for r in found] == [
        (0.1, 0),
        (0.1, 1),
        (0.3, 0),
        (0.3, 1),
    ]
    for record, model in zip(found, found.models, strict=True):
        train, test = folds[record["fold"]]
        expected, history = alone(
            record["candidate"], X[train], Y[train], validation_data=(X[test], Y[test])
        )
        assert_same_weights(model, expected)
        assert record["score"] == history["val_accuracy"][-1]
    for idx, summary in enumerate(found.candidates):
        scores = [record["score"] for record in found.records[2 * idx : 2 * idx + 2]]
        assert summary["score"] == pytest.approx(np.mean(scores))
        assert summary["std"] == pytest.approx(np.std(scores))


def test_results_do_not_depend_on_the_number_of_processes() -> None:
    arguments = {"folds": 2, "callbacks": [wf.EarlyStopping("loss", patience=1)], "epochs": 4}
    one, two = sweep(n_jobs=1, **arguments), sweep(n_jobs=2, **arguments)
    assert "one network after the other" in one.plan.reason
    assert "2 processes" in two.plan.reason
    for ours, theirs in zip(one.models, two.models, strict=True):
        assert_same_weights(ours, theirs)
    for ours, theirs in zip(one, two, strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


@pytest.mark.slow
def test_models_that_cannot_be_sent_to_processes() -> None:
    class Local(wf.nn.Module):
        def __init__(self) -> None:
            self.inner, self.lock = mlp(6, 3), open(__file__)  # noqa: SIM115

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    def local(candidate: Any) -> Any:
        model = Local()
        model.lock.close()
        return model, sgd(model)

    with pytest.raises(
        ConfigError,
        match=r"callbacks and metric that can be pickled, .* but Cannot pickle closed files",
    ):
        sweep({"lr": [1, 2]}, build=local, n_jobs=2)


def test_a_network_that_diverges_leaves_the_others_alone() -> None:
    found = sweep({"lr": [0.1, 1e38, 0.2]})
    statuses = [record["status"] for record in found]
    assert statuses == ["done", "diverged", "done"]
    assert "not finite in epoch 1" in found.records[1]["message"]
    assert found.records[1]["rank"] is None
    assert_same_weights(found.models[2], alone({"lr": 0.2})[0])


def test_a_network_that_fails_leaves_the_others_alone() -> None:
    class Fragile(wf.Callback):
        def on_epoch_end(self, run: Any) -> None:
            if run.plan.optimizer.lr.lr == 0.2:
                raise RuntimeError("no luck")

    found = sweep({"lr": [0.1, 0.2]}, callbacks=[Fragile()])
    assert [record["status"] for record in found] == ["done", "failed"]
    assert found.records[1]["message"] == "RuntimeError: no luck"
    with pytest.raises(
        DeviceError, match=r"all 1 networks failed, the first \(lr=0.2\) with: RuntimeError"
    ):
        sweep({"lr": [0.2]}, callbacks=[Fragile()])


def test_ctrl_c_keeps_what_is_finished() -> None:
    steps = -(-len(X) // 16)

    class Interrupting(InterruptAt):
        count = 0

        def on_step(self, step: int, steps_per_epoch: int) -> None:
            Interrupting.count += 1
            if Interrupting.count == 4 * steps + 2:  # in the second network's second epoch
                raise KeyboardInterrupt

    found = sweep({"lr": [0.1, 0.2, 0.3]}, callbacks=[Interrupting(0)])
    assert found.interrupted
    assert [record["status"] for record in found] == ["done", "interrupted", "not started"]
    assert [record["epochs"] for record in found] == [3, 1, 0]
    assert found.best["candidate"] == {"lr": 0.1}
    assert found.models[2] is None
    assert_same_weights(found.models[0], alone({"lr": 0.1})[0])


def test_the_record_of_an_interrupted_network_is_that_of_its_best_weights() -> None:
    steps = -(-len(X) // 16)
    callbacks = [wf.EarlyStopping("loss", min_delta=9.0), InterruptAt(2 * steps + 1)]
    found = sweep({"lr": [0.1]}, callbacks=callbacks)
    record, history = found.records[0], found.histories[0]
    assert (record["status"], record["epochs"]) == ("interrupted", 2)
    assert record["loss"] == history["loss"][0] > history["loss"][1]
    assert_same_weights(found.models[0], alone({"lr": 0.1}, epochs=1)[0])


def test_early_stopping_is_each_networks_own() -> None:
    stopping = wf.EarlyStopping("val_loss", patience=1)
    folds = 2
    found = sweep(
        {"lr": [0.01, 0.3, 5.0], "momentum": [0.9]}, folds=folds, callbacks=[stopping], epochs=30
    )
    assert stopping.best is None  # copies were at work
    lengths = {len(history) for history in found.histories}
    assert len(lengths) > 1
    for record, history in zip(found, found.histories, strict=True):
        if record["status"] == "stopped":
            assert "early stopping" in record["message"]
            assert record["val_loss"] == min(history["val_loss"])


def test_initial_values_are_the_seeds_and_the_users_own_sequence_goes_on() -> None:
    wf.manual_seed(7)
    next_seed()
    expected = next_seed()
    wf.manual_seed(7)
    next_seed()
    found = sweep({"seed": [0, 1, 0]}, epochs=0)
    assert next_seed() == expected
    assert same_weights(found.models[0], found.models[2])
    assert not same_weights(found.models[0], found.models[1])


def test_the_metric_decides() -> None:
    by_loss = sweep(metric="loss")
    losses = [record["loss"] for record in by_loss]
    assert by_loss.best["loss"] == min(losses)
    assert [record["rank"] for record in by_loss] == (1 + np.argsort(np.argsort(losses))).tolist()
    found = sweep(metric=lambda model, x, y: float(model.num_parameters), validation_data=(X, Y))
    assert found.best["candidate"]["width"] == 8
    assert found.metric.name == "score"
    assert wf.evaluate(found.best_model, X, Y).loss > 0


def test_a_scorer_of_scikit_learns_decides_by_its_name() -> None:
    found = sweep(metric="f1_macro", validation_data=(X, Y))
    labels = [wf.predict(model, X, kind="labels") for model in found.models]
    expected = [f1_score(Y, each, average="macro") for each in labels]
    assert [record["score"] for record in found] == expected
    with pytest.raises(ConfigError, match="the metric 'f1' cannot be computed here: Target is mul"):
        sweep(metric="f1", folds=2)
    errors = sweep(metric="neg_mean_absolute_error", folds=2, loss="mse", build=to_one, y=X[:, 0])
    assert -1 < errors.best["score"] < 0


def test_an_optimizer_may_be_named() -> None:
    def named(candidate: dict[str, Any]) -> tuple[wf.nn.Module, str]:
        return build(candidate)[0], "adam"

    def made(candidate: dict[str, Any]) -> tuple[wf.nn.Module, wf.optim.Optimizer]:
        model, _ = build(candidate)
        return model, wf.optim.Adam(model.parameters())

    grid = {"width": [4, 8]}
    assert_same_weights(sweep(grid, build=named).best_model, sweep(grid, build=made).best_model)
    for given, told in (
        (lambda candidate: named(candidate)[0], r"\(model, optimizer\), got Sequential\( \(0\)"),
        (
            lambda candidate: (named(candidate)[0], "adams"),
            "width=4: expected an opt.*adams",
        ),
    ):
        with pytest.raises(ConfigError, match=told):
            sweep(grid, build=given)


def test_only_the_best_models_are_kept_if_asked_for() -> None:
    everything, found = sweep(folds=2), sweep(folds=2, keep_models=False)
    assert sum(model is not None for model in found.models) == 2
    assert_same_weights(found.best_model, everything.best_model)
    assert [r["score"] for r in found] == [r["score"] for r in everything]


def test_models_of_networks_without_a_score_are_not_kept_either() -> None:
    found = sweep({"lr": [0.1, 1e38, 0.2]}, keep_models=False)
    assert found.counts() == {"done": 2, "diverged": 1}
    assert [model is not None for model in found.models].count(True) == 1
    assert found.best_model is not None


def test_a_metric_that_is_none_fails_its_network_by_name() -> None:
    def fussy(model: Any, x: Any, y: Any) -> Any:
        if model[0].weight.data.shape[1] == 4:
            raise KeyError("no luck")
        return 1.0

    found = sweep({"width": [4, 8]}, folds=2, metric=fussy)
    assert [record["message"] for record in found] == ["metric raised KeyError: 'no luck'"] * 2 + [
        ""
    ] * 2
    with pytest.raises(
        ConfigError, match=r"all 4 networks failed, .* expected metric to return a number, got None"
    ):
        sweep({"width": [4, 8]}, folds=2, metric=lambda model, x, y: None)
    found = sweep({"width": [4, 8]}, folds=2, metric=lambda model, x, y: float("nan"))
    with pytest.raises(ConfigError, match="got none: score is no finite number of any"):
        found.best  # noqa: B018


def test_sweeps_in_threads_draw_their_own_initial_values() -> None:
    begun = Barrier(2)

    def slow(candidate: dict[str, Any]) -> Any:
        begun.wait(timeout=30)
        return build(candidate)

    def losses(_: int) -> list[float]:
        return [record["loss"] for record in sweep({"seed": [1, 2, 3]}, build=slow)]

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(losses, range(2)))
    expected = [record["loss"] for record in sweep({"seed": [1, 2, 3]})]
    assert found == [expected] * 2


def test_on_a_device_networks_come_out_as_alone_there(cuda: str) -> None:
    candidates = [{"lr": 0.1}, {"lr": 0.3}]
    rows = np.arange(48)
    folds = [(rows[16:], rows[:16])]
    settings = {"epochs": 1, "batch_size": 32, "engine": "layerwise", "device": cuda}
    found = sweep(candidates=candidates, folds=folds, **settings)
    assert found.plan.device == "cuda:0"
    assert "one after the other by `fit`: engine 'layerwise' was asked for" in str(found.plan)
    expected, _ = alone(
        candidates[1], X[16:48], Y[16:48], validation_data=(X[:16], Y[:16]), **settings
    )
    assert_same_weights(found.models[1], expected)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (
            {"folds": 2, "validation_data": (X, Y)},
            ConfigError,
            "expected validation_data or folds, got both",
        ),
        ({"validation_data": 3}, ConfigError, "validation_data as a pair"),
        ({"metric": "f2"}, ConfigError, "among val_accuracy, .* scikit-learn, .* got 'f2'"),
        ({"metric": "acc"}, ConfigError, "got 'acc'; warpfit has 'accuracy'"),
        ({"metric": "f1macro"}, ConfigError, "got 'f1macro'; close are f1_macro"),
        ({"metric": "val_loss"}, ConfigError, "validation_data or folds for the metric 'val_loss'"),
        ({"metric": len}, ConfigError, "metric that is a function"),
        ({"halving": 1}, ConfigError, "factor above 1, got 1"),
        ({"halving": "3"}, ConfigError, "expected halving as a Halving"),
        ({"device": "gpu7"}, ConfigError, "gpu7"),
        ({"device": ["cpu", "gpu7"]}, ConfigError, "got 'gpu7'"),
        ({"device": 3}, ConfigError, "expected a device or several, got 3"),
        ({"device": ["cuda", "cuda:0"]}, ConfigError, "expected each GPU once, got cuda, cuda:0"),
        ({"device": ["cuda:0", "cuda:00"]}, ConfigError, "got 'cuda:00'"),
        ({"device": ["cpu", "auto"]}, ConfigError, r"names of devices .* got .'cpu', 'auto'."),
        (
            {"executor": 3},
            ConfigError,
            "executor to be a concurrent.futures.Executor or None, got int",
        ),
        ({"n_jobs": 0}, ConfigError, "n_jobs as an integer other than 0"),
        ({"epochs": 0, "halving": 2}, ConfigError, "epochs to be an integer of at least 1"),
        ({"callbacks": [3]}, ConfigError, "sequence of Callback objects"),
        ({"callbacks": [wf.CSVLog("a.csv")]}, ConfigError, "write no file, .* got CSVLog"),
        ({"callbacks": [wf.Profile("a.json")]}, ConfigError, "write no file, .* got Profile"),
        (
            {"grid": {"class_weight": [None, [1.0, 2.0]]}},
            ShapeError,
            "candidate class_weight=1.0-2.0: expected 3 class weights",
        ),
        ({"grid": {"loss_scale": ["auto", [3]]}}, ConfigError, "candidate loss_scale=3: "),
        ({"grid": {"lr": np.array(0.1)}}, ConfigError, "sequence of values for 'lr'"),
        (
            {"validation_data": (X[:, :3], Y)},
            ShapeError,
            r"candidate lr=0.05 width=4: .* validation x with rows",
        ),
        (
            {"validation_data": (X, Y[:3])},
            ShapeError,
            "as many rows in validation y as in x, got 3 and 90",
        ),
        (
            {"grid": {"loss": ["cross_entropy", SMOOTHED]}, "metric": "loss"},
            ConfigError,
            "losses .* differ",
        ),
        (
            {"build": diverging},
            ConfigError,
            "candidate lr=0.05 width=4: the loss or a weight is not finite",
        ),
        ({"seed": -1}, ConfigError, "seed"),
        ({"grid": {"seed": [-1]}}, ConfigError, "candidate seed=-1: expected a seed"),
        ({"grid": {"epochs": [0.5]}}, ConfigError, "candidate epochs=0.5: expected epochs"),
        ({"grid": {"loss": ["hinge"]}}, ConfigError, "candidate loss=hinge: "),
        ({"grid": {"batch_size": [16, 0]}}, ConfigError, "candidate batch_size=0: "),
        (
            {"build": lambda candidate: 3},
            ConfigError,
            r"candidate lr=0.05 width=4: .* \(model, optimizer\), got 3",
        ),
        ({"build": lambda candidate: (3, 4)}, ConfigError, "got 3 and 4"),
        ({"sample_weight": [1.0]}, ShapeError, "sample_weight"),
    ],
)
def test_bad_arguments_are_found_before_anything_trains(
    arguments: dict[str, Any], kind: type[Exception], words: str
) -> None:
    grid = arguments.pop("grid", GRID)
    with pytest.raises(kind, match=words):
        sweep(grid, **arguments)
    arguments["grid"] = grid


def test_a_build_that_raises_names_the_candidate() -> None:
    def fussy(candidate: dict[str, Any]) -> Any:
        if candidate["width"] == 8:
            raise KeyError("depth")
        return build(candidate)

    with pytest.raises(
        ConfigError, match=r"candidate lr=0.05 width=8: build raised KeyError: 'depth'"
    ):
        sweep(build=fussy)


def test_a_build_that_makes_one_model_for_all() -> None:
    model = mlp(6, 3)
    words = "new model for each candidate, got layers of an earlier one for lr=2"
    with pytest.raises(ConfigError, match=words):
        sweep({"lr": [1, 2]}, build=lambda candidate: (model, sgd(model)))
    first = wf.nn.Linear(6, 4, seed=0)

    def sharing(candidate: dict[str, Any]) -> Any:
        shared = wf.nn.Sequential(first, wf.nn.Linear(4, 3))
        return shared, sgd(shared)

    with pytest.raises(ConfigError, match=words):
        sweep({"lr": [1, 2]}, build=sharing)


def test_rows_that_are_no_data() -> None:
    with pytest.raises(DataError, match="expected x to be finite"):
        wf.fit_many(build, X * np.nan, Y, grid=GRID)
    with pytest.raises(ShapeError, match="as many rows in y as in x"):
        wf.fit_many(build, X, Y[:3], grid=GRID)


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep(halving=2)
    assert list(tmp_path.iterdir()) == []


def of_one_logit(candidate: dict[str, Any]) -> tuple[wf.nn.Module, wf.optim.Optimizer]:
    model = wf.nn.Sequential(wf.nn.Linear(6, 8), wf.nn.ReLU(), wf.nn.Linear(8, 1))
    return model, wf.optim.Adam(model.parameters(), lr=candidate["lr"])


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_models_know_the_loss_that_they_were_trained_with(n_jobs: int) -> None:
    settings: dict[str, Any] = {
        "loss": "binary_cross_entropy",
        "epochs": 4,
        "batch_size": 8,
        "device": "cpu",
    }
    is_first = (Y == 0).astype(int)
    data = {"grid": {"lr": [0.02, 0.05]}, "validation_data": (X, is_first)}
    found = wf.fit_many(of_one_logit, X, is_first, **data, n_jobs=n_jobs, **settings, verbose=False)
    for model, record in zip(found.models, found, strict=True):
        matches = wf.predict(model, X, kind="labels") == is_first
        assert matches.mean() == wf.evaluate(model, X, is_first).accuracy == record["val_accuracy"]
