"""The values that engines share."""

from __future__ import annotations

import json

import numpy as np

from support.training import adam, mlp
from warpfit import backends, losses, nn, optim
from warpfit.engines.base import EpochReport, Plan, TrainState
from warpfit.training.state import state_of


def make_plan(**changes: object) -> Plan:
    settings: dict[str, object] = {
        "engine": "layerwise",
        "device": "cpu",
        "precision": "float32",
        "network": mlp(4, 3).spec((4,)),
        "loss": losses.SoftmaxCrossEntropy(0.1, (1.0, 2.0, 3.0)),
        "optimizer": optim.SGD(mlp(4, 3).parameters(), optim.Cosine(0.1)).spec,
        "batch_size": 8,
        "epochs": 2,
        "trained": ("0.weight", "0.bias"),
    }
    return Plan(**{**settings, **changes})  # type: ignore[arg-type]


def test_a_plans_identity_is_json_and_leaves_out_length_size_and_reason() -> None:
    plan = make_plan()
    assert make_plan(epochs=9, bytes=5, reason="why not").identity() == plan.identity()
    assert json.loads(json.dumps(plan.identity()))["optimizer"]["lr"]["name"] == "cosine"


def test_which_of_some_epochs_are_reported() -> None:
    for epochs, every, start, stop in (
        (9, 1, 0, 9),
        (9, 4, 0, 9),
        (9, 4, 4, 8),
        (8, 4, 3, 8),
        (9, 20, 2, 9),
        (9, 2, 5, 5),
    ):
        plan = make_plan(epochs=epochs, report_every=every)
        expected = [epoch for epoch in range(start, stop) if plan.reports(epoch + 1)]
        assert [*plan.reported(range(start, stop))] == expected


def test_a_plans_identity_tells_apart_what_decides_the_numbers() -> None:
    plan = make_plan()
    changes = {
        "engine": "graph",
        "device": "cuda",
        "precision": "float64",
        "network": mlp(4, 5, 3).spec((4,)),
        "loss": losses.SoftmaxCrossEntropy(),
        "optimizer": optim.SGD(mlp(4, 3).parameters(), 0.1).spec,
        "batch_size": 9,
        "trained": ("0.weight",),
        "shuffle": False,
        "loss_scale": 512.0,
    }
    for name, value in changes.items():
        differing = [
            key
            for key, part in make_plan(**{name: value}).identity().items()
            if part != plan.identity()[key]
        ]
        assert differing == [name]


def test_a_state_is_copied_in_every_number() -> None:
    model = mlp(4, 3)
    ops = backends.get("cpu")
    state = state_of(model, adam(model), ops, "float32", seed=3)
    copy = state.copy(ops)
    for array in (
        *state.arrays.values(),
        *(a for slot in state.slots.values() for a in slot.values()),
    ):
        array += 1
    state.step += 1
    assert (copy.step, copy.seed) == (0, 3)
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(copy.parameters[name], parameter.data)
        assert not copy.slots["first_moment"][name].any()


def test_state_arrays_are_parameters_and_buffers() -> None:
    state = TrainState({"w": np.ones(1)}, {"mean": np.zeros(1)}, {}, step=0, epoch=0, seed=0)
    assert list(state.arrays) == ["w", "mean"]


def test_samples_per_second() -> None:
    def report(seconds: float) -> EpochReport:
        return EpochReport(1, 0.5, None, 0.1, seconds, 100, np.zeros(2))

    assert report(0.5).samples_per_second == 200
    assert report(0.0).samples_per_second == 0
    assert "step_losses" not in repr(report(1.0))


def test_a_taped_network_is_described_by_its_modules() -> None:
    model = mlp(4, 3)
    taped = nn.taped.TapedNetwork(model, (4,))
    assert make_plan(network=taped).identity()["network"]["module"] == repr(model)
