"""Normalisation, dropout, pooling and the optimizers' lists on the emulator: what NumPy's backend
cannot show.
"""

from __future__ import annotations

from struct import calcsize
from typing import Any

import numpy as np
import pytest

from conftest import on_emulator
from emulator.runtime import EmulatedRuntime
from support.cases import UPDATES
from support.numeric import download
from support.updates import update
from warpfit.backends import Activation, Backend, NumpyBackend
from warpfit.backends.base import TOLERANCE
from warpfit.backends.cuda import CudaBackend, dense, pool, tensors
from warpfit.backends.cuda.arguments import format_of
from warpfit.backends.cuda.array import DeviceArray, row_major_strides
from warpfit.errors import DTypeError, ShapeError

# Largest error relative to max(1, |reference|): some roundings to the dtype.
LIMITS = {"float16": 2e-3, "bfloat16": 2e-2}
HALF = tuple(LIMITS)


@pytest.fixture(scope="module")
def ops(kernel_runtime_of_any_order: Any) -> CudaBackend:
    return CudaBackend(kernel_runtime_of_any_order)


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def rounded(ops: CudaBackend, values: Any, dtype: str) -> tuple[DeviceArray, Any]:
    """Return values in half precision on the device, and exactly those as float64 on the host."""
    array = ops.asarray(ops.asarray(np.float32(values)), dtype)
    return array, np.float64(array.numpy())


def misaligned(ops: CudaBackend, values: Any) -> DeviceArray:
    """Return a contiguous array that begins one element after a boundary."""
    base = ops.asarray(np.append(np.zeros(1, values.dtype), values.reshape(-1)))
    return base.view(values.shape, row_major_strides(values.shape, base.itemsize), base.itemsize)


def assert_close(results: Any, expected: Any, dtypes: list[str], limit: float) -> None:
    for result, reference, dtype in zip(results, expected, dtypes, strict=True):
        assert result.dtype == dtype
        error = np.abs(np.float64(result.numpy()) - reference) / np.maximum(1, np.abs(reference))
        assert error.max(initial=0) <= limit


# -- half precision
# ----------------------------------------------------------------------------------------


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shape", [(40, 3), (21, 16)])
def test_batch_norm_in_half_precision(
    ops: CudaBackend, shape: tuple[int, int], dtype: str, training: bool
) -> None:
    values = [1 + normal(*shape), normal(*shape, seed=1)]
    values += [np.random.default_rng(2).uniform(0.5, 2, shape[1]) for _ in range(4)]
    (x, dy, *vectors), (exact_x, exact_dy, *exact) = zip(
        *(rounded(ops, value, dtype) for value in values), strict=True
    )
    numpy = NumpyBackend()
    y, saved = ops.batch_norm_forward(x, *vectors, training=training)
    expected, exact_saved = numpy.batch_norm_forward(exact_x, *exact, training=training)
    assert saved[0].dtype == "float32"
    results = (
        y,
        *vectors[2:],
        *ops.batch_norm_backward(dy, x, vectors[0], saved, training=training),
    )
    gradients = numpy.batch_norm_backward(
        exact_dy, exact_x, exact[0], exact_saved, training=training
    )
    assert_close(
        results, (expected, *exact[2:], *gradients), [dtype] * 4 + ["float32"] * 2, LIMITS[dtype]
    )


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shape", [(40, 3), (21, 16)])
def test_batch_norm_of_half_precision_has_parameters_in_float32(
    ops: CudaBackend, shape: tuple[int, int], dtype: str, training: bool
) -> None:
    """All that has a number for each channel, and what is joined."""
    relu, rng = Activation("relu"), np.random.default_rng(2)
    values = [1 + normal(*shape), normal(*shape, seed=1), normal(*shape, seed=3)]
    (x, dy, added), (exact_x, exact_dy, exact_added) = zip(
        *(rounded(ops, value, dtype) for value in values), strict=True
    )
    exact = [rng.uniform(0.5, 2, shape[1]) for _ in range(4)]
    vectors = [ops.asarray(value.astype("float32")) for value in exact]
    numpy = NumpyBackend()
    for more, exact_more in (({}, {}), ({"added": added}, {"added": exact_added})):
        settings = {"training": training, "activation": relu}
        y, saved = ops.batch_norm_forward(x, *vectors, **settings, **more)
        expected, exact_saved = numpy.batch_norm_forward(exact_x, *exact, **settings, **exact_more)
        assert_close((y, *vectors), (expected, *exact), [dtype] + ["float32"] * 4, LIMITS[dtype])
        if not more:
            found = ops.batch_norm_backward(dy, x, vectors[0], saved, **settings, bias=vectors[1])
            gradients = numpy.batch_norm_backward(
                exact_dy, exact_x, exact[0], exact_saved, **settings, bias=exact[1]
            )
            assert_close(found, gradients, [dtype] + ["float32"] * 2, LIMITS[dtype])
    with pytest.raises(DTypeError, match="batch_norm_forward: expected operands of one dtype"):
        ops.batch_norm_forward(x, vectors[0], *(added[0] for _ in range(3)), training=True)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shape", [(5, 7), (3, 64)])
def test_layer_norm_in_half_precision(ops: CudaBackend, shape: tuple[int, int], dtype: str) -> None:
    values = (
        1 + normal(*shape),
        normal(*shape, seed=1),
        normal(shape[1], seed=2),
        normal(shape[1], seed=3),
    )
    (x, dy, weight, bias), (exact_x, exact_dy, exact_weight, exact_bias) = zip(
        *(rounded(ops, value, dtype) for value in values), strict=True
    )
    numpy = NumpyBackend()
    y, saved = ops.layer_norm_forward(x, weight, bias)
    expected, exact_saved = numpy.layer_norm_forward(exact_x, exact_weight, exact_bias)
    results = (y, *ops.layer_norm_backward(dy, x, weight, saved))
    gradients = numpy.layer_norm_backward(exact_dy, exact_x, exact_weight, exact_saved)
    assert_close(results, (expected, *gradients), [dtype] * 2 + ["float32"] * 2, LIMITS[dtype])


def test_gradients_of_parameters_come_without_the_loss_scale(ops: CudaBackend) -> None:
    scaled = CudaBackend(ops.runtime, loss_scale=64.0)
    values = (normal(9, 3), normal(9, 3, seed=1), 64 * normal(9, 3, seed=1))
    x, dy, large = (ops.asarray(value.astype("float16")) for value in values)
    running = [ops.zeros((3,), "float16") for _ in range(2)]
    _, saved = ops.batch_norm_forward(x, None, None, *running, training=True)
    plain = ops.batch_norm_backward(dy, x, None, saved, training=True)
    results = scaled.batch_norm_backward(large, x, None, saved, training=True)
    np.testing.assert_array_equal(results[0].numpy(), plain[0].numpy() * 64)
    _, saved = ops.layer_norm_forward(x, None, None)
    plain += ops.layer_norm_backward(dy, x, None, saved)
    results += scaled.layer_norm_backward(large, x, None, saved)
    np.testing.assert_array_equal(results[3].numpy(), plain[3].numpy() * 64)
    for number in (1, 2, 4, 5):
        np.testing.assert_array_equal(results[number].numpy(), plain[number].numpy())


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("units", [10, 16])
def test_dropout_in_half_precision(ops: CudaBackend, units: int, dtype: str) -> None:
    x, exact = rounded(ops, normal(3, units), dtype)
    place = {"p": 0.3, "seed": 7, "step": 3, "layer_idx": 1}
    y, mask = ops.dropout_forward(x, **place)
    _, expected = NumpyBackend().dropout_forward(exact, **place)
    np.testing.assert_array_equal(mask.numpy() > 0, expected > 0)
    dx = ops.dropout_backward(x, mask)
    assert_close(
        (y, mask, dx), (exact * expected, expected, exact * expected), [dtype] * 3, LIMITS[dtype]
    )


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("channels", [3, 16])
def test_pooling_in_half_precision(ops: CudaBackend, channels: int, dtype: str) -> None:
    pairs = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1)}
    x, exact = rounded(ops, normal(2, 5, 4, channels), dtype)
    numpy = NumpyBackend()
    y, indices = ops.max_pool2d_forward(x, **pairs)
    expected, exact_indices = numpy.max_pool2d_forward(exact, **pairs)
    np.testing.assert_array_equal(y.numpy(), expected)
    np.testing.assert_array_equal(indices.numpy(), exact_indices)
    dy, exact_dy = rounded(ops, normal(*y.shape, seed=1), dtype)
    results = (
        ops.avg_pool2d_forward(x, **pairs),
        ops.max_pool2d_backward(dy, indices, x.shape, **pairs),
        ops.avg_pool2d_backward(dy, x.shape, **pairs),
    )
    references = (
        numpy.avg_pool2d_forward(exact, **pairs),
        numpy.max_pool2d_backward(exact_dy, exact_indices, x.shape, **pairs),
        numpy.avg_pool2d_backward(exact_dy, x.shape, **pairs),
    )
    assert_close(results, references, [dtype] * 3, LIMITS[dtype])


@pytest.mark.parametrize("dtype", HALF)
def test_updates_in_half_precision(ops: CudaBackend, dtype: str) -> None:
    (w, g, v), exact = zip(
        *(rounded(ops, normal(2100, seed=i), dtype) for i in range(3)), strict=True
    )
    norm = ops.clip_by_norm([g], 1.0)
    penalty = ops.l2_penalty([w], [g], 0.5)
    update(ops, "sgd", [w], [g], [v], lr=0.1, momentum=0.5)
    lists = [[array] for array in exact]
    numpy = NumpyBackend()
    expected_norm = numpy.clip_by_norm(lists[1], 1.0)
    expected_penalty = numpy.l2_penalty(lists[0], lists[1], 0.5)
    update(numpy, "sgd", *lists, lr=0.1, momentum=0.5)
    assert_close((w, g, v), exact, [dtype] * 3, LIMITS[dtype])
    np.testing.assert_allclose(
        [float(norm), float(penalty)], [expected_norm, expected_penalty], rtol=1e-6
    )


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("dtype", [*TOLERANCE, *HALF])
@pytest.mark.parametrize("name", UPDATES)
def test_every_update(ops: CudaBackend, name: str, dtype: str) -> None:
    case, rng = UPDATES[name], np.random.default_rng(0)
    lists = [
        [rounded(ops, rng.uniform(0.1, 1, size), dtype) for size in (5, 130)]
        for _ in range(case.num_lists)
    ]
    on_device = [[array for array, _ in group] for group in lists]
    exact = [[values for _, values in group] for group in lists]
    case.run(ops, *on_device)
    case.run(NumpyBackend(), *exact)
    for group, references in zip(on_device, exact, strict=True):
        assert_close(group, references, [dtype] * 2, LIMITS.get(dtype) or TOLERANCE[dtype])


# -- alignment
# ---------------------------------------------------------------------------------------------


def run_all(ops: Backend, x: Any, dy: Any, weight: Any) -> list[Any]:
    """Return what every operation on images (M, H, W, C) makes of the arrays."""
    pairs = {"kernel": (2, 2), "stride": (2, 2)}
    running = [ops.zeros(weight.shape, weight.dtype) for _ in range(2)]
    results = []
    y, saved = ops.batch_norm_forward(x, weight, weight, *running, training=True)
    results += [y, *running, *ops.batch_norm_backward(dy, x, weight, saved, training=True)]
    y, saved = ops.layer_norm_forward(x, weight, weight)
    results += [y, *ops.layer_norm_backward(dy, x, weight, saved)]
    y, mask = ops.dropout_forward(x, p=0.5, seed=1, step=2, layer_idx=3)
    results += [y, mask, ops.dropout_backward(dy, mask)]
    y, indices = ops.max_pool2d_forward(x, **pairs)
    results += [y, indices, ops.max_pool2d_backward(y, indices, x.shape, **pairs)]
    y = ops.avg_pool2d_forward(x, **pairs)
    return [*results, y, ops.avg_pool2d_backward(y, x.shape, **pairs)]


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("channels", [8, 5])
def test_arrays_of_any_alignment(ops: CudaBackend, channels: int, dtype: str) -> None:
    shape = (3, 4, 4, channels)
    values = [
        a.astype(dtype) for a in (normal(*shape), normal(*shape, seed=1), normal(channels, seed=2))
    ]
    expected = run_all(NumpyBackend(), *values)
    for place in (ops.asarray, lambda value: misaligned(ops, value)):
        results = run_all(ops, *map(place, values))
        for result, reference in zip(results, expected, strict=True):
            tolerance = 1e-5 if dtype == "float32" else 1e-12
            np.testing.assert_allclose(
                download(ops, result), reference, rtol=tolerance, atol=tolerance
            )


# -- lists of tensors
# --------------------------------------------------------------------------------------


def test_a_list_is_packed_as_the_kernels_declare_it() -> None:
    size = tensors._HEAD.size + tensors.MAX_TENSORS * tensors._ENTRY.size
    assert size == calcsize(format_of("TensorList"))


@on_emulator  # whose multiprocessors are few
def test_blocks_take_several_tiles_of_large_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = CudaBackend(EmulatedRuntime())
    monkeypatch.setattr(tensors, "BLOCKS_PER_MULTIPROCESSOR", 1)
    sizes = (20_000, 3, 9_000)
    w, g = ([normal(size, seed=seed + size) for size in sizes] for seed in range(2))
    on_device = [[ops.asarray(value) for value in values] for values in (w, g)]
    plan = tensors.plan_of(ops, "update_parameters", on_device)
    assert 3 <= plan.num_blocks <= 4 + len(sizes)
    penalty = ops.l2_penalty(*on_device, 2.0)
    np.testing.assert_allclose(float(penalty), sum(np.sum(value**2) for value in w), rtol=1e-13)
    for result, weight, gradient in zip(on_device[1], w, g, strict=True):
        np.testing.assert_allclose(result.numpy(), gradient + 2 * weight, rtol=1e-14)


def test_a_plan_is_remembered_until_a_tensor_goes(ops: CudaBackend) -> None:
    before = len(tensors._plans)
    w, g = [ops.zeros((3,), "float32")], [ops.zeros((3,), "float32")]
    first = tensors.plan_of(ops, "update_parameters", (w, g))
    assert tensors.plan_of(ops, "update_parameters", (list(w), g)) is first
    assert len(tensors._plans) == before + 1
    del g[0]
    assert len(tensors._plans) == before
    with pytest.raises(ShapeError, match="update_parameters: expected operands of the same shape"):
        tensors.plan_of(ops, "update_parameters", (w, [ops.zeros((4,), "float32")]))


def test_few_plans_are_remembered(ops: CudaBackend) -> None:
    arrays = [ops.zeros((1,), "float32") for _ in range(tensors.PLANS_REMEMBERED + 10)]
    for array in arrays:
        tensors.plan_of(ops, "clip_by_norm", ([array],))
    assert len(tensors._plans) == tensors.PLANS_REMEMBERED
    last = tensors.plan_of(ops, "clip_by_norm", ([arrays[-1]],))
    assert tensors.plan_of(ops, "clip_by_norm", ([arrays[-1]],)) is last


def test_few_products_are_remembered(ops: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "MOST_PRODUCTS", 2)
    own = CudaBackend(ops.runtime)
    for size in (1, 2, 3, 2):
        np.testing.assert_array_equal(
            own.matmul(own.asarray(np.eye(size)), own.asarray(np.eye(size))), np.eye(size)
        )
        assert len(own._products) <= 2


# -- images by the part
# ------------------------------------------------------------------------------------


def test_pooling_of_more_numbers_than_one_launch_can_index(
    ops: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = {"kernel": (2, 2), "stride": (1, 1)}
    x = normal(5, 3, 4, 2)
    monkeypatch.setattr(pool, "MOST_ELEMENTS", 50)  # two images
    y, indices = ops.max_pool2d_forward(ops.asarray(x), **pairs)
    dx = ops.max_pool2d_backward(y, indices, x.shape, **pairs)
    expected, expected_indices = NumpyBackend().max_pool2d_forward(x, **pairs)
    np.testing.assert_array_equal(y.numpy(), expected)
    np.testing.assert_array_equal(indices.numpy(), expected_indices)
    expected_dx = NumpyBackend().max_pool2d_backward(expected, expected_indices, x.shape, **pairs)
    np.testing.assert_allclose(dx.numpy(), expected_dx, rtol=1e-14)
    monkeypatch.setattr(pool, "MOST_ELEMENTS", 20)
    with pytest.raises(ShapeError, match=r"expected images of less than 2\*\*31 numbers"):
        ops.avg_pool2d_forward(ops.asarray(x), **pairs)


def test_pooling_refuses_indices_that_its_kernel_does_not_read(ops: CudaBackend) -> None:
    dy, indices = ops.zeros((1, 1, 1, 2), "float32"), ops.zeros((1, 1, 1, 2), "uint64")
    with pytest.raises(DTypeError, match="expected indices of at most 32 bits, got uint64"):
        ops.max_pool2d_backward(dy, indices, (1, 2, 2, 2), kernel=(2, 2), stride=(2, 2))


def test_rows_are_gathered_by_int64_alone(ops: CudaBackend) -> None:
    with pytest.raises(DTypeError, match="gather_rows: expected rows of int64, got int32"):
        ops.gather_rows(ops.zeros((4, 3), "float32"), ops.zeros((2,), "int32"), "float32")
