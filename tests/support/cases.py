"""One call, or several, of every float operation of the contract, for the rules that hold for all
of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from support.element_losses import terms_of
from warpfit.backends import Activation
from warpfit.backends.base import ACTIVATIONS
from warpfit.backends.update_rules import UpdateNumbers


class Case(NamedTuple):
    """A call: the operation's name, its arguments, and its keyword arguments."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Operands:
    """Random operands of one dtype: rows M, inner size K, outputs N."""

    def __init__(self, dtype: str, rows: int, inner: int, outputs: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.x, self.w, self.b = (
            self.normal(rows, inner),
            self.normal(inner, outputs),
            self.normal(outputs),
        )
        self.z, self.dy, self.target = (self.normal(rows, outputs) for _ in range(3))
        self.y = self.between(0.1, 0.9, rows, outputs)
        self.probabilities = self.y / np.maximum(self.y.sum(axis=1, keepdims=True), 0.1)
        self.labels = self.rng.integers(0, max(outputs, 1), rows)
        self.sample_weight = self.between(0.5, 2, rows)
        self.class_weight = self.between(0.5, 2, outputs)
        self.total_weight = np.asarray(1.7, dtype)

    def normal(self, *shape: int) -> Any:
        return self.rng.standard_normal(shape).astype(self.dtype)

    def between(self, low: float, high: float, *shape: int) -> Any:
        return self.rng.uniform(low, high, shape).astype(self.dtype)


def cases(
    dtype: str = "float64", *, rows: int = 5, inner: int = 4, outputs: int = 3, seed: int = 0
) -> dict[str, Case]:
    """Return calls of all operations that leave their operands alone, by name."""
    operands = _Operands(dtype, rows, inner, outputs, seed)
    return _dense_cases(operands) | _activation_cases(operands) | _loss_cases(operands)


def _dense_cases(o: _Operands) -> dict[str, Case]:
    return {
        "matmul": Case("matmul", (o.x, o.w), {}),
        "matmul-transpose_a": Case("matmul", (o.x, o.z), {"transpose_a": True}),
        "matmul-transpose_b": Case("matmul", (o.z, o.w), {"transpose_b": True}),
        "matmul-transpose_both": Case(
            "matmul", (o.w, o.x), {"transpose_a": True, "transpose_b": True}
        ),
        "linear_forward": Case("linear_forward", (o.x, o.w, o.b), {}),
        "linear_forward-no_bias-gelu": Case(
            "linear_forward", (o.x, o.w, None, Activation("gelu")), {}
        ),
        "linear_backward": Case("linear_backward", (o.dy, o.x, o.w), {}),
        "sum_columns": Case("sum_columns", (o.z,), {}),
    }


def _activation_cases(o: _Operands) -> dict[str, Case]:
    found = {
        "softmax_forward": Case("softmax_forward", (o.z,), {}),
        "softmax_backward": Case("softmax_backward", (o.dy, o.probabilities), {}),
        "log_softmax_forward": Case("log_softmax_forward", (o.z,), {}),
        "log_softmax_backward": Case("log_softmax_backward", (o.dy, np.log(o.probabilities)), {}),
    }
    for name in ACTIVATIONS:
        activation = Activation(name)
        found[f"{name}_forward"] = Case("activation_forward", (activation, o.z), {})
        found[f"{name}_backward"] = Case("activation_backward", (activation, o.dy, o.y, o.z), {})
    for name in ("relu", "gelu"):
        operands = (Activation(name), o.dy, o.y, o.z)
        found[f"{name}_bias"] = Case("bias_gradient", operands, {})
    return found


def _loss_cases(o: _Operands) -> dict[str, Case]:
    weighted = {"sample_weight": o.sample_weight}
    options: dict[str, list[dict[str, Any]]] = {
        "mse": [{}, weighted, {"half": True}],
        "absolute_error": [{}, weighted],
        "huber": [{}, weighted | {"delta": 0.5}],
        "binary_cross_entropy": [{}, weighted, {"sum_outputs": True}],
    }
    found = {}
    for loss, keywords in options.items():
        target = o.y if loss == "binary_cross_entropy" else o.target
        for i, settings in enumerate(keywords):
            own = {name: value for name, value in settings.items() if name not in weighted}
            terms = terms_of(loss, o.z.shape, **own)
            weights = {name: value for name, value in settings.items() if name in weighted}
            operands = (o.z, target, terms)
            found[f"{loss}_forward-{i}"] = Case("element_loss_forward", operands, weights)
            operands = (o.z, target, o.total_weight, terms)
            found[f"{loss}_backward-{i}"] = Case("element_loss_backward", operands, weights)
    loss = "softmax_cross_entropy"
    everything = weighted | {"class_weight": o.class_weight, "label_smoothing": 0.1}
    for i, kwargs in enumerate([{}, everything]):
        found[f"{loss}_forward-{i}"] = Case(f"{loss}_forward", (o.z, o.labels), kwargs)
        found[f"{loss}_backward-{i}"] = Case(
            f"{loss}_backward", (o.probabilities, o.labels, o.total_weight), kwargs
        )
    found["count_correct"] = Case("count_correct", (o.z, o.labels), {})
    found["count_correct_binary"] = Case("count_correct_binary", (o.z, o.y), {})
    return found


CASE_NAMES = tuple(cases())


class Update(NamedTuple):
    """A call of an operation that updates its lists of arrays in place."""

    op: str
    num_lists: int
    run: Callable[..., Any]


def _by_rule(rule: str, num_slots: int, **numbers: float) -> Update:
    def run(ops: Any, w: Any, g: Any, *slots: Any) -> None:
        ops.update_parameters(rule, w, g, slots, UpdateNumbers(0.1, **numbers))

    return Update("update_parameters", 2 + num_slots, run)


UPDATES = {
    "sgd": _by_rule("sgd", 0),
    "sgd-momentum": _by_rule("sgd", 1, momentum=0.9, decay=0.01),
    "adam": _by_rule("adam", 2, eps=1e-8, decay=0.01, of_mean=0.9, of_square=0.999),
    "rmsprop": _by_rule("rmsprop", 2, eps=1e-8, decay=0.01, of_square=0.99, momentum=0.9),
    "lion": _by_rule("lion", 1, momentum=0.9, of_mean=0.99, kept=0.99),
    "adagrad": _by_rule("adagrad", 1, eps=1e-8, decay=0.01),
    "adadelta": _by_rule("adadelta", 2, eps=1e-4, decay=0.01, of_square=0.9),
    "nadam": _by_rule("nadam", 2, eps=1e-4, decay=0.01, of_mean=0.9, of_square=0.99, ahead=2.0),
    "clip_by_norm": Update("clip_by_norm", 1, lambda ops, g: ops.clip_by_norm(g, 0.5)),
    "l2_penalty": Update("l2_penalty", 2, lambda ops, w, g: ops.l2_penalty(w, g, 0.1)),
}
