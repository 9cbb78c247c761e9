"""Malformed input of every family in tools/fuzzing is refused, or works; and the harness notices
what does neither.
"""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import fuzz
from fuzzing import FAMILIES, feed_inputs, harness, run_family
from warpfit.backends.numpy.heap import keep_freed_memory
from warpfit.errors import ConfigError

INPUTS = 120
MAX_BYTES = 30_000_000  # of Python and NumPy at once: what is forged asks for no memory


def counts_and_bytes(family: harness.Family, feed: harness.Feed) -> tuple[harness.Counts, int]:
    """Feed the inputs; return what came of them and the most memory that they asked for at once.

    It is counted as Python and NumPy ask: what the system gives depends on what malloc has free.
    """
    tracemalloc.start()
    try:
        counts = feed_inputs(family, feed, range(INPUTS))
        return counts, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("name", FAMILIES)
def test_malformed_input(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    feed = family.prepare(tmp_path)
    feed_inputs(family, feed, [0])  # what is imported for it is no memory of an input's
    keep_freed_memory()  # nor what fits ask for once
    counts, nbytes = counts_and_bytes(family, feed)
    assert (counts.raw, counts.hangs) == ({}, {})
    assert 0 < counts.accepted < INPUTS / 2 < counts.refused
    assert nbytes < MAX_BYTES


def test_memory_that_nobody_writes_to_counts() -> None:
    family = harness.Family("large", lambda folder: lambda rng: np.empty(MAX_BYTES, np.uint8), ())
    assert counts_and_bytes(family, family.prepare(Path()))[1] >= MAX_BYTES


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one family has four inputs in turns: accepted, refused, a raw error, a hang."""
    numbers = iter(range(1000))

    def feed(rng: harness.Rng) -> None:
        number = next(numbers) % 4
        if number == 1:
            raise ConfigError("expected this")
        if number == 2:
            raise KeyError("a raw error")
        if number == 3:
            time.sleep(60)

    monkeypatch.setattr(harness, "SECONDS", 0.05)
    family = harness.Family("planted", lambda folder: feed, (ConfigError,))
    for registry in (fuzz.FAMILIES, FAMILIES):
        for name in list(registry):
            monkeypatch.delitem(registry, name)
        monkeypatch.setitem(registry, "planted", family)


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["--inputs", "2"], 0, ["planted                        2         1        1    0      0"]),
        (["--inputs", "3"], 1, ["planted 2: KeyError: 'a raw error'"]),
        (
            ["--inputs", "4"],
            1,
            [
                "planted 3: takes more than 0.05 s",
                "all                            4         1        1    1      1",
            ],
        ),
        (["--only", "7"], 0, ["accepted"]),
    ],
)
def test_what_the_script_says(
    arguments: list[str],
    code: int,
    shown: list[str],
    planted: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz.py", *arguments])
    assert fuzz.main() == code
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line not in lines] == []


def test_an_input_of_a_number_is_always_the_same() -> None:
    drawn: list[float] = []
    family = harness.Family("numbers", lambda folder: lambda rng: drawn.append(rng.random()), ())
    run_family(family, Path(), [3, 4])
    run_family(family, Path(), [4])
    assert drawn[1] == drawn[2] != drawn[0]


def test_a_refusal_after_acceptance_is_a_raw_error() -> None:
    def feed(rng: harness.Rng) -> None:
        with harness.must_work():
            raise ConfigError("too late")

    counts = run_family(harness.Family("late", lambda folder: feed, (ConfigError,)), Path(), [0])
    assert counts.raw == {0: "AssertionError: was accepted, and then: ConfigError: too late"}
