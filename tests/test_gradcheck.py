"""The gradient check: it passes what is right, it finds what is wrong, and it leaves nothing
out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.unchecked import unchecked
from warpfit import nn
from warpfit.autograd import Tensor, formulas, record
from warpfit.errors import ConfigError, DTypeError
from warpfit.gradcheck import (
    TOLERANCE,
    GradcheckResult,
    distinct_values,
    gradcheck,
    gradcheck_model,
)
from warpfit.losses import Huber, Loss, SoftmaxCrossEntropy
from warpfit.nn.spec import LayerSpec
from warpfit.standard_checks import standard_checks

CHECKS = dict(standard_checks())
X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


def mlp(dtype: str = "float64") -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, 4, seed=0, dtype=dtype), nn.Tanh(), nn.Linear(4, 3, seed=1, dtype=dtype)
    )


def wrong_at(entry: tuple[int, int], by: float) -> Callable[[Tensor], Tensor]:
    """Return x² with a gradient that is off at one entry."""

    def function(x: Tensor) -> Tensor:
        def pullback(dy: Any) -> tuple[Any]:
            dx = 2 * x.data * dy
            dx[entry] += by
            return (dx,)

        return record(x.data**2, (x,), pullback)

    return function


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("name", CHECKS)
def test_standard_checks_pass(name: str) -> None:
    result = CHECKS[name]()
    assert result.passed, (name, result)
    assert result.tolerance == TOLERANCE[name.rpartition(" ")[2]]


def test_no_op_layer_or_loss_is_left_out() -> None:
    assert unchecked() == []


def test_what_is_new_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def new(name: str, base: type, module: str = "warpfit.new") -> type:
        return type(name, (base,), {"__module__": module})

    monkeypatch.setattr(nn, "NewLayer", new("NewLayer", nn.Layer), raising=False)
    monkeypatch.setitem(LayerSpec.by_kind, "new", new("NewSpec", LayerSpec))
    monkeypatch.setitem(Loss.by_name, "new", new("NewLoss", Loss))
    monkeypatch.setitem(Loss.by_name, "users", new("UsersLoss", Loss, "elsewhere"))
    monkeypatch.setattr(formulas, "new_op", lambda ops, x: (x, lambda dy: (dy,)), raising=False)
    assert unchecked() == ["NewLayer", "NewLoss", "NewSpec", "new_op"]


def test_a_right_gradient_passes() -> None:
    result = gradcheck(lambda a, b: (a * b).exp().sum(axis=0), [X, X[:1]])
    assert result.passed
    assert [check.name for check in result.inputs] == ["input 0", "input 1"]
    assert 0 < result.worst_error < 1e-8


@pytest.mark.parametrize("by", [1e-4, -3.0, np.nan, np.inf])
def test_a_wrong_gradient_is_found_and_named(by: float) -> None:
    result = gradcheck(wrong_at((1, 2), by), [X])
    assert not result.passed
    assert result.worst_entry == "input 0[1, 2]"
    assert result.worst.worst_entry == (1, 2)
    assert result.worst.numeric == pytest.approx(2 * X[1, 2] * np.cos(5), rel=1e-8)
    assert result.worst_error > 1e-5


def test_a_gradient_that_does_not_arrive_is_found() -> None:
    result = gradcheck(lambda a, b: a * b.detach(), [X, X + 1])
    assert not result.passed
    assert result.inputs[0].worst_error < 1e-8
    assert result.inputs[1].worst_error == 1


def test_relative_error_is_against_the_sum_of_both() -> None:
    result = gradcheck(wrong_at((0, 0), 1.0), [X])
    analytic, numeric = 2.0, 1.0
    assert result.worst_error == pytest.approx((analytic - numeric) / (analytic + numeric))


def test_float32_is_held_against_differences_in_float64() -> None:
    result = gradcheck(lambda x: (x * x).sum(), [np.array([3.0], "float32")])
    assert result.tolerance == TOLERANCE["float32"]
    assert result.worst.numeric == pytest.approx(6, rel=1e-9)


def test_eps_and_tolerance_can_be_given() -> None:
    cube = np.array([1.0])
    coarse = gradcheck(lambda x: x**3, [cube], eps=0.1, tolerance=1e-2)
    assert coarse.worst.numeric == pytest.approx(3.01)
    assert coarse.passed
    assert not gradcheck(lambda x: x**3, [cube], eps=0.1, tolerance=1e-4).passed


def test_tensors_as_inputs_are_left_alone() -> None:
    x = Tensor(X.copy())
    assert gradcheck(lambda x: x.reshape(-1), [x]).passed
    assert x.grad is None
    np.testing.assert_array_equal(x.data, X)


def test_inputs_without_entries() -> None:
    result = gradcheck(lambda x: x.sum(), [np.ones((0, 3))])
    assert result.passed
    assert result.worst_error == 0


@pytest.mark.parametrize(
    ("function", "inputs", "error", "match"),
    [
        (lambda: Tensor(X), [], ConfigError, "expected at least one input"),
        (lambda x: Tensor(X), [X], ConfigError, "requires a gradient"),
        (
            lambda x: x.data,
            [X],
            DTypeError,
            "expected the function to return a tensor, got ndarray",
        ),
        (
            lambda x: x,
            [np.arange(3)],
            DTypeError,
            "expected inputs of float32 or float64, got int64",
        ),
    ],
)
def test_errors(function: Any, inputs: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        gradcheck(function, inputs)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "loss", ["cross_entropy", SoftmaxCrossEntropy(label_smoothing=0.2), "mse", Huber(0.3)]
)
def test_models_pass(loss: str | Loss, dtype: str) -> None:
    targets = [2, 0] if "cross" in str(loss).lower() else X + 0.1
    result = gradcheck_model(mlp(dtype), X, targets, loss)
    assert result.passed, result
    assert result.tolerance == TOLERANCE[dtype]
    assert [check.name for check in result.inputs] == [
        "x",
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    ]


class Forgetful(nn.Module):
    """A model whose second use of a layer records nothing."""

    def __init__(self) -> None:
        self.inner = nn.Linear(3, 3, seed=0, dtype="float64")

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y + self.inner(y.detach())


def test_a_wrong_model_is_found() -> None:
    result = gradcheck_model(Forgetful(), X, X, "mse")
    assert not result.passed
    assert {check.name for check in result.inputs if check.worst_error > 1e-3} >= {
        "x",
        "inner.weight",
    }


def test_the_model_is_left_as_it_is() -> None:
    model = mlp("float32")
    before = model.state_dict()
    model(Tensor(X.astype("float32"))).sum().backward()
    gradients = [parameter.grad.copy() for parameter in model.parameters()]
    assert gradcheck_model(model, X, X, "mse").passed
    assert model.dtype == "float32"
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        np.testing.assert_array_equal(parameter.grad, gradient)


def test_models_without_parameters_and_bytes_as_input() -> None:
    pixels = np.array([[0, 100, 255]], np.uint8)
    assert gradcheck_model(nn.Tanh(), X, X, "mse").tolerance == TOLERANCE["float64"]
    assert gradcheck_model(mlp(), pixels, [1], "cross_entropy").passed


def cnn(dtype: str) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, seed=0, dtype=dtype),
        nn.BatchNorm2d(3, dtype=dtype),
        nn.Tanh(),
        nn.Dropout(0.3, seed=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3, seed=2),
        nn.Linear(12, 3, seed=3, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("training", [True, False])
def test_a_model_with_batch_statistics_and_dropout(dtype: str, training: bool) -> None:
    model = cnn(dtype)
    (x,) = distinct_values((3, 4, 4, 1))
    model(x)
    model.train(training)
    before = model.state_dict()
    result = gradcheck_model(model, x, [0, 2, 1], "cross_entropy")
    assert result.passed, result
    np.testing.assert_equal(model.state_dict(), before)


@given(shapes=st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=3))
def test_distinct_values(shapes: list[tuple[int, ...]]) -> None:
    parts = distinct_values(*shapes)
    assert [part.shape for part in parts] == shapes
    values = np.sort(np.concatenate([part.ravel() for part in parts]))
    if values.size:
        spacing = 2.6 / values.size
        assert np.abs(values).min() >= 0.24 * spacing
        np.testing.assert_allclose(np.diff(values), spacing)


def test_result_of_a_check_is_printable() -> None:
    assert isinstance(result := CHECKS["matmul float64"](), GradcheckResult)
    assert "worst_error=" in repr(result)
