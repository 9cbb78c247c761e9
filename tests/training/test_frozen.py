"""Parameters with requires_grad=False: nothing that trains moves them, and what is kept of them
stays too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.sweeps import build
from support.training import Taped, adam, assert_same_weights, blobs, mlp, sgd
from warpfit import losses, nn, optim
from warpfit.errors import ConfigError
from warpfit.nn import Module
from warpfit.random import seeded
from warpfit.training.lbfgs import fit_lbfgs

X, LABELS = blobs(48)
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")


def frozen(model: Module, *names: str) -> Module:
    """Return the model with the parameters of these names frozen."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name not in names
    return model


def moved(model: Module, before: dict[str, Any]) -> set[str]:
    """Return the names of the arrays that are not as they were."""
    return {
        name
        for name, array in model.state_dict().items()
        if not np.array_equal(array, before[name])
    }


def fit(model: Module, optimizer: Any = None, **settings: Any) -> wf.History:
    asked = {
        "epochs": 3,
        "batch_size": 16,
        "seed": 5,
        "device": "cpu",
        "verbose": False,
        **settings,
    }
    return wf.fit(model, X, LABELS, optimizer=optimizer or adam(model), **asked)


def with_momentum(model: Module) -> optim.Optimizer:
    return sgd(model, momentum=0.9, weight_decay=0.1)


OPTIMIZERS: dict[str, Callable[[Module], optim.Optimizer]] = {
    "sgd": sgd,
    "momentum and decay": with_momentum,
    "adamw": lambda model: optim.AdamW(model.parameters(), 0.01, weight_decay=0.1),
    "clipped": lambda model: adam(model, clip_norm=0.1),
    "penalized": lambda model: adam(model, l2=0.1),
}


# -- fit
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("still", [("0.weight", "0.bias"), ("2.weight",), ("0.bias", "2.bias")])
@pytest.mark.parametrize("wrap", [lambda model: model, Taped])
def test_the_rest_trains_as_if_the_optimizer_held_it_alone(
    name: str, still: Any, wrap: Any
) -> None:
    model, other = wrap(mlp(6, 8, 3)), wrap(mlp(6, 8, 3))
    prefix = "inner." if isinstance(model, Taped) else ""
    names = {prefix + each for each in still}
    before = model.state_dict()
    history = fit(frozen(model, *names), OPTIMIZERS[name](model))
    assert (
        set(history.plan.trained)
        == moved(model, before)
        == {prefix + each for each in NAMES} - names
    )
    alone = OPTIMIZERS[name](other)
    alone.parameters = [
        parameter for own, parameter in other.named_parameters() if own not in names
    ]
    fit(other, alone)
    assert_same_weights(model, other)


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("still", [("0.weight", "0.bias"), ("2.weight",), ("0.bias",)])
@pytest.mark.parametrize("engine", ["layerwise", "graph"])
def test_on_a_device(cuda: str, engine: str, still: Any, precision: str) -> None:
    model = frozen(mlp(6, 8, 3), *still)
    before = model.state_dict()
    optimizer = optim.AdamW(model.parameters(), 0.01, weight_decay=0.1)
    fit(model, optimizer, device=cuda, engine=engine, precision=precision)
    assert moved(model, before) == set(NAMES) - set(still)


def test_a_kernel_of_whole_runs_says_that_it_trains_all(cuda: str) -> None:
    model = frozen(mlp(6, 8, 3), "0.weight")
    history = fit(model, device=cuda)
    assert history.plan.engine == "graph"
    assert "every parameter to be trained" in history.plan.reason
    with pytest.raises(
        ConfigError, match=r"every parameter to be trained, got 3 of 4 .*engine='graph' trains some"
    ):
        fit(model, device=cuda, engine="one_launch")


def test_what_is_kept_of_a_frozen_parameter_stays_and_goes_on_with_it() -> None:
    model, whole = mlp(6, 8, 3), mlp(6, 8, 3)
    optimizer, of_whole = adam(model), adam(whole)
    for each in ((model, optimizer), (whole, of_whole)):
        fit(*each, epochs=1)
    kept = optimizer.state_dict()["slots"]
    fit(frozen(model, "0.bias", "2.weight"), optimizer, epochs=1)
    slots = optimizer.state_dict()["slots"]
    for slot, arrays in slots.items():
        same = [np.array_equal(array, old) for array, old in zip(arrays, kept[slot], strict=True)]
        assert same == [False, True, True, False]
    before = model.state_dict()
    fit(frozen(model), optimizer, epochs=1)
    assert moved(model, before) == set(NAMES)
    assert optimizer.step_count == 9


def test_buffers_of_a_frozen_layer_move_as_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    model = nn.Sequential(
        nn.Linear(6, 8, seed=0, dtype="float64"),
        nn.BatchNorm1d(8, dtype="float64"),
        nn.Linear(8, 3, seed=1, dtype="float64"),
    )
    theirs = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)
    ).double()
    for ours, its in ((model[0], theirs[0]), (model[2], theirs[2])):
        its.weight.data, its.bias.data = (
            torch.tensor(ours.weight.data.T.copy()),
            torch.tensor(ours.bias.data.copy()),
        )
    frozen(model, "0.weight", "0.bias", "1.bias")
    for tensor in (theirs[0].weight, theirs[0].bias, theirs[1].bias):
        tensor.requires_grad = False
    fit(
        model,
        optim.AdamW(model.parameters(), 0.01, weight_decay=0.1),
        shuffle=False,
        precision="float64",
    )
    updates = torch.optim.AdamW(theirs.parameters(), 0.01, weight_decay=0.1)
    for _ in range(3):
        for start in range(0, 48, 16):
            batch = torch.tensor(X[start : start + 16], dtype=torch.float64)
            loss = torch.nn.functional.cross_entropy(
                theirs(batch), torch.tensor(LABELS[start : start + 16])
            )
            updates.zero_grad()
            loss.backward()
            updates.step()
    np.testing.assert_allclose(model[2].weight.data, theirs[2].weight.detach().numpy().T, rtol=1e-9)
    np.testing.assert_allclose(model[1].weight.data, theirs[1].weight.detach().numpy(), rtol=1e-9)
    for name in ("running_mean", "running_var"):
        np.testing.assert_allclose(
            vars(model[1])[name].data, getattr(theirs[1], name).numpy(), rtol=1e-9
        )


def test_copies_are_as_frozen() -> None:
    model = frozen(mlp(6, 8, 3), "0.weight")
    other = copy.deepcopy(model)
    before = other.state_dict()
    fit(other)
    assert moved(other, before) == set(NAMES) - {"0.weight"}


def test_a_model_with_nothing_to_train_is_refused() -> None:
    model = frozen(mlp(6, 8, 3), *NAMES)
    with pytest.raises(
        ConfigError, match="all 4 parameters of the optimizer have requires_grad=False"
    ):
        fit(model)


def test_a_checkpoint_of_other_parameters_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    fit(mlp(6, 8, 3), epochs=2, callbacks=[wf.Checkpoint(path)])
    with pytest.raises(ConfigError, match="differs in trained"):
        fit(frozen(mlp(6, 8, 3), "0.weight"), resume_from=path)


def test_a_frozen_run_resumes(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    whole, half = (frozen(mlp(6, 8, 3), "0.weight") for _ in range(2))
    fit(half, epochs=2, callbacks=[wf.Checkpoint(path)])
    resumed = frozen(mlp(6, 8, 3), "0.weight")
    fit(resumed, epochs=4, resume_from=path)
    fit(whole, epochs=4)
    assert_same_weights(resumed, whole)


# -- other ways to train
# -------------------------------------------------------------------------------------


def half_frozen(candidate: dict[str, Any]) -> tuple[Module, optim.Optimizer]:
    model, optimizer = build(candidate)
    return frozen(model, "0.weight", "0.bias"), optimizer


def assert_half_moves(device: str) -> None:
    settings = {
        "grid": {"lr": [0.1, 0.2]},
        "epochs": 2,
        "batch_size": 16,
        "n_jobs": 1,
        "device": device,
    }
    found = wf.fit_many(half_frozen, X, LABELS, **settings, verbose=False)
    for candidate, model in zip(found.candidates, found.models, strict=True):
        with seeded(0):
            start, _ = half_frozen(candidate)
        assert moved(model, start.state_dict()) == {"2.weight", "2.bias"}


def test_many_networks() -> None:
    assert_half_moves("cpu")


def test_many_networks_on_a_device(cuda: str) -> None:
    assert_half_moves(cuda)


def test_lbfgs() -> None:
    model = frozen(mlp(6, 8, 3, dtype="float64"), "0.weight", "2.bias")
    before = model.state_dict()
    result = fit_lbfgs(model, X, LABELS, loss="cross_entropy", l2=0.1, max_iterations=20)
    assert moved(model, before) == {"0.bias", "2.weight"}
    assert result.loss < losses.SoftmaxCrossEntropy()(mlp(6, 8, 3, dtype="float64")(X), LABELS)
    with pytest.raises(ConfigError, match="requires_grad=False"):
        fit_lbfgs(frozen(model, *NAMES), X, LABELS, loss="cross_entropy")


@pytest.mark.parametrize("name", ["momentum and decay", "adamw"])
@pytest.mark.parametrize("style", ["explicit", "tape"])
def test_loops_of_ones_own(style: str, name: str) -> None:
    model = mlp(6, 8, 3)
    optimizer, loss = OPTIMIZERS[name](model), losses.SoftmaxCrossEntropy()

    def step() -> None:
        if style == "explicit":
            _, gradient = loss.forward_and_grad(nn.forward(model, X), LABELS)
            nn.backward(model, gradient)
        else:
            loss(model(wf.Tensor(X)), LABELS).backward()
        optimizer.step()

    step()
    frozen(model, "0.weight")  # its gradient, and what the optimizer keeps of it, are still there
    before = model.state_dict()
    step()
    step()
    assert moved(model, before) == set(NAMES) - {"0.weight"}
    frozen(model)
    step()
    assert moved(model, before) == set(NAMES)
