"""Parameter groups: PyTorch's param_groups in every step, the same bits on engines that take
them.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import Taped, assert_same_weights, blobs, mlp
from warpfit import losses, nn, optim
from warpfit.errors import ConfigError
from warpfit.nn import Parameter
from warpfit.optim.groups import ParameterGroup

X, LABELS = blobs(60)
Make = Callable[..., optim.Optimizer]

# Of ours and of PyTorch's optimizers, by the same name.
SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.1},
    "Adam": {"weight_decay": 0.1},
    "AdamW": {"weight_decay": 0.1},
    "RMSprop": {"weight_decay": 0.1},
    "Adagrad": {"weight_decay": 0.1},
    "Adadelta": {"weight_decay": 0.1},
    "NAdam": {"weight_decay": 0.1},
}


def split(model: nn.Module, **decay: float) -> list[dict[str, Any]]:
    """Return the parameters of a perceptron in groups: each layer's weights, all biases."""
    return in_groups(model.parameters(), **decay)


def in_groups(parameters: Any, **decay: float) -> list[dict[str, Any]]:
    first, first_bias, last, last_bias = parameters
    return [
        {"params": [last], "lr": 0.05},
        {"params": first},
        {"params": iter([first_bias, last_bias]), "lr": 0.002, "weight_decay": 0.0, **decay},
    ]


def adamw(model: nn.Module, **settings: Any) -> optim.AdamW:
    return optim.AdamW(split(model), **{"lr": optim.Cosine(0.01), **settings})


def fit(model: nn.Module, optimizer: Any = None, **settings: Any) -> wf.History:
    asked = {"epochs": 3, "batch_size": 16, "seed": 5, "verbose": False, **settings}
    return wf.fit(model, X, LABELS, optimizer=optimizer or adamw(model), **asked)


# -- PyTorch's
# --------------------------------------------------------------------------------------------------


def torch_model(torch: Any, ours: nn.Sequential) -> Any:
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    for idx in (0, 2):
        theirs[idx].weight.data = torch.tensor(ours[idx].weight.data.T.copy())
        theirs[idx].bias.data = torch.tensor(ours[idx].bias.data.copy())
    return theirs


def torch_weights(theirs: Any) -> list[Any]:
    return [p.detach().numpy().T if p.ndim > 1 else p.detach().numpy() for p in theirs.parameters()]


@pytest.fixture
def torch() -> Iterator[Any]:
    """Return PyTorch, whose optimizers count in float32 unless numbers are float64 by default."""
    found = pytest.importorskip("torch")
    before = found.get_default_dtype()
    found.set_default_dtype(found.float64)
    yield found
    found.set_default_dtype(before)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("name", SETTINGS)
def test_runs_are_pytorchs(torch: Any, cuda: str, name: str, clip_norm: float | None) -> None:
    models = [mlp(6, 8, 3, dtype="float64") for _ in range(2)]
    theirs = torch_model(torch, models[0])
    settings = {"lr": 0.01, **SETTINGS[name]}
    for model, device in zip(models, ("cpu", cuda), strict=True):
        ours = getattr(optim, name)(split(model), clip_norm=clip_norm, **settings)
        fit(model, ours, device=device, shuffle=False, epochs=2)
    reference = getattr(torch.optim, name)(in_groups(theirs.parameters()), **settings)
    x, labels = torch.tensor(X.astype("f8")), torch.tensor(LABELS)
    for first in [*range(0, 60, 16)] * 2:
        reference.zero_grad()
        rows = slice(first, first + 16)
        torch.nn.functional.cross_entropy(theirs(x[rows]), labels[rows]).backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm)
        reference.step()
    for model in models:
        for one, other in zip(model.state_dict().values(), torch_weights(theirs), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


def test_lion_which_pytorch_does_not_have() -> None:
    model, alone = mlp(6, 8, 3), mlp(6, 8, 3)
    fit(model, optim.Lion(split(model), 0.01, weight_decay=0.1), epochs=1, batch_size=60)
    for parameter, lr, decay in zip(
        alone.parameters(), (0.01, 0.002, 0.05, 0.002), (0.1, 0.0, 0.1, 0.0), strict=True
    ):
        before = copy.deepcopy(alone)
        fit(
            before, optim.Lion(before.parameters(), lr, weight_decay=decay), epochs=1, batch_size=60
        )
        place = [each is parameter for each in alone.parameters()].index(True)
        np.testing.assert_array_equal(
            model.parameters()[place].data, before.parameters()[place].data
        )


def test_a_loop_of_ones_own_steps_as_fit_does() -> None:
    model, other = mlp(6, 8, 3), mlp(6, 8, 3)
    optimizers = [adamw(each, lr=0.01) for each in (model, other)]
    fit(model, optimizers[0], shuffle=False)
    loss = losses.SoftmaxCrossEntropy()
    for x, y in 3 * list(wf.data.DataLoader(X, LABELS, batch_size=16, shuffle=False)):
        optimizers[1].zero_grad()
        loss(other(wf.tensor(x)), y).backward()
        optimizers[1].step()
    assert_same_weights(model, other)


def test_a_rate_given_to_step_scales_all_groups() -> None:
    parameters = [Parameter(np.array([1.0])), Parameter(np.array([1.0]))]
    optimizer = optim.SGD(
        [{"params": parameters[0], "lr": 0.3}, {"params": parameters[1]}], optim.Cosine(0.1)
    )
    for parameter in parameters:
        parameter.grad = np.array([1.0])
    optimizer.step(0.2)
    assert [float(parameter.data[0]) for parameter in parameters] == pytest.approx([0.4, 0.8])


def test_schedules_scale_all_groups_alike() -> None:
    model, halved = mlp(6, 8, 3), mlp(6, 8, 3)
    groups = split(halved)
    for group in groups:
        group["lr"] = group.get("lr", 0.01) / 2
    schedule = optim.Step(0.01, every=1, factor=0.5)
    fit(model, optim.SGD(split(model), schedule), epochs=2)
    first = optim.SGD(split(halved), 0.01)
    x, y = X, LABELS
    wf.fit(halved, x, y, optimizer=first, epochs=1, batch_size=16, seed=5, verbose=False)
    second = optim.SGD(groups, 0.005)
    order = wf.data.order.epoch_order(60, 5, 1)
    wf.fit(
        halved, x[order], y[order], optimizer=second, epochs=1, batch_size=16, shuffle=False,
        verbose=False,
    )  # fmt: skip
    for one, other in zip(model.parameters(), halved.parameters(), strict=True):
        np.testing.assert_allclose(one.data, other.data, rtol=1e-5)


def test_a_network_of_ones_own() -> None:
    model, other = mlp(6, 8, 3), Taped(mlp(6, 8, 3))
    fit(model)
    fit(other, adamw(other))
    assert_same_weights(model, other)


# -- engines
# --------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Make] = {
    "adamw": adamw,
    "momentum": lambda model: optim.SGD(split(model), optim.Cosine(0.1), momentum=0.9),
    "clipped": lambda model: optim.Adam(split(model), 0.01, clip_norm=0.1),
    "penalized": lambda model: optim.Adam(split(model), 0.01, l2=0.1),
}


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("still", [(), ("2.weight", "0.bias")])
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_graph_has_the_bits_of_layerwise(
    cuda: str, name: str, precision: str, still: tuple[str, ...]
) -> None:
    models = [mlp(6, 8, 3), mlp(6, 8, 3)]
    optimizers = [OPTIMIZERS[name](model) for model in models]
    for model, optimizer, engine in zip(models, optimizers, ("layerwise", "graph"), strict=True):
        before = model.state_dict()
        for own, parameter in model.named_parameters():
            parameter.requires_grad = own not in still
        fit(model, optimizer, device=cuda, engine=engine, precision=precision)
        moved = {n for n, a in model.state_dict().items() if not np.array_equal(a, before[n])}
        assert moved == before.keys() - set(still)
    assert_same_weights(*models)
    np.testing.assert_equal(optimizers[0].state_dict(), optimizers[1].state_dict())


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(("sizes", "batch"), [((64, 128, 64, 8), 128), ((16, 32, 8), 512)])
def test_updates_joined_with_products_know_groups(
    cuda: str, sizes: tuple[int, ...], batch: int
) -> None:
    """Weights and biases of a layer are in two groups; wide layers, and a narrow network."""
    x, labels = blobs(2 * batch, sizes[0], sizes[-1])
    models = [mlp(*sizes) for _ in range(3)]
    start = models[0].state_dict()
    settings = {"epochs": 2, "batch_size": batch, "seed": 5, "verbose": False}
    on_device = {"device": cuda, "precision": "float16"}
    for model, where in zip(
        models,
        ({}, {**on_device, "engine": "layerwise"}, {**on_device, "engine": "graph"}),
        strict=True,
    ):
        parameters = model.parameters()
        groups = [{"params": parameters[::2], "lr": 0.5}, {"params": parameters[1::2]}]
        optimizer = optim.SGD(groups, 0.05, momentum=0.9)
        wf.fit(model, x, labels, optimizer=optimizer, **settings, **where)
    assert_same_weights(models[1], models[2])
    for name, expected in models[0].state_dict().items():
        moved, found = expected - start[name], models[1].state_dict()[name] - start[name]
        assert np.linalg.norm(found - moved) < 0.02 * np.linalg.norm(moved), name


def test_auto_takes_graph_and_one_launch_says_why_not(cuda: str) -> None:
    model = mlp(6, 8, 3)
    plan = fit(model, device=cuda).plan
    assert plan.engine == "graph"
    message = "expected one learning rate and weight decay for all parameters, got 3 groups"
    assert message in plan.reason
    with pytest.raises(ConfigError, match=message):
        fit(model, device=cuda, engine="one_launch")


def test_fit_many_trains_them_as_fit_does(cuda: str) -> None:
    def build(candidate: dict[str, Any]) -> tuple[nn.Module, optim.Optimizer]:
        model = mlp(6, 8, 3)
        return model, adamw(model, lr=candidate["lr"])

    for device in ("cpu", cuda):
        settings = {"epochs": 2, "batch_size": 16, "device": device, "verbose": False}
        sweep = wf.fit_many(build, X, LABELS, grid={"lr": [0.01, 0.1]}, n_jobs=1, **settings)
        for record, trained in zip(sweep.records, sweep.models, strict=True):
            model, optimizer = build(record["candidate"])
            fit(model, optimizer, **{**settings, "seed": 0})
            assert_same_weights(model, trained)


# -- values
# --------------------------------------------------------------------------------------------------


def test_settings_as_values() -> None:
    optimizer = adamw(mlp(6, 8, 3))
    assert optimizer.spec.groups == (
        ParameterGroup(1, 0.05, 0.01),
        ParameterGroup(1, 0.01, 0.01),
        ParameterGroup(2, 0.002, 0.0),
    )
    assert "ParameterGroup(size=2, lr=0.002, weight_decay=0.0)" in repr(optimizer)
    assert [p.shape for p in optimizer.parameters] == [(8, 3), (6, 8), (8,), (3,)]
    assert pickle.loads(pickle.dumps(optimizer.spec)) == optimizer.spec
    described = json.loads(json.dumps(optimizer.spec.to_dict()))
    assert described["groups"][2] == {"size": 2, "lr": 0.002, "weight_decay": 0.0}


@pytest.mark.parametrize("own", [{}, {"lr": 0.01}, {"lr": 0.01, "weight_decay": 0.02}])
def test_groups_that_differ_in_nothing_are_none(own: dict[str, float]) -> None:
    model = mlp(6, 8, 3)
    groups = [{"params": [parameter], **own} for parameter in model.parameters()]
    optimizer = optim.AdamW(groups, 0.01, weight_decay=0.02)
    assert optimizer.spec == optim.AdamW(model.parameters(), 0.01, weight_decay=0.02).spec
    assert "groups" not in optimizer.spec.to_dict()


def test_an_optimizer_without_decay_of_ones_own() -> None:
    class Plain(optim.OptimizerSpec):
        def apply(self, ops: Any, parameters: Any, gradients: Any, slots: Any, **now: Any) -> None:
            for w, g in zip(parameters, gradients, strict=True):
                ops.assign(w, ops.binary("sub", w, ops.binary("mul", g, now["lr"])))

    model, other = mlp(6, 8, 3), mlp(6, 8, 3)
    spec = Plain(optim.Constant(0.1))
    halves = [list(model.parameters())[:2], list(model.parameters())[2:]]
    groups = [{"params": halves[0], "lr": 0.2}, {"params": halves[1]}]
    fit(model, optim.Optimizer(groups, spec))
    others = list(other.parameters())
    fit(other, optim.SGD([{"params": others[:2], "lr": 0.2}, {"params": others[2:]}], 0.1))
    for one, two in zip(model.parameters(), others, strict=True):
        np.testing.assert_allclose(one.data, two.data, rtol=1e-5, atol=1e-7)
    with pytest.raises(ConfigError, match="expected nothing but params, lr in group 0 of Plain"):
        optim.Optimizer([{"params": halves[0], "weight_decay": 0.1}], spec)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (lambda p: [{"params": []}], "expected parameters in group 0 of adam, under 'params', got"),
        (lambda p: [{"params": p[:1]}, {"lr": 0.1}], "expected parameters in group 1 of adam"),
        (lambda p: [{"params": p}, {"params": p[:1]}], "expected each parameter once, got one"),
        (
            lambda p: [{"params": p, "momentum": 0.9}],
            "expected nothing but params, lr, weight_decay in group 0 of adam, got momentum",
        ),
        (lambda p: [{"params": p, "lr": -1}], "the lr of group 0 of adam to be a number of at"),
        (lambda p: [{"params": p, "lr": np.inf}], "the lr of group 0 of adam to be finite"),
        (lambda p: [{"params": p, "lr": optim.Cosine(0.1)}], "the lr of group 0 .* got Cosine"),
        (lambda p: [{"params": p, "weight_decay": "no"}], "the weight_decay of group 0 of adam"),
        (lambda p: [{"params": "all"}], "expected the parameters of group 0 of adam, got 'all'"),
        (lambda p: [{"params": np.array(3)}], "expected the parameters of group 0 of adam, got"),
        (lambda p: [{"params": 3}], "expected the parameters of group 0 of adam, got 3"),
        (lambda p: [{"params": [3]}], "adam: expected parameters, got 3"),
        (lambda p: [{"params": p[:1]}, p[1]], "adam: expected groups of parameters after the"),
        (lambda p: [p[1], {"params": p[:1]}], "adam: expected parameters, got dict"),
    ],
)
def test_errors(groups: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        optim.Adam(groups(list(mlp(6, 8, 3).parameters())), 0.01)


def test_no_multiple_of_a_rate_of_0() -> None:
    model = mlp(6, 8, 3)
    with pytest.raises(ConfigError, match="adam: expected an lr above 0, of which"):
        optim.Adam(split(model), 0.0)
    assert optim.Adam([{"params": model.parameters(), "weight_decay": 1.0}], 0.0).spec.groups


# -- runs that go on
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["layerwise", "graph"])
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(
    cuda: str, engine: str, tmp_path: Path
) -> None:
    path, whole, half, resumed = tmp_path / "run", mlp(6, 8, 3), mlp(6, 8, 3), mlp(6, 8, 3)
    settings = {"device": cuda, "engine": engine}
    fit(whole, adamw(whole, lr=0.01), epochs=4, **settings)
    fit(half, adamw(half, lr=0.01), epochs=2, callbacks=[wf.Checkpoint(path)], **settings)
    fit(resumed, adamw(resumed, lr=0.01), epochs=4, resume_from=path, **settings)
    assert_same_weights(whole, resumed)


def plain(model: nn.Module) -> optim.Optimizer:
    return optim.AdamW(adamw(model).parameters, optim.Cosine(0.01))


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (
            adamw,
            lambda model: optim.AdamW(split(model, lr=0.003), optim.Cosine(0.01)),
            r"differs in optimizer.groups\[2\].lr \(0.002 there, 0.003 here\)$",
        ),
        (
            adamw,
            lambda model: optim.AdamW(split(model, weight_decay=1.0), optim.Cosine(0.01)),
            r"differs in optimizer.groups\[2\].weight_decay \(0.0 there, 1.0 here\)$",
        ),
        (adamw, plain, r"differs in optimizer.groups \(\[{'size': 1, .* there, None here\)"),
        (plain, adamw, r"differs in optimizer.groups \(None there, "),
    ],
)
def test_resuming_names_what_differs(first: Make, then: Make, message: str, tmp_path: Path) -> None:
    path, model = tmp_path / "run", mlp(6, 8, 3)
    fit(model, first(model), epochs=1, callbacks=[wf.Checkpoint(path)])
    other = mlp(6, 8, 3)
    with pytest.raises(ConfigError, match=message):
        fit(other, then(other), resume_from=path)
