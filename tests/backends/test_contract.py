"""The rules that hold for every operation of a backend, and the errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases import CASE_NAMES, UPDATES, Case, Update, cases
from support.devices import no_gpu
from support.numeric import DTYPES, LAYOUTS, assert_within_tolerance, call, layouts, owned, upload
from warpfit import backends
from warpfit.backends import Activation, Backend, NumpyBackend
from warpfit.backends.base import ACTIVATIONS, HALF_DTYPES
from warpfit.errors import ConfigError, DeviceError, DTypeError, ShapeError

OPS = sorted(Backend.__abstractmethods__)
# Calls whose results are no sums over rows or columns of products.
ELEMENT_BY_ELEMENT = [
    name
    for name in CASE_NAMES
    if name.partition("-")[0].endswith(("_forward", "_backward")) and not name.startswith("linear")
]


def run(backend: Backend, case: Case) -> tuple[Any, ...]:
    """Return the results of a call that are arrays, as NumPy arrays."""
    results = call(getattr(backend, case.op), *case.args, **case.kwargs)
    return tuple(
        r for r in (results if isinstance(results, tuple) else (results,)) if r is not None
    )


def map_floats(change: Callable[[Any], Any], case: Case) -> Case:
    """Return the call with every float operand of at least one dimension changed."""

    def changed(value: Any) -> Any:
        is_operand = isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.ndim
        return change(value) if is_operand else value

    args = tuple(changed(value) for value in case.args)
    return Case(case.op, args, {name: changed(value) for name, value in case.kwargs.items()})


def parameters(function: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """Return the function's parameters without their annotations, which an implementation may
    narrow.
    """
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def float_operands(case: Case) -> list[Any]:
    found: list[Any] = []
    map_floats(found.append, case)
    return found


# -- the contract itself
# -----------------------------------------------------------------------------------


def test_every_op_has_a_docstring() -> None:
    assert not [op for op in OPS if len(inspect.getdoc(getattr(Backend, op)) or "") <= 10]


def test_every_op_is_implemented_with_the_contracts_signature(backend: Backend) -> None:
    for op in OPS:
        implementation = getattr(type(backend), op)
        assert not getattr(implementation, "__isabstractmethod__", False), op
        assert parameters(implementation) == parameters(getattr(Backend, op)), op


def test_an_unfinished_backend_cannot_be_made() -> None:
    class Unfinished(Backend):
        name = "unfinished"

    with pytest.raises(TypeError, match="abstract"):
        Unfinished()


# -- rules for every operation
# -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASE_NAMES)
def test_inputs_are_never_modified(backend: Backend, name: str) -> None:
    case = cases()[name]
    arrays = [
        value for value in (*case.args, *case.kwargs.values()) if isinstance(value, np.ndarray)
    ]
    before = [array.copy() for array in arrays]
    run(backend, case)
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASE_NAMES)
def test_layout_of_inputs_does_not_matter(backend: Backend, name: str, layout: str) -> None:
    case = cases()[name]
    changed = map_floats(lambda array: dict(layouts(array))[layout], case)
    for result, expected in zip(run(backend, changed), run(backend, case), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", CASE_NAMES)
def test_results_keep_the_dtype_and_float32_agrees_with_float64(
    backend: Backend, name: str, rows: int
) -> None:
    precise, single = (
        run(backend, cases(dtype, rows=rows)[name]) for dtype in ("float64", "float32")
    )
    for result, reference in zip(single, precise, strict=True):
        if reference.dtype.kind == "i":
            assert result.dtype == reference.dtype == np.int64
            assert result == reference
        else:
            assert (result.dtype, reference.dtype) == (np.float32, np.float64)
            assert_within_tolerance(result, reference)


@pytest.mark.parametrize("name", ELEMENT_BY_ELEMENT)
def test_float32_is_within_1e_6_element_by_element(backend: Backend, name: str) -> None:
    case = cases("float32", rows=33, outputs=29, seed=1)[name]
    exact = map_floats(lambda array: array.astype("float64"), case)
    for result, reference in zip(run(backend, case), run(NumpyBackend(), exact), strict=True):
        error = np.abs(result - reference) / np.maximum(1, np.abs(reference))
        assert error.max() <= 1e-6


@pytest.mark.parametrize("name", CASE_NAMES)
def test_other_dtypes_are_refused(backend: Backend, name: str) -> None:
    for dtype in ("int64", "uint8", "bool"):
        case = map_floats(lambda array, dtype=dtype: array.astype(dtype), cases()[name])
        with pytest.raises(DTypeError, match=f"expected float32 or float64.*, got {dtype}"):
            run(backend, case)


SIMILAR = tuple(
    f"{name}_{way}"
    for name in ACTIVATIONS
    if name not in ("relu", "gelu")
    for way in ("forward", "backward")
)


@pytest.mark.in_turns(15)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(
            name, dtype, marks=pytest.mark.slow if name in SIMILAR and dtype == "bfloat16" else []
        )
        for name in CASE_NAMES
        for dtype in HALF_DTYPES
    ],
)
def test_half_precision_is_for_devices(backend: Backend, name: str, dtype: str) -> None:
    case = cases("float32")[name]
    if backend.name == "numpy":
        halves = map_floats(lambda array: array.astype("float16"), case)
        with pytest.raises(DTypeError, match="expected float32 or float64, got float16"):
            run(backend, halves)
        return
    rounded = map_floats(lambda array: backend.to_numpy(backend.asarray(array, dtype)), case)
    halves = map_floats(lambda array: backend.asarray(array, dtype), case)
    expected = run(NumpyBackend(), map_floats(lambda array: array.astype("float64"), rounded))
    for result, reference in zip(run(backend, halves), expected, strict=True):
        error = np.abs(result.astype("float64") - reference) / np.maximum(1, np.abs(reference))
        assert error.max(initial=0) <= (2e-3 if dtype == "float16" else 1.6e-2)


@pytest.mark.parametrize(
    "name", [name for name, case in cases().items() if len(float_operands(case)) > 1]
)
def test_mixed_dtypes_are_refused(backend: Backend, name: str) -> None:
    case = cases()[name]
    for odd in float_operands(case):
        mixed = map_floats(
            lambda array, odd=odd: array.astype("float32") if array is odd else array, case
        )
        with pytest.raises(
            DTypeError, match="expected operands of one dtype, got float32, float64"
        ):
            run(backend, mixed)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("sizes", [(0, 4, 3), (5, 0, 3), (0, 0, 3), (0, 4, 0), (0, 0, 0)])
@pytest.mark.parametrize("name", CASE_NAMES)
def test_any_dimension_may_be_zero(
    backend: Backend, name: str, sizes: tuple[int, int, int]
) -> None:
    rows, inner, outputs = sizes
    case = cases(rows=rows, inner=inner, outputs=outputs)[name]
    for result in run(backend, case):
        assert np.isfinite(result).all()
        if result.ndim == 0 and rows == 0:
            assert result == 0


@pytest.mark.parametrize("name", [name for name in CASE_NAMES if "cross_entropy" not in name])
def test_rows_of_no_outputs(backend: Backend, name: str) -> None:
    for result in run(backend, cases(rows=5, outputs=0)[name]):
        assert np.isfinite(result).all()


@given(
    name=st.sampled_from(CASE_NAMES),
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(0, 70),
    inner=st.integers(0, 40),
    outputs=st.integers(1, 40),
    seed=st.integers(0, 1000),
    layout=st.sampled_from(LAYOUTS),
)
@settings(deadline=None, max_examples=300)
def test_any_shape_dtype_and_layout_agrees_with_float64(
    backend: Backend,
    name: str,
    dtype: str,
    rows: int,
    inner: int,
    outputs: int,
    seed: int,
    layout: str,
) -> None:
    sizes = {"rows": rows, "inner": inner, "outputs": outputs, "seed": seed}
    reference = run(backend, cases("float64", **sizes)[name])
    case = map_floats(lambda array: dict(layouts(array))[layout], cases(dtype, **sizes)[name])
    for result, expected in zip(run(backend, case), reference, strict=True):
        assert_within_tolerance(result, expected, dtype)


# -- whose memory results are
# ------------------------------------------------------------------------------


def raw_results(backend: Backend, case: Case) -> list[Any]:
    """Return the array results of a call as the backend's own objects."""
    kwargs = {name: upload(backend, value) for name, value in case.kwargs.items()}
    results = getattr(backend, case.op)(*(upload(backend, value) for value in case.args), **kwargs)
    found = results if isinstance(results, tuple) else (results,)
    return [result for result in found if result is not None and result.shape != ()]


SCALAR_RESULTS = (
    "count",
    "mse_f",
    "absolute_error_f",
    "huber_f",
    "binary_cross_entropy_f",
)
NAMES_OF_ARRAYS = [name for name in CASE_NAMES if not name.startswith(SCALAR_RESULTS)]


@pytest.mark.parametrize("name", NAMES_OF_ARRAYS)
def test_results_belong_to_the_caller(backend: Backend, name: str) -> None:
    case = cases()[name]
    inputs = float_operands(case)
    results = [backend.to_numpy(r) for _ in range(2) for r in raw_results(backend, case)]
    for i, result in enumerate(results):
        for other in (*inputs, *results[:i]):
            assert not np.shares_memory(result, other)


@pytest.mark.parametrize("name", NAMES_OF_ARRAYS)
def test_reused_results_are_the_same_buffers_at_the_next_step(
    make_backend: Callable[..., Backend], backend: Backend, name: str
) -> None:
    reusing = make_backend(reuse=True)
    expected = [value for value in run(backend, cases(seed=1)[name]) if value.shape != ()]
    reusing.begin_step()
    first, second = raw_results(reusing, cases()[name]), raw_results(reusing, cases()[name])
    assert first
    assert not {id(result) for result in first} & {id(result) for result in second}
    reusing.begin_step()
    again = raw_results(reusing, cases(seed=1)[name])
    assert [id(result) for result in again] == [id(result) for result in first]
    for result, value in zip(again, expected, strict=True):
        np.testing.assert_array_equal(reusing.to_numpy(result), value)


# -- rules for the updates
# ---------------------------------------------------------------------------------


def lists(
    update: Update, dtype: str = "float64", shapes: Any = ((3, 4), (4,), (0, 2), ())
) -> list[list[Any]]:
    rng = np.random.default_rng(0)
    return [
        [rng.uniform(0.1, 1, shape).astype(dtype) for shape in shapes]
        for _ in range(update.num_lists)
    ]


def apply(backend: Backend, update: Update, groups: list[list[Any]]) -> Any:
    return update.run(backend, *groups)


@pytest.mark.parametrize("name", UPDATES)
def test_updates_agree_in_float32(backend: Backend, name: str) -> None:
    update = UPDATES[name]
    precise, single = (
        [owned(backend, group) for group in lists(update, dtype)]
        for dtype in ("float64", "float32")
    )
    apply(backend, update, precise)
    apply(backend, update, single)
    for expected, results in zip(precise, single, strict=True):
        for reference, result in zip(expected, results, strict=True):
            assert str(result.dtype) == "float32"
            assert_within_tolerance(backend.to_numpy(result), backend.to_numpy(reference))


@pytest.mark.parametrize("name", UPDATES)
def test_updates_take_empty_lists(backend: Backend, name: str) -> None:
    update = UPDATES[name]
    norm = apply(backend, update, [[] for _ in range(update.num_lists)])
    assert norm is None or backend.to_numpy(norm) == 0


@pytest.mark.parametrize("name", UPDATES)
def test_updates_refuse_other_dtypes(backend: Backend, name: str) -> None:
    for dtype in ("uint8", "int64"):
        groups = [owned(backend, group) for group in lists(UPDATES[name], dtype)]
        with pytest.raises(DTypeError, match=f"expected float32 or float64.*, got {dtype}"):
            apply(backend, UPDATES[name], groups)


@pytest.mark.parametrize("name", [name for name in UPDATES if name != "clip_by_norm"])
def test_updates_refuse_lists_that_do_not_match(backend: Backend, name: str) -> None:
    update = UPDATES[name]
    groups = [owned(backend, group) for group in lists(update)]
    before = [[backend.to_numpy(backend.copy(array)) for array in group] for group in groups]
    with pytest.raises(ShapeError, match=f"{update.op}: expected as many arrays in each list"):
        apply(backend, update, [groups[0][:-1], *groups[1:]])
    other_shape = owned(backend, lists(update, shapes=((4, 3), (4,), (0, 2), ()))[0])
    with pytest.raises(ShapeError, match=f"{update.op}: expected operands of the same shape"):
        apply(backend, update, [other_shape, *groups[1:]])
    other_dtype = owned(backend, lists(update, "float32")[0])
    with pytest.raises(DTypeError, match=f"{update.op}: expected operands of one dtype"):
        apply(backend, update, [other_dtype, *groups[1:]])
    for group, values in zip(groups, before, strict=True):
        for array, value in zip(group, values, strict=True):
            np.testing.assert_array_equal(backend.to_numpy(array), value)


# -- activations as values, devices
# ------------------------------------------------------------------------


def test_activation_is_a_frozen_value() -> None:
    assert Activation("leaky_relu", 0.2) == Activation("leaky_relu", 0.2)
    assert repr(Activation("tanh")) == "Activation(name='tanh', slope=0.01)"
    with pytest.raises(FrozenInstanceError):
        Activation("tanh").name = "relu"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["Tanh", "", "softmax"])
def test_unknown_activation(name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"expected an activation among identity, .*, got '{name}'"
    ):
        Activation(name)


@pytest.mark.parametrize("slope", [-0.1, float("nan")])
def test_slope_out_of_range(slope: float) -> None:
    with pytest.raises(
        ConfigError, match="expected a leaky_relu slope to be a number of at least 0"
    ):
        Activation("leaky_relu", slope)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_devices_of_the_cpu(device: str) -> None:
    assert backends.resolve_device(device) == "cpu"
    assert backends.get(device) is backends.get("cpu")
    assert backends.create(device) is not backends.create(device)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_missing_device_is_a_device_error(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    no_gpu(monkeypatch)
    with pytest.raises(DeviceError, match=r"expected a CUDA device for 'cuda:[01]', but "):
        backends.get(device)


@pytest.mark.parametrize("device", ["gpu", "", None, 0])
def test_an_unknown_device_is_a_config_error(device: Any) -> None:
    with pytest.raises(ConfigError, match="expected one device, 'auto', 'cpu', 'cuda'"):
        backends.create(device)


def test_backend_of_arrays() -> None:
    assert backends.of(np.zeros(2), np.float32(1)) is backends.get("cpu")
    with pytest.raises(DTypeError, match="expected an array, got list"):
        backends.of(np.zeros(2), [1, 2])


def test_a_shared_backend_gives_results_away_and_a_training_one_takes_them_back() -> None:
    x = np.ones((2, 2))
    shared, own = backends.get("cpu"), backends.create("cpu")
    assert shared.sum_columns(x) is not shared.sum_columns(x)
    first = own.sum_columns(x)
    own.begin_step()
    assert own.sum_columns(x) is first
