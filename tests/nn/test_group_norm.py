from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warpfit.errors import ConfigError, ShapeError
from warpfit.nn import GroupNorm, Layer, LayerNorm
from warpfit.nn.group_norm import GroupNormSpec
from warpfit.nn.spec import LayerSpec


def test_each_group_of_each_sample_is_normalised() -> None:
    x = np.random.default_rng(0).normal(3, 2, (4, 5, 3, 6))
    groups = GroupNorm(2, 6, eps=0, dtype="float64")(x).reshape(4, 15, 2, 3)
    np.testing.assert_allclose(groups.mean(axis=(1, 3)), 0, atol=1e-12)
    np.testing.assert_allclose(groups.std(axis=(1, 3)), 1, rtol=1e-12)


def test_one_group_of_rows_is_a_layer_norm() -> None:
    x = np.random.default_rng(0).standard_normal((4, 6))
    np.testing.assert_allclose(GroupNorm(1, 6)(x), LayerNorm(6)(x), rtol=1e-6)


def test_spec_goes_through_json() -> None:
    spec = GroupNorm(2, 6, eps=0.1, affine=False).spec
    assert spec == GroupNormSpec(2, 6, 0.1, False)
    assert LayerSpec.from_dict(spec.to_dict()) == spec
    assert type(Layer.from_spec(spec)) is GroupNorm
    assert spec.parameters() == {}
    assert spec.full_precision


def test_empty_batches_stay_empty() -> None:
    assert GroupNorm(2, 6)(np.zeros((0, 3, 6))).shape == (0, 3, 6)


@pytest.mark.parametrize("shape", [(2, 5), (2, 3, 3, 4), (6,)])
def test_refuses_samples_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"GroupNorm: expected samples of shape \(\.\.\., 6\)"):
        GroupNorm(2, 6)(np.zeros(shape))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_groups": 0}, "num_groups to be an integer of at least 1, got 0"),
        ({"num_groups": 4}, "num_channels as a multiple of num_groups 4, got 6"),
        ({"eps": -1}, "eps of at least 0, got -1"),
    ],
)
def test_refuses_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"GroupNorm: expected {message}"):
        GroupNorm(**{"num_groups": 2, "num_channels": 6, **settings})


def test_repr() -> None:
    assert repr(GroupNorm(2, 6)) == "GroupNorm(2, 6, eps=1e-05, 12 parameters)"
    assert repr(GroupNorm(2, 6, affine=False)) == "GroupNorm(2, 6, eps=1e-05, affine=False)"
