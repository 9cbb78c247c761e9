"""The ladder's page, its tables and its pictures say what the ladder does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from support.training import blobs
from warpfit.apps.ladder import RUNGS, Record, Result, bars, climb, draw
from warpfit.apps.ladder.table import line_after, milliseconds, notes, table, times
from warpfit.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def made_up() -> Result:
    """A result of numbers that nobody measured: of a rung that gains, one that does not, and a
    peer.
    """
    record = replace(Record(*["x"] * 5, is_peer=False), loss=0.25, accuracy=0.9, epochs=10, steps=8)
    records = [
        replace(record, name="numpy", title="NumPy", ms_per_epoch=900.0),
        replace(
            record,
            title="quick",
            ms_per_epoch=9.0,
            gain=100.0,
            gain_over_first=100.0,
            device_ms=2.0,
        ),
        replace(
            record,
            title="no better",
            ms_per_epoch=9.0,
            gain=1.0,
            gain_over_first=100.0,
            device_ms=2.0,
        ),
        replace(
            record, title="busy", ms_per_epoch=9.0, gain=1.0, gain_over_first=100.0, device_ms=8.5
        ),
        replace(record, title="missing", reason="it needs more"),
        replace(
            record, title="other's", is_peer=True, ms_per_epoch=12_000.0, is_scaled=True, epochs=2
        ),
    ]
    (own,) = climb(device="cpu", data=blobs(40), epochs=1, rungs=["numpy"])
    return Result(
        [own, *records[1:]], "6-256-3", "cuda:0", "a card", "data", 64, 500, 10, 8, 0.1, 12.0
    )


def test_the_page_says_of_every_rung_what_the_ladder_says() -> None:
    page = (ROOT / "docs" / "ladder.md").read_text(encoding="utf-8")
    for rung in RUNGS:
        assert f"| `{rung.name}` | {rung.changes} | {rung.saves} | {rung.if_little} | " in page
        assert all(f"`{path}`" in page for path in rung.source)


def test_notes_explain_what_gains_little(made_up: Result) -> None:
    found = notes(made_up)
    assert "not run: missing: it needs more" in found
    assert (
        "no better gains little (1.00×): the device works for 2 ms of 9 ms, and waits for the host"
        in found
    )
    assert "busy gains little (1.00×): that is so where x" in found
    assert not any("quick" in note for note in found)
    assert any(note.startswith("* on fewer than the 8 steps") for note in found)
    assert "fewer than 10 epochs: NumPy 1; other's 2" in found


def test_lines_for_a_log(made_up: Result) -> None:
    assert line_after(made_up[1]) == (
        "  9 ms an epoch, the device at work for 2 ms of it, 100× as quick as the rung before, "
        "100× as quick as the first, loss 0.2500, accuracy 90.00% after 10 epochs"
    )
    assert line_after(made_up[4]) == "  not run: it needs more"


def shown(renderable: Any) -> str:
    from rich.console import Console

    console = Console(width=150)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_tables_and_bars(made_up: Result) -> None:
    text = shown(table(made_up))
    assert "12 s*" in text
    assert "not run" in text
    lines = shown(bars(made_up)).splitlines()
    lengths = [line.count("█") for line in lines]
    assert len(lines) == 5  # of those that ran
    assert max(lengths) == lengths[-1] == 40
    assert 0 < lengths[1] < 40
    assert shown(bars(replace(made_up, records=[]))).strip() == ""


def test_the_picture_has_a_bar_for_each_that_ran(made_up: Result, tmp_path: Path) -> None:
    figure = draw(made_up, tmp_path / "bars.png")
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["NumPy", "quick", "no better", "busy", "other's"]
    assert [bar.get_width() for bar in axes.patches][1:] == [9.0, 9.0, 9.0, 12_000.0]
    assert axes.get_xscale() == "log"
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")
    draw(replace(made_up, records=[]))  # nothing to draw is no error
    with pytest.raises(
        ConfigError, match=r"expected a picture's name to end like \.png, .*, got .*bars\.xyz"
    ):
        draw(made_up, tmp_path / "bars.xyz")
    assert [path.name for path in tmp_path.iterdir()] == ["bars.png"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (None, "-"),
        (0.0123, "0.0123 ms"),
        (3.256, "3.26 ms"),
        (999.4, "999 ms"),
        (1234.5, "1,234 ms"),
        (12_345.0, "12.3 s"),
    ],
)
def test_milliseconds_in_words(number: float | None, words: str) -> None:
    assert milliseconds(number) == words


def test_gains_in_words() -> None:
    assert [times(gain) for gain in (None, 0.954, 9.999, 12.34, 1234.5)] == [
        "",
        "0.95×",
        "10.00×",
        "12.3×",
        "1,234×",
    ]


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A function that imports a script of ``benchmarks/``."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module


def test_results_become_a_table(imported: Callable[[str], Any], made_up: Result) -> None:
    report, environment = imported("report"), imported("harness").environment()
    text = report.ladder({"environment": environment, "networks": {"mlp": made_up.to_dict()}})
    assert "**6-256-3, batch 64**, 500 rows of data, 10 epochs, lr 0.1; 12 s for all of it" in text
    assert "| quick | x | 9 ms | 2 ms | 100× | 100× | 0.2500 | 90.00% |" in text
    assert "| *other's* | x | 12 s* |" in text
    assert "\n* \\* on fewer than" in text


def test_what_was_measured_on_the_same_machine_stays(
    imported: Callable[[str], Any],
    made_up: Result,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, harness = imported("ladder"), imported("harness")
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    assert module.kept([]) == {}
    harness.write_results("ladder", {"networks": {"mlp": made_up.to_dict(), "deep": {}}})
    assert list(module.kept(["deep"])) == ["mlp"]
    stored = json.loads((tmp_path / "ladder.json").read_text(encoding="utf-8"))
    stored["environment"]["packages"]["numpy"] = "0"
    (tmp_path / "ladder.json").write_text(json.dumps(stored), encoding="utf-8")
    assert module.kept([]) == {}
    few = {"device": "cpu", "data": blobs(100), "epochs": 1, "rungs": ["numpy"]}
    module.measure(["softmax-regression"], peers=False, **few)
    (again,) = json.loads((tmp_path / "ladder.json").read_text(encoding="utf-8"))[
        "networks"
    ].values()
    assert Result.from_dict(again)[0].ran
    (axes,) = module.draw({"networks": {"deep": again, "mlp": made_up.to_dict()}}).axes
    assert axes.get_title() == made_up.title
