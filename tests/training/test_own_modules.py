"""Files of one's own modules: what is saved comes back by classes that the reader gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.files import rewrite
from support.training import Taped, adam, assert_same_weights, blobs, mlp
from warpfit import losses, nn
from warpfit.errors import ConfigError, FileFormatError


class Plain(nn.Module):
    """Takes no arguments."""

    def __init__(self) -> None:
        self.inner = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh())
        self.outer = nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return self.outer(self.inner(x))


class Residual(nn.Module):
    """Takes arguments, and says which."""

    def __init__(self, width: int, *, slope: float = 0.1) -> None:
        self.inner = nn.Linear(width, width)
        self.act = nn.LeakyReLU(slope)

    def forward(self, x: Any) -> Any:
        return x + self.act(self.inner(x))

    def config(self) -> dict[str, Any]:
        return {
            "width": self.inner.spec.in_features,
            "slope": self.act.spec.activation.slope,
        }


class Nothing(nn.Module):
    """Has neither arrays nor a constructor."""

    def forward(self, x: Any) -> Any:
        return x * 2


class Scaled(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2

    def config(self) -> dict[str, Any]:
        return {"in_features": self.spec.in_features, "out_features": self.spec.out_features}


CLASSES = (Plain, Residual, Nothing, Scaled)
X, LABELS = blobs(50)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(
    "model",
    [
        Plain(),
        Plain().to(dtype="float64"),
        Residual(6, slope=0.5),
        Nothing(),
        Scaled(6, 3),
        nn.Sequential(
            nn.Linear(6, 5),
            nn.Sequential(Residual(5), nn.ReLU(), Residual(5, slope=2.0)),
            nn.Dropout(0.3),
            nn.Linear(5, 3, bias=False),
        ),
    ],
    ids=["plain", "float64", "arguments", "no arrays", "layer", "chain"],
)
def test_a_module_comes_back(model: nn.Module, path: Path) -> None:
    for holder in model.named_arrays().values():
        holder.data[...] = np.random.default_rng(1).uniform(0.5, 1.5, holder.data.shape)
    wf.save(model, path, metadata={"a": 1})
    loaded = wf.load(path, modules=CLASSES)
    assert type(loaded) is type(model)
    assert repr(loaded) == repr(model)
    assert loaded.dtype == model.dtype
    assert_same_weights(loaded, model)
    np.testing.assert_array_equal(wf.predict(loaded, X), wf.predict(model, X))
    assert wf.load_metadata(path) == {"a": 1}


def test_a_trained_module_comes_back_with_its_loss_and_trains_on(path: Path) -> None:
    model = Plain()
    wf.fit(model, X, LABELS, optimizer=adam(model), epochs=2, verbose=False)
    wf.save(model, path)
    loaded = wf.load(path, [Plain])
    assert loaded.loss == losses.SoftmaxCrossEntropy()
    assert wf.evaluate(loaded, X, LABELS) == wf.evaluate(model, X, LABELS)
    for one in (model, loaded):
        wf.fit(one, X, LABELS, optimizer=adam(one), epochs=2, verbose=False)
    assert_same_weights(loaded, model)


def test_classes_do_no_harm_to_files_without_them(path: Path) -> None:
    wf.save(mlp(6, 3), path)
    assert_same_weights(wf.load(path, modules=CLASSES), mlp(6, 3))


SCRIPT = """
import sys
import warpfit as wf

class Plain(wf.nn.Module):
    def __init__(self):
        self.inner = wf.nn.Linear(6, 3, seed=0)

wf.save(Plain(), sys.argv[1])
"""


def test_what_a_script_saves_of_its_own_comes_back_elsewhere(path: Path) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, str(path)], check=True, timeout=60)

    class Other(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(6, 3, seed=1)

    Other.__qualname__ = "Plain"
    loaded = wf.load(path, modules=[Other])
    np.testing.assert_array_equal(
        loaded.state_dict()["inner.weight"], nn.Linear(6, 3, seed=0).weight.data
    )


# -- what cannot be saved
# ------------------------------------------------------------------------------------


class Wrong(nn.Module):
    """Its config is what a test says."""

    def __init__(self, width: int = 3) -> None:
        self.width = width

    def config(self) -> Any:
        return self.width


class Mixed(nn.Module):
    def __init__(self) -> None:
        self.inner = nn.Linear(3, 3)
        self.other = nn.Buffer(np.zeros(3))


class Named(nn.Module):
    """Keeps something else under the name of the method."""

    def __init__(self, config: str) -> None:
        self.config = config


def with_a_shared_array() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), Residual(6))
    model[1].weight = model[0].weight
    return model


RESIDUAL = Residual(6)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (Taped(mlp(6, 3)), r"that takes no arguments, .* got Taped\(inner: "),
        (nn.Sequential(Taped(mlp(6, 3))), "that takes no arguments, .* got Taped"),
        (Named("a"), "that takes no arguments, .* got Named"),
        (nn.Linear(6, 3), "got a single layer, Linear"),
        (Wrong(3), r"arguments by name from Wrong.config\(\), got 3"),
        (Wrong({1: 2}), r"arguments by name from Wrong.config\(\), got \{1: 2\}"),
        (Wrong({"height": 2}), r"arguments of Wrong from its config\(\): .*'height'"),
        (Wrong({"width": object()}), "cannot write .*: expected what JSON can hold"),
        (Mixed(), "in one dtype, float32 or float64, got float32, float64"),
        (with_a_shared_array(), "that share no array .*, got Linear, which does"),
        (nn.Sequential(RESIDUAL, RESIDUAL), "that share no array .*, got Residual, which does"),
        (3, "save: expected a model, got 3"),
    ],
)
def test_what_could_not_be_made_again_is_refused(model: Any, match: str, path: Path) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        wf.save(model, path)
    assert "\n" not in str(caught.value)
    assert not path.exists()


# -- what is not loaded
# --------------------------------------------------------------------------------------


def test_a_class_that_is_not_given_is_refused_and_nothing_imported(path: Path) -> None:
    wf.save(Plain(), path)
    rewrite(path, lambda header, arrays: header["module"].update({"class": "antigravity.Plain"}))
    for modules in ((), CLASSES):
        with pytest.raises(ConfigError, match=r"expected the class 'antigravity.Plain' in wf.load"):
            wf.load(path, modules=modules)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("modules", [3, [Plain()], "Plain", [dict], ["warpfit.nn.Linear"]])
def test_classes_that_are_no_modules_are_refused(modules: Any, path: Path) -> None:
    wf.save(Nothing(), path)
    with pytest.raises(ConfigError, match="load: expected modules as classes of Module, got "):
        wf.load(path, modules=modules)


HUGE = {"kind": "linear", "in_features": 2**40, "out_features": 2**40, "bias": True}
LINEAR = nn.Linear(2, 2).spec.to_dict()
NORM = nn.BatchNorm1d(5).spec.to_dict()


@pytest.mark.parametrize(
    ("module", "match"),
    [
        (None, "expected a module as a JSON object, found None"),
        ([], r"expected a module as a JSON object, found \[\]"),
        ({}, "expected a layer kind among .*, got None"),
        ({"class": 3, "arguments": {}}, "a module by its class and arguments"),
        ({"class": "Residual", "arguments": []}, "a module by its class and arguments"),
        ({"layers": [3]}, "expected a module as a JSON object, found 3"),
        ({"layers": [{**LINEAR, **HUGE}]}, "expected layers of at most 42 numbers"),
        ({"layers": [NORM] * 9}, "expected layers of at most 42 numbers, found 180"),
        ({"layers": [{"kind": "system"}]}, "expected a layer kind among .*, got 'system'"),
        ({"layers": []}, "expected a state with the names of this model"),
        ({"width": "a"}, r"arguments that make a Residual, found \{'width': 'a'\}: "),
        ({"width": -1}, "arguments that make a Residual"),
        ({"depth": 1}, "arguments that make a Residual, .*: .*'depth'"),
        ({"width": 5}, r"inner.weight: expected shape \(5, 5\), got \(6, 6\)"),
    ],
)
def test_forged_descriptions_are_refused(module: Any, match: str, path: Path) -> None:
    wf.save(Residual(6), path)
    if isinstance(module, dict) and module.keys() & {"width", "depth"}:
        module = {"class": f"{__name__}.Residual", "arguments": module}
    rewrite(path, lambda header, arrays: header.update(module=module))
    with pytest.raises(FileFormatError, match=f"holds no model: .*{match}") as caught:
        wf.load(path, modules=CLASSES)
    assert "\n" not in str(caught.value)


def test_a_deep_description_is_refused(path: Path) -> None:
    wf.save(Residual(6), path)
    deep: dict[str, Any] = {"layers": []}
    for _ in range(400):
        deep = {"layers": [deep]}
    rewrite(path, lambda header, arrays: header.update(module=deep))
    with pytest.raises(FileFormatError, match="holds no model"):
        wf.load(path, modules=CLASSES)


def test_a_constructor_that_fails_is_told_in_one_sentence(path: Path) -> None:
    class Failing(nn.Module):
        fails = False

        def __init__(self) -> None:
            if self.fails:
                raise RuntimeError("first\nsecond")

    wf.save(Failing(), path)
    Failing.fails = True
    with pytest.raises(FileFormatError, match=r"that make a Failing, found \{\}: first second$"):
        wf.load(path, modules=[Failing])


def test_a_module_is_no_trained_chain(path: Path) -> None:
    wf.save(Plain(), path)
    with pytest.raises(FileFormatError, match="to hold layers of warpfit alone"):
        wf.load_trained(path)
