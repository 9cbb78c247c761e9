from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.sweeps import ARGUMENTS, build
from support.training import Taped, mlp, sgd
from warpfit import losses, nn
from warpfit.engines.base import Plan
from warpfit.errors import ConfigError, ShapeError
from warpfit.sweep.folds import SweepData
from warpfit.sweep.groups import network_name
from warpfit.sweep.planning import affordable, describe, memory_left, plan_groups
from warpfit.sweep.tasks import Task, draft_of_task

DATA = SweepData(np.ones((30, 6), np.float32), np.arange(30) % 3)


def task(number: int, candidate: dict[str, Any], **arguments: Any) -> Task:
    model, optimizer = build(candidate)
    return Task(number, model, optimizer, DATA, None, {**ARGUMENTS, **arguments})


def num_groups(*tasks: Task) -> int:
    return len(plan_groups(tasks))


def test_numbers_that_a_kernel_takes_do_not_part_networks() -> None:
    tasks = [
        task(0, {"lr": 0.1, "momentum": 0.5, "dropout": 0.1}, seed=1),
        task(1, {"lr": 0.2, "momentum": 0.9, "dropout": 0.0}, seed=2, epochs=7),
    ]
    (group,) = plan_groups(tasks)
    assert group.tasks == tuple(tasks)
    assert group.title == "6-8-3 relu dropout, sgd, cross_entropy, batch 8"
    assert group.plan.engine == "layerwise"
    assert group.plan.bytes > 0


@pytest.mark.parametrize(
    ("candidate", "arguments"),
    [
        ({"width": 16}, {}),
        ({"optimizer": "adam"}, {}),
        ({"momentum": 0.9}, {}),
        ({"weight_decay": 0.1}, {}),
        ({"dropout": 0.5}, {}),
        ({}, {"batch_size": 16}),
        ({}, {"loss": losses.SoftmaxCrossEntropy(0.1)}),
        ({}, {"precision": "float64"}),
        ({}, {"shuffle": False}),
    ],
)
def test_what_a_kernel_has_as_a_constant_parts_networks(candidate: Any, arguments: Any) -> None:
    assert num_groups(task(0, {}), task(1, {}), task(2, candidate, **arguments)) == 2


def test_each_task_has_the_plan_that_it_has_alone() -> None:
    tasks = [task(number, {"lr": 0.1 + number}) for number in range(2)]
    tasks += [task(2, {"width": 9}), task(3, {}, epochs=7, seed=3), task(4, {}, batch_size=4)]
    drafts: dict[int, Plan] = {}
    for group in plan_groups(tasks):
        drafts.update(group.drafts)
    for own in tasks:
        assert drafts[own.number] == draft_of_task(own, own.model, own.optimizer, DATA.x)


def test_errors_are_fits_with_the_candidate_named() -> None:
    model = mlp(5, 3)
    wrong = Task(1, model, sgd(model), DATA, None, ARGUMENTS)
    with pytest.raises(ShapeError, match="candidate width=5: "):
        plan_groups([task(0, {}), wrong], ["lr=1", "width=5"])
    with pytest.raises(ConfigError, match="candidate b: engine 'one_launch'"):
        plan_groups([task(0, {}), task(1, {}, engine="one_launch")], ["a", "b"])


def test_networks_in_words() -> None:
    images = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten())
    assert network_name(images.spec((8, 8, 1))) == "2 layers on 8×8×1"
    assert network_name(mlp(6, 4, 3).spec((6,))) == "6-4-3 relu"
    model = Taped(mlp(6, 3))
    (group,) = plan_groups([Task(0, model, sgd(model), DATA, None, ARGUMENTS)])
    assert group.title.startswith("a module of one's own, sgd")


def test_a_plan_says_how_many_how_and_in_how_many_waves() -> None:
    groups = plan_groups([task(number, {"width": 8 + number % 2}) for number in range(6)])
    sizes = {"num_candidates": 3, "num_folds": 2, "at_once": 4, "num_bytes": 3 << 20}
    plan = describe(groups, device="cpu", reason="by hand", **sizes)
    assert (plan.num_networks, plan.waves) == (6, 2)
    assert str(plan).splitlines() == [
        "6 networks (3 candidates × 2 folds) on cpu: by hand; 2 waves of 4, 3 MiB",
        "  6-8-3 relu, sgd, cross_entropy, batch 8: 3 networks, layerwise in float32",
        "  6-9-3 relu, sgd, cross_entropy, batch 8: 3 networks, layerwise in float32",
    ]


def test_memory_decides_over_the_number_of_processes() -> None:
    mib = 2**20
    assert affordable(8, 100 * mib, 2000 * mib) == (8, "")
    assert affordable(8, 100 * mib, None) == (8, "")
    fits, why = affordable(8, 100 * mib, 500 * mib)
    assert fits == 4
    assert why == "8 would take 800 MiB, and 400 are to be had"
    assert affordable(8, 100 * mib, 10 * mib)[0] == 1
    left = memory_left()
    assert left is None or left > 0
