"""Notebooks run from top to bottom on a machine without a GPU, and are committed without what they
print.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.notebooks import executed

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipywidgets")

# A kernel is a process of its own, and warns in its own name.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

MOVE_EVERY_SLIDER = """

def moved(name, value):
    before, picture = demo.run, demo.picture.value
    demo.sliders[name].value = value
    assert getattr(demo.run.settings, name) == value
    assert demo.run is not before and demo.picture.value != picture
    return before, demo.run

before, after = moved("width", 32)
assert before.sizes == (64, 128, 10) and after.sizes == (64, 32, 10)
_, after = moved("depth", 0)
assert after.sizes == (64, 10)
before, after = moved("lr", 1e-3)
assert after.accuracy < before.accuracy - 0.1
before, after = moved("batch_size", 32)
assert len(after.history.step_losses) == 900 != len(before.history.step_losses)
before, after = moved("optimizer", "RMSprop")
assert after.history["loss"] != before.history["loss"]
assert demo.run.confusion.sum() == 359
print("every slider was moved")
"""


def ids(path: Path) -> str:
    return path.name


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks() -> None:
    assert ROOT / "notebooks" / "demo.ipynb" in NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_no_outputs_are_committed(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None
    assert "widgets" not in notebook.metadata


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.name != "demo.ipynb"], ids=ids)
def test_a_notebook_runs_from_top_to_bottom(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executed(read(path), monkeypatch)


def test_the_first_cells_of_the_demo_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    cells = [cell for cell in read(ROOT / "notebooks" / "demo.ipynb").cells if "outputs" in cell]
    for cell in cells[:2]:
        exec(cell.source, names)
    assert names["demo"].run is not None
    assert names["run"].accuracy > 0.9
    assert " right after " in capsys.readouterr().out


@pytest.mark.slow
def test_the_demo_runs_and_its_sliders_retrain(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = read(ROOT / "notebooks" / "demo.ipynb")
    notebook.cells.append(nbformat.v4.new_code_cell(MOVE_EVERY_SLIDER))
    cells = [cell for cell in executed(notebook, monkeypatch).cells if cell.cell_type == "code"]
    shown = cells[0].outputs[-1].data
    assert {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"} <= set(shown)
    assert cells[-1].outputs[-1].text == "every slider was moved\n"
