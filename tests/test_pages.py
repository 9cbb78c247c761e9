"""The examples of a page run as they stand, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: str) -> list[str]:
    """Return the code of a page's blocks of Python."""
    return FENCED.findall((ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_examples_for_scikit_learns_users(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = examples("docs/scikit-learn.md")
    for code in blocks:
        exec(compile(code, "docs/scikit-learn.md", "exec"), names)
    assert len(blocks) == 13
    assert names["classifier"].score(names["X_test"], names["y_test"]) > 0.95
    assert names["search"].best_score_ > 0.8
    for name in ("single", "dropping", "cosine", "steps", "watched", "exact", "several"):
        assert names[name].score(names["X_test"], names["y_test"]) > 0.85, name
    assert np.median(np.abs(names["robust"].predict(names["patients"]) - names["progress"])) < 0.6
    assert len(names["watched"].validation_scores_) == names["watched"].n_iter_
    printed = capsys.readouterr().out
    assert "layerwise cpu float64 one_launch: expected a CUDA device, got cpu" in printed
    assert str(names["classifier"].loss_) in printed


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_readmes_example_for_scikit_learns_users() -> None:
    (code,) = [block for block in examples("README.md") if "MLPClassifier" in block]
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["classifier"].score(names["X"] / 16, names["y"]) > 0.95
