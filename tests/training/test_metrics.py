"""Metrics of fit: scorers and functions, in reports, history, files and callbacks."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    log_loss,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
)

import warpfit as wf
from support.at_once import AtOnce
from support.training import Numbers, Taped, adam, assert_same_weights, blobs, mlp, unchanged
from warpfit.errors import ConfigError
from warpfit.training.plan import ENGINES
from warpfit.training.progress import epoch_line

X, LABELS = blobs(60)
X_VAL, LABELS_VAL = VALIDATION = blobs(40, seed=1)
BINARY, SEVERAL = LABELS > 0, np.stack([LABELS > 0, LABELS > 1], axis=1)
PLANE = X[:, 0] - X[:, 1]


def errors(y: Numbers, predicted: Numbers) -> int:
    return int((y != predicted).sum())


def fit(model: Any, y: Any = LABELS, **settings: Any) -> wf.History:
    settings = {"epochs": 3, "batch_size": 16, "verbose": False, "device": "cpu", **settings}
    return wf.fit(model, X, y, **{"optimizer": adam(model), **settings})


class Predicts(wf.Callback):
    """Notes what the network predicts after each epoch."""

    def __init__(self, x: Numbers, *kinds: str) -> None:
        self.x, self.kinds, self.seen = x, kinds, []

    def on_epoch_end(self, run: wf.Run) -> None:
        self.seen.append([wf.predict(run.model, self.x, kind=kind) for kind in self.kinds])


# -- values
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda model: model, Taped], ids=["layers", "module"])
@pytest.mark.parametrize("report_every", [1, 2])
def test_scorers_and_functions_see_each_epochs_network(wrap: Any, report_every: int) -> None:
    predicts, names = Predicts(X_VAL, "labels", "probabilities"), ["f1_macro", "neg_log_loss"]
    history = fit(
        wrap(mlp(6, 8, 3)),
        validation_data=VALIDATION,
        metrics=[*names, "roc_auc_ovr", errors],
        callbacks=[predicts],
        report_every=report_every,
    )
    assert len(history) == len(predicts.seen) == (3 if report_every == 1 else 2)
    for idx, (labels, probabilities) in enumerate(predicts.seen):
        assert history.reports[idx].metrics == pytest.approx(
            {
                "val_f1_macro": f1_score(LABELS_VAL, labels, average="macro"),
                "val_neg_log_loss": -log_loss(LABELS_VAL, probabilities),
                "val_roc_auc_ovr": roc_auc_score(LABELS_VAL, probabilities, multi_class="ovr"),
                "val_errors": errors(LABELS_VAL, labels),
            }
        )
    assert len(set(history["val_neg_log_loss"])) == len(history)


def test_without_rows_to_validate_on_they_are_of_the_training_rows() -> None:
    predicts = Predicts(X, "labels")
    history = fit(mlp(6, 3), metrics=["balanced_accuracy", errors], callbacks=[predicts])
    expected = [balanced_accuracy_score(LABELS, labels) for (labels,) in predicts.seen]
    assert history["balanced_accuracy"] == expected
    assert history["errors"] == [errors(LABELS, labels) for (labels,) in predicts.seen]


def test_one_logit_tells_two_classes() -> None:
    predicts = Predicts(X, "labels", "probabilities")
    settings = {"loss": "binary_cross_entropy", "callbacks": [predicts], "epochs": 2}
    history = fit(mlp(6, 1), BINARY, metrics=["f1", "average_precision", errors], **settings)
    for report, (labels, probabilities) in zip(history, predicts.seen, strict=True):
        assert report.metrics == pytest.approx(
            {
                "f1": f1_score(BINARY, labels),
                "average_precision": average_precision_score(BINARY, probabilities[:, 0]),
                "errors": (labels != BINARY).sum(),
            }
        )


def test_several_answers() -> None:
    predicts = Predicts(X, "labels", "probabilities")
    settings = {"loss": "binary_cross_entropy", "callbacks": [predicts], "epochs": 1}
    history = fit(mlp(6, 2), SEVERAL, metrics=["f1_macro", "roc_auc"], **settings)
    ((labels, probabilities),) = predicts.seen
    assert history["f1_macro"] == [f1_score(SEVERAL, labels, average="macro")]
    assert history["roc_auc"] == pytest.approx([roc_auc_score(SEVERAL, probabilities)])


@pytest.mark.parametrize("y", [PLANE, PLANE[:, None], X[:, :2]], ids=["N", "N1", "N2"])
@pytest.mark.parametrize("loss", ["mse", "poisson", lambda z, t: (z - t) ** 2])
def test_regressions_have_values(y: Numbers, loss: Any) -> None:
    y = np.abs(y)
    predicts = Predicts(X, "values")
    metrics = ["r2", mean_absolute_error]
    model = mlp(6, y.size // len(y))
    history = fit(model, y, loss=loss, metrics=metrics, callbacks=[predicts])
    found = [predicted.reshape(y.shape) for (predicted,) in predicts.seen]
    assert history["r2"] == pytest.approx([r2_score(y, p) for p in found], rel=1e-5)
    expected = [mean_absolute_error(y, p) for p in found]
    assert history["mean_absolute_error"] == pytest.approx(expected, rel=1e-5)


def test_the_accuracy_that_reports_have_is_not_computed_again() -> None:
    assert [report.metrics for report in fit(mlp(6, 3), metrics=["accuracy"])] == [{}] * 3


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_none(value: float, tmp_path: Path) -> None:
    def undefined(y: Numbers, predicted: Numbers) -> float:
        return value

    log = wf.JSONLLog(tmp_path / "log.jsonl")
    history = fit(mlp(6, 3), metrics=[undefined], callbacks=[log], epochs=1)
    assert history["undefined"] == [None]
    assert json.loads(log.path.read_text(), parse_constant=pytest.fail)["undefined"] is None


# -- engines
# ------------------------------------------------------------------------------------------------


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("settings", [{}, {"validation_data": VALIDATION}])
@pytest.mark.parametrize("engine", ["layerwise", "graph", "one_launch"])
def test_every_engine_has_them_and_trains_as_without(
    cuda: str, engine: str, settings: dict[str, Any]
) -> None:
    models = [mlp(6, 16, 3), mlp(6, 16, 3)]
    settings = {"engine": engine, "device": cuda, "epochs": 2, **settings}
    history = fit(models[0], metrics=["f1_macro", errors], **settings)
    fit(models[1], **settings)
    assert_same_weights(*models)
    assert history.plan.engine == engine
    x, labels = settings.get("validation_data", (X, LABELS))
    found = wf.predict(models[0], x, kind="labels")
    prefix = "val_" if "validation_data" in settings else ""
    assert history[f"{prefix}errors"][-1] == errors(labels, found)
    assert history[f"{prefix}f1_macro"][-1] == f1_score(labels, found, average="macro")


def test_an_engine_that_would_stop_by_itself_leaves_that_to_the_callback(cuda: str) -> None:
    stopping = wf.EarlyStopping("loss", patience=1, min_delta=10.0)
    settings = {"engine": "one_launch", "device": cuda, "epochs": 6, "callbacks": [stopping]}
    history = fit(mlp(6, 16, 3), metrics=[errors], **settings)
    assert (len(history), stopping.best_epoch) == (2, 1)
    assert None not in history["errors"]


def test_epochs_are_not_trained_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "layerwise", AtOnce)
    predicts = Predicts(X, "labels")
    predicts.needs_run = True
    history = fit(mlp(6, 3), metrics=[errors], epochs=4)
    fit(mlp(6, 3), callbacks=[predicts], epochs=4)
    assert history["errors"] == [errors(LABELS, labels) for (labels,) in predicts.seen]


# -- where they show
# ------------------------------------------------------------------------------------------------


def test_history_and_files_have_their_columns(tmp_path: Path) -> None:
    table, lines = wf.CSVLog(tmp_path / "log.csv"), wf.JSONLLog(tmp_path / "log.jsonl")
    history = fit(
        mlp(6, 3), metrics=["f1_macro"], validation_data=VALIDATION, callbacks=[table, lines]
    )
    assert history.columns[-1] == "val_f1_macro"
    frame = pd.DataFrame(history.to_dict())
    assert frame["val_f1_macro"].tolist() == history["val_f1_macro"]
    read = list(csv.DictReader(table.path.read_text().splitlines()))
    assert [float(row["val_f1_macro"]) for row in read] == history["val_f1_macro"]
    rows = [json.loads(line) for line in lines.path.read_text().splitlines()]
    assert [row["val_f1_macro"] for row in rows] == history["val_f1_macro"]
    with pytest.raises(KeyError, match=r"among epoch, .*, val_f1_macro, got 'f1_macro'"):
        history["f1_macro"]
    value = history["val_f1_macro"][-1]
    assert f"  val f1 macro {value:.4f}  " in epoch_line(history.reports[-1], 3)


def test_a_resumed_run_has_those_of_before(tmp_path: Path) -> None:
    path, metrics = tmp_path / "run.ckpt", {"metrics": [errors], "validation_data": VALIDATION}
    fit(mlp(6, 3), epochs=2, callbacks=[wf.Checkpoint(path)], **metrics)
    resumed = fit(mlp(6, 3), epochs=4, resume_from=path, **metrics)
    assert resumed["val_errors"] == fit(mlp(6, 3), epochs=4, **metrics)["val_errors"]
    others = fit(mlp(6, 3), epochs=4, resume_from=path, validation_data=VALIDATION)
    assert others["val_errors"] == [*resumed["val_errors"][:2], None, None]


# -- early stopping
# ------------------------------------------------------------------------------------------------


def scripted(name: str, values: list[Any], **settings: Any) -> tuple[wf.History, wf.EarlyStopping]:
    """Train with a metric that has these values, the first before the first epoch."""
    coming = iter([0.0, *values])

    def metric(y: Numbers, predicted: Numbers) -> float:
        return next(coming)

    metric.__name__ = name
    stopping = wf.EarlyStopping(name, patience=2, **settings)
    history = fit(mlp(6, 3), metrics=[metric], callbacks=[stopping], epochs=len(values))
    return history, stopping


NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "settings", "values", "best"),
    [
        ("pinball_loss", {}, [3, 2, 2.5, 2.2, 9], (2, 2)),
        ("absolute_error", {}, [3, 2, 2.5, 2.2, 9], (2, 2)),
        ("f2_score", {}, [1, 2, 1.5, 1.2, 9], (2, 2)),
        ("mae", {"mode": "min"}, [3, 2, 2.5, 2.2, 9], (2, 2)),
        ("gain", {"mode": "max"}, [1, 2, 1.5, 1.2, 9], (2, 2)),
        ("f2_score", {}, [NAN, 2, NAN, 1.2, 9], (2, 2)),
        ("f2_score", {}, [NAN, NAN], (None, 0)),
    ],
)
def test_a_metric_may_end_the_run(
    name: str, settings: dict[str, Any], values: list[float], best: Any
) -> None:
    history, stopping = scripted(name, values, **settings)
    assert (stopping.best, stopping.best_epoch) == best
    assert len(history) == min(4, len(values))
    of_best = "none" if best[0] is None else f"{best[0]} (epoch {best[1]})"
    assert history.stopped_by == f"early stopping: no better {name} than {of_best}"


@pytest.mark.parametrize(
    ("monitor", "mode", "follows"),
    [
        ("val_loss", "auto", True),
        ("val_loss", "min", True),
        ("val_loss", "max", False),
        ("accuracy", "max", True),
        ("accuracy", "min", False),
        ("val_f1_macro", "auto", False),
    ],
)
def test_engines_follow_a_rule_that_they_know(monitor: str, mode: str, follows: bool) -> None:
    assert (wf.EarlyStopping(monitor, mode=mode).rule() is not None) == follows


def test_more_of_a_scorer_is_better_whatever_its_name_ends_in() -> None:
    stopping, model = wf.EarlyStopping("val_neg_log_loss", patience=2), mlp(6, 3)
    settings = {"metrics": ["neg_log_loss"], "validation_data": VALIDATION, "epochs": 20}
    history = fit(model, callbacks=[stopping], optimizer=adam(model, 0.05), **settings)
    assert stopping.best == max(history["val_neg_log_loss"]) > history["val_neg_log_loss"][0]


@pytest.mark.parametrize(
    ("monitor", "match"),
    [
        ("val_errors", "expected to monitor val_loss, .*, accuracy, errors, got 'val_errors'"),
        ("speed", "expected to monitor .*, got 'speed'"),
        ("errors", "expected mode='min' or 'max' for errors, whose name does not say what"),
    ],
)
def test_what_cannot_be_watched_is_found_before_the_first_step(monitor: str, match: str) -> None:
    model = mlp(6, 3)
    optimizer = adam(model)
    with unchanged(model, optimizer), pytest.raises(ConfigError, match=match):
        fit(model, optimizer=optimizer, metrics=[errors], callbacks=[wf.EarlyStopping(monitor)])


# -- what is refused
# ------------------------------------------------------------------------------------------------


def loss(y: Numbers, predicted: Numbers) -> float:
    return 0.0


def words(y: Numbers, predicted: Numbers) -> str:
    return "good"


@pytest.mark.parametrize(
    ("metrics", "match"),
    [
        ("f1_macro", "expected metrics as a list, got 'f1_macro'"),
        (["f1_makro"], r"get_scorer_names\(\), got 'f1_makro'; close are f1_macro"),
        (["f1"], "the metric 'f1' cannot be computed here: Target is multiclass but average"),
        ([3], "expected a metric as a scorer's name or a function with a name of its own, got 3"),
        ([lambda y, predicted: 0.0], "a function with a name of its own, got <function"),
        ([errors, errors], "metrics of different names, .* got errors, errors"),
        ([loss], "none of a report's columns, got loss"),
        ([words], "expected the metric words to return a number, got 'good'"),
        ([lambda: None, loss], "a function with a name of its own"),
    ],
)
def test_what_is_no_metric_is_refused_before_the_first_step(metrics: Any, match: str) -> None:
    model = mlp(6, 3)
    optimizer = adam(model)
    with unchanged(model, optimizer), pytest.raises(ConfigError, match=match):
        fit(model, optimizer=optimizer, metrics=metrics)


def test_probabilities_of_a_regression_are_refused() -> None:
    with pytest.raises(ConfigError, match="the metric 'roc_auc' cannot be computed here"):
        fit(mlp(6, 1), PLANE, loss="mse", metrics=["roc_auc"])
