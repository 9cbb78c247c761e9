"""Tables in README and docs say what the results files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_committed_tables_match_their_results_files() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "report.py"), "--check"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
