"""The digests of tools/bits.py: equal for equal bits, and different for others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import on_emulator

ROOT = Path(__file__).resolve().parents[1]
CASE = "fitted (20, 5) adam"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(ROOT / "tools" / "bits.py"),
        "--emulator",
        "--only",
        CASE,
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@on_emulator
def test_a_case_that_differs_is_told(tmp_path: Path) -> None:
    first = run()
    digest, case, launched = first.stdout.rstrip("\n").split("\t")[:3]
    assert (len(digest), case, first.returncode) == (12, CASE, 0)
    assert "one_launch" in launched

    before = tmp_path / "before.txt"
    before.write_text(first.stdout)
    same = run("--against", str(before))
    assert same.stdout.splitlines()[-1] == "0 of 1 cases differ"
    assert same.returncode == 0

    before.write_text(first.stdout.replace(digest, "0" * 12))
    other = run("--against", str(before))
    assert "DIFFERS" in other.stdout
    assert other.returncode == 1
