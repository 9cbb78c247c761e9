from __future__ import annotations

import warnings
from collections.abc import Iterator
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest

from support.element_losses import terms_of
from support.numeric import DTYPES, assert_within_tolerance, owned
from support.updates import update
from warpfit.backends import Activation, Array, Backend
from warpfit.backends.update_rules import UPDATE_RULES, UpdateNumbers
from warpfit.errors import ConfigError
from warpfit.optim.adadelta import AdadeltaSpec
from warpfit.optim.adagrad import AdagradSpec
from warpfit.optim.adam import AdamSpec
from warpfit.optim.base import OptimizerSpec
from warpfit.optim.lion import LionSpec
from warpfit.optim.nadam import NAdamSpec
from warpfit.optim.rmsprop import RMSpropSpec
from warpfit.optim.schedules import Constant
from warpfit.optim.sgd import SGDSpec

# In every run at least every other case of each test.
pytestmark = pytest.mark.in_turns(8)

STEPS = 12
# The largest crosses a block of the update; the others are a matrix, a bias, a scalar, and nothing.
SHAPES = [(130, 257), (5,), (), (0, 3)]


def start(dtype: str = "float64") -> list[Any]:
    rng = np.random.default_rng(0)
    return [np.asarray(rng.standard_normal(shape), dtype) for shape in SHAPES]


def gradients(dtype: str = "float64", steps: int = STEPS) -> Iterator[list[Any]]:
    rng = np.random.default_rng(1)
    for _ in range(steps):
        yield [np.asarray(rng.standard_normal(shape), dtype) for shape in SHAPES]


def assert_lists_close(results: list[Any], references: list[Any], dtype: str) -> None:
    for result, reference in zip(results, references, strict=True):
        assert result.dtype == dtype
        assert_within_tolerance(result, reference)


def run_updates(
    backend: Backend,
    op: str,
    num_slots: int,
    dtype: str,
    options: dict[str, Any],
    counts_steps: bool = False,
) -> list[list[Any]]:
    """Return the parameters and the slots after some steps of an optimizer's operation."""
    state = [owned(backend, start(dtype))]
    state += [[backend.zeros(shape, dtype) for shape in SHAPES] for _ in range(num_slots)]
    for step, grads in enumerate(gradients(dtype), 1):
        on_device = owned(backend, grads)
        kwargs = options | ({"step": step} if counts_steps else {})
        update(backend, op, state[0], on_device, *state[1:], **kwargs)
        for array, value in zip(on_device, grads, strict=True):
            np.testing.assert_array_equal(backend.to_numpy(array), value)
    return [[backend.to_numpy(array) for array in arrays] for arrays in state]


# -- SGD
# --------------------------------------------------------------------------------------------------


def naive_sgd(
    *,
    lr: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    lr_in_velocity: bool = False,
) -> list[list[Any]]:
    w, v = start(), [np.zeros(shape) for shape in SHAPES]
    for grads in gradients():
        for i, gradient in enumerate(grads):
            g = gradient + weight_decay * w[i]
            if lr_in_velocity:
                v[i] = momentum * v[i] - lr * g
                w[i] = w[i] + (momentum * v[i] - lr * g if nesterov else v[i])
            else:
                v[i] = momentum * v[i] + g
                w[i] = w[i] - lr * (g + momentum * v[i] if nesterov else v[i])
    return [w, v]


@pytest.mark.in_turns(12)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("lr_in_velocity", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_momentum(
    backend: Backend, nesterov: bool, lr_in_velocity: bool, weight_decay: float, dtype: str
) -> None:
    options = {
        "lr": 0.05,
        "momentum": 0.9,
        "nesterov": nesterov,
        "weight_decay": weight_decay,
        "lr_in_velocity": lr_in_velocity,
    }
    for results, references in zip(
        run_updates(backend, "sgd", 1, dtype, options), naive_sgd(**options), strict=True
    ):
        assert_lists_close(results, references, dtype)


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"lr_in_velocity": True}])
def test_sgd_without_momentum(backend: Backend, options: dict[str, Any], dtype: str) -> None:
    weights, velocities = run_updates(backend, "sgd", 1, dtype, {"lr": 0.05} | options)
    assert_lists_close(weights, naive_sgd(lr=0.05, **options)[0], dtype)
    assert not any(velocity.any() for velocity in velocities)

    without = owned(backend, start(dtype))
    for grads in gradients(dtype):
        update(backend, "sgd", without, owned(backend, grads), None, lr=0.05, **options)
    for result, expected in zip(without, weights, strict=True):
        np.testing.assert_array_equal(backend.to_numpy(result), expected)


# -- Adam
# --------------------------------------------------------------------------------------------------


def naive_adam(
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    eps_before_correction: bool = False,
) -> list[list[Any]]:
    w, m, v = start(), [np.zeros(shape) for shape in SHAPES], [np.zeros(shape) for shape in SHAPES]
    for step, grads in enumerate(gradients(), 1):
        for i, g in enumerate(grads):
            if decoupled:
                w[i] = w[i] - lr * weight_decay * w[i]
            else:
                g = g + weight_decay * w[i]
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g**2
            if eps_before_correction:
                rate = lr * sqrt(1 - beta2**step) / (1 - beta1**step)
                w[i] = w[i] - rate * m[i] / (np.sqrt(v[i]) + eps)
            else:
                m_hat, v_hat = m[i] / (1 - beta1**step), v[i] / (1 - beta2**step)
                w[i] = w[i] - lr * m_hat / (np.sqrt(v_hat) + eps)
    return [w, m, v]


@pytest.mark.in_turns(18)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps_before_correction", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decoupled": True},
        {"decoupled": True},
        {"beta1": 0.5, "beta2": 0.9, "eps": 1e-2},
        {"beta1": 0.0, "eps": 1e-2},
    ],
)
def test_adam(
    backend: Backend, options: dict[str, Any], eps_before_correction: bool, dtype: str
) -> None:
    options = {"lr": 0.05, "eps_before_correction": eps_before_correction} | options
    for results, references in zip(
        run_updates(backend, "adam", 2, dtype, options, counts_steps=True),
        naive_adam(**options),
        strict=True,
    ):
        assert_lists_close(results, references, dtype)


def test_adams_first_step_is_the_learning_rate(backend: Backend) -> None:
    w, zeros = np.zeros(3), [np.zeros(3)]
    state = [
        owned(backend, arrays) for arrays in ([w], [np.array([1e-3, -5.0, 0.0])], zeros, zeros)
    ]
    update(backend, "adam", *state, step=1, lr=0.1)
    np.testing.assert_allclose(backend.to_numpy(state[0][0]), [-0.1, 0.1, 0], rtol=1e-4)


# -- numbers that lie on the device
# ------------------------------------------------------------------------


@pytest.mark.in_turns(18)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "spec",
    [
        SGDSpec(Constant(0.1), momentum=0.9, nesterov=True),
        AdamSpec(Constant(0.1), weight_decay=0.1),
        AdamSpec(Constant(0.1), weight_decay=0.1, decoupled=True),
        AdamSpec(Constant(0.1), eps_before_correction=True),
        RMSpropSpec(Constant(0.1), momentum=0.5),
        LionSpec(Constant(0.1), weight_decay=0.1),
        AdagradSpec(Constant(0.1), lr_decay=0.1, weight_decay=0.1),
        AdadeltaSpec(Constant(0.1), weight_decay=0.1),
        NAdamSpec(Constant(0.1), weight_decay=0.1),
    ],
)
def test_numbers_on_the_device_come_to_the_same(
    backend: Backend, spec: OptimizerSpec, dtype: str
) -> None:
    results = []
    numbers = backend.asarray(np.full(len(spec.numbers(1, 0.0)), np.nan))
    for is_given in (True, False):
        parameters = owned(backend, start(dtype))
        slots = {
            name: owned(backend, [np.zeros(shape, dtype) for shape in SHAPES])
            for name in spec.slot_names
        }
        for step, gradient in enumerate(gradients(dtype), 1):
            given: dict[str, Any] = {"step": step, "lr": 0.1 / step}
            if not is_given:
                backend.assign(numbers, backend.asarray(np.asarray(spec.numbers(**given))))
                given = {"step": 0, "lr": 0.0, "numbers": numbers}
            spec.update(backend, parameters, owned(backend, gradient), slots, **given)
        changed = [parameters, *slots.values()]
        results.append([backend.to_numpy(array) for arrays in changed for array in arrays])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


# -- RMSprop
# -----------------------------------------------------------------------------------------------


def naive_rmsprop(
    *,
    lr: float,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
) -> list[list[Any]]:
    w, s, v = start(), [np.zeros(shape) for shape in SHAPES], [np.zeros(shape) for shape in SHAPES]
    for grads in gradients():
        for i, gradient in enumerate(grads):
            g = gradient + weight_decay * w[i]
            s[i] = alpha * s[i] + (1 - alpha) * g**2
            v[i] = momentum * v[i] + g / (np.sqrt(s[i]) + eps)
            w[i] = w[i] - lr * v[i]
    return [w, s, v]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("options", [{}, {"alpha": 0.5, "eps": 1e-2}])
def test_rmsprop_with_momentum(
    backend: Backend, options: dict[str, Any], weight_decay: float, dtype: str
) -> None:
    options = {"lr": 0.01, "weight_decay": weight_decay, "momentum": 0.9} | options
    for results, references in zip(
        run_updates(backend, "rmsprop", 2, dtype, options), naive_rmsprop(**options), strict=True
    ):
        assert_lists_close(results, references, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_rmsprop_without_momentum(backend: Backend, weight_decay: float, dtype: str) -> None:
    options = {"lr": 0.01, "weight_decay": weight_decay}
    weights, averages, velocities = run_updates(backend, "rmsprop", 2, dtype, options)
    expected_weights, expected_averages, _ = naive_rmsprop(**options)
    assert_lists_close(weights, expected_weights, dtype)
    assert_lists_close(averages, expected_averages, dtype)
    assert not any(velocity.any() for velocity in velocities)

    without = owned(backend, start(dtype))
    slots = [backend.zeros(shape, dtype) for shape in SHAPES]
    for grads in gradients(dtype):
        update(backend, "rmsprop", without, owned(backend, grads), slots, None, **options)
    for result, expected in zip(without, weights, strict=True):
        np.testing.assert_array_equal(backend.to_numpy(result), expected)


# -- Lion
# --------------------------------------------------------------------------------------------------


def naive_lion(
    *, lr: float, beta1: float = 0.9, beta2: float = 0.99, weight_decay: float = 0.0
) -> list[list[Any]]:
    w, m = start(), [np.zeros(shape) for shape in SHAPES]
    for grads in gradients():
        for i, g in enumerate(grads):
            w[i] = (1 - lr * weight_decay) * w[i] - lr * np.sign(beta1 * m[i] + (1 - beta1) * g)
            m[i] = beta2 * m[i] + (1 - beta2) * g
    return [w, m]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.5}, {"beta1": 0.5, "beta2": 0.3}, {"beta1": 0.0, "beta2": 0.0}],
)
def test_lion(backend: Backend, options: dict[str, Any], dtype: str) -> None:
    options = {"lr": 0.05} | options
    for results, references in zip(
        run_updates(backend, "lion", 1, dtype, options), naive_lion(**options), strict=True
    ):
        assert_lists_close(results, references, dtype)


def test_lion_leaves_what_has_no_gradient_and_hides_no_nan(backend: Backend) -> None:
    w, m, g = np.ones(3), np.zeros(3), np.array([0.0, np.nan, -1e-30])
    on_device = owned(backend, [w, g, m])
    update(backend, "lion", *([array] for array in on_device), lr=0.5)
    np.testing.assert_array_equal(backend.to_numpy(on_device[0]), [1.0, np.nan, 1.5])


# -- Adagrad
# -----------------------------------------------------------------------------------------------


def naive_adagrad(
    *, lr: float, lr_decay: float = 0.0, weight_decay: float = 0.0, eps: float = 1e-10
) -> list[list[Any]]:
    w, s = start(), [np.zeros(shape) for shape in SHAPES]
    for step, grads in enumerate(gradients()):
        for i, gradient in enumerate(grads):
            g = gradient + weight_decay * w[i]
            s[i] = s[i] + g**2
            w[i] = w[i] - lr / (1 + step * lr_decay) * g / (np.sqrt(s[i]) + eps)
    return [w, s]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options", [{}, {"lr_decay": 0.1}, {"weight_decay": 0.1}, {"eps": 0.1, "lr_decay": 0.01}]
)
def test_adagrad(backend: Backend, options: dict[str, Any], dtype: str) -> None:
    options = {"lr": 0.05} | options
    for results, references in zip(
        run_updates(backend, "adagrad", 1, dtype, options, counts_steps=True),
        naive_adagrad(**options),
        strict=True,
    ):
        assert_lists_close(results, references, dtype)


# -- Adadelta
# ----------------------------------------------------------------------------------------------


def naive_adadelta(
    *, lr: float, rho: float = 0.9, weight_decay: float = 0.0, eps: float = 1e-6
) -> list[list[Any]]:
    w, s, u = start(), [np.zeros(shape) for shape in SHAPES], [np.zeros(shape) for shape in SHAPES]
    for grads in gradients():
        for i, gradient in enumerate(grads):
            g = gradient + weight_decay * w[i]
            s[i] = rho * s[i] + (1 - rho) * g**2
            step = np.sqrt(u[i] + eps) / np.sqrt(s[i] + eps) * g
            u[i] = rho * u[i] + (1 - rho) * step**2
            w[i] = w[i] - lr * step
    return [w, s, u]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options", [{}, {"rho": 0.5}, {"weight_decay": 0.1}, {"eps": 0.1, "rho": 0.0}]
)
def test_adadelta(backend: Backend, options: dict[str, Any], dtype: str) -> None:
    options = {"lr": 0.5} | options
    for results, references in zip(
        run_updates(backend, "adadelta", 2, dtype, options), naive_adadelta(**options), strict=True
    ):
        assert_lists_close(results, references, dtype)


# -- NAdam
# -------------------------------------------------------------------------------------------------


def naive_nadam(
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum_decay: float = 4e-3,
) -> list[list[Any]]:
    w, m, v = start(), [np.zeros(shape) for shape in SHAPES], [np.zeros(shape) for shape in SHAPES]
    product = 1.0
    for step, grads in enumerate(gradients(), 1):
        mu, next_mu = (beta1 * (1 - 0.5 * 0.96 ** (t * momentum_decay)) for t in (step, step + 1))
        product *= mu
        for i, gradient in enumerate(grads):
            g = gradient + weight_decay * w[i]
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g**2
            of_gradient, of_mean = (1 - mu) / (1 - product), next_mu / (1 - product * next_mu)
            root = np.sqrt(v[i] / (1 - beta2**step)) + eps
            w[i] = w[i] - lr * (of_gradient * g + of_mean * m[i]) / root
    return [w, m, v]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1, "momentum_decay": 0.5},
        {"beta1": 0.5, "beta2": 0.9, "eps": 1e-2},
        {"beta1": 0.0, "eps": 1e-2},
    ],
)
def test_nadam(backend: Backend, options: dict[str, Any], dtype: str) -> None:
    options = {"lr": 0.05} | options
    for results, references in zip(
        run_updates(backend, "nadam", 2, dtype, options, counts_steps=True),
        naive_nadam(**options),
        strict=True,
    ):
        assert_lists_close(results, references, dtype)


# -- all of them
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "num_slots", "momentum", "expected"),
    [
        ("sgd", 0, 0.9, "1 slots of sgd for momentum 0.9, got 0"),
        ("sgd", 2, 0.0, "0 or 1 slots of sgd, got 2"),
        ("rmsprop", 1, 0.9, "2 slots of rmsprop for momentum 0.9, got 1"),
        ("adam", 1, 0.0, "2 slots of adam, got 1"),
        ("other", 0, 0.0, "an update among sgd, adam, rmsprop"),
    ],
)
def test_rules_keep_their_slots(
    backend: Backend, rule: str, num_slots: int, momentum: float, expected: str
) -> None:
    w, g, *slots = ([backend.zeros((3,), "float64")] for _ in range(2 + num_slots))
    with pytest.raises(ConfigError, match=f"expected {expected}"):
        backend.update_parameters(rule, w, g, slots, UpdateNumbers(0.1, momentum=momentum))


@pytest.mark.parametrize(
    ("op", "num_slots", "options"),
    [
        ("sgd", 1, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("adam", 2, {"step": 1, "weight_decay": 0.1}),
        ("rmsprop", 2, {"momentum": 0.9, "weight_decay": 0.1}),
        ("lion", 1, {"weight_decay": 0.1}),
        ("adagrad", 1, {"weight_decay": 0.1}),
        ("adadelta", 2, {"weight_decay": 0.1}),
        ("nadam", 2, {"step": 3, "weight_decay": 0.1}),
    ],
)
def test_updates_reach_into_views(
    backend: Backend, op: str, num_slots: int, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    values = [rng.uniform(0.1, 1, (6, 4)) for _ in range(2 + num_slots)]
    contiguous = [owned(backend, [array]) for array in values]
    bases = [
        backend.asarray(np.pad(array, ((0, 0), (0, 1)), constant_values=7)) for array in values
    ]
    update(backend, op, *contiguous, lr=0.1, **options)
    update(backend, op, *([base[:, :-1]] for base in bases), lr=0.1, **options)
    for base, (expected,) in zip(bases, contiguous, strict=True):
        np.testing.assert_array_equal(backend.to_numpy(base)[:, :-1], backend.to_numpy(expected))
        np.testing.assert_array_equal(backend.to_numpy(base)[:, -1], np.full(6, 7))


def many(backend: Backend, values: list[Any], dtype: str) -> list[Array]:
    """Return the arrays one behind the other in one piece of memory, with one number between: of
    any alignment.
    """
    numbers = np.concatenate([np.append(value, 7.0) for value in values]).astype(dtype)
    base = backend.copy(backend.asarray(numbers))
    ends = np.cumsum([value.size + 1 for value in values])
    return [base[end - 1 - value.size : end - 1] for end, value in zip(ends, values, strict=True)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_tensors_of_any_size_and_alignment(backend: Backend, dtype: str) -> None:
    rng = np.random.default_rng(0)
    sizes = [*range(1, 90), 2047, 2048, 2049, 0, 5000]
    w, g, v = ([rng.standard_normal(size).astype(dtype) for size in sizes] for _ in range(3))
    lists = [many(backend, values, dtype) for values in (w, g, v)]
    norm = backend.clip_by_norm(lists[1], 3.0)
    penalty = backend.l2_penalty(lists[0], lists[1], 0.5)
    update(backend, "sgd", *lists, lr=0.1, momentum=0.9)

    precise = [[array.astype("float64") for array in arrays] for arrays in (w, g, v)]
    expected_norm = np.linalg.norm(np.concatenate(precise[1]))
    np.testing.assert_allclose(backend.to_numpy(norm), expected_norm, rtol=1e-12)
    squares = np.sum(np.concatenate(precise[0]) ** 2)
    np.testing.assert_allclose(
        backend.to_numpy(penalty), 0.25 * squares, rtol=1e-12 if dtype == "float64" else 1e-6
    )
    for idx, (weight, gradient, velocity) in enumerate(zip(*precise, strict=True)):
        total = gradient * 3.0 / (expected_norm + 1e-6) + 0.5 * weight
        velocity = 0.9 * velocity + total
        results = [backend.to_numpy(arrays[idx]) for arrays in lists]
        for result, expected in zip(
            results, (weight - 0.1 * velocity, total, velocity), strict=True
        ):
            assert_within_tolerance(result, expected, dtype)


@pytest.mark.parametrize("op", UPDATE_RULES)
def test_small_tensors_together_have_the_bits_of_each_alone(backend: Backend, op: str) -> None:
    num_slots, options = {
        "sgd": (1, {"momentum": 0.9}),
        "adam": (2, {"step": 3}),
        "rmsprop": (1, {}),
        "lion": (1, {}),
        "adagrad": (1, {}),
        "adadelta": (2, {}),
        "nadam": (2, {"step": 3}),
    }[op]
    rng = np.random.default_rng(0)
    shapes = [(6, 4), (4,), (0,), (4, 3), (3,)]
    values = [
        [rng.uniform(0.1, 1, shape).astype("float32") for shape in shapes]
        for _ in range(2 + num_slots)
    ]
    together = [owned(backend, arrays) for arrays in values]
    update(backend, op, *together, lr=0.1, **options)
    for idx in range(len(shapes)):
        alone = [owned(backend, arrays[idx : idx + 1]) for arrays in values]
        update(backend, op, *alone, lr=0.1, **options)
        for arrays, (expected,) in zip(together, alone, strict=True):
            np.testing.assert_array_equal(backend.to_numpy(arrays[idx]), backend.to_numpy(expected))


def test_tensors_of_two_dtypes(backend: Backend) -> None:
    values = [np.full(3, 2.0, dtype) for dtype in DTYPES]
    weights, grads = owned(backend, values), owned(backend, values)
    penalty = backend.l2_penalty(weights, grads, 0.5)
    update(backend, "sgd", weights, grads, None, lr=0.5)
    assert float(backend.to_numpy(penalty)) == 6
    for weight, value in zip(weights, values, strict=True):
        assert weight.dtype == value.dtype
        assert backend.to_numpy(weight).tolist() == [0.5] * 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("divisor", [8.0, 0.3, 0.0])
def test_a_penalty_whose_divisor_lies_on_the_device(
    backend: Backend, divisor: float, dtype: str
) -> None:
    results = []
    for given in (divisor, backend.asarray(np.asarray(divisor))):
        weights, grads = owned(backend, start(dtype)), owned(backend, next(gradients(dtype)))
        penalty = backend.l2_penalty(weights, grads, 0.7, given)
        results.append([backend.to_numpy(array) for array in (penalty, *grads)])
    weights, grads = owned(backend, start(dtype)), owned(backend, next(gradients(dtype)))
    penalty = backend.l2_penalty(weights, grads, 0.7 / divisor if divisor else 0.0)
    expected = [backend.to_numpy(array) for array in (penalty, *grads)]
    for arrays in zip(*results, expected, strict=True):
        np.testing.assert_array_equal(arrays[0], arrays[2])
        np.testing.assert_array_equal(arrays[1], arrays[2])


def test_no_tensors(backend: Backend) -> None:
    update(backend, "sgd", [], [], None, lr=0.1)
    assert backend.to_numpy(backend.clip_by_norm([], 1.0)) == 0
    assert backend.to_numpy(backend.l2_penalty([], [], 1.0)) == 0


def test_sums_are_the_same_every_time(backend: Backend) -> None:
    value = np.random.default_rng(0).standard_normal(20_000)
    norms = [
        backend.to_numpy(backend.clip_by_norm([backend.asarray(value)], inf)) for _ in range(3)
    ]
    assert len({float(norm) for norm in norms}) == 1


# -- clipping and the L2 penalty
# ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("max_norm", [0.0, 0.5, 1e9, inf])
def test_clip_by_norm(backend: Backend, max_norm: float, dtype: str) -> None:
    values = start(dtype)
    arrays = owned(backend, values)
    norm = backend.clip_by_norm(arrays, max_norm)
    assert norm.shape == ()
    expected = sqrt(sum(float(x) ** 2 for value in values for x in value.flat))
    np.testing.assert_allclose(backend.to_numpy(norm), expected, rtol=1e-12)
    factor = min(1, max_norm / (expected + 1e-6))
    assert_lists_close(
        [backend.to_numpy(array) for array in arrays],
        [factor * value.astype("float64") for value in values],
        dtype,
    )


@pytest.mark.parametrize("max_norm", [5.0, 5.0 + 1e-7, 5.0 + 1e-3])
def test_clip_by_norm_at_its_limit(backend: Backend, max_norm: float) -> None:
    array = backend.asarray(np.array([3.0, 4.0]))
    assert float(backend.clip_by_norm([array], max_norm)) == 5
    expected = np.array([3.0, 4.0]) * min(1, max_norm / (5 + 1e-6))
    np.testing.assert_allclose(backend.to_numpy(array), expected, rtol=1e-15)


def test_the_norm_of_large_float32_gradients_does_not_overflow(backend: Backend) -> None:
    gradient = backend.asarray(np.full(4, 1e30, np.float32))
    np.testing.assert_allclose(
        backend.to_numpy(backend.clip_by_norm([gradient], 1.0)), 2e30, rtol=1e-6
    )
    np.testing.assert_allclose(backend.to_numpy(gradient), np.full(4, 0.5), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_l2_penalty(backend: Backend, dtype: str) -> None:
    weights, before = start(dtype), next(gradients(dtype))
    grads = owned(backend, before)
    on_device = owned(backend, weights)
    penalty = backend.l2_penalty(on_device, grads, 0.3)
    assert penalty.shape == ()
    expected = 0.15 * sum(float(x) ** 2 for value in weights for x in value.flat)
    assert_within_tolerance(backend.to_numpy(penalty), expected, dtype)
    for i, weight in enumerate(weights):
        assert_within_tolerance(
            backend.to_numpy(grads[i]),
            before[i].astype("float64") + 0.3 * weight.astype("float64"),
            dtype,
        )
        np.testing.assert_array_equal(backend.to_numpy(on_device[i]), weight)


def test_l2_penalty_is_the_gradients_integral(backend: Backend) -> None:
    w = np.random.default_rng(0).standard_normal((3, 2))
    gradient = backend.zeros((3, 2), "float64")
    direction, step = np.random.default_rng(1).standard_normal((3, 2)), 1e-5
    backend.l2_penalty([backend.asarray(w)], [gradient], 0.3)
    ahead, behind = (
        backend.l2_penalty(
            [backend.asarray(w + h * direction)], [backend.zeros((3, 2), "float64")], 0.3
        )
        for h in (step, -step)
    )
    slope = float(backend.to_numpy(ahead) - backend.to_numpy(behind)) / (2 * step)
    np.testing.assert_allclose(slope, np.sum(backend.to_numpy(gradient) * direction), rtol=1e-8)


# -- against scikit-learn: whole training runs through its public estimators
# -------------------------------

SKLEARN_SOLVERS = {
    "sgd": {"solver": "sgd", "momentum": 0.0},
    "momentum": {"solver": "sgd", "momentum": 0.9, "nesterovs_momentum": False},
    "nesterov": {"solver": "sgd", "momentum": 0.9, "nesterovs_momentum": True},
    "adam": {"solver": "adam", "epsilon": 1e-3},
}
ALPHA, ITERATIONS, LR = 0.5, 15, 0.05


def sklearn_fit(estimator: str, x: Any, y: Any, **options: Any) -> Any:
    from sklearn import neural_network
    from sklearn.exceptions import ConvergenceWarning

    model = getattr(neural_network, estimator)(
        hidden_layer_sizes=(5,),
        activation="tanh",
        alpha=ALPHA,
        batch_size=len(x),
        max_iter=ITERATIONS,
        shuffle=False,
        random_state=0,
        tol=0,
        n_iter_no_change=ITERATIONS,
        **options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x, y)


class TwoLayers:
    """A network of scikit-learn's formulas, out of a backend's operations, trained on one batch."""

    def __init__(self, ops: Backend, model: Any, loss: str) -> None:
        self.ops, self.loss = ops, loss
        self.weights, self.biases = owned(ops, model.coefs_), owned(ops, model.intercepts_)
        self.parameters = [*self.weights, *self.biases]
        self.slots = [[ops.zeros(w.shape, "float64") for w in self.parameters] for _ in range(2)]
        self.num_steps = 0

    def loss_and_gradient(self, logits: Array, y: Array) -> tuple[Array, Array]:
        ops = self.ops
        if self.loss == "cross_entropy":
            loss, weight, p = ops.softmax_cross_entropy_forward(logits, y)
            return loss, ops.softmax_cross_entropy_backward(p, y, weight)
        form = "half" if self.loss == "mse" else "sum_outputs"
        terms = terms_of(self.loss, logits.shape, **{form: True})
        loss, weight = ops.element_loss_forward(logits, y, terms)
        return loss, ops.element_loss_backward(logits, y, weight, terms)

    def step(self, x: Array, y: Array, solver: dict[str, Any]) -> float:
        ops, activation = self.ops, Activation("tanh")
        hidden, _ = ops.linear_forward(x, self.weights[0], self.biases[0], activation)
        logits, _ = ops.linear_forward(hidden, self.weights[1], self.biases[1])
        loss, dz = self.loss_and_gradient(logits, y)
        dy, dw2, db2 = ops.linear_backward(dz, hidden, self.weights[1])
        dz = ops.activation_backward(activation, dy, hidden, None)
        _, dw1, db1 = ops.linear_backward(dz, x, self.weights[0], needs_dx=False)
        penalty = ops.l2_penalty(self.weights, [dw1, dw2], ALPHA / len(x))
        self.update([dw1, dw2, db1, db2], solver)
        return float(ops.to_numpy(loss) + ops.to_numpy(penalty))

    def update(self, grads: list[Array], solver: dict[str, Any]) -> None:
        self.num_steps += 1
        if solver["solver"] == "adam":
            options = {"lr": LR, "step": self.num_steps, "eps": solver["epsilon"]}
            update(
                self.ops,
                "adam",
                self.parameters,
                grads,
                *self.slots,
                **options,
                eps_before_correction=True,
            )
        else:
            options = {
                "momentum": solver["momentum"],
                "nesterov": solver.get("nesterovs_momentum", False),
            }
            update(
                self.ops,
                "sgd",
                self.parameters,
                grads,
                self.slots[0],
                lr=LR,
                **options,
                lr_in_velocity=True,
            )


@pytest.mark.in_turns(24)
@pytest.mark.parametrize("solver", SKLEARN_SOLVERS)
@pytest.mark.parametrize(
    ("estimator", "loss"),
    [
        ("MLPRegressor", "mse"),
        ("MLPClassifier", "cross_entropy"),
        ("MLPClassifier", "binary_cross_entropy"),
    ],
)
def test_training_follows_scikit_learn(
    backend: Backend, estimator: str, loss: str, solver: str
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 4))
    y = {
        "mse": rng.standard_normal((20, 3)),
        "cross_entropy": np.arange(20) % 3,
        "binary_cross_entropy": rng.integers(0, 2, (20, 3)),
    }[loss]
    options = SKLEARN_SOLVERS[solver]
    # A learning rate that moves nothing shows the initial weights.
    untrained = sklearn_fit(estimator, x, y, learning_rate_init=1e-300, **options)
    trained = sklearn_fit(estimator, x, y, learning_rate_init=LR, **options)

    ours = TwoLayers(backend, untrained, loss)
    on_device = (
        backend.asarray(x),
        backend.asarray(y, None if loss == "cross_entropy" else "float64"),
    )
    losses = [ours.step(*on_device, options) for _ in range(ITERATIONS)]
    np.testing.assert_allclose(losses, trained.loss_curve_, rtol=1e-10)
    for result, expected in zip(
        ours.parameters, [*trained.coefs_, *trained.intercepts_], strict=True
    ):
        np.testing.assert_allclose(backend.to_numpy(result), expected, rtol=1e-9, atol=1e-12)


# -- against PyTorch
# ---------------------------------------------------------------------------------------

SGD, ADAM, RMSPROP = ("sgd", 1), ("adam", 2), ("rmsprop", 2)


@pytest.mark.in_turns(8)
@pytest.mark.parametrize(
    ("op", "theirs", "options", "their_options"),
    [
        (SGD, "SGD", {"weight_decay": 0.1}, {"weight_decay": 0.1}),
        (
            SGD,
            "SGD",
            {"momentum": 0.9, "weight_decay": 0.1},
            {"momentum": 0.9, "weight_decay": 0.1},
        ),
        (SGD, "SGD", {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "nesterov": True}),
        (ADAM, "Adam", {}, {}),
        (ADAM, "Adam", {"weight_decay": 0.1}, {"weight_decay": 0.1}),
        (ADAM, "Adam", {"beta1": 0.5, "beta2": 0.9, "eps": 0.1}, {"betas": (0.5, 0.9), "eps": 0.1}),
        (ADAM, "AdamW", {"weight_decay": 0.1, "decoupled": True}, {"weight_decay": 0.1}),
        (RMSPROP, "RMSprop", {}, {}),
        (RMSPROP, "RMSprop", {"alpha": 0.5, "eps": 0.1}, {"alpha": 0.5, "eps": 0.1}),
        (
            RMSPROP,
            "RMSprop",
            {"momentum": 0.9, "weight_decay": 0.1},
            {"momentum": 0.9, "weight_decay": 0.1},
        ),
    ],
)
def test_optimizers_are_pytorchs(
    backend: Backend,
    torch: Any,
    op: tuple[str, int],
    theirs: str,
    options: dict[str, Any],
    their_options: dict[str, Any],
) -> None:
    parameters = [torch.tensor(value, requires_grad=True) for value in start()]
    optimizer = getattr(torch.optim, theirs)(parameters, lr=0.05, **their_options)
    for grads in gradients():
        for parameter, gradient in zip(parameters, grads, strict=True):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
    weights, *_ = run_updates(
        backend, *op, "float64", {"lr": 0.05} | options, counts_steps=op is ADAM
    )
    for result, parameter in zip(weights, parameters, strict=True):
        np.testing.assert_allclose(result, parameter.detach().numpy(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("max_norm", [0.5, 1e9])
def test_clipping_is_pytorchs(backend: Backend, torch: Any, max_norm: float) -> None:
    values = start()
    parameters = [
        torch.zeros(value.shape, dtype=torch.float64, requires_grad=True) for value in values
    ]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = torch.tensor(value)
    expected = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    arrays = owned(backend, values)
    norm = backend.clip_by_norm(arrays, max_norm)
    np.testing.assert_allclose(backend.to_numpy(norm), expected.numpy(), rtol=1e-12)
    for array, parameter in zip(arrays, parameters, strict=True):
        np.testing.assert_allclose(backend.to_numpy(array), parameter.grad.numpy(), rtol=1e-12)
