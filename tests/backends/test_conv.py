from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.numeric import (
    DTYPES,
    LAYOUTS,
    assert_derivative,
    assert_within_tolerance,
    call,
    download,
    layouts,
    owned,
    upload,
)
from warpfit.backends import Activation, Backend, NumpyBackend
from warpfit.backends.base import ACTIVATIONS
from warpfit.backends.numpy import windows
from warpfit.errors import ConfigError, DTypeError, ShapeError

# In every run at least every other case of each test.
pytestmark = pytest.mark.in_turns(8)

PAIRS = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}


class Setting(NamedTuple):
    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def pairs(self) -> dict[str, tuple[int, int]]:
        return {name: getattr(self, name) for name in PAIRS}

    @property
    def output_shape(self) -> tuple[int, ...]:
        counts = (
            (size + 2 * pad - step * (taps - 1) - 1) // stride + 1
            for size, taps, stride, pad, step in zip(
                self.x[1:3], self.w, *self.pairs.values(), strict=False
            )
        )
        return (self.x[0], *counts, self.w[3])


SETTINGS = {
    "plain": Setting((2, 5, 6, 5), (3, 2, 5, 4)),
    "gray": Setting((2, 5, 6, 1), (3, 3, 1, 4)),
    "one_pixel": Setting((1, 1, 1, 2), (1, 1, 2, 3)),
    "strided": Setting((2, 6, 7, 2), (3, 3, 2, 3), stride=(2, 3)),
    "padded": Setting((2, 4, 3, 2), (3, 3, 2, 3), padding=(1, 2)),
    "padded_beyond_the_image": Setting((1, 1, 2, 2), (3, 3, 2, 2), padding=(4, 3)),
    "dilated": Setting((2, 7, 6, 2), (3, 2, 2, 3), dilation=(2, 3)),
    "everything": Setting((3, 6, 7, 2), (2, 3, 2, 3), (2, 2), (2, 1), (3, 2)),
    "all_of_the_image": Setting((2, 4, 3, 2), (4, 3, 2, 5)),
}


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def operands(setting: Setting, dtype: str = "float64") -> tuple[Any, Any, Any, Any]:
    """Return x, w, b, dz."""
    shapes = (setting.x, setting.w, setting.w[3:], setting.output_shape)
    return tuple(normal(*shape, seed=i).astype(dtype) for i, shape in enumerate(shapes))  # type: ignore[return-value]


def naive_conv2d(x: Any, w: Any, b: Any, setting: Setting) -> Any:
    (stride_h, stride_w), (pad_h, pad_w), (step_h, step_w) = setting.pairs.values()
    y = np.zeros(setting.output_shape) + b
    for i, j, k, m in product(*map(range, (*y.shape[1:3], *w.shape[:2]))):
        row, column = i * stride_h + k * step_h - pad_h, j * stride_w + m * step_w - pad_w
        if 0 <= row < x.shape[1] and 0 <= column < x.shape[2]:
            y[:, i, j] += x[:, row, column] @ w[k, m]
    return y


# -- forward
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETTINGS)
def test_conv2d_forward(backend: Backend, name: str, dtype: str) -> None:
    setting = SETTINGS[name]
    x, w, b, _ = operands(setting, dtype)
    y, z = call(backend.conv2d_forward, x, w, b, **setting.pairs)
    assert y.dtype == dtype
    assert z is None
    assert_within_tolerance(y, naive_conv2d(*(a.astype("float64") for a in (x, w, b)), setting))


def test_conv2d_forward_without_bias(backend: Backend) -> None:
    setting = SETTINGS["plain"]
    x, w, _, _ = operands(setting)
    y, _ = call(backend.conv2d_forward, x, w, None)
    assert_within_tolerance(y, naive_conv2d(x, w, 0, setting))


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_conv2d_forward_with_activation(backend: Backend, name: str) -> None:
    activation, setting = Activation(name), SETTINGS["padded"]
    x, w, b, _ = operands(setting)
    y, z = call(backend.conv2d_forward, x, w, b, **setting.pairs, activation=activation)
    expected = naive_conv2d(x, w, b, setting)
    assert_within_tolerance(y, NumpyBackend().activation_forward(activation, expected))
    assert (z is not None) == activation.needs_input
    if z is not None:
        assert_within_tolerance(z, expected)


def test_against_torch(backend: Backend, torch: Any) -> None:
    setting = SETTINGS["everything"]
    x, w, b, dz = operands(setting)
    tensors = [
        torch.tensor(a, requires_grad=True)
        for a in (x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), b)
    ]
    expected = torch.nn.functional.conv2d(*tensors, **setting.pairs)
    expected.backward(torch.tensor(dz.transpose(0, 3, 1, 2)))
    y, _ = call(backend.conv2d_forward, x, w, b, **setting.pairs)
    dx = call(backend.conv2d_backward_input, dz, w, x.shape, **setting.pairs)
    dw, db = call(backend.conv2d_backward_weight, dz, x, w.shape[:2], **setting.pairs)
    assert_within_tolerance(y.transpose(0, 3, 1, 2), expected.detach().numpy())
    assert_within_tolerance(dx.transpose(0, 3, 1, 2), tensors[0].grad.numpy())
    assert_within_tolerance(dw.transpose(3, 2, 0, 1), tensors[1].grad.numpy())
    assert_within_tolerance(db, tensors[2].grad.numpy())


# -- gradients
# ---------------------------------------------------------------------------------------------


@pytest.mark.in_turns(16)
@pytest.mark.parametrize("name", SETTINGS)
def test_conv2d_backward_input(backend: Backend, name: str) -> None:
    setting = SETTINGS[name]
    x, w, b, dz = operands(setting)
    dx = call(backend.conv2d_backward_input, dz, w, x.shape, **setting.pairs)
    assert_derivative(
        dx, lambda x: np.sum(dz * call(backend.conv2d_forward, x, w, b, **setting.pairs)[0]), x
    )


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_conv2d_backward_input_takes_over_the_derivative_of_the_activation_below(
    backend: Backend, name: str
) -> None:
    activation, setting = Activation(name, slope=0.2), SETTINGS["padded"]
    z, w, _, dz = operands(setting)
    x = call(backend.activation_forward, activation, z)
    joint = {"x": x, "x_activation": activation}
    if activation.needs_input:
        with pytest.raises(
            ConfigError, match=f"conv2d_backward_input: expected an activation .* got '{name}'"
        ):
            call(backend.conv2d_backward_input, dz, w, x.shape, **setting.pairs, **joint)
        return
    dx = call(backend.conv2d_backward_input, dz, w, x.shape, **setting.pairs, **joint)
    plain = call(backend.conv2d_backward_input, dz, w, x.shape, **setting.pairs)
    assert_within_tolerance(dx, call(backend.activation_backward, activation, plain, x, None))


@pytest.mark.parametrize("name", ["identity", "tanh"])
def test_conv2d_backward_input_adds_another_gradient(backend: Backend, name: str) -> None:
    setting, activation = SETTINGS["strided"], Activation(name)
    x, w, _, dz = (upload(backend, array) for array in operands(setting))
    plus = upload(backend, normal(*setting.x, seed=9))
    given = {**setting.pairs, "x": None if name == "identity" else x, "x_activation": activation}
    dx = backend.conv2d_backward_input(dz, w, setting.x, **setting.pairs)
    found = backend.conv2d_backward_input(dz, w, setting.x, **given, plus=plus)
    expected = backend.with_joints(dx, given["x"], activation, plus)
    np.testing.assert_allclose(download(backend, found), download(backend, expected))
    with pytest.raises(ShapeError, match=r"conv2d_backward_input: expected plus of shape"):
        backend.conv2d_backward_input(dz, w, setting.x, **setting.pairs, plus=dz)


def test_conv2d_backward_input_refuses_another_x(backend: Backend) -> None:
    x, w, _, dz = operands(SETTINGS["plain"])
    with pytest.raises(ShapeError, match="conv2d_backward_input: expected x of shape"):
        call(backend.conv2d_backward_input, dz, w, x.shape, x=x[:1])


@pytest.mark.in_turns(16)
@pytest.mark.parametrize("name", SETTINGS)
def test_conv2d_backward_weight(backend: Backend, name: str) -> None:
    setting = SETTINGS[name]
    x, w, b, dz = operands(setting)
    dw, db = call(backend.conv2d_backward_weight, dz, x, w.shape[:2], **setting.pairs)
    assert_derivative(
        dw, lambda w: np.sum(dz * call(backend.conv2d_forward, x, w, b, **setting.pairs)[0]), w
    )
    assert_derivative(
        db, lambda b: np.sum(dz * call(backend.conv2d_forward, x, w, b, **setting.pairs)[0]), b
    )


def test_conv2d_backward_weight_without_db(backend: Backend) -> None:
    x, w, _, dz = operands(SETTINGS["plain"])
    assert call(backend.conv2d_backward_weight, dz, x, w.shape[:2], needs_db=False)[1] is None


GROUPED = {
    "depthwise": (Setting((2, 5, 6, 3), (3, 2, 1, 3), padding=(1, 1)), 3),
    "depthwise_vectors": (Setting((2, 6, 5, 16), (3, 3, 1, 16), (2, 1), (1, 1)), 16),
    "depthwise_dilated": (Setting((1, 6, 7, 4), (3, 2, 1, 4), (1, 1), (2, 1), (2, 3)), 4),
    "two_outputs_a_channel": (Setting((2, 5, 6, 3), (2, 2, 1, 6), dilation=(2, 1)), 3),
    "pairs": (Setting((2, 6, 7, 6), (3, 3, 2, 9), (2, 3), (1, 2)), 3),
    "fours": (Setting((2, 6, 5, 8), (3, 2, 4, 8), (2, 1), (1, 1)), 2),
    "dozens": (Setting((2, 5, 6, 24), (3, 2, 12, 40), (1, 2), (2, 1), (2, 1)), 2),
    "wide": (Setting((2, 4, 4, 64), (1, 2, 32, 64)), 2),
}


@pytest.mark.in_turns(16)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GROUPED)
def test_groups_are_convolutions_of_their_own(backend: Backend, name: str, dtype: str) -> None:
    setting, groups = GROUPED[name]
    x, w, b, dz = operands(setting, dtype)
    on_device = [upload(backend, array) for array in (x, w, b, dz)]
    settings = {**setting.pairs, "groups": groups, "activation": Activation("gelu")}
    y, z = download(backend, backend.conv2d_forward(*on_device[:3], **settings))
    given = {**setting.pairs, "groups": groups}
    dx = backend.conv2d_backward_input(on_device[3], on_device[1], setting.x, **given)
    dw, db = backend.conv2d_backward_weight(on_device[3], on_device[0], setting.w[:2], **given)
    channels, outputs = setting.w[2], setting.w[3] // groups
    exact = NumpyBackend()
    x, w, b, dz = (array.astype("float64") for array in (x, w, b, dz))
    for group in range(groups):
        own, made = (slice(group * size, (group + 1) * size) for size in (channels, outputs))
        of_group = x[..., own], w[..., made]
        expected = naive_conv2d(*of_group, b[made], setting._replace(w=of_group[1].shape))
        assert_within_tolerance(z[..., made], expected, dtype)
        gelu = exact.activation_forward(Activation("gelu"), expected)
        assert_within_tolerance(y[..., made], gelu, dtype)
        back = (dz[..., made], of_group[1], of_group[0].shape)
        expected = exact.conv2d_backward_input(*back, **setting.pairs)
        assert_within_tolerance(download(backend, dx)[..., own], expected, dtype)
        back = (dz[..., made], of_group[0], setting.w[:2])
        expected, of_bias = exact.conv2d_backward_weight(*back, **setting.pairs)
        assert_within_tolerance(download(backend, dw)[..., made], expected, dtype)
        assert_within_tolerance(download(backend, db)[made], of_bias, dtype)


def test_groups_of_more_channels_than_a_grid_has_rows(backend: Backend) -> None:
    setting = Setting((1, 8, 8, 2700), (7, 7, 1350, 2))
    x, w, _, dz = operands(setting, "float32")
    on_device = [upload(backend, array) for array in (dz, x)]
    dw, _ = backend.conv2d_backward_weight(*on_device, (7, 7), groups=2)
    expected, _ = NumpyBackend().conv2d_backward_weight(
        dz.astype("f8"), x.astype("f8"), (7, 7), groups=2
    )
    assert w.shape == expected.shape
    assert_within_tolerance(download(backend, dw), expected, "float32")


@pytest.mark.parametrize("name", ["pairs", "dozens"])
def test_groups_take_over_the_derivative_below(backend: Backend, name: str) -> None:
    setting, groups = GROUPED[name]
    x, w, _, dz = operands(setting)
    dz, w, x = (upload(backend, array) for array in (dz, w, np.abs(x)))
    given = {**setting.pairs, "groups": groups}
    plain = backend.conv2d_backward_input(dz, w, setting.x, **given)
    tanh = Activation("tanh")
    found = backend.conv2d_backward_input(dz, w, setting.x, **given, x=x, x_activation=tanh)
    expected = backend.activation_backward(tanh, plain, x, None)
    np.testing.assert_allclose(download(backend, found), download(backend, expected))


def test_groups_that_do_not_divide_are_refused(backend: Backend) -> None:
    x, w = (upload(backend, normal(*shape)) for shape in ((1, 4, 4, 4), (2, 2, 2, 3)))
    with pytest.raises(ShapeError, match=r"expected w of outputs in 2 equal groups, got \(2, 2"):
        backend.conv2d_forward(x, w, None, groups=2)
    with pytest.raises(ShapeError, match=r"expected x of shape .* 6\) for w .* in 3 groups"):
        backend.conv2d_forward(x, w, None, groups=3)


@pytest.mark.parametrize("groups", [0, -1, 1.5])
def test_groups_are_at_least_one(backend: Backend, groups: Any) -> None:
    x, w, dz = (
        upload(backend, normal(*shape)) for shape in ((1, 4, 4, 4), (2, 2, 4, 3), (1, 3, 3, 3))
    )
    calls = {
        "conv2d_forward": (x, w, None),
        "conv2d_backward_input": (dz, w, x.shape),
        "conv2d_backward_weight": (dz, x, (2, 2)),
    }
    for name, operands in calls.items():
        words = f"expected groups of {name} to be an integer of at least 1, got {groups}"
        with pytest.raises(ConfigError, match=words):
            getattr(backend, name)(*operands, groups=groups)


@pytest.mark.parametrize("name", SETTINGS)
def test_float32_agrees_with_float64(backend: Backend, name: str) -> None:
    setting = SETTINGS[name]
    results = []
    for dtype in DTYPES:
        x, w, _, dz = operands(setting, dtype)
        dx = call(backend.conv2d_backward_input, dz, w, x.shape, **setting.pairs)
        results.append(
            [dx, *call(backend.conv2d_backward_weight, dz, x, w.shape[:2], **setting.pairs)]
        )
    for precise, single in zip(
        *(results if DTYPES[0] == "float64" else results[::-1]), strict=True
    ):
        assert single.dtype == np.float32
        assert_within_tolerance(single, precise)


# -- any shape, layout and block size
# ----------------------------------------------------------------------

pairs_from_1 = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(
    rows=st.integers(0, 3),
    spare=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    kernel=pairs_from_1,
    channels=st.integers(0, 5),
    outputs=st.integers(0, 3),
    stride=pairs_from_1,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=pairs_from_1,
    layout=st.sampled_from(LAYOUTS),
)
@settings(deadline=None, max_examples=100)
def test_any_setting(
    backend: Backend,
    rows: int,
    spare: tuple[int, int],
    kernel: tuple[int, int],
    channels: int,
    outputs: int,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    layout: str,
) -> None:
    image = [
        max(1, d * (k - 1) + 1 + s - 2 * p)
        for d, k, s, p in zip(dilation, kernel, spare, padding, strict=True)
    ]
    setting = Setting(
        (rows, *image, channels), (*kernel, channels, outputs), stride, padding, dilation
    )  # type: ignore[arg-type]
    x, w, b, dz = operands(setting)
    expected = naive_conv2d(x, w, b, setting)
    laid_x, laid_w, laid_dz = (dict(layouts(a))[layout] for a in (x, w, dz))
    y, _ = call(backend.conv2d_forward, laid_x, laid_w, b, **setting.pairs)
    dx = call(backend.conv2d_backward_input, laid_dz, laid_w, x.shape, **setting.pairs)
    dw, db = call(backend.conv2d_backward_weight, laid_dz, laid_x, kernel, **setting.pairs)
    assert_within_tolerance(y, expected)
    # The convolution without bias is linear in x and in w, so one inner product judges each
    # adjoint.
    inner = np.sum(dz * naive_conv2d(x, w, 0, setting))
    assert (dx.shape, dw.shape, db.shape) == (x.shape, w.shape, b.shape)
    np.testing.assert_allclose([np.sum(dx * x), np.sum(dw * w)], inner, atol=1e-10)
    np.testing.assert_allclose(db, dz.sum(axis=(0, 1, 2)), atol=1e-12)


@pytest.mark.parametrize("num_bytes", [1, 1000, 5000])
@pytest.mark.parametrize("name", SETTINGS)
def test_blocks_of_any_size_give_the_same(
    monkeypatch: pytest.MonkeyPatch, name: str, num_bytes: int
) -> None:
    backend, setting = NumpyBackend(), SETTINGS[name]
    x, w, b, dz = operands(setting)

    def results() -> list[Any]:
        y, _ = backend.conv2d_forward(x, w, b, **setting.pairs)
        dx = backend.conv2d_backward_input(dz, w, x.shape, **setting.pairs)
        return [y, dx, *backend.conv2d_backward_weight(dz, x, w.shape[:2], **setting.pairs)]

    expected = results()
    monkeypatch.setattr(windows, "BLOCK_BYTES", num_bytes)
    for result, value in zip(results(), expected, strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-12, atol=1e-13)


def test_inputs_are_never_modified(backend: Backend) -> None:
    before = operands(SETTINGS["everything"])
    arrays = owned(backend, before)
    x, w, b, dz = arrays
    pairs = SETTINGS["everything"].pairs
    backend.conv2d_forward(x, w, b, **pairs, activation=Activation("relu"))
    backend.conv2d_backward_input(dz, w, x.shape, **pairs)
    backend.conv2d_backward_weight(dz, x, w.shape[:2], **pairs)
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(download(backend, array), copy)


def test_reused_buffers_keep_results_until_the_next_step(
    make_backend: Callable[..., Backend],
) -> None:
    reusing, fresh = make_backend(reuse=True), make_backend()
    x, w, b, dz = upload(fresh, list(operands(SETTINGS["everything"])))
    pairs = SETTINGS["everything"].pairs
    for rows in (3, 1, 3):
        reusing.begin_step()
        results = [
            (
                ops.conv2d_forward(x[:rows], w, b, **pairs)[0],
                ops.conv2d_backward_input(dz[:rows], w, x[:rows].shape, **pairs),
                *ops.conv2d_backward_weight(dz[:rows], x[:rows], w.shape[:2], **pairs),
            )
            for ops in (reusing, fresh)
        ]
        for result, expected in zip(*results, strict=True):
            np.testing.assert_array_equal(download(fresh, result), download(fresh, expected))


# -- refusals
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "w", "b", "pairs", "message"),
    [
        ((2, 5, 5), (3, 3, 2, 4), None, {}, r"expected x of shape \(M, H, W, 2\).*got \(2, 5, 5\)"),
        (
            (2, 5, 5, 3),
            (3, 3, 2, 4),
            None,
            {},
            r"expected x of shape \(M, H, W, 2\).*got \(2, 5, 5, 3\)",
        ),
        (
            (2, 5, 5, 3),
            (3, 3, 3),
            None,
            {},
            r"expected w of shape \(KH, KW, C, O\), got \(3, 3, 3\)",
        ),
        ((2, 5, 5, 2), (3, 3, 2, 4), (3,), {}, r"expected b of shape \(4,\), got \(3,\)"),
        ((2, 2, 5, 2), (3, 3, 2, 4), None, {}, r"at least 3x3 .* got 2x5 and padding \(0, 0\)"),
        (
            (2, 3, 5, 2),
            (3, 3, 2, 4),
            None,
            {"dilation": (2, 1)},
            r"at least 5x3 .* got 3x5 and padding \(0, 0\)",
        ),
        (
            (2, 0, 5, 2),
            (3, 3, 2, 4),
            None,
            {"padding": (1, 0)},
            r"at least 3x3 .* got 0x5 and padding \(1, 0\)",
        ),
    ],
)
def test_conv2d_forward_refuses_shapes(
    backend: Backend, x: Any, w: Any, b: Any, pairs: Any, message: str
) -> None:
    with pytest.raises(ShapeError, match=f"conv2d_forward: .*{message}"):
        call(
            backend.conv2d_forward,
            np.zeros(x),
            np.zeros(w),
            None if b is None else np.zeros(b),
            **pairs,
        )


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("pair", [1, (1,), (1, 2, 3), (-1, 1), (1.0, 1), (True, 1), [1, 1]])
def test_conv2d_refuses_pairs(backend: Backend, name: str, pair: Any) -> None:
    with pytest.raises(ConfigError, match=f"conv2d_forward: expected {name} to be two integers"):
        call(
            backend.conv2d_forward,
            np.zeros((1, 5, 5, 2)),
            np.zeros((3, 3, 2, 1)),
            None,
            **{name: pair},
        )


@pytest.mark.parametrize("pair", [(True, 1), (1.0, 1)])
def test_conv2d_refuses_pairs_that_equal_accepted_ones(backend: Backend, pair: Any) -> None:
    x, w = np.zeros((1, 5, 5, 2)), np.zeros((3, 3, 2, 1))
    call(backend.conv2d_forward, x, w, None, stride=(1, 1))
    with pytest.raises(ConfigError, match="conv2d_forward: expected stride to be two integers"):
        call(backend.conv2d_forward, x, w, None, stride=pair)


def test_conv2d_refuses_an_empty_kernel(backend: Backend) -> None:
    with pytest.raises(ConfigError, match="expected kernel to be two integers of at least 1"):
        call(backend.conv2d_forward, np.zeros((1, 5, 5, 2)), np.zeros((0, 3, 2, 1)), None)


@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 3), (1, 3, 4, 4), (2, 3, 4, 4, 1), (2, 3, 3, 4), (24,)]
)
def test_conv2d_backward_refuses_dz(backend: Backend, shape: tuple[int, ...]) -> None:
    x, w, dz = np.zeros((2, 5, 5, 3)), np.zeros((3, 2, 3, 4)), np.zeros(shape)
    with pytest.raises(ShapeError, match="conv2d_backward_input: expected dz of shape"):
        call(backend.conv2d_backward_input, dz, w, x.shape)
    if len(shape) == 4 and shape[3] == 4:  # else the weight has another number of outputs
        with pytest.raises(ShapeError, match="conv2d_backward_weight: expected dz of shape"):
            call(backend.conv2d_backward_weight, dz, x, (3, 2))


@pytest.mark.parametrize("x", [(), (5,), (2, 5, 5)])
def test_conv2d_backward_weight_refuses_x(backend: Backend, x: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="conv2d_backward_weight: expected x of shape"):
        call(backend.conv2d_backward_weight, np.zeros((2, 3, 3, 4)), np.zeros(x), (3, 3))


def test_conv2d_refuses_dtypes(backend: Backend) -> None:
    x, w, b, dz = operands(SETTINGS["plain"])
    with pytest.raises(
        DTypeError, match="conv2d_forward: expected operands of one dtype, got float32, float64"
    ):
        call(backend.conv2d_forward, x.astype("float32"), w, b)
    with pytest.raises(
        DTypeError, match=r"conv2d_backward_input: expected float32 or float64.*, got int32"
    ):
        call(backend.conv2d_backward_input, dz.astype("int32"), w.astype("int32"), x.shape)
    with pytest.raises(DTypeError, match="conv2d_backward_input: expected operands of one dtype"):
        call(backend.conv2d_backward_input, dz, w, x.shape, x=x.astype("float32"))
    with pytest.raises(DTypeError, match="conv2d_backward_weight: expected operands of one dtype"):
        call(backend.conv2d_backward_weight, dz.astype("float32"), x, w.shape[:2])


def test_numpy_refuses_half_precision() -> None:
    x, w, _, dz = operands(SETTINGS["plain"], "float16")
    with pytest.raises(
        DTypeError, match="conv2d_backward_input: expected float32 or float64, got float16"
    ):
        NumpyBackend().conv2d_backward_input(dz, w, x.shape)
