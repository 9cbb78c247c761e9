"""By what powers of two one_launch scales numbers in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import assert_same_weights, blobs, mlp, sgd
from warpfit import nn
from warpfit.engines import launch_scales
from warpfit.engines.launch_scales import ROOM, find_exponents, layer_scales
from warpfit.errors import ConfigError

X, LABELS = blobs(48)
TARGETS = np.linspace(0.1, 1, 3 * len(X), dtype="float32").reshape(-1, 3)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The exponents of each run."""
    runs: list[Any] = []

    def noted(*given: Any) -> Any:
        runs.append(find_exponents(*given))
        return runs[-1]

    monkeypatch.setattr(launch_scales, "find_exponents", noted)
    return runs


def train(model: Any, x: Any = X, y: Any = TARGETS, **settings: Any) -> wf.History:
    asked: dict[str, Any] = {
        "optimizer": sgd(model, 0.01),
        "loss": "mse" if y.ndim > 1 else "cross_entropy",
        "epochs": 1,
        "batch_size": 16,
        "engine": "one_launch",
        "precision": "float32",
        "device": "cuda",
        "verbose": False,
    }
    return wf.fit(model, x, y, **(asked | settings))


def test_scales_take_back_what_they_did() -> None:
    exponents = [(3, -4, 5), (-2, 1, -7), (0, 4, 9)]
    scales = layer_scales(exponents)
    for idx, (of_inputs, of_weights, of_gradients) in enumerate(exponents):
        own = scales[idx]
        assert own["weights"] == 2.0**-of_weights
        assert own["sums"] * 2.0**-of_inputs * own["weights"] == 1
        assert own["of_weights"] * 2.0**-of_gradients * 2.0**-of_inputs == 1
        assert own["of_biases"] == 2.0**of_gradients
        if idx + 1 < len(exponents):
            next_inputs, _, next_gradients = exponents[idx + 1]
            assert own["units"] == 2.0**-next_inputs
            back = 2.0**-next_gradients * scales[idx + 1]["weights"] * own["gradients"]
            assert back == 2.0**-of_gradients


def test_scales_beyond_the_range_are_infinite_or_0() -> None:
    scales = layer_scales([(100, 100, 0), (0, 0, -126), (-120, 0, -100)])
    assert scales[0]["sums"] == np.inf
    assert scales[2]["of_weights"] == 0


def moved(model: Any, **factors: float) -> Any:
    """Return the model with some parameters times a number."""
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data * np.float32(factors.get(f"p{name.replace('.', '_')}", 1))
    return model


@pytest.mark.filterwarnings("ignore:.*standardise")
def test_exponents_follow_the_numbers(cuda: str, found: list[Any]) -> None:
    one, larger = np.float32(1), np.float32(2**20)
    networks = mlp(6, 20, 3), mlp(6, 20, 3), moved(mlp(6, 20, 3), p0_weight=larger, p0_bias=larger)
    for model, factor in zip(networks, (one, larger, one), strict=True):
        train(
            model,
            x=X * np.float32(factor),
            y=TARGETS * np.float32(factor),
            optimizer=sgd(model, 0.0),
        )
    plain, of_x, of_weights = np.array(found)
    np.testing.assert_allclose(of_x - plain, [[20, 0, 20], [20, 0, 20]], atol=1)
    assert (of_weights - plain)[:, :2].tolist() == [[0, 20], [20, 0]]


def test_a_trained_network_has_room_for_the_gradients_of_other_rows(
    cuda: str, found: list[Any]
) -> None:
    model = mlp(6, 20, 3)
    wf.fit(model, X, LABELS, optimizer=sgd(model, 0.5), epochs=60, batch_size=16, verbose=False)
    train(mlp(6, 20, 3), y=LABELS)
    train(model, y=LABELS)
    first, second = found
    assert abs(first[-1][2] - second[-1][2]) <= 1


@pytest.mark.parametrize("name", ["p0_weight", "p2_weight"])
def test_numbers_that_are_0_begin_anywhere(cuda: str, found: list[Any], name: str) -> None:
    model, expected = (moved(mlp(6, 20, 3), **{name: 0.0, "p2_bias": 0.0}) for _ in range(2))
    train(model, epochs=3)
    train(expected, epochs=3, engine="auto", device="cpu")
    (exponents,) = found
    assert np.abs(exponents).max() < 30
    for key, array in expected.state_dict().items():
        np.testing.assert_allclose(model.to("cpu").state_dict()[key], array, rtol=0, atol=1e-6)


def test_a_resumed_run_keeps_them(cuda: str, found: list[Any], tmp_path: Any) -> None:
    whole, first, second = (moved(mlp(6, 20, 3), p2_weight=2.0**-18) for _ in range(3))
    settings: dict[str, Any] = {"epochs": 4, "y": TARGETS * 100}
    train(whole, optimizer=sgd(whole, 0.1), **settings)
    path = tmp_path / "run.ckpt"
    early: dict[str, Any] = settings | {"epochs": 2, "callbacks": [wf.Checkpoint(path)]}
    train(first, optimizer=sgd(first, 0.1), **early)
    train(second, optimizer=sgd(second, 0.1), resume_from=path, **settings)
    assert_same_weights(second, whole)
    assert len(found) == 2  # the third had the first's
    train(first)
    assert found[-1] != found[0]  # which the numbers would not give any more


def test_far_larger_rows_are_looked_at_apart(cuda: str) -> None:
    near, far = (np.float32(factor) * X for factor in (ROOM / 2, 2 * ROOM))
    for rows, is_within in ((near, True), (far, False)):
        history = train(mlp(6, 20, 3), validation_data=(rows, TARGETS))
        assert history.plan.prepared.validates == is_within
        assert np.isfinite(history["val_loss"]).all()


def test_derivatives_have_the_range_too(cuda: str) -> None:
    runs = []
    for settings in ({}, {"engine": "auto", "device": "cpu"}):
        model = mlp(6, 20, 3, activation=nn.Sigmoid)
        bias = dict(model.named_parameters())["0.bias"]
        bias.data = bias.data - np.float32(25)  # a derivative of 1e-11
        train(model, optimizer=sgd(model, 1e8), batch_size=len(X), **settings)
        runs.append(model.to("cpu").state_dict())
    start = mlp(6, 20, 3).state_dict()["0.weight"]
    found, expected = (run["0.weight"] - start for run in runs)
    assert np.abs(expected).max() > 1e-5
    assert np.linalg.norm(found - expected) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.filterwarnings("ignore:.*standardise")
def test_numbers_far_below_the_largest_are_not_lost(cuda: str) -> None:
    x, y = X.copy(), TARGETS.copy()
    x[40, 3], y[40, 1] = 1e9, 1e6
    for rows, targets, name in ((x, LABELS, "x"), (X, y, "y")):
        with pytest.raises(ConfigError, match=f"expected numbers of {name} within a factor of"):
            train(mlp(6, 20, 3), rows, targets)
        history = train(mlp(6, 20, 3), rows, targets, engine="auto")
        assert history.plan.engine == "graph"
    train(mlp(6, 20, 3), X * np.float32(1e9), LABELS)
