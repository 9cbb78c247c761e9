"""Many networks in one launch, each beside NumPy's run of it alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conftest import on_emulator
from support.devices import assert_bits_when_late
from support.one_launch import ADAPTIVE, LIMITS, LIONS, activated, data, fit, flat
from warpfit import backends, losses, nn, optim
from warpfit.engines import many_networks
from warpfit.engines.base import Plan, TrainingData
from warpfit.engines.many_members import Member, Outcome
from warpfit.engines.many_networks import start_many
from warpfit.engines.many_rows import DeviceRows
from warpfit.errors import Obstacle
from warpfit.nn.network import NetworkSpec
from warpfit.training.state import state_of, trained_names, write_back

pytestmark = [pytest.mark.in_turns(6)]

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda model, i: optim.SGD(model.parameters(), optim.Cosine(0.05 * (i + 1))),
    "momentum": lambda model, i: optim.SGD(
        model.parameters(), 0.02 * (i + 1), momentum=0.8, weight_decay=0.01
    ),
    "nesterov": lambda model, i: optim.SGD(
        model.parameters(), 0.02 * (i + 1), momentum=0.8, nesterov=True
    ),
    "penalty": lambda model, i: optim.SGD(
        model.parameters(),
        0.02 * (i + 1),
        momentum=0.8,
        nesterov=True,
        l2=1.0 + i,
        lr_in_velocity=True,
    ),
    "adam, penalty": lambda model, i: optim.Adam(
        model.parameters(), 0.01, eps=0.05, l2=1.0 + i, eps_before_correction=True
    ),
    "too fast": lambda model, i: optim.SGD(model.parameters(), 1e6 if i == 1 else 0.05),
    "lion": lambda model, i: optim.Lion(model.parameters(), 0.002 * (i + 1), weight_decay=0.1),
    **{name: (lambda model, i, make=make: make(model)) for name, make in ADAPTIVE.items()},
}


class Sweep:
    """Networks of one shape, with seeds, initial values, rates, lengths and rows of their own."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        batch: int,
        loss: str | losses.Loss = "cross_entropy",
        optimizer: str = "sgd",
        activations: tuple[str, ...] = ("tanh",),
        precision: str = "float16",
        num_rows: int = 70,
        count: int = 3,
        dropouts: tuple[float | None, ...] = (None,),
        weighted: bool = False,
        class_weights: bool = False,
    ) -> None:
        self.batch, self.precision = batch, precision
        own_loss = losses.resolve(loss)
        self.losses = [own_loss] * count
        if class_weights:
            weights = [np.roll(np.linspace(0.2, 2, sizes[-1]), i).tolist() for i in range(count)]
            self.losses = [replace(own_loss, class_weight=tuple(own)) for own in weights]
        self.x, self.y = data(sizes, loss, num_rows)
        self.models = [
            self.model(sizes, activations, i, dropouts[i % len(dropouts)]) for i in range(count)
        ]
        self.optimizers = [OPTIMIZERS[optimizer](model, i) for i, model in enumerate(self.models)]
        rng = np.random.default_rng(1)
        # Every other is 0, so that among batches of three rows some weigh nothing.
        self.weights = rng.choice([0.0, 0.0, 0.5, 3.0], num_rows) if weighted else None
        some = np.sort(rng.permutation(num_rows)[: num_rows * 2 // 3]).astype(np.int32)
        self.rows = [some if i % 3 == 2 else None for i in range(count)]

    @staticmethod
    def model(
        sizes: tuple[int, ...], activations: tuple[str, ...], i: int, dropout: float | None
    ) -> nn.Sequential:
        model = activated(sizes, activations, dropout)
        for parameter in model.parameters():
            parameter.data = (1 + 0.1 * i) * parameter.data
        return model

    def own_rows(self, i: int) -> tuple[Any, Any]:
        rows = self.rows[i]
        return (self.x, self.y) if rows is None else (self.x[rows], self.y[rows])

    def own_weights(self, i: int) -> Any:
        rows = self.rows[i]
        return self.weights if rows is None or self.weights is None else self.weights[rows]

    def epochs(self, i: int) -> int:
        return 2 + i % 2

    def member(self, i: int) -> Member:
        model, optimizer = self.models[i], self.optimizers[i]
        x, _ = self.own_rows(i)
        plan = Plan(
            engine="many_networks",
            device="cuda:0",
            precision=self.precision,
            network=NetworkSpec.of(model, x.shape[1:])
            if hasattr(NetworkSpec, "of")
            else model.spec(x.shape[1:]),
            loss=self.losses[i],
            optimizer=optimizer.spec,
            batch_size=self.batch,
            epochs=self.epochs(i),
            trained=trained_names(model, optimizer),
            num_rows=len(x),
            loss_scale=64.0 if self.precision == "float16" else 1.0,
        )
        state = state_of(model, optimizer, backends.get("cpu"), "float32", seed=i)
        return Member(plan, state, self.rows[i], self.validation_rows(i))

    def validation_rows(self, i: int) -> Any:
        """All but those that a fold trains on; those of the others are none."""
        rows = self.rows[i]
        return None if rows is None else np.setdiff1d(np.arange(len(self.x)), rows).astype(np.int32)

    def validation(self, i: int) -> Any:
        rows = self.validation_rows(i)
        return None if rows is None else (self.x[rows], self.y[rows])

    def train(self, chosen: Sequence[int] | None = None) -> list[Outcome]:
        chosen = range(len(self.models)) if chosen is None else chosen
        members = [self.member(i) for i in chosen]
        first = members[0].plan
        y = first.loss.prepare_targets(self.y, first.network.output_shape, "float32")
        data = TrainingData(self.x, y, self.weights)
        launch = many_networks.prepare_many(first, data)
        assert not isinstance(launch, Obstacle)
        outcomes = start_many(members, DeviceRows(launch, first.device, data)).outcomes()
        for i, member in zip(chosen, members, strict=True):
            write_back(member.state, self.models[i], self.optimizers[i], member.plan.loss)
        return outcomes


def assert_follows_numpy(limit: float | None = None, **settings: Any) -> None:
    """Train networks in one launch, and each by NumPy: they differ by at most `limit` of how far
    they go.
    """
    alone, together = Sweep(**settings), Sweep(**settings)
    limit = LIMITS[together.precision] if limit is None else limit
    starts = [flat(model) for model in together.models]
    outcomes = together.train()
    for i, (model, optimizer) in enumerate(zip(alone.models, alone.optimizers, strict=True)):
        x, y = alone.own_rows(i)
        own = {
            "loss": alone.losses[i],
            "batch_size": alone.batch,
            "epochs": alone.epochs(i),
            "seed": i,
        }
        own |= {"sample_weight": alone.own_weights(i), "validation_data": alone.validation(i)}
        history = fit(model, x, y, optimizer, device="cpu", **own)
        reports = outcomes[i].reports
        assert outcomes[i].error is None
        assert [report.epoch for report in reports] == list(range(1, alone.epochs(i) + 1))
        for got, expected in zip(reports, history, strict=True):
            np.testing.assert_allclose(got.loss, expected.loss, rtol=limit, atol=limit)
            assert got.lr == expected.lr
            assert (got.accuracy is None) == (expected.accuracy is None)
            if expected.accuracy is not None:
                assert abs(got.accuracy - expected.accuracy) <= max(1.5 / len(x), limit)
            assert (got.val_loss is None) == (expected.val_loss is None)
            if expected.val_loss is not None:
                np.testing.assert_allclose(got.val_loss, expected.val_loss, rtol=limit, atol=limit)
        moved = np.linalg.norm(flat(model) - starts[i])
        assert np.linalg.norm(flat(model) - flat(together.models[i])) <= limit * moved


CASES: dict[str, dict[str, Any]] = {
    "tabular": {"sizes": (32, 64, 64, 2), "batch": 32},
    "adam": {"sizes": (20, 40, 3), "batch": 16, "optimizer": "adam"},
    "several tiles": {
        "sizes": (12, 24, 5),
        "batch": 50,
        "optimizer": "momentum",
        "loss": "mse",
        "num_rows": 130,
    },
    "no hidden layer": {
        "sizes": (10, 3),
        "batch": 7,
        "precision": "bfloat16",
        "optimizer": "nesterov",
    },
    "many layers": {
        "sizes": (9, 17, 33, 18, 4),
        "batch": 16,
        "optimizer": "rmsprop, momentum",
        "activations": ("gelu", "mish"),
    },
    "dropout": {
        "sizes": (12, 40, 24, 5),
        "batch": 50,
        "num_rows": 130,
        "activations": ("tanh", "silu"),
        "dropouts": (0.3, 0.0, 0.6),
    },
    "class weights": {
        "sizes": (12, 24, 5),
        "batch": 20,
        "loss": losses.SoftmaxCrossEntropy(0.1),
        "weighted": True,
        "class_weights": True,
    },
    "sample weights": {"sizes": (12, 24, 5), "batch": 50, "num_rows": 130, "weighted": True},
    "sample weights, numbers": {"sizes": (9, 7, 3), "batch": 3, "loss": "mse", "weighted": True},
}


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from warpfit.backends.cuda.many_networks import choose

    monkeypatch.setattr(
        many_networks,
        "launch_of_many",
        lambda network, runtime: choose(network, runtime.arch, runtime.max_shared_bytes),
    )


# One whose last batch is shorter, with an odd number of outputs.
PENALIZED: dict[str, dict[str, Any]] = {
    "penalty": {"sizes": (10, 20, 3), "batch": 32},
    "adam, penalty": {"sizes": (10, 20, 6, 4), "batch": 16, "loss": "mse"},
}


@pytest.mark.parametrize("name", PENALIZED)
def test_penalties_join_losses_and_gradients_of_weights(cuda: str, name: str) -> None:
    assert_follows_numpy(**PENALIZED[name], optimizer=name)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(("cluster", "sizes"), [(1, (40, 20, 3)), (2, (200, 70, 10))])
@pytest.mark.parametrize("name", PENALIZED)
def test_penalties_in_clusters(
    cuda: str, in_clusters: Callable[[int], None], cluster: int, sizes: tuple[int, ...], name: str
) -> None:
    in_clusters(cluster)
    assert_follows_numpy(**(PENALIZED[name] | {"sizes": sizes}), optimizer=name)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("in_blocks")
def test_each_follows_numpy(cuda: str, name: str) -> None:
    assert_follows_numpy(**CASES[name])


# Half precision rounds some sums to the other side of 0, where relu has another slope: networks
# then differ by some hundredths. Those that miss a product differ by a third and more.
RELU_LIMITS = {"float16": 0.06, "bfloat16": 0.12}


@pytest.mark.slow
@pytest.mark.parametrize("precision", RELU_LIMITS)
@pytest.mark.usefixtures("in_blocks")
def test_relu_follows_numpy(cuda: str, precision: str) -> None:
    case: dict[str, Any] = {
        "sizes": (32, 64, 64, 2),
        "batch": 64,
        "num_rows": 200,
        "precision": precision,
    }
    assert_follows_numpy(RELU_LIMITS[precision], **case, activations=("relu",))


LION: dict[str, Any] = {"batch": 32, "optimizer": "lion"}


@pytest.mark.usefixtures("in_blocks")
def test_lion_follows_numpy(cuda: str) -> None:
    assert_follows_numpy(LIONS * LIMITS["float16"], sizes=(12, 24, 5), **LION)


def test_lion_follows_numpy_in_clusters(cuda: str, in_clusters: Callable[[int], None]) -> None:
    in_clusters(2)
    assert_follows_numpy(LIONS * LIMITS["float16"], sizes=(60, 70, 3), **LION)


@pytest.mark.slow
@pytest.mark.usefixtures("as_small")
def test_lion_follows_numpy_in_small_ones(cuda: str) -> None:
    assert_follows_numpy(LIONS * LIMITS["float16"], sizes=(16, 20, 20, 12), **LION)


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("name", ["nadam", "adagrad", "adadelta"])
def test_newer_optimizers_follow_numpy(cuda: str, name: str) -> None:
    assert_follows_numpy(LIMITS["float16"], sizes=(12, 24, 5), batch=32, optimizer=name)


@pytest.mark.slow
@pytest.mark.usefixtures("as_small")
@pytest.mark.parametrize("name", ["nadam", "adagrad", "adadelta"])
def test_newer_optimizers_follow_numpy_in_small_ones(cuda: str, name: str) -> None:
    assert_follows_numpy(LIMITS["float16"], sizes=(16, 20, 20, 12), batch=32, optimizer=name)


# All layers in tiles of 64 units, batches of 16 to 128 rows.
SMALL: dict[str, dict[str, Any]] = {
    "tabular": {"sizes": (32, 64, 64, 2), "batch": 128, "num_rows": 300},
    "one hidden layer": {"sizes": (40, 40, 10), "batch": 19, "optimizer": "momentum"},
    "three hidden layers": {
        "sizes": (20, 30, 64, 17, 3),
        "batch": 40,
        "precision": "bfloat16",
        "activations": ("relu", "sigmoid"),
    },
    "adam": {"sizes": (16, 20, 20, 12), "batch": 64, "optimizer": "adam", "loss": "mse"},
    "an epoch is a batch": {"sizes": (20, 30, 3), "batch": 128, "num_rows": 70, "count": 8},
}


SMALL_RELU: dict[str, dict[str, Any]] = {
    "tabular": {"sizes": (32, 64, 64, 2), "num_rows": 300},
    "tabular, bfloat16": {"sizes": (32, 64, 64, 2), "num_rows": 300, "precision": "bfloat16"},
    "tabular, adam": {"sizes": (32, 64, 64, 2), "num_rows": 300, "optimizer": "adam"},
    "one hidden layer": {"sizes": (64, 64, 10), "num_rows": 300},
    "three hidden layers": {"sizes": (20, 64, 50, 64, 3), "num_rows": 200, "optimizer": "momentum"},
    "fewer rows": {"sizes": (20, 30, 64, 3), "batch": 40},
    "selu": {"sizes": (20, 30, 64, 3), "batch": 40, "activations": ("selu",)},
}


@pytest.fixture
def as_small(monkeypatch: pytest.MonkeyPatch) -> None:
    from warpfit.backends.cuda.many_small_networks_sm90 import ManySmallNetworks

    monkeypatch.setattr(
        many_networks, "launch_of_many", lambda network, _: ManySmallNetworks(network)
    )


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.usefixtures("as_small")
def test_small_ones_follow_numpy(cuda: str, name: str) -> None:
    assert_follows_numpy(**SMALL[name])


@pytest.mark.in_turns(7)
@pytest.mark.parametrize("name", SMALL_RELU)
@pytest.mark.usefixtures("as_small")
def test_small_ones_with_relu_follow_numpy(cuda: str, name: str) -> None:
    case = {"batch": 128, "activations": ("relu",), **SMALL_RELU[name]}
    assert_follows_numpy(RELU_LIMITS[case.get("precision", "float16")], **case)


# Rounding alone, without kinks that it takes a unit across.
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_groups_round_no_more_than_blocks(
    cuda: str, request: pytest.FixtureRequest, loss: str
) -> None:
    case: dict[str, Any] = {"sizes": (33, 37, 21, 5), "batch": 24, "num_rows": 200, "loss": loss}
    case |= {"activations": ("tanh", "sigmoid"), "count": 2}
    exact = Sweep(**case)
    starts = [flat(model) for model in exact.models]
    for i, model in enumerate(exact.models):
        for parameter in model.parameters():
            parameter.data = parameter.data.astype("float64")
        optimizer = OPTIMIZERS["sgd"](model, i)
        settings = {"batch_size": exact.batch, "epochs": exact.epochs(i), "seed": i}
        y = exact.y if loss == "cross_entropy" else exact.y.astype("float64")
        fit(model, exact.x.astype("float64"), y, optimizer, device="cpu", loss=loss, **settings)
    moved = [flat(model) - start for model, start in zip(exact.models, starts, strict=True)]
    errors = {}
    for kernel in ("in_blocks", "as_small"):
        request.getfixturevalue(kernel)
        found = Sweep(**case)
        found.train()
        distances = [
            np.linalg.norm(flat(own) - flat(model)) / np.linalg.norm(way)
            for own, model, way in zip(found.models, exact.models, moved, strict=True)
        ]
        errors[kernel] = np.mean(distances)
    assert errors["as_small"] <= 1.2 * errors["in_blocks"] < 1e-3


# Of hidden units one tile or two, in as many parts as there are blocks or twice as many.
CLUSTERS: dict[str, tuple[int, dict[str, Any]]] = {
    "two tiles": (1, {"sizes": (100, 100, 10), "batch": 64}),
    "two tiles, two parts": (2, {"sizes": (400, 128, 10), "batch": 64}),
    "two tiles, eight parts": (
        8,
        {"sizes": (150, 70, 7), "batch": 16, "optimizer": "adam", "activations": ("gelu",)},
    ),
    "weights in shared memory": (2, {"sizes": (200, 70, 10), "batch": 32, "optimizer": "adam"}),
    "one tile": (1, {"sizes": (260, 40, 10), "batch": 32}),
    "one tile, four parts": (2, {"sizes": (100, 64, 16), "batch": 60, "loss": "huber"}),
    "one tile, eight parts": (4, {"sizes": (260, 30, 2), "batch": 64, "optimizer": "nesterov"}),
    "an epoch is a batch": (1, {"sizes": (40, 20, 3), "batch": 64, "num_rows": 50, "count": 4}),
    "an epoch is a batch, two parts": (
        2,
        {"sizes": (60, 70, 3), "batch": 64, "num_rows": 50, "count": 4},
    ),
    "ragged": (
        1,
        {
            "sizes": (40, 20, 3),
            "batch": 19,
            "optimizer": "momentum",
            "loss": "mse",
            "precision": "bfloat16",
        },
    ),
    "dropout": (1, {"sizes": (40, 50, 3), "batch": 32, "dropouts": (0.3, 0.0, 0.6)}),
    "sample weights": (1, {"sizes": (40, 50, 3), "batch": 3, "weighted": True}),
    "sample weights, two parts": (
        2,
        {"sizes": (60, 100, 4), "batch": 60, "loss": "mse", "weighted": True},
    ),
    "class weights": (2, {"sizes": (60, 100, 4), "batch": 60, "class_weights": True}),
    "weights of both": (
        1,
        {
            "sizes": (40, 50, 3),
            "batch": 20,
            "loss": losses.SoftmaxCrossEntropy(0.1),
            "weighted": True,
            "class_weights": True,
        },
    ),
    "dropout, two tiles, two parts": (
        2,
        {"sizes": (60, 100, 4), "batch": 60, "dropouts": (0.5, 0.2), "activations": ("gelu",)},
    ),
}


@pytest.fixture
def in_clusters(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    from warpfit.backends.cuda.many_networks_sm90 import ManyClusters, with_shared_slices

    def of(size: int) -> None:
        monkeypatch.setattr(
            many_networks,
            "launch_of_many",
            lambda network, _: with_shared_slices(ManyClusters(network, size)),
        )

    return of


@pytest.mark.in_turns(18)
@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_follow_numpy(cuda: str, in_clusters: Callable[[int], None], name: str) -> None:
    cluster, case = CLUSTERS[name]
    in_clusters(cluster)
    assert_follows_numpy(**case)


CLUSTERS_RELU: dict[str, tuple[int, dict[str, Any]]] = {
    "two tiles": (1, {"sizes": (100, 100, 10)}),
    "two tiles, two parts": (2, {"sizes": (400, 128, 10)}),
    "two tiles, two parts, bfloat16": (2, {"sizes": (400, 128, 10), "precision": "bfloat16"}),
    "two tiles, two parts, adam": (2, {"sizes": (200, 128, 10), "optimizer": "adam"}),
    "one tile": (1, {"sizes": (260, 40, 10), "batch": 32}),
    "one tile, two parts": (2, {"sizes": (400, 64, 10)}),
}


@pytest.mark.slow
@pytest.mark.in_turns(6)
@pytest.mark.parametrize("name", CLUSTERS_RELU)
def test_clusters_with_relu_follow_numpy(
    cuda: str, in_clusters: Callable[[int], None], name: str
) -> None:
    cluster, case = CLUSTERS_RELU[name]
    in_clusters(cluster)
    case = {"batch": 64, "num_rows": 200, "activations": ("relu",), **case}
    assert_follows_numpy(RELU_LIMITS[case.get("precision", "float16")], **case)


def assert_bits_of_sweeps(
    monkeypatch: pytest.MonkeyPatch, blocks: int, warps: int, **settings: Any
) -> None:
    """Assert that a sweep comes to the same bits whichever warp is late."""

    def train() -> list[Any]:
        sweep = Sweep(**settings)
        outcomes = sweep.train()
        losses = [[report.loss for report in outcome.reports] for outcome in outcomes]
        return [*losses, *map(flat, sweep.models)]

    assert_bits_when_late(monkeypatch, train, blocks, warps)


# Of one tile of hidden units and of two; with two warps for a block's rows, and with one.
OTHER_CLUSTERS = [(1, 40), (1, 70), (2, 70), (8, 70)]


@on_emulator
@pytest.mark.parametrize(
    ("cluster", "hidden"),
    [(2, 40), *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHER_CLUSTERS)],
)
def test_clusters_come_to_the_same_bits_whichever_warp_is_late(
    monkeypatch: pytest.MonkeyPatch, in_clusters: Callable[[int], None], cluster: int, hidden: int
) -> None:
    in_clusters(cluster)
    sizes = (60, hidden, 4)
    assert_bits_of_sweeps(monkeypatch, min(cluster, 3), 16, sizes=sizes, batch=60, num_rows=100)


@pytest.mark.slow
@on_emulator
@pytest.mark.usefixtures("as_small")
def test_small_ones_come_to_the_same_bits_whichever_warp_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert_bits_of_sweeps(monkeypatch, 1, 20, sizes=(20, 30, 12, 3), batch=128, num_rows=300)


@on_emulator
@pytest.mark.usefixtures("in_blocks")
def test_blocks_come_to_the_same_bits_whichever_warp_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert_bits_of_sweeps(monkeypatch, 1, 8, sizes=(12, 24, 5), batch=50, num_rows=130)


# More networks than clusters, so that one goes on to the next after it.
@pytest.mark.parametrize(("cluster", "hidden"), [(1, 20), (1, 70), (2, 70)])
def test_a_cluster_goes_on_after_a_network_that_diverges(
    cuda: str, in_clusters: Callable[[int], None], cluster: int, hidden: int
) -> None:
    in_clusters(cluster)
    sizes, count = (40, hidden, 3), 4
    settings: dict[str, Any] = {
        "sizes": sizes,
        "batch": 32,
        "optimizer": "too fast",
        "count": count,
    }
    together = Sweep(**settings)
    outcomes = together.train()
    assert [outcome.error is None for outcome in outcomes] == [True, False, True, True]
    assert len(outcomes[1].reports) < together.epochs(1)
    for i in (0, 2, 3):
        alone = Sweep(**settings)
        (only,) = alone.train([i])
        assert [report.loss for report in only.reports] == [
            report.loss for report in outcomes[i].reports
        ]
        np.testing.assert_array_equal(flat(alone.models[i]), flat(together.models[i]))
