"""What a notebook shows of a run by itself: a line that moves, a table, curves."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import pytest

from support.notebooks import executed

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

# A kernel is a process of its own, and warns in its own name.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TRAIN = """
import numpy as np
import warpfit as wf
x = np.random.default_rng(0).uniform(size=(64, 4)).astype("float32")
model = wf.nn.Sequential(wf.nn.Linear(4, 2))
optimizer = wf.optim.Adam(model.parameters())
history = wf.fit(model, x, x[:, 0] > 0.5, optimizer=optimizer, epochs=3, device="cpu")
"""
SWEEP = """
def build(candidate):
    model = wf.nn.Sequential(wf.nn.Linear(4, 2))
    return model, wf.optim.SGD(model.parameters(), lr=candidate["lr"])
y = x[:, 0] > 0.5
sweep = wf.fit_many(build, x, y, grid={"lr": [0.1, 0.2]}, folds=2, epochs=1, n_jobs=1, device="cpu")
"""


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    sources = [TRAIN, "history", "history.plot()", SWEEP, "sweep"]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    return [cell.outputs for cell in executed(notebook, monkeypatch).cells]


def test_what_a_notebook_shows(cells: list[Any]) -> None:
    training, history, figure, sweeping, sweep = cells
    # One line, which was replaced from step to step: the last one stays.
    assert [output.output_type for output in training] == ["display_data"]
    (line,) = training
    assert line.data["text/plain"].startswith("epoch 3/3  loss ")
    assert line.data["text/html"].startswith('<progress value="1.0000"></progress> epoch 3/3')
    assert "<table>" in history[-1].data["text/html"]
    assert "data:image/png;base64," in history[-1].data["text/html"]
    assert b64decode(figure[-1].data["image/png"]).startswith(b"\x89PNG")
    assert sweeping[-1].data["text/plain"].startswith("4/4 networks: 4 done, 0 running; best ")
    assert sweep[-1].data["text/html"].count("<tr>") == 3
