"""History: columns, tables, pictures."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import adam, blobs, mlp
from warpfit.engines.base import EpochReport
from warpfit.errors import ConfigError

PNG = b"\x89PNG\r\n"


def fit(epochs: int = 3, **settings: Any) -> wf.History:
    x, labels = blobs(50)
    model = mlp(6, 3)
    return wf.fit(
        model,
        x,
        labels,
        optimizer=adam(model),
        epochs=epochs,
        batch_size=16,
        verbose=False,
        **settings,
    )


@pytest.fixture(scope="module")
def history() -> wf.History:
    return fit(validation_data=blobs(20, seed=1))


@pytest.fixture(scope="module")
def bare() -> wf.History:
    return fit()


def test_columns_are_lists_over_the_epochs(history: wf.History) -> None:
    assert history["epoch"] == [1, 2, 3]
    assert history["num_rows"] == [50, 50, 50]
    assert len(history) == 3
    assert [report.loss for report in history] == history["loss"]
    for report, speed in zip(history, history["samples_per_second"], strict=True):
        assert speed == 50 / report.seconds > 0


def test_unknown_columns(history: wf.History) -> None:
    with pytest.raises(KeyError, match=r"expected a column among epoch, loss, .*, got 'speed'"):
        history["speed"]


def test_step_losses_of_all_epochs(history: wf.History) -> None:
    assert history.step_losses.shape == (12,)
    assert history.step_losses.dtype == np.float64
    np.testing.assert_array_equal(history.step_losses[4:8], history.reports[1].step_losses)
    assert wf.History().step_losses.shape == (0,)


def test_the_table_is_json_and_leaves_out_what_is_not_known(
    history: wf.History, bare: wf.History
) -> None:
    table = history.to_dict()
    assert json.loads(json.dumps(table, allow_nan=False)) == table
    assert list(table) == [
        *("epoch", "loss", "accuracy", "lr", "seconds", "num_rows", "val_loss", "val_accuracy"),
        "samples_per_second",
    ]
    assert all(len(values) == 3 for values in table.values())
    assert set(table) - set(bare.to_dict()) == {"val_loss", "val_accuracy"}
    assert wf.History().to_dict() == {}


def test_a_regression_has_no_accuracy() -> None:
    report = EpochReport(1, 0.5, None, 0.1, 1.0, 10, np.zeros(1))
    assert "accuracy" not in wf.History([report]).to_dict()


def test_repr_says_how_it_ended(history: wf.History) -> None:
    assert repr(history).startswith(
        "History(3 epochs, stopped by epochs, last: EpochReport(epoch=3, loss="
    )
    assert repr(wf.History()) == "History(0 epochs, stopped by epochs)"


def test_a_notebook_shows_a_table_and_the_curves(history: wf.History) -> None:
    shown = history._repr_html_()
    assert shown.startswith("<p>3 epochs, stopped by epochs</p><table><tr><th>epoch</th>")
    assert shown.count("<tr>") == 4
    assert f"<td>{history['val_loss'][-1]:.4g}</td>" in shown
    (picture,) = re.findall(r'src="data:image/png;base64,([^"]*)"', shown)
    assert b64decode(picture).startswith(PNG)
    assert history.plot()._repr_png_().startswith(PNG)


def test_a_notebook_shows_the_last_epochs_of_many_and_what_is_said_as_it_is() -> None:
    reports = [EpochReport(epoch, 0.5, None, 0.1, 1.0, 10, np.zeros(1)) for epoch in range(1, 1013)]
    many = wf.History(reports)
    many.stopped_by = "<script>"
    shown = many._repr_html_()
    assert shown.count("<tr>") == 11
    assert "and 1,002 before these" in shown
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown
    assert len(shown) < 100_000


def test_a_notebook_shows_no_picture_without_matplotlib_or_reports(
    bare: wf.History, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "<img" not in wf.History()._repr_html_()
    monkeypatch.setattr("warpfit.plots.has_matplotlib", lambda: False)
    assert "<table>" in bare._repr_html_()
    assert "<img" not in bare._repr_html_()


def test_plot_writes_a_picture(history: wf.History, tmp_path: Path) -> None:
    figure = history.plot(tmp_path / "curve.png", title="a run")
    assert (tmp_path / "curve.png").read_bytes().startswith(PNG)
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "accuracy"]
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["training", "validation"]
    np.testing.assert_array_equal(lines[1].get_ydata(), history["val_loss"])
    history.plot(str(tmp_path / "without_ending"))
    assert (tmp_path / "without_ending").read_bytes().startswith(PNG)
    history.plot(tmp_path / "curve.svg")
    assert b"<svg" in (tmp_path / "curve.svg").read_bytes()
    assert len(list(tmp_path.iterdir())) == 3


def test_plot_without_a_path_or_reports_only_draws(bare: wf.History) -> None:
    assert [len(axes.get_lines()) for axes in bare.plot().axes] == [1, 1]
    assert [len(axes.get_lines()) for axes in wf.History().plot().axes] == [0]


def test_pictures_that_cannot_be_written(bare: wf.History, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*missing/curve.png: No such file"):
        bare.plot(tmp_path / "missing" / "curve.png")
    with pytest.raises(
        ConfigError, match=r"expected a picture's name to end like .png, .svg or .pdf, got"
    ):
        bare.plot(tmp_path / "curve.xyz")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_error_says_what_to_install(
    bare: wf.History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "warpfit.figure", raising=False)
    with pytest.raises(
        ConfigError, match=r"pictures need matplotlib: pip install 'warpfit\[plot\]'"
    ):
        bare.plot()
