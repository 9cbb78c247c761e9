"""Networks of a sweep that a GPU trains in one launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.sweeps import build
from support.training import assert_same_weights, blobs
from warpfit.backends.cuda.many_networks_sm90 import ManyClusters, with_shared_slices
from warpfit.engines import many_networks
from warpfit.sweep import together

X, Y = blobs(90)
CANDIDATES: list[dict[str, Any]] = [
    {"lr": 0.05, "seed": 1},
    {"lr": 0.3, "seed": 2, "epochs": 2},
    {"lr": 0.1, "seed": 1, "width": 4},
    {"lr": 0.02, "optimizer": "adam"},
]


def sweep(cuda: str, candidates: Any = CANDIDATES, **arguments: Any) -> wf.Sweep:
    given = {"epochs": 3, "batch_size": 16, "device": cuda, "verbose": False, **arguments}
    return wf.fit_many(build, X, Y, candidates=candidates, **given)


def test_each_has_the_bits_that_it_has_alone(cuda: str) -> None:
    folds = [(np.arange(60), np.arange(60, 90)), (np.arange(30, 90), np.arange(30))]
    found = sweep(cuda, folds=folds)
    assert "in one launch, a network in each block" in str(found.plan)
    assert {record["status"] for record in found} == {"done"}
    alone = sweep(cuda, CANDIDATES[1:2], folds=folds)
    for fold in (0, 1):
        assert_same_weights(found.models[2 + fold], alone.models[fold])
        assert found.records[2 + fold]["val_loss"] == alone.records[fold]["val_loss"]
    assert found.records[2]["epochs"] == 2


def test_waves_share_the_rows_of_one_upload(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads, launches = [], []

    class Counted(together.DeviceRows):
        def __init__(self, *arguments: Any) -> None:
            uploads.append(self)
            super().__init__(*arguments)

    def counted(members: Any, rows: Any) -> Any:
        launches.append(len(members))
        return launch(members, rows)

    candidates, folds = [{"lr": lr} for lr in (0.02, 0.1)], [(np.arange(60), np.arange(60, 90))]
    at_once, launch = sweep(cuda, candidates, folds=folds), together.train_many
    monkeypatch.setattr(together, "DeviceRows", Counted)
    monkeypatch.setattr(together, "train_many", counted)
    monkeypatch.setattr(together.Together, "_most", lambda self, shape: 1)
    in_waves = sweep(cuda, candidates, folds=folds)
    assert (len(uploads), launches) == (1, [1, 1])
    for one, other in zip(in_waves.models, at_once.models, strict=True):
        assert_same_weights(one, other)


def test_they_come_out_as_on_the_cpu(cuda: str) -> None:
    validation = X[:20], Y[:20]
    here, there = (sweep(device, validation_data=validation) for device in ("cpu", cuda))
    for name in ("loss", "val_loss", "accuracy", "val_accuracy"):
        np.testing.assert_allclose([r[name] for r in there], [r[name] for r in here], rtol=0.02, atol=0.02)
    for expected, got in zip(here.histories, there.histories, strict=True):
        assert expected["lr"] == got["lr"]


def test_one_that_diverges_leaves_the_others_alone(cuda: str) -> None:
    found = sweep(cuda, [{"lr": 0.1}, {"lr": 1e30}, {"lr": 0.1}])
    assert [record["status"] for record in found] == ["done", "diverged", "done"]
    assert "diverged in epoch 1" in found.records[1]["message"] or "not finite" in found.records[1]["message"]
    assert_same_weights(found.models[0], found.models[2])


def test_a_pause_changes_no_bit(cuda: str) -> None:
    candidates = [{"lr": lr, "optimizer": "adam"} for lr in (0.003, 0.01, 0.03, 0.1)]
    through, halved = sweep(cuda, candidates), sweep(cuda, candidates, halving=2)
    assert sorted(record["epochs"] for record in halved) == [1, 1, 2, 3]
    best = next(idx for idx, record in enumerate(halved) if record["epochs"] == 3)
    assert_same_weights(halved.models[best], through.models[best])
    assert halved.histories[best]["loss"] == through.histories[best]["loss"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"engine": "graph"}, "engine 'graph' was asked for"),
        ({"callbacks": [wf.EarlyStopping("loss", patience=1)], "report_every": 2}, "callbacks"),
        ({"precision": "float32"}, "expected at most"),
        ({"class_weight": {0: 1.0, 1: 2.0, 2: 1.0}}, "weights of classes"),
    ],
    ids=["engine", "callback", "precision", "weights"],
)
def test_what_no_launch_takes_is_trained_one_after_the_other(cuda: str, arguments: Any, why: str) -> None:
    found = sweep(cuda, CANDIDATES[:2], **arguments)
    assert "one after the other by `fit`: " in found.plan.reason
    assert why in found.plan.reason
    assert {record["status"] for record in found} <= {"done", "stopped"}


STOPPING: list[tuple[dict[str, Any], int | None]] = [
    ({"monitor": "loss", "patience": 1, "min_delta": 0.05, "restore_best": False}, None),
    ({"monitor": "val_accuracy", "patience": 2}, None),
    ({"monitor": "val_loss", "patience": 1, "restore_best": False}, None),
    ({"monitor": "val_loss", "patience": 1, "min_delta": 0.02}, 2),
]


# Clusters where a network has one hidden layer, blocks elsewhere.
@pytest.mark.parametrize(
    ("settings", "halving"), STOPPING, ids=["loss", "accuracy", "last weights", "halving"]
)
@pytest.mark.parametrize("cluster", [None, 1, 2])
def test_each_is_stopped_as_the_callback_says(
    cuda: str,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    halving: int | None,
    cluster: int | None,
) -> None:
    if cluster is not None:
        monkeypatch.setattr(
            many_networks, "shape_of", lambda network, _: with_shared_slices(ManyClusters(network, cluster))
        )
    candidates = [{"lr": lr, "seed": seed} for seed, lr in enumerate((0.5, 0.02, 0.2))]
    given: dict[str, Any] = {"epochs": 8, "validation_data": (X[:30], Y[:30]), "halving": halving}
    through = sweep(cuda, candidates, **given)
    stopped = sweep(cuda, candidates, callbacks=[wf.EarlyStopping(**settings)], **given)
    assert "in one launch" in str(stopped.plan)
    assert "stopped" in {record["status"] for record in stopped}
    for record, history, model, whole in zip(
        stopped, stopped.histories, stopped.models, through.histories, strict=True
    ):
        if record["status"] == "done" or "halving" in record["message"]:
            continue
        watched = history[settings["monitor"]]
        assert record["message"].startswith(f"early stopping: no better {settings['monitor']}")
        assert watched == whole[settings["monitor"]][: len(watched)]
        # Rounding of 16-bit numbers apart, the weights are those of the epoch that the record tells of.
        assert abs(wf.evaluate(model, X[:30], Y[:30]).loss - record["val_loss"]) <= 0.02
        best = int(record["message"].split("(epoch ")[1].rstrip(")")) - 1
        told = history["val_loss"].index(record["val_loss"])
        assert told == (best if settings.get("restore_best", True) else len(watched) - 1)
