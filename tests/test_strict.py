"""A warning of ours fails a test; a dependency's about its future does not, wherever it points."""

from __future__ import annotations

import pytest

from support.commands import run_python
from support.strict import FILTERS, OF_THE_FUTURE

DEPENDENCY = """
import warnings
for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
    warnings.warn("at import", category)
    warnings.warn("at import, of whoever imports", category, stacklevel=2)

def call():
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        warnings.warn("at a call, of whoever calls", category, stacklevel=2)

def careless():
    warnings.warn("of itself")

def blaming():
    warnings.warn("of whoever calls", stacklevel=2)
"""

TESTS = """
import warnings
from pathlib import Path
import pytest
import dependency
from warpfit.errors import DeviceWarning

def ours(code):
    exec(code, {"__name__": "warpfit.nn.module", "warnings": warnings, "dependency": dependency})

def test_passes_on_a_dependencys_future(): dependency.call()
def test_passes_on_a_dependencys_future_at_our_call(): ours("dependency.call()")
def test_passes_on_what_a_dependency_says_of_itself(): dependency.careless()
def test_fails_on_what_a_dependency_says_of_a_test(): dependency.blaming()
def test_fails_on_what_a_dependency_says_of_us(): ours("dependency.blaming()")
def test_fails_on_ours(): ours("warnings.warn('ours')")
def test_fails_on_ours_of_the_run_time(): ours("warnings.warn('ours', RuntimeWarning)")
def test_fails_on_our_categories_anywhere():
    names = {"__name__": "x", "warnings": warnings, "category": DeviceWarning}
    exec("warnings.warn('ours', category)", names)
def test_fails_on_a_files_that_is_left_open(): open(Path(__file__))
"""


def test_what_fails_and_what_does_not(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "\n".join(f"  {line}" for line in FILTERS)
    pytester.makeini(f"[pytest]\naddopts = --import-mode=importlib\nfilterwarnings =\n{lines}")
    pytester.makepyfile(dependency=DEPENDENCY)
    pytester.mkdir("tests").joinpath("test_warnings.py").write_text(TESTS)
    monkeypatch.syspath_prepend(str(pytester.path))
    run = pytester.inline_run("tests")
    passed, skipped, failed = run.listoutcomes()
    names = [[report.nodeid.split("::")[1] for report in reports] for reports in (passed, failed)]
    assert (len(names[0]), skipped, len(names[1])) == (3, [], 6)
    assert all(name.startswith("test_passes") for name in names[0])
    assert all(name.startswith("test_fails") for name in names[1])


@pytest.mark.parametrize("category", [*OF_THE_FUTURE, "UserWarning"])
def test_processes_fail_likewise(category: str) -> None:
    outcome = run_python("-c", f"import warnings; warnings.warn('x', {category})")
    assert (outcome.code, outcome.err == "") == (
        (0, True) if category in OF_THE_FUTURE else (1, False)
    )
