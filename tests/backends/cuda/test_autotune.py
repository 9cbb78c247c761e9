"""Configurations that are measured, and remembered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warpfit.backends import Activation, create
from warpfit.backends.cuda import autotune
from warpfit.backends.cuda.dense import DenseOps
from warpfit.backends.cuda.matmul import candidates
from warpfit.backends.numpy import NumpyBackend
from warpfit.errors import CompileError, ConfigError

SECONDS = {"slow": 3.0, "quick": 1.0, "medium": 2.0}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("WARPFIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WARPFIT_AUTOTUNE", "1")
    return tmp_path / "tuned"


def test_the_fastest_is_measured_once(folder: Path) -> None:
    measured: list[str] = []

    def seconds_of(config: str) -> float:
        measured.append(config)
        return SECONDS[config]

    for _ in range(2):
        assert autotune.fastest("which?", list(SECONDS), seconds_of) == "quick"
    assert measured == list(SECONDS)
    (path,) = folder.iterdir()
    assert json.loads(path.read_text())["question"] == "which?"
    assert autotune.fastest("and here?", list(SECONDS), lambda config: -SECONDS[config]) == "slow"


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"question": "another", "fastest": "\'slow\'"}']
)
def test_what_is_not_an_answer_is_measured_again(folder: Path, content: str) -> None:
    autotune.fastest("which?", list(SECONDS), SECONDS.__getitem__)
    (path,) = folder.iterdir()
    path.write_text(content)
    assert autotune.fastest("which?", list(SECONDS), SECONDS.__getitem__) == "quick"


def test_one_that_is_no_more_is_measured_again() -> None:
    autotune.fastest("which?", list(SECONDS), SECONDS.__getitem__)
    assert autotune.fastest("which?", ["slow", "medium"], SECONDS.__getitem__) == "medium"


def test_what_does_not_compile_is_passed_over() -> None:
    def seconds_of(config: str) -> float:
        if config == "quick":
            raise CompileError("kernel quick does not compile")
        return SECONDS[config]

    assert autotune.fastest("which?", list(SECONDS), seconds_of) == "medium"
    with pytest.raises(CompileError, match="kernel quick does not compile"):
        autotune.fastest("and alone?", ["quick"], seconds_of)


def test_it_can_be_forgotten(folder: Path) -> None:
    for question in ("which?", "and here?"):
        autotune.fastest(question, list(SECONDS), SECONDS.__getitem__)
    assert autotune.forget() == 2
    assert list(folder.iterdir()) == []
    assert autotune.forget() == 0


def test_a_folder_that_cannot_be_written_to(folder: Path) -> None:
    folder.write_text("")
    assert autotune.fastest("which?", list(SECONDS), SECONDS.__getitem__) == "quick"


@pytest.mark.parametrize(("given", "expected"), [("", False), ("0", False), ("1", True)])
def test_it_has_to_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: bool
) -> None:
    monkeypatch.setenv("WARPFIT_AUTOTUNE", given)
    assert autotune.is_asked_for() is expected


def test_misuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPFIT_AUTOTUNE", "yes")
    with pytest.raises(ConfigError, match="expected WARPFIT_AUTOTUNE to be 0 or 1, got 'yes'"):
        autotune.is_asked_for()


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("slowest_first", [False, True])
def test_products_take_the_fastest(
    cuda: str, monkeypatch: pytest.MonkeyPatch, folder: Path, slowest_first: bool
) -> None:
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(shape).astype("f4") for shape in ((24, 40), (40, 16), (16,)))
    timed: list[Any] = []
    measure = DenseOps._seconds_of

    def seconds_of(ops: Any, launch: Any, given: Any) -> float:
        timed.append(launch.config)
        assert measure(ops, launch, given) > 0
        return -float(len(timed)) if slowest_first else float(len(timed))

    monkeypatch.setattr(DenseOps, "_seconds_of", seconds_of)
    expected, _ = NumpyBackend().linear_forward(x, w, b, Activation("relu"))
    for _ in range(2):  # the second one remembers
        ops: Any = create(cuda)
        y, _ = ops.linear_forward(
            ops.asarray(x), ops.asarray(w), ops.asarray(b), Activation("relu")
        )
        np.testing.assert_allclose(ops.to_numpy(y), expected, rtol=1e-5, atol=1e-5)
        (launch,) = ops._products.values()
        assert launch.config == timed[-1 if slowest_first else 0]
    shape = {
        "num_multiprocessors": ops.runtime.num_multiprocessors,
        "arch": ops.runtime.arch,
        "vector": True,
    }
    assert timed == list(candidates(24, 16, 40, "float32", **shape))[: len(timed)]
    assert len(timed) > 1
    assert len(list(folder.iterdir())) == 1
