"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warpfit import cores
from warpfit.cores import num_cores


@pytest.fixture(autouse=True)
def sixteen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of sixteen cores, all of them ours; the file that may say otherwise."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.delattr(os, "process_cpu_count", raising=False)
    monkeypatch.setattr(cores, "QUOTA", tmp_path / "cpu.max")
    return tmp_path / "cpu.max"


def test_those_that_a_process_may_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert num_cores() == 16
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert num_cores() == 2
    monkeypatch.setattr(os, "process_cpu_count", lambda: 5, raising=False)
    assert num_cores() == 5
    for name in ("process_cpu_count", "sched_getaffinity"):
        monkeypatch.delattr(os, name)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert num_cores() == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000\n", 16),
        ("200000 100000\n", 2),
        ("250000 100000\n", 3),
        ("50000 100000\n", 1),
        ("6400000 100000\n", 16),
        ("", 16),
        ("1 2 3", 16),
    ],
)
def test_those_that_a_container_has_time_for(sixteen: Path, text: str, expected: int) -> None:
    sixteen.write_text(text)
    assert num_cores() == expected
