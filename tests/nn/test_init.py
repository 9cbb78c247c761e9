from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest

from warpfit.errors import ConfigError
from warpfit.nn import Linear
from warpfit.nn.init import INITIALIZERS, initial_values
from warpfit.nn.spec import ParameterSpec

FAN_IN, FAN_OUT = 200, 300
WEIGHT = ParameterSpec((FAN_IN, FAN_OUT), "weight", FAN_IN, FAN_OUT)
DEVIATIONS = {
    "default": 1 / sqrt(3 * FAN_IN),
    "kaiming": sqrt(2 / FAN_IN),
    "xavier": sqrt(2 / (FAN_IN + FAN_OUT)),
    "lecun": sqrt(1 / FAN_IN),
}


def test_the_names() -> None:
    assert INITIALIZERS == (
        "default",
        "kaiming_uniform",
        "kaiming_normal",
        "xavier_uniform",
        "xavier_normal",
        "lecun_uniform",
        "lecun_normal",
    )


@pytest.mark.parametrize("init", INITIALIZERS)
def test_mean_and_standard_deviation(init: str) -> None:
    deviation = DEVIATIONS[init.partition("_")[0]]
    values = initial_values(WEIGHT, init, 0, 0)
    assert values.shape == (FAN_IN, FAN_OUT)
    assert values.dtype == "float64"
    # 60,000 values: the mean is known to 0.4 %, the deviation to 0.3 % of the deviation (one
    # sigma).
    assert abs(values.mean()) < 0.02 * deviation
    assert values.std() == pytest.approx(deviation, rel=0.015)


@pytest.mark.parametrize("init", [name for name in INITIALIZERS if not name.endswith("normal")])
def test_bounds_of_uniform_values(init: str) -> None:
    bound = sqrt(3) * DEVIATIONS[init.partition("_")[0]]
    values = initial_values(WEIGHT, init, 0, 0)
    assert -bound <= values.min() < -0.999 * bound
    assert 0.999 * bound < values.max() < bound
    counts, _ = np.histogram(values, bins=10, range=(-bound, bound))
    assert np.abs(counts - values.size / 10).max() < 5 * sqrt(values.size * 0.09)


@pytest.mark.parametrize("init", [name for name in INITIALIZERS if name.endswith("normal")])
def test_shares_of_normal_values(init: str) -> None:
    values = initial_values(WEIGHT, init, 0, 0) / DEVIATIONS[init.partition("_")[0]]
    for sigmas, share in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        assert (np.abs(values) < sigmas).mean() == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("init", INITIALIZERS)
def test_biases_lie_within_one_over_the_root_of_fan_in(init: str) -> None:
    layer = Linear(16, 5000, init=init, seed=0)
    assert 0.99 / 4 < np.abs(layer.bias.data).max() <= 1 / 4


def test_the_default_is_pytorchs() -> None:
    layer = Linear(16, 1000, seed=0)
    assert 0.999 / 4 < np.abs(layer.weight.data).max() <= 1 / 4


def test_weight_and_bias_take_different_numbers() -> None:
    layer = Linear(1, 8, seed=0)
    assert not np.intersect1d(layer.weight.data, layer.bias.data).size


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ("default", [[-0.28986615, -0.48095644], [0.41614264, 0.43945885]]),
        ("kaiming_uniform", [[-0.71002416, -1.17809785], [1.01933713, 1.07644994]]),
        ("kaiming_normal", [[1.24007335, 0.27479029], [0.38533336, -0.50003167]]),
        ("xavier_uniform", [[-0.39385054, -0.65349111], [0.56542651, 0.59710699]]),
        ("xavier_normal", [[0.68786893, 0.15242623], [0.21374449, -0.27736767]]),
        ("lecun_uniform", [[-0.5020629, -0.83304098], [0.7207802, 0.76116505]]),
        ("lecun_normal", [[0.87686428, 0.19430608], [0.27247183, -0.35357579]]),
    ],
)
def test_golden_values(init: str, expected: Any) -> None:
    values = initial_values(ParameterSpec((2, 2), "weight", 4, 9), init, 7, 0)
    np.testing.assert_allclose(values, expected, rtol=1e-7)


def test_seed_and_place_decide_the_numbers() -> None:
    def values(seed: int, tensor_idx: int) -> Any:
        return initial_values(WEIGHT, "default", seed, tensor_idx)

    np.testing.assert_array_equal(values(5, 0), values(5, 0))
    assert not np.array_equal(values(5, 0), values(5, 1))
    assert not np.array_equal(values(5, 0), values(6, 0))


@pytest.mark.parametrize("init", INITIALIZERS)
def test_constant_starts(init: str) -> None:
    np.testing.assert_array_equal(
        initial_values(ParameterSpec((3,), "ones"), init, 0, 0), [1, 1, 1]
    )
    np.testing.assert_array_equal(
        initial_values(ParameterSpec((3,), "zeros"), init, 0, 0), [0, 0, 0]
    )


@pytest.mark.parametrize("init", INITIALIZERS)
@pytest.mark.parametrize(("fan_in", "fan_out"), [(0, 3), (3, 0), (0, 0)])
def test_width_zero(init: str, fan_in: int, fan_out: int) -> None:
    weight = ParameterSpec((fan_in, fan_out), "weight", fan_in, fan_out)
    bias = ParameterSpec((fan_out,), "bias", fan_in, fan_out)
    assert initial_values(weight, init, 0, 0).shape == (fan_in, fan_out)
    assert np.isfinite(initial_values(bias, init, 0, 1)).all()


@pytest.mark.parametrize("init", ["", "uniform", "default_normal", "kaiming", "Kaiming_uniform"])
def test_refuses_unknown_names(init: str) -> None:
    for start in ("weight", "ones"):
        with pytest.raises(
            ConfigError, match=f"expected an initialiser among default, .*, got '{init}'"
        ):
            initial_values(ParameterSpec((2,), start, 2, 2), init, 0, 0)
