"""Scales of float16 gradients."""

from __future__ import annotations

import re

import pytest

from support.training import blobs, mlp, sgd
from warpfit import fit
from warpfit.engines.scaling import LossScale, resolve_loss_scale
from warpfit.errors import ConfigError


@pytest.mark.parametrize(
    ("batch_size", "num_rows", "scale"),
    [
        (1, 640, 2**10),
        (64, 640, 2**16),
        (100, 640, 2**15),
        (100, 601, 2**10),
        (1 << 30, 640, 2**19),
        (1 << 30, 1 << 30, 2**24),
        (64, 0, 2**16),
    ],
)
def test_auto_is_a_power_of_two_near_1024_times_the_smallest_batch(
    batch_size: int, num_rows: int, scale: float
) -> None:
    assert resolve_loss_scale("auto", "float16", batch_size, num_rows) == scale


@pytest.mark.parametrize(
    ("derivative", "scale"),
    [(1.0, 2**16), (1.1, 2**15), (2.0, 2**15), (100.0, 2**9), (1e30, 2**-24)],
)
def test_steep_losses_are_scaled_less(derivative: float, scale: float) -> None:
    assert resolve_loss_scale("auto", "float16", 64, 640, derivative) == scale


@pytest.mark.parametrize("precision", ["float32", "float64", "tf32", "bfloat16"])
def test_other_precisions_have_none(precision: str) -> None:
    assert resolve_loss_scale("auto", precision, 64, 640) == 1.0
    assert resolve_loss_scale(1.0, precision, 64, 640) == 1.0  # as a plan has it
    with pytest.raises(
        ConfigError, match=f"for precision '{precision}', which needs none, got 512"
    ):
        resolve_loss_scale(512, precision, 64, 640)


@pytest.mark.parametrize("loss_scale", [512, 0.25, "dynamic"])
def test_what_is_asked_for_is_taken(loss_scale: object) -> None:
    assert resolve_loss_scale(loss_scale, "float16", 64, 640) == loss_scale


@pytest.mark.parametrize(
    "loss_scale", [0, -2.0, 3, 2.0**25, float("nan"), float("inf"), "static", None]
)
def test_other_scales_are_refused(loss_scale: object) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"power of two from 2**-24 to 2**24, got {loss_scale!r}")
    ):
        resolve_loss_scale(loss_scale, "float16", 64, 640)


def test_fit_refuses_a_scale_where_there_is_nothing_to_scale() -> None:
    x, y = blobs(8)
    model = mlp(6, 3)
    with pytest.raises(ConfigError, match="expected loss_scale 'auto' for precision 'float32'"):
        fit(model, x, y, optimizer=sgd(model), loss_scale="dynamic", verbose=False)


def test_overflow_halves_and_patience_doubles() -> None:
    scale = LossScale().after(is_finite=False)
    assert scale == LossScale(2.0**15, 0)
    for _ in range(1999):
        scale = scale.after(is_finite=True)
    assert scale == LossScale(2.0**15, 1999)
    assert scale.after(is_finite=True) == LossScale(2.0**16, 0)
    assert scale.after(is_finite=False) == LossScale(2.0**14, 0)


def test_a_scale_has_bounds() -> None:
    assert LossScale(2.0**24, 1999).after(is_finite=True).value == 2.0**24
    with pytest.raises(OverflowError):
        LossScale(2.0**-24).after(is_finite=False)
