"""Networks of a sweep that a GPU trains in one launch."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from threading import Barrier, get_ident
from time import sleep
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from conftest import on_emulator
from support.fake_nccl import open_cards
from support.sweeps import build
from support.training import assert_same_weights, blobs
from warpfit import backends
from warpfit.backends.cuda import runtime
from warpfit.backends.cuda.launch import Kernel
from warpfit.backends.cuda.many_networks import ManyNetworks
from warpfit.backends.cuda.many_networks_sm90 import ManyClusters, with_shared_slices
from warpfit.backends.cuda.many_small_networks_sm90 import ManySmallNetworks
from warpfit.engines import many_networks, many_rows
from warpfit.sweep import elsewhere, group_rows, together
from warpfit.sweep.records import Collector
from warpfit.sweep.tasks import Outcome

X, Y = blobs(90)
CANDIDATES: list[dict[str, Any]] = [
    {"lr": 0.05, "seed": 1},
    {"lr": 0.3, "seed": 2, "epochs": 2},
    {"lr": 0.1, "seed": 1, "width": 4},
    {"lr": 0.02, "optimizer": "adam"},
]


def in_clusters(monkeypatch: pytest.MonkeyPatch, cluster: int | None) -> None:
    """Let networks be trained in clusters of so many blocks, or where they fit for None."""
    if cluster is not None:
        monkeypatch.setattr(
            many_networks,
            "launch_of_many",
            lambda network, _: with_shared_slices(ManyClusters(network, cluster)),
        )


def sweep(cuda: str, candidates: Any = CANDIDATES, x: Any = X, **arguments: Any) -> wf.Sweep:
    given = {"epochs": 3, "batch_size": 16, "device": cuda, "verbose": False, **arguments}
    return wf.fit_many(build, x, Y, candidates=candidates, **given)


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


@pytest.mark.parametrize("keep_models", [True, False])
def test_initial_values_that_nobody_asked_for_are_drawn_on_the_device(
    cuda: str, monkeypatch: pytest.MonkeyPatch, keep_models: bool
) -> None:
    launched: list[str] = []
    call = Kernel.__call__
    monkeypatch.setattr(
        Kernel,
        "__call__",
        lambda self, *arguments, **sizes: (
            launched.append(self.name),
            call(self, *arguments, **sizes),
        )[1],
    )
    candidates = [{"lr": 0.05 * (1 + seed), "seed": seed} for seed in range(4)]
    drawn = sweep(cuda, candidates, keep_models=keep_models)
    # Weights and biases of two layers, and of the network that the plan is made of.
    assert launched.count("initial_values") == 4 + 4
    del launched[:]

    def touched(candidate: Any) -> Any:
        model, optimizer = build(candidate)
        model.state_dict()
        return model, optimizer

    given: dict[str, Any] = {"epochs": 3, "batch_size": 16, "device": cuda, "verbose": False}
    packed = wf.fit_many(touched, X, Y, candidates=candidates, **given)
    assert "initial_values" not in launched
    assert_same_weights(drawn.best_model, packed.best_model)
    assert [r["score"] for r in drawn] == [r["score"] for r in packed]
    assert drawn.best_history["loss"] == packed.best_history["loss"]
    kept = [model for model in drawn.models if model is not None]
    assert len(kept) == (4 if keep_models else 1)
    for model, other in zip(drawn.models, packed.models, strict=True):
        if model is not None:
            assert_same_weights(model, other)
    if not keep_models:  # nothing is left on the device
        assert drawn.best_model.parameters()[0].promised("data") is None


def test_a_pickled_sweep_has_its_models(cuda: str) -> None:
    found = sweep(cuda, CANDIDATES[:2], folds=2)
    again = pickle.loads(pickle.dumps(found))
    assert [history["loss"] for history in again.histories] == [
        history["loss"] for history in found.histories
    ]
    for own, other in zip(again.models, found.models, strict=True):
        assert_same_weights(own, other)
    assert_same_weights(again.best_model, found.best_model)


# That of rate 0, too, whose derivatives are rounded like the others'.
@pytest.mark.in_turns(2)
@pytest.mark.parametrize("cluster", [None, 1])
def test_rates_of_dropout_are_a_networks_own(
    cuda: str, monkeypatch: pytest.MonkeyPatch, cluster: int | None
) -> None:
    in_clusters(monkeypatch, cluster)
    given = {"optimizer": "adam", "lr": 0.03}
    candidates = [
        {"dropout": p, "seed": seed, **given} for seed, p in enumerate((0.0, 0.2, 0.5, 0.2))
    ]
    batches: dict[str, Any] = {"batch_size": 40}  # rows of several warps
    found = sweep(cuda, candidates, **batches)
    assert "in one launch" in str(found.plan)
    assert [plan.num_networks for plan in found.plan.groups] == [4]
    for i in (0, 2):
        assert_same_weights(found.models[i], sweep(cuda, [candidates[i]], **batches).models[0])
    here = sweep("cpu", candidates, **batches)
    for got, expected in zip(found, here, strict=True):
        np.testing.assert_allclose(got["loss"], expected["loss"], rtol=2e-3)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("cluster", [None, 2])
def test_rows_have_weights(cuda: str, monkeypatch: pytest.MonkeyPatch, cluster: int | None) -> None:
    in_clusters(monkeypatch, cluster)
    weights = np.random.default_rng(0).choice([0.0, 1.0, 4.0], len(X))
    folds = [(np.arange(60), np.arange(60, 90)), (np.arange(30, 90), np.arange(30))]
    of_classes: dict[str, Any] = {"class_weight": [0.2, 1.0, 5.0]}
    for given, more in (
        ({"folds": folds}, of_classes),
        ({"validation_data": (X[:20], Y[:20])}, {}),
    ):
        candidates = [{"lr": 0.3, "seed": 2, **more}]
        arguments = {"candidates": candidates, "sample_weight": weights, **given}
        here, there = (sweep(device, **arguments) for device in ("cpu", cuda))
        assert "in one launch" in str(there.plan)
        for name in ("loss", "val_loss"):
            np.testing.assert_allclose([r[name] for r in there], [r[name] for r in here], rtol=2e-3)


def test_classes_have_weights(cuda: str) -> None:
    folds = [(np.arange(60), np.arange(60, 90)), (np.arange(30, 90), np.arange(30))]
    weights: Any = ("balanced", {0: 3.0}, [0.2, 1.0, 5.0], None)
    candidates = [{"lr": 0.3, "seed": 2, "class_weight": own} for own in weights]
    here, there = (sweep(device, candidates, folds=folds) for device in ("cpu", cuda))
    assert "in one launch" in str(there.plan)
    assert [plan.num_networks for plan in there.plan.groups] == [6, 2]
    assert there.counts() == {"done": 8}
    for got, expected in zip(there, here, strict=True):
        both = [(record["loss"], record["val_loss"]) for record in (got, expected)]
        np.testing.assert_allclose(*both, rtol=2e-3)


@pytest.mark.parametrize("is_trained_on", [True, False])
def test_bytes_and_floats_go_together(cuda: str, is_trained_on: bool) -> None:
    stored = np.round(255 * (X - X.min()) / np.ptp(X)).astype(np.uint8)
    floats = stored.astype(np.float32) / 255
    x, held_out = (stored, floats) if is_trained_on else (floats, stored)
    found = sweep(cuda, CANDIDATES[:2], x, validation_data=(held_out, Y))
    expected = sweep(cuda, CANDIDATES[:2], floats, validation_data=(floats, Y))
    for got, record in zip(found, expected, strict=True):
        both = [(each["loss"], each["val_loss"]) for each in (got, record)]
        np.testing.assert_allclose(*both, rtol=2e-3)


def test_a_scale_of_the_loss_is_a_networks_own(cuda: str) -> None:
    candidates = [{"lr": 0.1}, {"lr": 0.1, "loss_scale": 2.0**-20}]
    found = sweep(cuda, candidates)
    assert_same_weights(found.models[1], sweep(cuda, candidates[1:]).models[0])
    assert found.records[0]["loss"] != found.records[1]["loss"]


class Told(wf.Callback):
    """Writes down what it is told, and may not like an epoch; copies write to the same list."""

    needs_run = needs_step_losses = False

    def __init__(self, fails_at: str = "", rate: float = 0.0) -> None:
        self.told: list[str] = []
        self.fails_at, self.rate = fails_at, rate

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def tell(self, what: str, run: Any) -> None:
        self.told.append(what)
        if what == self.fails_at and run.plan.optimizer.lr.rate(None) == self.rate:
            raise RuntimeError("no luck")

    def on_start(self, run: Any) -> None:
        self.tell("start", run)

    def on_epoch_end(self, run: Any) -> None:
        self.tell("epoch", run)

    def on_end(self, run: Any) -> None:
        self.tell("end", run)

    def close(self) -> None:
        self.told.append("close")


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("where", ["start", "epoch", "end"])
@pytest.mark.parametrize("halving", [None, 2])
def test_a_callback_that_fails_fails_its_network_alone(cuda: str, where: str, halving: Any) -> None:
    candidates = [{"lr": lr} for lr in (0.1, 0.2, 0.3, 0.4)]
    for device in ("cpu", cuda):
        found = sweep(device, candidates, callbacks=[Told(where, 0.2)], halving=halving, n_jobs=1)
        assert found.records[1]["status"] == "failed"
        assert found.records[1]["message"] == "RuntimeError: no luck"
        others = {record["status"] for idx, record in enumerate(found) if idx != 1}
        assert others <= ({"done", "stopped"} if halving else {"done"})


def test_callbacks_hear_of_all_and_are_closed(cuda: str) -> None:
    callback = Told()
    found = sweep(cuda, CANDIDATES[:1], callbacks=[callback])
    assert "in one launch" in str(found.plan)
    assert callback.told == ["start", *["epoch"] * 3, "end", "close"]


def test_a_metric_that_fails_fails_its_network_alone(cuda: str) -> None:
    def fussy(model: Any, x: Any, y: Any) -> float:
        if model[0].weight.data.shape[1] == 4:
            raise RuntimeError("no luck")
        return 1.0

    found = sweep(cuda, CANDIDATES, metric=fussy, validation_data=(X, Y))
    assert [record["message"] for record in found] == [
        "",
        "",
        "metric raised RuntimeError: no luck",
        "",
    ]


def test_what_was_started_is_waited_for_when_another_cannot_start(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    runtime_type: Any = type(backends.get(cuda).runtime)
    start, join = many_networks.Launch.start, runtime_type.join

    def start_once(launch: Any) -> None:
        told.append("start")
        if told.count("start") == 2:
            raise wf.errors.DeviceError("no memory")
        start(launch)

    monkeypatch.setattr(many_networks.Launch, "start", start_once)
    monkeypatch.setattr(
        runtime_type, "join", lambda runtime: (told.append("join"), join(runtime))[1]
    )
    with pytest.raises(wf.errors.DeviceError, match="no memory"):
        sweep(cuda, [{"width": 4}, {"width": 8}])
    assert told[-3:] == ["start", "start", "join"]


def test_a_plan_counts_rows_once_and_parameters_for_each(cuda: str) -> None:
    few, many = (sweep(cuda, [{"lr": 0.1 + 0.1 * i} for i in range(n)], epochs=1) for n in (2, 6))
    of_network = 4 * many.models[0].num_parameters
    assert 0 <= many.plan.bytes - few.plan.bytes - 4 * of_network < 4 * 64  # filled up
    assert 0 <= few.plan.bytes - 2 * of_network - 1.5 * X.nbytes < 2 * 64  # float32, and half of it


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("kind", ["block", "small", "cluster"])
def test_networks_without_epochs_keep_nobody_waiting(
    cuda: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "small":
        monkeypatch.setattr(
            many_networks, "launch_of_many", lambda network, _: ManySmallNetworks(network)
        )
    in_clusters(monkeypatch, 1 if kind == "cluster" else None)
    epochs = [0, 0, 2, 0, 1, 0, 0, 0, 2, 0]
    found = sweep(cuda, [{"lr": 0.1, "seed": i, "epochs": own} for i, own in enumerate(epochs)])
    assert "in one launch" in str(found.plan)
    assert [record["epochs"] for record in found] == epochs
    alone = sweep(cuda, [{"lr": 0.1, "seed": 8, "epochs": 2}])
    assert_same_weights(found.models[8], alone.models[0])


def test_waves_share_the_rows_of_one_upload(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads, launches = [], []

    class Counted(group_rows.DeviceRows):
        def __init__(self, *arguments: Any) -> None:
            uploads.append(self)
            super().__init__(*arguments)

    def counted(members: Any, *others: Any) -> Any:
        launches.append(len(members))
        return launch(members, *others)

    candidates, folds = [{"lr": lr} for lr in (0.02, 0.1)], [(np.arange(60), np.arange(60, 90))]
    at_once, launch = sweep(cuda, candidates, folds=folds), together.start_many
    monkeypatch.setattr(group_rows, "DeviceRows", Counted)
    monkeypatch.setattr(together, "start_many", counted)
    monkeypatch.setattr(together.Together, "_most", lambda self, shape: 1)
    in_waves = sweep(cuda, candidates, folds=folds)
    assert (len(uploads), launches) == (1, [1, 1])
    for one, other in zip(in_waves.models, at_once.models, strict=True):
        assert_same_weights(one, other)


def test_rows_on_the_device_stay_there(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads: list[int] = []
    to_numpy = backends.get(cuda).to_numpy
    monkeypatch.setattr(
        type(backends.get(cuda)),
        "to_numpy",
        lambda self, array: (downloads.append(array.size), to_numpy(array))[1],
    )
    candidates = [{"lr": 0.1, "width": width} for width in (8, 4)]
    found = sweep(cuda, candidates, validation_data=(X[:40], Y[:40]), keep_models=False)
    assert not [size for size in downloads if size in (X.size, X[:40].size)]
    expected = sweep("cpu", candidates, validation_data=(X[:40], Y[:40]), n_jobs=1)
    for got, record in zip(found, expected, strict=True):
        assert got["val_loss"] == pytest.approx(record["val_loss"], rel=2e-3)


def test_groups_share_the_card(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    for name in ("start", "outcomes"):
        do = getattr(many_networks.Launch, name)
        monkeypatch.setattr(
            many_networks.Launch,
            name,
            lambda self, do=do, name=name, **more: (told.append(name), do(self, **more))[1],
        )
    candidates = [{"lr": 0.1, "width": width, "seed": 1} for width in (8, 4, 20)]
    found = sweep(cuda, candidates)
    assert told == ["start"] * 3 + ["outcomes"] * 3
    for candidate, model in zip(candidates, found.models, strict=True):
        assert_same_weights(model, sweep(cuda, [candidate]).models[0])


def test_they_come_out_as_on_the_cpu(cuda: str) -> None:
    validation = X[:20], Y[:20]
    here, there = (sweep(device, validation_data=validation) for device in ("cpu", cuda))
    for name in ("loss", "val_loss", "accuracy", "val_accuracy"):
        np.testing.assert_allclose(
            [r[name] for r in there], [r[name] for r in here], rtol=0.02, atol=0.02
        )
    for expected, got in zip(here.histories, there.histories, strict=True):
        assert expected["lr"] == got["lr"]


def test_one_that_diverges_leaves_the_others_alone(cuda: str) -> None:
    found = sweep(cuda, [{"lr": 0.1}, {"lr": 1e30}, {"lr": 0.1}], precision="float16")
    assert [record["status"] for record in found] == ["done", "diverged", "done"]
    assert (
        "diverged in epoch 1" in found.records[1]["message"]
        or "not finite" in found.records[1]["message"]
    )
    assert_same_weights(found.models[0], found.models[2])


def test_one_that_diverges_is_not_kept_by_its_error(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for device, precision in (("cpu", "float32"), (cuda, "float16")):
        (outcome,) = outcomes_of(
            monkeypatch, partial(sweep, device, [{"lr": 1e38}], precision=precision)
        )
        assert outcome.error is not None
        assert outcome.error.__traceback__ is None


def test_a_pause_changes_no_bit(cuda: str) -> None:
    given = {"optimizer": "adam", "dropout": 0.2, "seed": 2}
    candidates = [{"lr": lr, **given} for lr in (0.003, 0.01, 0.03, 0.1)]
    through, halved = sweep(cuda, candidates), sweep(cuda, candidates, halving=2)
    assert sorted(record["epochs"] for record in halved) == [1, 1, 2, 3]
    best = next(idx for idx, record in enumerate(halved) if record["epochs"] == 3)
    assert_same_weights(halved.models[best], through.models[best])
    assert halved.histories[best]["loss"] == through.histories[best]["loss"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"engine": "layerwise"}, "engine 'layerwise' was asked for"),
        ({"callbacks": [wf.EarlyStopping("loss", patience=1)], "report_every": 2}, "callbacks"),
        pytest.param({"precision": "float32"}, "expected at most", marks=pytest.mark.slow),
    ],
    ids=["engine", "callback", "precision"],
)
def test_what_no_launch_takes_is_trained_one_after_the_other(
    cuda: str, arguments: Any, why: str
) -> None:
    found = sweep(cuda, CANDIDATES[:2], **arguments)
    assert "one after the other by `fit`: " in found.plan.reason
    assert why in found.plan.reason
    assert {record["status"] for record in found} <= {"done", "stopped"}


STOPPING: dict[str, tuple[dict[str, Any], int | None]] = {
    "loss": ({"monitor": "loss", "patience": 1, "min_delta": 0.05, "restore_best": False}, None),
    "accuracy": ({"monitor": "val_accuracy", "patience": 2}, None),
    "last weights": ({"monitor": "val_loss", "patience": 1, "restore_best": False}, None),
    "halving": ({"monitor": "val_loss", "patience": 1, "min_delta": 0.02}, 2),
}


# Beside blocks, which so small networks are trained by.
SHAPES: dict[str, Callable[[Any], Any]] = {
    "groups": lambda network: ManySmallNetworks(network, 2),
    "clusters": lambda network: with_shared_slices(ManyClusters(network, 1)),
    "clusters of 2": lambda network: with_shared_slices(ManyClusters(network, 2)),
}


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    ("kind", "settings", "halving"),
    [
        pytest.param(
            kind,
            *STOPPING[name],
            id=f"{kind}-{name}",
            marks=()
            if kind == "blocks" or (name == "accuracy" and kind != "clusters")
            else pytest.mark.slow,
        )
        for kind in ("blocks", *SHAPES)
        for name in STOPPING
    ],
)
def test_each_is_stopped_as_the_callback_says(
    cuda: str,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    halving: int | None,
    kind: str,
) -> None:
    if kind in SHAPES:
        monkeypatch.setattr(
            many_networks, "launch_of_many", lambda network, _: SHAPES[kind](network)
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
        # Rounding of 16-bit numbers apart, the weights are those of the epoch that the record tells
        # of.
        assert abs(wf.evaluate(model, X[:30], Y[:30]).loss - record["val_loss"]) <= 0.02
        best = int(record["message"].split("(epoch ")[1].rstrip(")")) - 1
        told = history["val_loss"].index(record["val_loss"])
        assert told == (best if settings.get("restore_best", True) else len(watched) - 1)


# -- halving on the device


@pytest.fixture
def side_by_side(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, cuda: str) -> str:
    """The device, where fewer networks are trained at once than there are, by blocks that all run
    at the same time.
    """
    monkeypatch.setattr(ManyNetworks, "groups", lambda self, _: 3)
    monkeypatch.setattr(ManySmallNetworks, "groups", lambda self, _: 4)
    if request.param != "blocks":
        monkeypatch.setattr(
            many_networks, "launch_of_many", lambda network, _: SHAPES[request.param](network)
        )
    call = Kernel.__call__

    def together_at_once(kernel: Kernel, *arguments: Any, **settings: Any) -> None:
        if kernel.name.startswith("many_"):
            settings["is_cooperative"] = True
        call(kernel, *arguments, **settings)

    monkeypatch.setattr(Kernel, "__call__", together_at_once)
    return cuda


def outcomes_of(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> list[Outcome]:
    found: list[Outcome] = []
    collect = Collector.collect

    def kept(collector: Collector, outcome: Outcome) -> None:
        found.append(replace(outcome))
        collect(collector, outcome)

    with monkeypatch.context() as patch:
        patch.setattr(Collector, "collect", kept)
        run()
    return sorted(found, key=lambda outcome: outcome.number)


def told(outcome: Outcome) -> dict[str, Any]:
    """All that an outcome says but for seconds, as what can be compared."""
    assert outcome.model is not None
    assert outcome.optimizer is not None
    return {
        **{
            name: getattr(outcome, name)
            for name in ("number", "status", "message", "score", "halved_after")
        },
        "report": outcome.report and numbers(outcome.report),
        "history": [numbers(report) for report in outcome.history.reports],
        "stopped_by": outcome.history.stopped_by,
        "plan": outcome.history.plan,
        "error": outcome.error and (type(outcome.error), str(outcome.error)),
        "checkpoint": outcome.checkpoint,
        "weights": [parameter.data.tobytes() for parameter in outcome.model.parameters()],
        "step": outcome.optimizer.step_count,
        "callbacks": [(c.best, c.best_epoch, c.bad_epochs) for c in outcome.callbacks],  # type: ignore[attr-defined]
    }


def numbers(report: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(report).items()
        if name not in ("seconds", "step_losses")
    }


HALVED: dict[str, dict[str, Any]] = {
    "accuracy": {"halving": 2},
    "early stopping": {
        "halving": wf.Halving(1.3, min_epochs=2),
        "metric": "loss",
        "callbacks": [wf.EarlyStopping("val_accuracy", patience=3)],
    },
    "last weights": {
        "halving": wf.Halving(1.5, min_epochs=2),
        "metric": "val_loss",
        "callbacks": [wf.EarlyStopping("val_loss", patience=2, restore_best=False)],
    },
}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The rungs of each launch, None where it has none."""
    found: list[Any] = []

    def counted(members: Any, rows: Any, rungs: Any = None) -> Any:
        found.append(rungs)
        return launch(members, rows, rungs)

    launch = together.start_many
    monkeypatch.setattr(together, "start_many", counted)
    return found


@pytest.mark.in_turns(8)
@pytest.mark.parametrize(
    ("side_by_side", "name"),
    [
        pytest.param(
            kind,
            name,
            id=f"{kind}-{name}",
            marks=()
            if name == "accuracy" or (kind, name) == ("groups", "early stopping")
            else pytest.mark.slow,
        )
        for kind in ("blocks", *SHAPES)
        for name in HALVED
    ],
    indirect=["side_by_side"],
)
def test_the_kernel_halves_as_the_host_does(
    side_by_side: str, monkeypatch: pytest.MonkeyPatch, launches: list[Any], name: str
) -> None:
    # By SGD, of the last two of these one fold diverges, in an epoch after the first or in that.
    candidates = [{"lr": lr, "seed": seed} for seed, lr in enumerate((0.3, 1e30, 0.02, 80.0))]
    candidates += [{"lr": 400.0, "seed": 3}, {"lr": 0.1}, {"lr": 0.2, "epochs": 2}, candidates[0]]
    candidates += [{"lr": 0.05}, {"lr": 1.0}]
    optimizer = "adam" if name == "early stopping" else "sgd"
    candidates = [{**candidate, "optimizer": optimizer} for candidate in candidates]
    folds = [(np.arange(60), np.arange(60, 90)), (np.arange(30, 90), np.arange(30))]
    given = {"epochs": 9, "folds": folds, **HALVED[name]}
    by_kernel = outcomes_of(monkeypatch, partial(sweep, side_by_side, candidates, **given))
    assert len(launches) == 1
    monkeypatch.setattr(together.Together, "_halves", lambda *_: False)
    by_host = outcomes_of(monkeypatch, partial(sweep, side_by_side, candidates, **given))
    assert launches[1:]
    assert launches[1:] == [None] * (len(launches) - 1)
    for got, expected in zip(by_kernel, by_host, strict=True):
        np.testing.assert_equal(told(got), told(expected))
    assert {"diverged", "stopped"} <= {outcome.status for outcome in by_kernel}
    words = {outcome.message.split(" after ")[0] for outcome in by_kernel if outcome.halved_after}
    assert len(words) > 1
    assert ("halving: a fold has no result" in words) == (optimizer == "sgd")


@pytest.mark.parametrize("by_kernel", [True, False], ids=["kernel", "host"])
def test_what_is_halved_has_the_weights_that_its_report_tells_of(
    cuda: str, monkeypatch: pytest.MonkeyPatch, by_kernel: bool
) -> None:
    if not by_kernel:
        monkeypatch.setattr(together.Together, "_halves", lambda *_: False)
    held_out = X[60:90], Y[60:90]
    given = {
        "validation_data": held_out,
        "epochs": 8,
        "halving": wf.Halving(4, min_epochs=6),
        "callbacks": [wf.EarlyStopping("val_loss", patience=8)],
    }
    candidates = [{"lr": lr, "optimizer": "sgd"} for lr in (0.05, 0.1, 20.0, 30.0)]
    found = outcomes_of(monkeypatch, partial(sweep, cuda, candidates, **given))
    halved = [outcome for outcome in found if outcome.halved_after]
    assert len(halved) == 3
    for outcome in halved:
        assert outcome.report is not None
        assert outcome.report.epoch == outcome.callbacks[0].best_epoch  # type: ignore[attr-defined]
        loss = wf.evaluate(outcome.model, *held_out).loss  # type: ignore[arg-type]
        np.testing.assert_allclose(loss, outcome.report.val_loss, rtol=0.02)
    assert any(outcome.report is not outcome.history.reports[-1] for outcome in halved)


def score(model: Any, x: Any, y: Any) -> float:
    return -wf.evaluate(model, x, y).loss


@pytest.mark.parametrize(
    ("arguments", "room"),
    [({"metric": score}, 9), ({"report_every": 2}, 9), ({"widths": (8, 4)}, 9), ({}, 3)],
    ids=["metric", "reports", "groups", "memory"],
)
def test_what_no_kernel_halves_the_host_does(
    cuda: str,
    monkeypatch: pytest.MonkeyPatch,
    launches: list[Any],
    arguments: dict[str, Any],
    room: int,
) -> None:
    monkeypatch.setattr(together.Together, "_most", lambda self, shape: room)
    widths = arguments.get("widths", (8, 8))
    candidates = [{"lr": lr, "width": widths[i % 2]} for i, lr in enumerate((0.02, 0.1, 0.3, 0.5))]
    given = {name: value for name, value in arguments.items() if name != "widths"}
    found = sweep(cuda, candidates, validation_data=(X[:30], Y[:30]), halving=2, **given)
    assert launches
    assert set(launches) == {None}
    assert "stopped" in found.counts()


def test_ctrl_c_interrupts_all_that_one_launch_halves(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(together, "start_many", interrupted)
    found = sweep(cuda, [{"lr": lr} for lr in (0.02, 0.1, 0.3)], halving=2)
    assert found.interrupted
    assert found.counts() == {"interrupted": 3}


def test_ctrl_c_before_the_first_launch_is_told(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(together._Queue, "of", interrupted)
    monkeypatch.setattr(together.Together, "_halves", lambda *_: False)
    found = sweep(cuda, [{"lr": lr} for lr in (0.02, 0.1, 0.3)], halving=2)
    assert found.interrupted
    assert found.counts() == {"not started": 3}


def test_ctrl_c_keeps_what_earlier_rungs_did(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = []

    def at_second(*arguments: Any) -> Any:
        launches.append(arguments)
        if len(launches) == 2:
            raise KeyboardInterrupt
        return start(*arguments)

    start = together.start_many
    monkeypatch.setattr(together, "start_many", at_second)
    monkeypatch.setattr(together.Together, "_halves", lambda *_: False)
    found = sweep(cuda, [{"lr": lr} for lr in (0.02, 0.1, 0.3)], halving=3)
    assert found.counts() == {"interrupted": 1, "stopped": 2}
    assert [record["epochs"] for record in found] == [1, 1, 1]
    assert found.best["status"] == "interrupted"
    assert found.best_history.stopped_by == "interrupt"
    assert all(model.loss == wf.losses.SoftmaxCrossEntropy() for model in found.models)
    alone = sweep(cuda, [found.best_candidate], epochs=1)
    assert_same_weights(found.best_model, alone.models[0])


@on_emulator
@pytest.mark.parametrize("are_alike", [True, False])
def test_cards_take_shards_as_planned_if_they_are_alike(
    monkeypatch: pytest.MonkeyPatch, are_alike: bool
) -> None:
    open_cards(monkeypatch, 2)
    monkeypatch.setattr(runtime._OPEN[1], "card", runtime._OPEN[0].card if are_alike else "other")
    monkeypatch.setattr(ManyNetworks, "groups", lambda *_: 2)
    planned, calls, two_of_each = [], count(), Barrier(4)
    outcomes, plan_groups = many_networks.Launch.outcomes, elsewhere.plan_groups

    def after_others(self: Any, **asked: Any) -> Any:
        if are_alike and next(calls) < 4:
            with self.ops.runtime.thread_stream.waiting():
                two_of_each.wait(60)
        return outcomes(self, **asked)

    def noted(tasks: Any) -> Any:
        planned.append(len(tasks))
        return plan_groups(tasks)

    monkeypatch.setattr(many_networks.Launch, "outcomes", after_others)
    monkeypatch.setattr(elsewhere, "plan_groups", noted)
    candidates = [{"lr": 0.02 * (1 + idx), "seed": idx} for idx in range(11)]
    found = sweep("cuda:0", candidates, device=["cuda:0", "cuda:1"])
    assert "3 waves of 4" in str(found.plan)
    assert sorted(planned) == ([] if are_alike else [1, 2, 2, 2, 2, 2])
    one = sweep("cuda:0", candidates)
    for got, expected in zip(found.models, one.models, strict=True):
        assert_same_weights(got, expected)
    assert [record["loss"] for record in found] == [record["loss"] for record in one]


def test_long_runs_train_at_once_as_short_ones_do(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches, start = [], together.start_many

    def counted(members: Any, *others: Any) -> Any:
        launches.append(len(members))
        return start(members, *others)

    monkeypatch.setattr(together, "start_many", counted)
    monkeypatch.setattr(together, "LAUNCH_SECONDS", 0.0)
    monkeypatch.setattr(ManyNetworks, "groups", lambda *_: 3)
    sweep(cuda, [{"lr": 0.1, "seed": seed} for seed in range(7)], epochs=1)
    assert launches == [3, 3, 1]


@on_emulator
def test_what_the_threads_of_a_card_share_is_there_before_their_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_cards(monkeypatch, 2)
    monkeypatch.setattr(ManyNetworks, "groups", lambda *_: 1)
    pointer_of, are_late = many_rows.DeviceRows.pointer_of, []

    def noted(self: Any, numbers: Any) -> int:
        own, count = self.ops.runtime._own_streams, len(self._numbers)
        pointer = pointer_of(self, numbers)
        are_late.append(get_ident() in own and len(self._numbers) > count)
        return pointer

    monkeypatch.setattr(many_rows.DeviceRows, "pointer_of", noted)
    candidates = [{"lr": 0.02 * (1 + idx)} for idx in range(3)]
    sweep("cuda:0", candidates, device=["cuda:0", "cuda:1"], folds=3)
    assert are_late
    assert not any(are_late)


@on_emulator
def test_the_threads_of_a_card_bring_rows_once_however_long_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_cards(monkeypatch, 2)
    monkeypatch.setattr(ManyNetworks, "groups", lambda *_: 1)
    monkeypatch.setattr("warpfit.sweep.side_by_side.MOST_SECONDS", 0.01)
    brought, of = [], group_rows.GroupRows.of

    def slowly(group: Any) -> Any:
        brought.append(group.plan.device)
        sleep(0.1)
        return of(group)

    monkeypatch.setattr(group_rows.GroupRows, "of", slowly)
    candidates = [{"lr": 0.02 * (1 + idx)} for idx in range(6)]
    sweep("cuda:0", candidates, device=["cuda:0", "cuda:1"])
    assert sorted(brought) == ["cuda:0", "cuda:1"]
