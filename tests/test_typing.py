"""Examples of pages and of `examples/` pass mypy's strict checks, as a user's own code would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[1]
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

PROGRAM = re.compile(r"# (\w+\.py)\n")

# These come without types.
SETTINGS = """[mypy]
strict = True
untyped_calls_exclude = distributed
[mypy-sklearn.*,pandas.*,distributed.*,joblib.*,ray.*]
ignore_missing_imports = True
"""


def scripts_of_pages(folder: Path) -> list[Path]:
    """Write each page's blocks of Python to a script, or to one each if all have names of files,
    and return those that there are.
    """
    scripts: dict[Path, str] = {}
    for page in PAGES:
        blocks = FENCED.findall(page.read_text(encoding="utf-8"))
        programs = {name[1]: block for block in blocks if (name := PROGRAM.match(block))}
        if len(programs) == len(blocks):
            scripts |= {folder / name: block for name, block in programs.items()}
        else:
            # A script optuna.py would hide Optuna.
            scripts[folder / f"page_{page.stem.lower().replace('-', '_')}.py"] = "\n".join(blocks)
    for script, code in scripts.items():
        script.write_text(code, encoding="utf-8")
    return [*scripts]


def errors_of(scripts: list[Path], folder: Path) -> list[str]:
    """Return what mypy finds in scripts that are written against this package."""
    settings = folder / "mypy.ini"
    settings.write_text(SETTINGS)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file", settings, *scripts],
        env=ENVIRONMENT,  # the package is found where installed ones are
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_examples_have_no_errors_of_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed; make lint installs it")
    wrong = tmp_path / "wrong.py"
    wrong.write_text('import warpfit as wf\n\nwf.nn.Linear("784", 10)\n')
    pages = scripts_of_pages(tmp_path)
    found = errors_of([*pages, *(ROOT / "examples").glob("*.py"), wrong], tmp_path)
    assert len(pages) > 6
    assert [error for error in found if not error.startswith("wrong.py:3:")] == []
    assert len(found) == 1
