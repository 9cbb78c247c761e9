"""No flipped bit in a file goes unnoticed and changes a result; and the script would see one that
did.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import bit_flips
from warpfit.training import storage


@pytest.mark.parametrize("kind", bit_flips.KINDS)
def test_no_flip_is_silent(kind: str, tmp_path: Path) -> None:
    counts = bit_flips.count_flips(bit_flips.KINDS[kind], tmp_path / kind, flips=20, seed=1)
    assert counts.total() == 20
    assert counts["silent"] == 0


def test_flips_would_be_silent_without_the_checksum(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(storage, "checksum", lambda text, arrays: "")
    monkeypatch.setattr("sys.argv", ["bit_flips.py", "--flips", "12"])
    assert bit_flips.main() == 1
    _, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert [row[0] for row in rows] == ["model", "estimator", "table", "checkpoint"]
    assert all(int(silent) > 0 for *_, silent in rows)
    assert all(sum(map(int, counts)) == 12 for _, _, *counts in rows)


def test_a_flip_that_changes_nothing_is_no_silent_one(tmp_path: Path) -> None:
    kind = bit_flips.Kind(
        lambda path: path.write_bytes(b"abc") and None, lambda path: len(path.read_bytes())
    )
    assert bit_flips.count_flips(kind, tmp_path / "file", flips=24, seed=0) == Counter(
        {"same result": 24}
    )
    assert (tmp_path / "file").read_bytes() == b"abc"
