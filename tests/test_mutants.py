"""`make mutants`: that its list is of bugs in the present source, and what it makes of how tests
end.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield import_module("mutants")
    del sys.modules["mutants"]


@pytest.fixture
def mutant(tool: Any, tmp_path: Path) -> Any:
    (tmp_path / "sum.py").write_text("a + b + b\n")
    return tool.Mutant("swapped", "sum.py", "a +", "a -", ("tests/test_sum.py",))


def test_every_bug_can_be_planted_and_its_tests_are_there(tool: Any) -> None:
    mutants = tool.read_list()
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= 50
    for mutant in mutants:
        assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.text) == 1, mutant.name
        assert mutant.text != mutant.planted
        assert mutant.tests
        assert all((ROOT / test).exists() for test in mutant.tests), mutant.name


@pytest.mark.parametrize(
    ("codes", "outcome"),
    [
        ([0], "survived"),
        ([1, 0], "caught"),
        ([2, 5], "caught"),
        ([-11, 5], "caught"),
        ([None, 5], "caught"),
    ],
)
def test_what_becomes_of_a_bug(
    tool: Any,
    mutant: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    codes: list[Any],
    outcome: str,
) -> None:
    seen: list[str] = []

    def run_tests(tree: Path, *arguments: str) -> int | None:
        seen.append((tree / "sum.py").read_text())
        return codes[len(seen) - 1]

    monkeypatch.setattr(tool, "run_tests", run_tests)
    assert tool.outcome_of(mutant, tmp_path) == outcome
    assert seen == ["a - b + b\n", "a + b + b\n"][: len(codes)]
    assert (tmp_path / "sum.py").read_text() == "a + b + b\n"


@pytest.mark.parametrize("codes", [[1, 1], [5]])
def test_tests_that_fail_anyway_catch_nothing(
    tool: Any, mutant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: list[int]
) -> None:
    left = list(codes)
    monkeypatch.setattr(tool, "run_tests", lambda *_: left.pop(0))
    with pytest.raises(SystemExit, match="swapped: its tests are none, or fail without it"):
        tool.outcome_of(mutant, tmp_path)


def test_a_bug_that_no_longer_applies_is_an_error(tool: Any, mutant: Any, tmp_path: Path) -> None:
    (tmp_path / "sum.py").write_text("a + a + b\n")
    with pytest.raises(SystemExit, match=r"expected its text once in sum\.py, got 2"):
        mutant.apply(tmp_path)


def test_a_run_goes_on_where_it_was_stopped(
    tool: Any,
    mutant: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    planted: list[str] = []
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "committed_or_not", lambda root: [Path("sum.py")])
    monkeypatch.setattr(
        tool, "outcome_of", lambda mutant, tree: planted.append(mutant.name) or "survived"
    )
    monkeypatch.setattr(tool, "read_list", lambda: [mutant])
    assert tool.main([]) == tool.main(["swap"]) == 1
    assert planted == ["swapped"]
    assert capsys.readouterr().out.count("0 of 1 caught (0.0%)\nsurvived: swapped\n") == 2
    (tmp_path / "src").mkdir()
    monkeypatch.setattr(tool, "committed_or_not", lambda root: [Path("src/new.py"), Path("sum.py")])
    (tmp_path / "src" / "new.py").write_text("")
    monkeypatch.setattr(tool, "outcome_of", lambda mutant, tree: "caught")
    assert tool.main([]) == 0  # of another tree nothing is known
