"""Updates of whole matrices, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.numeric import DTYPES, owned
from warpfit.backends import Backend
from warpfit.backends.cuda import CudaBackend
from warpfit.backends.matrix_updates import COEFFICIENTS, MatrixNumbers
from warpfit.errors import ConfigError, DTypeError, ShapeError

# Wide, tall, square, of one row, of a convolution; of more than a tile, and nothing.
SHAPES = [(5, 12), (70, 33), (16, 16), (1, 7), (3, 3, 4, 20), (67, 150), (0, 3), (72, 264)]
TOLERANCE = {"float32": 2e-5, "float64": 1e-11}


def values(dtype: str, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in SHAPES]


def by_singular_values(x: Any, steps: int) -> Any:
    """Return what the iteration makes of a matrix, found by what it makes of singular values."""
    u, s, v = np.linalg.svd(x.astype(np.float64), full_matrices=False)
    a, b, c = COEFFICIENTS
    s = s / max(float(np.sqrt(np.sum(s**2))), 1e-7)
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return (u * s) @ v


def updated(w: Any, g: Any, v: Any, factor: float, numbers: MatrixNumbers) -> tuple[Any, Any]:
    """Return a parameter and its average after a step, in float64."""
    w, g, v = (each.astype(np.float64) for each in (w, g, v))
    v = numbers.momentum * v + (1 - numbers.momentum) * g
    d = (1 - numbers.momentum) * g + numbers.momentum * v if numbers.nesterov else v
    if numbers.normalizes:
        w = w * np.sqrt(w.shape[-1]) / np.maximum(np.linalg.norm(w), 1e-7)
    found = by_singular_values(d.reshape(-1, d.shape[-1]), numbers.steps).reshape(w.shape)
    return numbers.kept * w - numbers.rate * factor * found, v


NUMBERS = {
    "plain": MatrixNumbers(0.1),
    "momentum": MatrixNumbers(0.1, 0.99, 0.9),
    "nesterov": MatrixNumbers(0.1, 0.99, 0.9, True),
    "normalized": MatrixNumbers(0.1, 1.0, 0.6, True, 3, True),
    "one step": MatrixNumbers(0.1, steps=1),
    "two steps": MatrixNumbers(0.1, steps=2),
}


@pytest.mark.in_turns(9)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NUMBERS)
def test_is_the_formula_of_singular_values(backend: Backend, name: str, dtype: str) -> None:
    numbers, factors = NUMBERS[name], [1.0 + i / 4 for i in range(len(SHAPES))]
    before = [values(dtype, seed) for seed in range(3)]
    lists = [owned(backend, arrays) for arrays in before]
    backend.update_matrices(*lists, factors, numbers)
    expected = [
        updated(w, g, v, factor, numbers) for w, g, v, factor in zip(*before, factors, strict=True)
    ]
    for idx, (w, v) in enumerate(expected):
        for found, right in ((lists[0][idx], w), (lists[2][idx], v)):
            array = backend.to_numpy(found)
            assert array.dtype == dtype
            np.testing.assert_allclose(array, right, rtol=0, atol=TOLERANCE[dtype] * 4)
        np.testing.assert_array_equal(backend.to_numpy(lists[1][idx]), before[1][idx])


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e-3, 1e12])
def test_the_length_of_a_gradient_does_not_matter_unless_tiny(
    backend: Backend, scale: float
) -> None:
    w, g = (each[1].astype("float32") for each in (values("float32", 0), values("float32", 1)))
    g = g * np.float32(scale)
    expected, _ = updated(w, g, 0 * g, 1.0, MatrixNumbers(1.0))
    lists = [owned(backend, [each]) for each in (w, g, 0 * g)]
    backend.update_matrices(*lists, [1.0], MatrixNumbers(1.0))
    np.testing.assert_allclose(backend.to_numpy(lists[0][0]), expected, atol=1e-4)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("name", NUMBERS)
def test_half_precision_rounds_operands(kernel_runtime: Any, name: str) -> None:
    ops = CudaBackend(kernel_runtime, precision="float16")
    numbers, factors = NUMBERS[name], [1.0] * len(SHAPES)
    before = [values("float32", seed) for seed in range(3)]
    lists = [owned(ops, arrays) for arrays in before]
    ops.update_matrices(*lists, factors, numbers)
    for idx, found in enumerate(lists[0]):
        if not found.size:
            continue
        expected, average = updated(*(each[idx] for each in before), 1.0, numbers)
        moved, other = found.numpy() - before[0][idx], expected - before[0][idx]
        # What rounding adds along small singular values grows as these do.
        assert np.abs(moved - other).max() < 0.1 * np.abs(other).max()
        assert np.abs(moved - other).max() > 0
        np.testing.assert_allclose(lists[2][idx].numpy(), average, atol=1e-6)


def test_numbers_may_lie_on_the_device(backend: Backend) -> None:
    before = [values("float32", seed) for seed in range(3)]
    lists = [[owned(backend, arrays) for arrays in before] for _ in range(2)]
    factors = [0.5] * len(SHAPES)
    there = backend.asarray(np.array([0.25, 0.75]))
    backend.update_matrices(*lists[0], factors, MatrixNumbers(0.25, 0.75, 0.5, True))
    backend.update_matrices(*lists[1], factors, MatrixNumbers(there[0], there[1], 0.5, True))
    for one, other in zip(*lists, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(backend.to_numpy(a), backend.to_numpy(b))


def test_more_matrices_than_a_launch_takes(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    before = [[rng.standard_normal((3, 4)).astype("float32") for _ in range(37)] for _ in range(3)]
    lists = [owned(backend, arrays) for arrays in before]
    backend.update_matrices(*lists, [1.0] * 37, MatrixNumbers(0.1, momentum=0.5))
    for idx, found in enumerate(lists[0]):
        own = [before[which][idx] for which in range(3)]
        expected, _ = updated(*own, 1.0, MatrixNumbers(0.1, momentum=0.5))
        np.testing.assert_allclose(backend.to_numpy(found), expected, atol=5e-5)


def test_strided_arrays(backend: Backend) -> None:
    before = values("float32", 0)[1], values("float32", 1)[1], values("float32", 2)[1]
    lists = [backend.transpose(owned(backend, [each.T.copy()])[0]) for each in before]
    backend.update_matrices(*([each] for each in lists), [1.0], MatrixNumbers(0.1, momentum=0.5))
    w, v = updated(*before, 1.0, MatrixNumbers(0.1, momentum=0.5))
    np.testing.assert_allclose(backend.to_numpy(lists[0]), w, atol=5e-5)
    np.testing.assert_allclose(backend.to_numpy(lists[2]), v, atol=1e-6)


def test_no_matrices(backend: Backend) -> None:
    backend.update_matrices([], [], [], [], MatrixNumbers(0.1))


def test_refuses_what_is_no_matrix(backend: Backend) -> None:
    w, row = (backend.zeros(shape, "float32") for shape in ((2, 3), (3,)))
    with pytest.raises(ShapeError, match="arrays of at least two axes, got \\(3,\\)"):
        backend.update_matrices([row], [row], [row], [1.0], MatrixNumbers(0.1))
    with pytest.raises(ShapeError, match="as many factors as parameters, got 2 and 1"):
        backend.update_matrices([w], [w], [w], [1.0, 1.0], MatrixNumbers(0.1))
    with pytest.raises(ConfigError, match="at least one step, got 0"):
        backend.update_matrices([w], [w], [w], [1.0], MatrixNumbers(0.1, steps=0))
    with pytest.raises(ShapeError, match="as many arrays in each list"):
        backend.update_matrices([w], [], [w], [1.0], MatrixNumbers(0.1))
    other = backend.zeros((2, 3), "float64")
    with pytest.raises(DTypeError):
        backend.update_matrices([w], [other], [w], [1.0], MatrixNumbers(0.1))
