"""Muon: matrices by an orthogonal direction, and what are none by another optimizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import assert_same_weights, blobs
from warpfit import nn, optim
from warpfit.errors import ConfigError
from warpfit.nn import Parameter
from warpfit.optim.muon import MuonSpec

STEPS = 30
A, B, C = 3.4445, -4.7750, 2.0315


def parameters(*shapes: tuple[int, ...], dtype: str = "float64") -> list[Parameter]:
    rng = np.random.default_rng(0)
    return [Parameter(rng.standard_normal(shape).astype(dtype)) for shape in shapes]


def give(held: list[Any], step: int) -> None:
    rng = np.random.default_rng(100 + step)
    for parameter in held:
        parameter.grad = rng.standard_normal(parameter.shape).astype(parameter.dtype)


def direction(x: Any, steps: int) -> Any:
    """Return what the iteration makes of a matrix, by its singular values."""
    u, s, v = np.linalg.svd(x, full_matrices=False)
    s = s / np.sqrt(np.sum(s**2))
    for _ in range(steps):
        s = A * s + B * s**3 + C * s**5
    return (u * s) @ v


# -- matrices
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw", "none"])
def test_steps_are_the_formulas(adjust: str, nesterov: bool) -> None:
    (w,) = held = parameters((5, 12))
    optimizer = optim.Muon(
        held, 0.05, momentum=0.8, nesterov=nesterov, weight_decay=0.3, adjust_lr_fn=adjust
    )
    expected, average = w.data.copy(), np.zeros((5, 12))
    outputs, inputs = 12, 5
    factor = {
        "original": np.sqrt(outputs / inputs),
        "match_rms_adamw": 0.2 * np.sqrt(outputs),
        "none": 1,
    }[adjust]
    for step in range(STEPS):
        give(held, step)
        average = 0.8 * average + 0.2 * w.grad
        ahead = 0.2 * w.grad + 0.8 * average if nesterov else average
        expected = (1 - 0.05 * 0.3) * expected - 0.05 * factor * direction(ahead, 5)
        optimizer.step()
    np.testing.assert_allclose(w.data, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(optimizer.slots["average"][0], average, rtol=1e-12)


def test_normalized_matrices_have_the_norm_of_their_outputs() -> None:
    (w,) = held = parameters((3, 3, 4, 16))
    optimizer = optim.Muon(
        held, 0.0, momentum=0.6, weight_decay=0.0, ns_steps=3, adjust_lr_fn="none", normalize=True
    )
    expected = w.data * 4 / np.linalg.norm(w.data)
    give(held, 0)
    optimizer.step()
    np.testing.assert_allclose(w.data, expected, rtol=1e-12)
    optimizer.step(0.24)
    ahead = (0.4 + 0.6 * (0.4 + 0.6 * 0.4)) * w.grad  # of two equal gradients
    expected = expected - 0.24 * direction(ahead.reshape(36, 16), 3).reshape(3, 3, 4, 16)
    np.testing.assert_allclose(w.data, expected, rtol=1e-10, atol=1e-12)


def test_filters_are_the_matrix_of_their_outputs() -> None:
    (filters,) = one = parameters((3, 3, 2, 8))
    (matrix,) = other = [Parameter(filters.data.reshape(18, 8).copy())]
    optimizers = [optim.Muon(held, 0.05) for held in (one, other)]
    for step in range(3):
        give(one, step)
        matrix.grad = filters.grad.reshape(18, 8)
        for optimizer in optimizers:
            optimizer.step()
    np.testing.assert_array_equal(filters.data.reshape(18, 8), matrix.data)


@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("shape", [(6, 20), (20, 6)])
def test_steps_are_pytorchs(shape: tuple[int, int], adjust: str) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this PyTorch has no Muon")
    (w,) = held = parameters(shape, dtype="float32")
    start = w.data.copy()
    theirs = torch.nn.Parameter(torch.tensor(w.data.T.copy()))
    ours = optim.Muon(held, 0.02, adjust_lr_fn=adjust)
    reference = torch.optim.Muon([theirs], lr=0.02, adjust_lr_fn=adjust)
    for step in range(STEPS):
        give(held, step)
        theirs.grad = torch.tensor(w.grad.T.copy())
        ours.step()
        reference.step()
    moved, other = w.data - start, theirs.detach().numpy().T - start
    # It multiplies in bfloat16, whose numbers have 8 bits.
    np.testing.assert_allclose(moved, other, atol=0.01 * np.abs(other).max())


# -- others
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("adjust", "share"), [("match_rms_adamw", 1.0), ("original", 0.015)])
def test_what_are_no_matrices_adamw_steps(adjust: str, share: float) -> None:
    held, alone = (parameters((4, 3), (3,), (5,)) for _ in range(2))
    optimizer = optim.Muon(held, 0.1, adjust_lr_fn=adjust)
    adamw = optim.AdamW(alone[1:], 0.1 * share, (0.9, 0.95), 1e-10, weight_decay=0.1)
    for step in range(STEPS):
        give(held, step)
        for mine, other in zip(held, alone, strict=True):
            other.grad = mine.grad
        optimizer.step()
        adamw.step()
    for mine, other in zip(held[1:], alone[1:], strict=True):
        np.testing.assert_allclose(mine.data, other.data, rtol=1e-12)
    assert list(optimizer.slots) == ["first_moment", "second_moment"]


def test_others_may_be_another_optimizer_with_groups() -> None:
    held, alone = (parameters((4, 3), (3,), (3, 2)) for _ in range(2))

    def of_others(given: list[Parameter]) -> optim.SGD:
        groups = [
            {"params": given[1], "lr": 0.5, "weight_decay": 0.01},
            {"params": given[2], "lr": 0.25, "weight_decay": 0.0},
        ]
        return optim.SGD(groups, 0.5, momentum=0.85, nesterov=True)

    muon = optim.Muon(held[:1], 0.24, others=of_others(held))
    sgd, matrices = of_others(alone), optim.Muon(alone[:1], 0.24)
    for step, lr in enumerate((0.24, 0.12, 0.06)):
        give(held, step)
        for mine, other in zip(held, alone, strict=True):
            other.grad = mine.grad
        muon.step(lr)
        sgd.step(0.5 * lr / 0.24)
        matrices.step(lr)
    for mine, other in zip(held, alone, strict=True):
        np.testing.assert_allclose(mine.data, other.data, rtol=1e-14)
    assert [group.is_other for group in muon.spec.groups] == [False, True, True]
    assert [group.lr for group in muon.spec.groups] == [0.24, 0.5, 0.25]
    assert list(muon.slots) == ["velocity"]


def test_groups_have_rates_and_decays_of_their_own() -> None:
    held, alone = (parameters((4, 3), (3, 2), (2,)) for _ in range(2))
    groups = [
        {"params": held[:1], "lr": 0.1},
        {"params": held[1:], "lr": 0.2, "weight_decay": 0.5},
    ]
    together = optim.Muon(groups, 0.1)
    apart = [optim.Muon(alone[:1], 0.1), optim.Muon(alone[1:], 0.2, weight_decay=0.5)]
    for step in range(3):
        give(held, step)
        for mine, other in zip(held, alone, strict=True):
            other.grad = mine.grad
        for optimizer in (together, *apart):
            optimizer.step()
    for mine, other in zip(held, alone, strict=True):
        np.testing.assert_allclose(mine.data, other.data, rtol=1e-12)


def test_matrices_alone_are_one_group() -> None:
    optimizer = optim.Muon(parameters((4, 3), (2, 2)))
    assert optimizer.spec.groups == ()
    assert optimizer.spec.others is None
    assert list(optimizer.make_slots()) == ["average"]


# -- settings
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 1.0}, r"muon: expected momentum in \[0, 1\), got 1.0"),
        ({"weight_decay": -1.0}, "muon: expected weight_decay of at least 0, got -1.0"),
        ({"ns_steps": 0}, r"muon: expected ns_steps in \[1, 100\), got 0"),
        ({"ns_steps": 2.5}, "muon: expected ns_steps to be an integer, got 2.5"),
        ({"adjust_lr_fn": "adam"}, "muon: expected adjust_lr_fn among original, match_rms_adamw"),
        ({"normalize": 1}, "muon: expected normalize to be True or False, got 1"),
        ({"others": "sgd"}, "muon: expected others to be an optimizer, none of Muon's, got .*sgd"),
    ],
)
def test_refuses_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        optim.Muon(parameters((4, 3)), **settings)


def test_refuses_others_that_do_not_fit() -> None:
    matrix, bias, own = parameters((4, 3), (3,), (2, 2))
    with pytest.raises(
        ConfigError, match=r"at least two axes beside others, got one of shape \(3,"
    ):
        optim.Muon([matrix, bias], others=optim.SGD([own]))
    with pytest.raises(ConfigError, match="others over further parameters, got one of its own"):
        optim.Muon([matrix], others=optim.SGD([bias, matrix]))
    with pytest.raises(ConfigError, match=r"a number as the rate of others, .* got Cosine"):
        optim.Muon([matrix], others=optim.SGD([bias], optim.Cosine(0.1)))
    with pytest.raises(ConfigError, match="others without clip_norm and l2"):
        optim.Muon([matrix], others=optim.SGD([bias], 0.1, clip_norm=1.0))
    with pytest.raises(ConfigError, match="none of Muon's, got Muon"):
        optim.Muon([matrix], others=optim.Muon([own]))
    with pytest.raises(ConfigError, match=r"an lr above 0, .* others is a multiple, got 0"):
        optim.Muon([matrix], 0.0, others=optim.SGD([bias], 0.1))


def test_specs_are_values_that_json_takes() -> None:
    one, other = (optim.Muon(parameters((4, 3), (3,))).spec for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    described = json.loads(json.dumps(one.to_dict()))
    assert (described["kind"], described["others"]["kind"]) == ("muon", "adam")
    assert ["is_other" in group for group in described["groups"]] == [False, True]
    assert isinstance(one, MuonSpec)
    assert not one.follows_its_rule


# -- runs
# --------------------------------------------------------------------------------------------------


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8, seed=1), nn.ReLU(), nn.Linear(8, 3, seed=2))


def test_state_goes_on_from_a_copy() -> None:
    one, other = network(), network()
    first, second = optim.Muon(one.parameters()), optim.Muon(other.parameters())
    for step in range(3):
        give(one.parameters(), step)
        first.step()
    other.load_state_dict(one.state_dict())
    second.load_state_dict(first.state_dict())
    for model, optimizer in ((one, first), (other, second)):
        give(model.parameters(), 9)
        optimizer.step()
    assert_same_weights(one, other)


def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(tmp_path: Path) -> None:
    x, y = blobs(60)
    whole, halves = network(), network()
    settings: dict[str, Any] = {"batch_size": 16, "verbose": False, "device": "cpu"}
    schedule = optim.Step(0.01, every=2)
    wf.fit(whole, x, y, optimizer=optim.Muon(whole.parameters(), schedule), epochs=4, **settings)
    saved = [wf.Checkpoint(tmp_path / "state.safetensors")]
    optimizer = optim.Muon(halves.parameters(), schedule)
    wf.fit(halves, x, y, optimizer=optimizer, epochs=2, callbacks=saved, **settings)
    again = network()
    wf.fit(
        again,
        x,
        y,
        optimizer=optim.Muon(again.parameters(), schedule),
        epochs=4,
        resume_from=tmp_path / "state.safetensors",
        **settings,
    )
    assert_same_weights(whole, again)


def test_it_learns() -> None:
    x, y = blobs(120)
    model = network()
    settings: dict[str, Any] = {"epochs": 40, "batch_size": 8, "verbose": False, "device": "cpu"}
    history = wf.fit(model, x, y, optimizer=optim.Muon(model.parameters(), 0.02), **settings)
    assert history["accuracy"][-1] > 0.9
    by_name = wf.fit(network(), x, y, optimizer="muon", **settings)
    assert by_name["loss"][-1] < by_name["loss"][0]
