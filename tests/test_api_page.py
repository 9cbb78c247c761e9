"""docs/api.md has every public name, as it is."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def api_page() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return import_module("api_page")
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_the_page_is_what_would_be_written(api_page: Any) -> None:
    assert api_page.main(["--check"]) == 0


def test_another_page_is_out_of_date(
    api_page: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(api_page, "PAGE", tmp_path / "api.md")
    assert api_page.main(["--check"]) == 1
    assert "run python tools/api_page.py" in capsys.readouterr().err
    assert api_page.main([]) == 0
    assert api_page.main(["--check"]) == 0


@pytest.mark.parametrize(
    "module",
    [
        "warpfit",
        "warpfit.nn",
        "warpfit.optim",
        "warpfit.losses",
        "warpfit.data",
        "warpfit.autograd",
        "warpfit.errors",
        "warpfit.optuna",
    ],
)
def test_every_public_name_has_its_line(api_page: Any, module: str) -> None:
    imported = import_module(module)
    public = {
        name for name in imported.__all__ if not isinstance(getattr(imported, name), ModuleType)
    }
    shown = {
        name for section in api_page.SECTIONS for name in section.names if section.module == module
    }
    elsewhere = {"Tensor", "tensor", "no_grad"} if module == "warpfit" else set()
    assert shown | elsewhere == public


def test_no_name_is_there_twice(api_page: Any) -> None:
    names = [(section.module, name) for section in api_page.SECTIONS for name in section.names]
    assert len(set(names)) == len(names)


def test_lines_have_signature_and_words(api_page: Any) -> None:
    lines = api_page.page().splitlines()
    assert "* `nn.ReLU()`: y = max(x, 0)." in lines
    assert (
        "* `optim.Step(lr, every=10, factor=0.1)`: lr · factor^(epoch // every): a drop after "
        "every `every` epochs." in lines
    )
    assert any(line.startswith("* `errors.ShapeError`: ") for line in lines)
    assert any(line.startswith("* `nn.Module.num_parameters`: ") for line in lines)
    assert any(line.startswith("* `nn.Module.summary(input_shape)`: ") for line in lines)
    assert any(line.startswith("* `wf.MLPClassifier.to_onnx(path)`: ") for line in lines)
    assert not [line for line in lines if line.startswith("* ") and line.endswith(": ")]
