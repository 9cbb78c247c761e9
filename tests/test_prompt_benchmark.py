"""What the benchmark of the whole command computes without a GPU: clocks, runs, and the table."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
DIGITS = {"data": "digits", "limit": "320", "hidden": "32", "epochs": "2", "device": "cpu"}


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark's module, which lives beside the others and imports them by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("prompt")


@pytest.fixture
def stages(prompt: Any) -> Any:
    return import_module("stages")


class FakeTime:
    """A clock that is put forward by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def shown(clocks: Any) -> dict[str, float]:
    clocks.switch()
    return {stage: seconds for stage, seconds in clocks.seconds.items() if seconds}


def test_a_stage_has_what_the_stages_within_it_leave(stages: Any) -> None:
    time = FakeTime()
    clocks = stages.Clocks(time)
    inner = clocks.timed(time.pass_by, "imports")

    def loads() -> None:
        time.pass_by(1)
        inner(2)
        time.pass_by(4)

    time.pass_by(8)
    clocks.timed(loads, "loading of data")()
    time.pass_by(16)
    assert shown(clocks) == {"imports": 2, "loading of data": 5, "other": 24}


def test_a_stage_ends_with_an_error(stages: Any) -> None:
    time = FakeTime()
    clocks = stages.Clocks(time)

    def fails() -> None:
        time.pass_by(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        clocks.timed(fails, "test")()
    time.pass_by(2)
    assert shown(clocks) == {"test": 1, "other": 2}


def test_only_the_steps_of_a_generator_are_its_stage(stages: Any) -> None:
    time = FakeTime()
    clocks = stages.Clocks(time)

    def epochs(count: int) -> Any:
        for number in range(1, count + 1):
            time.pass_by(1)
            yield number

    for _ in clocks.timed_steps(epochs, "training")(3):
        time.pass_by(10)
    assert shown(clocks) == {"training": 3, "other": 30}


def test_other_threads_have_no_clock(stages: Any) -> None:
    time = FakeTime()
    clocks = stages.Clocks(time)
    other = Thread(target=clocks.timed(time.pass_by, "imports"), args=(1,))
    other.start()
    other.join()
    assert shown(clocks) == {"other": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "clocks",
    [
        pytest.param(False, id="as it is", marks=pytest.mark.slow),
        pytest.param(True, id="under clocks"),
    ],
)
def test_a_run_says_when_the_model_was_saved(prompt: Any, tmp_path: Path, clocks: bool) -> None:
    outcome = prompt.run(DIGITS, tmp_path / "cache", tmp_path, clocks=clocks)
    assert 0 < outcome.seconds_to_model < outcome.seconds < 60
    assert 0.1 < outcome.accuracy <= 1
    assert outcome.engine == "layerwise"
    if not clocks:
        assert outcome.stages is None
        return
    assert tuple(outcome.stages) == import_module("stages").STAGES
    assert sum(outcome.stages.values()) == pytest.approx(
        outcome.seconds_to_model, rel=0.05, abs=0.02
    )
    spent = {stage for stage, seconds in outcome.stages.items() if seconds}
    assert spent >= {
        "start of Python",
        "imports",
        "loading of data",
        "training",
        "validation",
        "test",
        "saving",
    }


def test_a_run_that_fails_says_so(prompt: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="expected epochs"):
        prompt.run({**DIGITS, "epochs": "0"}, tmp_path, tmp_path, clocks=False)


def fake_run(accuracy: float = 0.98) -> Any:
    """A function in the place of `run`, which takes 2 s with an empty cache, 1 s with another."""

    def run(options: dict[str, str], cache: Path, folder: Path, *, clocks: bool) -> Any:
        prompt = import_module("prompt")
        seconds = 1.0 if any(cache.iterdir()) else 2.0
        (cache / "kernel").touch()
        stages = {**dict.fromkeys(prompt.STAGES, 0.0), "imports": seconds}
        return prompt.Outcome(
            seconds, seconds / 2, accuracy, "one_launch", stages if clocks else None
        )

    return run


def test_a_cache_is_empty_or_warm(
    prompt: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prompt, "run", fake_run())
    runs = prompt.measure(DIGITS, rounds=2, seed=0)
    assert {key: [outcome.seconds for outcome in group] for key, group in runs.items()} == {
        (cache, clocks): [2.0 if cache == "empty" else 1.0] * 2
        for cache in ("empty", "warm")
        for clocks in (False, True)
    }
    results = prompt.results_of(DIGITS, runs)
    assert results["caches"]["empty"]["stages"]["imports"]["median"] == 2.0
    report = import_module("report")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    page = "<!-- results: prompt -->\n<!-- end -->\n"
    assert report.render(page) == page
    environment = {
        "cpu": "CPU",
        "cores": 2,
        "python": "3.12",
        "commit": "abc",
        "date": "today",
        "packages": {},
    }
    (tmp_path / "prompt.json").write_text(json.dumps({"environment": environment, **results}))
    full = report.render(page)
    assert "| **the whole process** | 2.00 (2.00 to 2.00) s | 1.00 (1.00 to 1.00) s |" in full
    assert "| from prompt to prompt | empty kernel cache |" in full
    assert "| **until the model is saved** | 1.00 (1.00 to 1.00) s | 0.50 (0.50 to 0.50)" in full
    assert "| pictures and end | 1.000 s | 0.500 s |" in full
    assert "| imports | 2.000 s | 1.000 s |" in full
    assert "| all stages | 3.000 s | 1.500 s |" in full
    assert (
        "by the engine one_launch: 98.00% to 98.00% on the test set. Medians of 2 processes" in full
    )


def test_a_model_that_is_not_good_enough_does_not_count(
    prompt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt, "run", fake_run(accuracy=0.97))
    with pytest.raises(SystemExit, match=r"at least 97\.5%, got 97\.00%"):
        prompt.results_of(DIGITS, prompt.measure(DIGITS, rounds=1, seed=0))
