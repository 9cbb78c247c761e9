"""Names of Keras, PyTorch and scikit-learn: errors say what there is instead, and it is there."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import get_scorer_names

import warpfit as wf
from warpfit import losses, nn, optim
from warpfit.errors import ConfigError
from warpfit.losses import Loss
from warpfit.other_packages import ANSWERS

NAMED = re.compile(r"\b(wf|nn|optim|losses|autograd)\.([A-Za-z_]\w*)")
CLASSES = {
    "Module": nn.Linear(4, 2),
    "Tensor": wf.tensor([[1.0, 2.0]]),
    "Optimizer": optim.SGD(nn.Linear(4, 2).parameters()),
    "History": wf.History(),
}
METHODS = re.compile(r"\b(model|x|optimizer|history)\.([a-z_]\w*)")
OBJECTS = {"model": "Module", "x": "Tensor", "optimizer": "Optimizer", "history": "History"}


@pytest.mark.parametrize("owner", ANSWERS)
def test_what_there_is_instead_is_there(owner: str) -> None:
    text = " ".join(ANSWERS[owner].values())
    modules = {"wf": wf, **{name: getattr(wf, name) for name in ("nn", "optim", "losses")}}
    modules["autograd"] = wf.autograd
    assert [name for name in NAMED.findall(text) if not hasattr(modules[name[0]], name[1])] == []
    methods = [(each, CLASSES[OBJECTS[each]], name) for each, name in METHODS.findall(text)]
    assert [(each, name) for each, thing, name in methods if not hasattr(thing, name)] == []


@pytest.mark.parametrize("owner", ANSWERS)
def test_what_is_answered_is_not_there(owner: str) -> None:
    names = " ".join(ANSWERS[owner]).split()
    assert len(names) == len({*names})
    if owner in CLASSES:
        found = [name for name in names if hasattr(CLASSES[owner], name)]
    elif owner.startswith("warpfit"):
        found = [name for name in names if hasattr(import_module(owner), name)]
    else:
        known = {"loss": Loss.by_name, "metric": get_scorer_names()}[owner]
        found = [name for name in names if name in known]
    assert found == []


@pytest.mark.parametrize(
    ("look_for", "told"),
    [
        (lambda: CLASSES["Module"].fit, r"'Linear' object has no .*'fit'; .*wf\.fit\(model"),
        (lambda: CLASSES["Tensor"].relu, r"'Tensor' object .*; warpfit has autograd\.relu\(x\)"),
        (lambda: nn.Linear(2, 3).weight.view, r"'Parameter' object .*x\.reshape\(shape\)"),
        (lambda: CLASSES["Optimizer"].param_groups, r"; warpfit has optimizer\.spec\.groups"),
        (lambda: CLASSES["History"].history, r"history\['loss'\]"),
        (lambda: nn.Dense, r"module 'warpfit\.nn' has no .*'Dense'; warpfit has nn\.Linear"),
        (lambda: nn.LSTM, "warpfit has no recurrent layers"),
        (lambda: optim.StepLR, r"optim\.Step, as the learning rate"),
        (lambda: losses.CrossEntropyLoss, r"losses\.SoftmaxCrossEntropy"),
        (lambda: wf.autograd.cat, r"autograd\.concatenate"),
        (lambda: wf.Sequential, r"module 'warpfit' has no .*'Sequential'; warpfit has nn\.Sequ"),
        (lambda: nn.Dance, r"^module 'warpfit\.nn' has no attribute 'Dance'$"),
        (lambda: CLASSES["Module"].fitt, r"^'Linear' object has no attribute 'fitt'$"),
    ],
)
def test_attributes_of_others(look_for: Callable[[], Any], told: str) -> None:
    with pytest.raises(AttributeError, match=told):
        look_for()


def test_a_property_of_ones_own_fails_with_its_own_error() -> None:
    class Wrong(nn.Module):
        @property
        def width(self) -> Any:
            return self.inner.out_features  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'Wrong' object has no attribute 'inner'"):
        Wrong().width  # noqa: B018


def test_a_layer_is_not_frozen_by_keras_attribute_but_by_pytorchs_method() -> None:
    model = nn.Sequential(nn.Linear(4, 3, seed=0), nn.ReLU(), nn.Linear(3, 2, seed=1))
    with pytest.raises(AttributeError, match=r"'trainable'; .*model\.requires_grad_\(False\)"):
        model[0].trainable = False  # type: ignore[attr-defined]
    assert model[0].requires_grad_(False) is model[0]
    frozen, trained = model[0].state_dict(), model[2].state_dict()
    x = np.random.default_rng(0).normal(size=(20, 4))
    asked: dict[str, Any] = {"optimizer": "adam", "epochs": 1, "device": "cpu", "verbose": False}
    wf.fit(model, x, np.arange(20) % 2, **asked)
    np.testing.assert_array_equal(model[0].state_dict()["weight"], frozen["weight"])
    assert (model[2].state_dict()["weight"] != trained["weight"]).any()
    assert all(each.requires_grad for each in model.requires_grad_().parameters())


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"optimizer": "Adam"}, r"got 'Adam'; write 'adam'"),
        ({"optimizer": optim.Adam}, r"got the class Adam$"),
        ({"loss": "sparse_categorical_crossentropy"}, r"warpfit has 'cross_entropy'"),
        ({"loss": losses.SoftmaxCrossEntropy}, r"got the class SoftmaxCrossEntropy$"),
        ({"metrics": ["acc"]}, r"got 'acc'; warpfit has 'accuracy'"),
    ],
)
def test_arguments_of_others(changed: dict[str, Any], told: str) -> None:
    asked = {"optimizer": "sgd", "epochs": 1, "device": "cpu", "verbose": False, **changed}
    with pytest.raises(ConfigError, match=told):
        wf.fit(CLASSES["Module"], np.zeros((4, 4)), np.arange(4) % 2, **asked)


def test_objects_of_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    for make, told in (
        (lambda: nn.Sequential(torch.nn.ReLU()), "expected layers, .* got ReLU of torch"),
        (lambda: losses.resolve(torch.nn.MSELoss()), r"got MSELoss of torch; warpfit has 'mse'"),
        (lambda: losses.resolve(torch.nn.functional.mse_loss), "got the function mse_loss"),
        (lambda: wf.predict(torch.nn.Linear(2, 3), [[1, 2]]), r"a Module\), got Linear of torch"),
        (lambda: optim.Adam(nn.Linear(4, 2)), r"got Linear; model\.parameters\(\) is one"),
    ):
        with pytest.raises(ConfigError, match=told):
            make()


class OwnWeights(nn.Module):
    """Has a property of a name that Keras has, too."""

    @property
    def weights(self) -> Any:
        return self.layer.weight  # which was never made


def test_what_a_property_of_ones_own_raises_is_what_is_said() -> None:
    with pytest.raises(AttributeError, match="'OwnWeights' object has no attribute 'layer'"):
        OwnWeights().weights  # noqa: B018
