from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import warpfit as wf
from support.sweeps import build
from support.training import blobs
from warpfit.errors import ConfigError

X, Y = blobs(60)


@pytest.fixture(scope="module")
def found() -> wf.Sweep:
    grid = {"lr": [0.1, 1e38, 0.3], "width": [4, 8]}
    return wf.fit_many(
        build, X, Y, grid=grid, folds=2, epochs=4, n_jobs=1, device="cpu", verbose=False
    )


def test_a_record_has_everything(found: wf.Sweep) -> None:
    assert list(found.records[0]) == [
        "candidate",
        "fold",
        "status",
        "message",
        "epochs",
        "seconds",
        "loss",
        "accuracy",
        "val_loss",
        "val_accuracy",
        "score",
        "scored_on",
        "rank",
    ]
    assert len(found) == len(found.models) == len(found.histories) == 12
    assert found.records[0]["seconds"] > 0
    assert sorted(record["rank"] for record in found.candidates if record["rank"]) == [1, 2, 3, 4]


def test_the_best_is_of_the_candidate_with_the_best_mean(found: wf.Sweep) -> None:
    means = [s["score"] for s in found.candidates if s["score"] is not None]
    best = next(s for s in found.candidates if s["rank"] == 1)
    assert best["score"] == max(means)
    folds = [r["score"] for r in found if r["candidate"] == best["candidate"]]
    assert found.best["score"] == max(folds)
    assert found.best_candidate == best["candidate"]
    assert found.best_history["val_accuracy"][-1] == found.best["score"]
    assert found.best_model is found.models[found.records.index(found.best)]


def test_as_a_data_frame(found: wf.Sweep) -> None:
    table = found.to_pandas()
    assert list(table.columns[:4]) == ["lr", "width", "fold", "status"]
    assert len(table) == 12
    assert table.groupby("width").size().tolist() == [6, 6]
    assert table["rank"].isna().sum() == 4


def test_values_that_are_called_like_columns() -> None:
    sweep = wf.fit_many(build, X, Y, grid={"epochs": [1, 2]}, n_jobs=1, device="cpu", verbose=False)
    (first, second) = sweep.rows()
    assert (first["candidate.epochs"], second["candidate.epochs"]) == (1, 2)
    assert second["epochs"] == 2


def test_printed_it_is_a_table_of_the_best(found: wf.Sweep) -> None:
    first, header, *rows = str(found).splitlines()
    assert first.startswith("12 networks: 8 done, 4 diverged; ")
    assert first.endswith("; ranked by validation accuracy")
    assert header.split() == ["rank", "lr", "width", "val_accuracy", "±", "epochs", "s", "status"]
    assert [row.split()[0] for row in rows] == ["1", "2", "3", "4", "-", "-"]
    assert repr(found) == "Sweep(12 networks: 8 done, 4 diverged)"
    grid = {"seed": list(range(12))}
    many = wf.fit_many(build, X, Y, grid=grid, epochs=0, n_jobs=1, device="cpu", verbose=False)
    assert str(many).endswith("... and 2 more")


def test_a_notebook_shows_the_same_table() -> None:
    candidates = [{"seed": seed, "name": "<b>"} for seed in range(12)]
    arguments = {"epochs": 0, "n_jobs": 1, "device": "cpu", "verbose": False}
    shown = wf.fit_many(build, X, Y, candidates=candidates, **arguments)._repr_html_()
    assert shown.startswith("<p>12 networks: 12 done; ")
    assert shown.count("<tr>") == 11
    assert shown.count("<td>&lt;b&gt;</td>") == 10
    assert "<b>" not in shown
    table, picture = shown.split("<p>... and 2 more</p>")
    assert table.endswith("</table>")
    assert picture.startswith('<img alt="candidates by their values and score" src="data:image/png')


def test_without_any_score_there_is_no_best() -> None:
    sweep = wf.fit_many(
        build, X, Y, grid={"lr": [1e38]}, epochs=3, n_jobs=1, device="cpu", verbose=False
    )
    assert sweep.records[0]["status"] == "diverged"
    with pytest.raises(
        ConfigError, match="expected a network with a score, got none: the loss or a weight"
    ):
        sweep.best_model  # noqa: B018


def test_the_picture_has_an_axis_for_what_varies_and_a_line_for_each_candidate(
    found: wf.Sweep, tmp_path: Path
) -> None:
    (axes,) = found.plot(title="title").axes
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["lr", "width", "validation accuracy"]
    curves = [line for line in axes.lines if len(line.get_xdata()) > 2]
    assert len(curves) == len(found.candidates)
    best = max(curves, key=lambda line: line.get_linewidth())
    scores = [s["score"] for s in found.candidates if s["score"] is not None]
    assert best.get_ydata()[-1] == (1.0 if max(scores) > min(scores) else 0.0)
    assert sum(line.get_ydata()[-1] < 0 for line in curves) == 2  # the diverged ones
    assert axes.get_title() == "title"
    found.plot(tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_one_candidate_is_a_point() -> None:
    sweep = wf.fit_many(
        build, X, Y, candidates=[{}], epochs=1, n_jobs=1, device="cpu", verbose=False
    )
    (axes,) = sweep.plot().axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["training accuracy"]
    assert np.isfinite(axes.lines[0].get_ydata()).all()
