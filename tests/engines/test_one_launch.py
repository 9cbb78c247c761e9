"""The one_launch engine: the numbers of NumPy, the same bits twice, and words for what it does not
run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import warpfit as wf
from conftest import cases_on_a_gpu, on_emulator, on_gpu
from emulator.runtime import EmulatedRuntime
from support.devices import open_in_both_orders
from support.one_launch import (
    ACTIVATIONS,
    BATCH,
    LIMITS,
    NUM_ROWS,
    assert_follows_numpy,
    data,
    fit,
    flat,
)
from support.rounded import rounded_sgd
from support.training import adam, assert_same_weights, blobs, mlp, sgd
from warpfit import backends, losses, nn, optim
from warpfit.backends.cuda import one_launch
from warpfit.backends.cuda.one_launch import choose
from warpfit.data.order import epoch_order
from warpfit.engines import launch_plan, launch_run, launch_settings, pace
from warpfit.errors import ConfigError, DivergedError, Obstacle

# In every run at least every third case of each test.
pytestmark = [pytest.mark.usefixtures("without_card"), pytest.mark.in_turns(8)]

MULTIPROCESSORS = 132  # of an emulated device that has replicas
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "decayed": {"weight_decay": 0.01},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.9, "nesterov": True},
}


@pytest.fixture
def only_cluster(only_specialized_cluster: Callable[[int], None]) -> Callable[[int], None]:
    """Lets networks run by clusters of one size only."""
    return only_specialized_cluster


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Lets so many replicas partition any batch, on a device that has room for them."""

    def replicate(count: int) -> None:
        monkeypatch.setattr(one_launch, "REPLICAS", ((0, count),))
        if isinstance(backends.get("cuda").runtime, EmulatedRuntime):
            monkeypatch.setattr(
                backends.get("cuda").runtime, "num_multiprocessors", MULTIPROCESSORS
            )
        choose.cache_clear()

    yield replicate
    choose.cache_clear()


@pytest.fixture
def looks_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets all networks look ahead that can."""
    monkeypatch.setattr(one_launch, "AHEAD_TILES", 1)
    choose.cache_clear()
    yield
    choose.cache_clear()


# -- the numbers of NumPy
# ----------------------------------------------------------------------------------


SHAPES = [(1, 1), (6, 3), (17, 5, 2), (1, 1, 1), (33, 16, 17), (40, 37, 10)]


# Here and below, each case is a kernel to compile: `make test` has a part of them.
@pytest.mark.in_turns(8)
@pytest.mark.parametrize(
    ("sizes", "loss"),
    [
        pytest.param(sizes, loss, marks=pytest.mark.slow if (i + j) % 2 else ())
        for i, sizes in enumerate(SHAPES)
        for j, loss in enumerate(
            ("cross_entropy" if sizes[-1] > 1 else "binary_cross_entropy", "mse")
        )
    ],
    ids=str,
)
def test_shapes(cuda: str, sizes: tuple[int, ...], loss: str) -> None:
    assert_follows_numpy(sizes, loss=loss)


LOSSES = {
    "smoothed": losses.SoftmaxCrossEntropy(0.1),
    "binary": losses.BinaryCrossEntropy(),
    "huber": losses.Huber(0.7),
    "wholly smoothed": losses.SoftmaxCrossEntropy(1.0),
    "binary, summed": losses.BinaryCrossEntropy(sum_outputs=True),
    "absolute": losses.AbsoluteError(),
    "half": losses.MeanSquaredError(half=True),
}


@pytest.mark.in_turns(8)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if i >= 3 else ()) for i, name in enumerate(LOSSES)],
)
@pytest.mark.parametrize("sizes", [(6, 3), (6, 8, 18)], ids=str)
def test_losses(cuda: str, sizes: tuple[int, ...], name: str) -> None:
    history = assert_follows_numpy(sizes, loss=LOSSES[name], activation=nn.Tanh)
    assert LOSSES[name] == history.plan.loss


def test_rows_whose_outputs_are_all_right_are_counted(cuda: str) -> None:
    x, y = data((6, 3), "binary_cross_entropy")
    y[:20] = 0.5  # is on neither side, and counts as below
    models = [mlp(6, 8, 3), mlp(6, 8, 3)]
    settings = {"loss": "binary_cross_entropy", "epochs": 3}
    found = [
        fit(m, x, y, device=device, **settings)
        for m, device in zip(models, ("cpu", "cuda"), strict=True)
    ]
    assert found[0]["accuracy"] == found[1]["accuracy"]
    assert 0 < found[0]["accuracy"][-1] < 1


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("batch_size", [1, 15, 33, 100])
def test_batches(cuda: str, batch_size: int) -> None:
    assert_follows_numpy((6, 8, 3), batch_size=batch_size)


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("sizes", [(6, 3), (6, 8, 3)], ids=str)
def test_optimizers(cuda: str, sizes: tuple[int, ...], name: str) -> None:
    # Not ReLU: where rounding takes a unit across 0, it takes the two runs apart.
    assert_follows_numpy(sizes, optimizer=OPTIMIZERS[name], activation=nn.Tanh)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if i >= 2 else ())
        for i, name in enumerate(ACTIVATIONS)
    ],
)
def test_activations(cuda: str, name: str) -> None:
    assert_follows_numpy((6, 8, 3), activation=ACTIVATIONS[name])


@pytest.mark.parametrize("sizes", [(6, 3), (6, 8, 3)], ids=str)
def test_bfloat16(cuda: str, sizes: tuple[int, ...]) -> None:
    assert_follows_numpy(sizes, precision="bfloat16")
    assert_follows_numpy(sizes, precision="bfloat16", optimizer=OPTIMIZERS["momentum"])


def test_rows_in_their_own_order_and_a_schedule(cuda: str) -> None:
    history = assert_follows_numpy((6, 8, 3), shuffle=False)
    assert history.plan.engine == "one_launch"
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 3), mlp(6, 3)]
    for model, device in zip(models, ("cpu", "cuda"), strict=True):
        fit(model, x, y, sgd(model, optim.Cosine(0.2)), device=device)
    assert np.linalg.norm(flat(models[1]) - flat(models[0])) < 1e-3


def test_accuracy_is_counted_as_elsewhere(cuda: str) -> None:
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 8, 3), mlp(6, 8, 3)]
    reports = [
        fit(m, x, y, device=device).reports
        for m, device in zip(models, ("cpu", "cuda"), strict=True)
    ]
    assert [r.accuracy for r in reports[0]] == [r.accuracy for r in reports[1]]
    assert [r.lr for r in reports[0]] == [r.lr for r in reports[1]]


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool", "float16", "float64"])
def test_data_of_other_dtypes(cuda: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 256, (NUM_ROWS, 6))
    x = {"uint8": numbers, "int32": numbers % 4 - 2, "bool": numbers < 100}.get(
        dtype, numbers / 255
    )
    x, y = x.astype(dtype), rng.integers(0, 3, NUM_ROWS)
    models = [mlp(6, 8, 3), mlp(6, 8, 3)]
    for model, device in zip(models, ("cpu", "cuda"), strict=True):
        fit(model, x, y, device=device)
    assert np.linalg.norm(flat(models[1]) - flat(models[0])) < 1e-3


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
@pytest.mark.parametrize("batch_size", [64, 128, 512])
def test_a_last_batch_of_one_row_overflows_nothing(cuda: str, batch_size: int, loss: str) -> None:
    num_rows = 129 if batch_size < 512 else 10  # a batch larger than the data is a short one too
    rows = data((6, 3), loss, num_rows)
    assert_follows_numpy((6, 8, 3), loss=loss, rows=rows, batch_size=batch_size, activation=nn.Tanh)


def test_batches_that_the_device_has_no_room_for(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends.get(cuda).runtime, "memory_info", lambda: (2000, 2000))
    monkeypatch.setattr(
        backends.get(cuda).runtime, "memory_left", lambda: 2000
    )  # for single batches, too
    x, y = blobs(NUM_ROWS)
    words = r"expected at most 2000 bytes of data and batches of an epoch, got \d+"
    plan = fit(mlp(6, 3), x, y, engine="auto", precision="auto", epochs=0).plan
    assert plan.engine == "graph"
    assert re.search(words, plan.reason)
    with pytest.raises(ConfigError, match=words):
        fit(mlp(6, 3), x, y)


def views(ops: Any) -> dict[str, Any]:
    """Return views (70, 8) into larger device arrays."""
    rng = np.random.default_rng(0)
    wide = ops.asarray(rng.standard_normal((2 * NUM_ROWS, 16)).astype("f4"))
    return {
        "columns": wide[:NUM_ROWS, :8],
        "backwards": wide[NUM_ROWS - 1 :: -1, 8:],
        "every other row": wide[::2, 4:12],
        "one element further": ops.reshape(
            ops.reshape(wide, (-1,))[1 : 1 + 8 * NUM_ROWS], (NUM_ROWS, 8)
        ),
    }


@pytest.mark.parametrize("name", ["columns", "backwards", "every other row", "one element further"])
def test_views_of_device_arrays(cuda: str, name: str) -> None:
    ops = backends.get(cuda)
    x = views(ops)[name]
    y = ops.asarray(np.random.default_rng(1).integers(0, 3, (NUM_ROWS, 2)))[:, 1]
    models = [mlp(8, 8, 3), mlp(8, 8, 3)]
    for model, rows in zip(models, ((x, y), (ops.to_numpy(x), ops.to_numpy(y))), strict=True):
        fit(model, *rows)
    assert_same_weights(*models)


# -- the same bits
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_two_runs_are_bit_identical(cuda: str, replicas: Callable[[int], None], count: int) -> None:
    replicas(count)
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 40, 3) for _ in range(2)]
    losses_of_steps = [
        fit(m, x, y, sgd(m, momentum=0.9), batch_size=48).step_losses for m in models
    ]
    np.testing.assert_array_equal(*losses_of_steps)
    assert_same_weights(*models)


@on_emulator
@pytest.mark.parametrize("count", [1, 3])
def test_the_order_of_threads_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, replicas: Callable[[int], None], count: int
) -> None:
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 40, 3) for _ in range(2)]
    for model, _ in zip(models, open_in_both_orders(monkeypatch), strict=True):
        replicas(count)
        fit(model, x, y, sgd(model, momentum=0.9), batch_size=48)
        model.to("cpu")
    assert_same_weights(*models)


def test_a_resumed_run_gives_the_bits_of_one_that_never_stopped(cuda: str, tmp_path: Any) -> None:
    x, y = blobs(NUM_ROWS)
    whole, first, second = (mlp(6, 8, 3) for _ in range(3))
    fit(whole, x, y, sgd(whole, momentum=0.9), epochs=4)
    checkpoint = wf.Checkpoint(tmp_path / "run.ckpt")
    fit(first, x, y, sgd(first, momentum=0.9), epochs=2, callbacks=[checkpoint])
    fit(second, x, y, sgd(second, momentum=0.9), epochs=4, resume_from=tmp_path / "run.ckpt")
    assert_same_weights(second, whole)


# -- several epochs a launch
# -------------------------------------------------------------------------------


class Looks(wf.Callback):
    """Looks at the run after every epoch that is reported, so that no launch goes beyond it."""

    def on_epoch_end(self, run: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("optimizer", "shuffle", "is_ahead", "count"),
    [
        ({"momentum": 0.9, "lr": optim.Cosine(0.1, warmup_epochs=1)}, True, False, 1),
        ({"lr": optim.OneCycle(0.1), "weight_decay": 0.01}, True, True, 1),
        ({"lr": optim.Step(0.1, every=2)}, False, False, 1),
        ({"momentum": 0.9, "lr": optim.Cosine(0.1, warmup_epochs=1)}, True, False, 2),
    ],
    ids=[
        "momentum and cosine",
        "one cycle, looking ahead",
        "step, rows in their own order",
        "replicas",
    ],
)
def test_how_a_run_is_cut_into_launches_changes_no_bit(
    cuda: str,
    launches: list[int],
    tmp_path: Any,
    request: pytest.FixtureRequest,
    optimizer: dict[str, Any],
    shuffle: bool,
    is_ahead: bool,
    count: int,
) -> None:
    if is_ahead:
        request.getfixturevalue("looks_ahead")
    request.getfixturevalue("replicas")(count)
    # So many weights that one in 16,384 counts: replicas send each other all but the last bit.
    batch_size, sizes = BATCH * count, (6, 8, 3) if count == 1 else (100, 200, 3)
    x, y = blobs(NUM_ROWS, sizes[0], sizes[-1])
    found, cuts = [], []
    for callbacks in ([Looks()], [wf.Checkpoint(tmp_path / "run", every=2)], []):
        model = mlp(*sizes)
        opt = sgd(model, **optimizer)
        settings = {
            "epochs": 6,
            "batch_size": batch_size,
            "callbacks": callbacks,
            "shuffle": shuffle,
        }
        history = fit(model, x, y, opt, **settings)
        assert ("a batch ahead" in history.plan.reason) == is_ahead
        reports = [(r.epoch, r.loss, r.accuracy, r.lr) for r in history]
        found.append((model.state_dict(), opt.state_dict(), history.step_losses, reports))
        cuts.append(launches[:])
        launches.clear()
    assert cuts == [[1, 1, 1, 1, 1, 1], [1, 1, 2, 2], [1, 5]]
    for other in found[1:]:
        np.testing.assert_equal(other, found[0])


def test_a_launch_is_as_long_as_those_before_it_allow(
    cuda: str, launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(NUM_ROWS)
    monkeypatch.setattr(pace, "GROWTH", 3)
    fit(mlp(6, 3), x, y, epochs=15)
    assert launches == [1, 3, 9, 2]
    launches.clear()
    monkeypatch.setattr(pace, "LAUNCH_SECONDS", 0.0)
    fit(mlp(6, 3), x, y, epochs=3)
    assert launches == [1, 1, 1]


class LooksLater(wf.Callback):
    """Looks at the run at the earliest three epochs after the last that it has heard of."""

    heard = 0

    def may_act_after(self, epoch: int) -> bool:
        return epoch >= self.heard + 3

    def on_epoch_end(self, run: Any) -> None:
        self.heard = run.report.epoch


def test_a_border_that_is_put_off_is_no_border(cuda: str, launches: list[int]) -> None:
    """Rates and keys of a launch are found before the reports of the one before it."""
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 8, 3) for _ in range(2)]
    for model, callbacks in zip(models, ([], [LooksLater()]), strict=True):
        launches.clear()
        fit(model, x, y, sgd(model, optim.Cosine(0.1)), epochs=9, callbacks=callbacks)
    assert launches == [1, 3, 3, 2]
    assert_same_weights(*models)


def test_seconds_are_shared_out_evenly(cuda: str, launches: list[int]) -> None:
    x, y = blobs(NUM_ROWS)
    seconds = fit(mlp(6, 3), x, y, epochs=4)["seconds"]
    assert seconds[1] == seconds[2] == seconds[3] > 0


def test_ctrl_c_leaves_the_weights_of_the_launch_before(
    cuda: str, launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(NUM_ROWS)
    stopped, expected = mlp(6, 3), mlp(6, 3)
    fit(expected, x, y, epochs=1)
    launch = launch_run.Run.launch_epochs

    def interrupted(run: Any) -> Any:
        reports = launch(run)
        if run.state.epoch > 1:
            raise KeyboardInterrupt
        return reports

    monkeypatch.setattr(launch_run.Run, "launch_epochs", interrupted)
    history = fit(stopped, x, y, epochs=9)
    assert (history.stopped_by, history["epoch"]) == ("interrupt", [1])
    assert launches[-2:] == [1, 8]
    assert_same_weights(stopped, expected)


def test_divergence_within_a_launch_names_its_epoch_and_step(
    cuda: str, launches: list[int]
) -> None:
    x, labels = blobs(NUM_ROWS)
    y, found = np.eye(3, dtype="f4")[labels], []
    for callbacks in ([Looks()], []):
        model = mlp(6, 3)
        # Every step multiplies the error, by less than two.
        with pytest.raises(DivergedError) as error:
            fit(model, x, y, sgd(model, 1.4), loss="mse", epochs=20, callbacks=callbacks)
        found.append(error.value.step)
        model.to("cpu")
        if not callbacks:
            assert launches[-2:] == [1, 16]
            expected = mlp(6, 3)
            fit(expected, x, y, sgd(expected, 1.4), loss="mse", epochs=1)
            assert_same_weights(model, expected)
        assert error.value.epoch == -(-found[-1] // 5)
    # A step that ruins the weights is found by the next one's loss, or by looking at them, after a
    # launch.
    assert found[1] - found[0] in (0, 1)
    assert 5 < found[1] <= 17 * 5


def test_the_scale_is_one_for_the_whole_run_and_all_lengths_of_it(cuda: str) -> None:
    x, y = blobs(NUM_ROWS)
    scales = {}
    for name, lr in {
        "constant": 0.1,
        "cosine": optim.Cosine(0.1, warmup_epochs=3),
        "plateau": optim.ReduceOnPlateau(0.1, factor=0.1, patience=0, threshold=0.9),
        "rising": optim.Cosine(0.0, final_lr=0.1),
        "ten times": 1.0,
    }.items():
        model = mlp(6, 3)
        plan = fit(model, x, y, sgd(model, lr), epochs=0).plan
        scales[name] = launch_settings.scale_of_weights(plan)
    assert (
        scales.pop("ten times") == 2.0**12
    )  # 1024 times the 6 rows of the last batch, rounded down
    assert set(scales.values()) == {2.0**15}


# -- shapes that fill nothing evenly
# -------------------------------------------------------------------------

SMOOTH = ("tanh", "sigmoid", "gelu", "silu")  # no kink that rounding could take two runs apart at


class Case(NamedTuple):
    """A network and how it is trained; the last batch of an epoch is a short one."""

    sizes: tuple[int, ...]
    batch_size: int
    cluster: int = 0  # 0: as is chosen
    loss: str = "cross_entropy"
    optimizer: str = "plain"
    activation: str = "tanh"
    precision: str = "float16"

    def __str__(self) -> str:
        return " ".join(["-".join(map(str, self.sizes)), *map(str, self[1:])])

    @property
    def settings(self) -> dict[str, Any]:
        steps = 2 if self.batch_size > 16 else 5
        lr = min(0.1, 2 / self.sizes[0])
        return {
            "batch_size": self.batch_size,
            "num_rows": steps * self.batch_size + self.batch_size // 3 + 1,
            "loss": self.loss,
            "optimizer": {"lr": lr, **OPTIMIZERS[self.optimizer]},
            "activation": ACTIVATIONS[self.activation],
            "precision": self.precision,
        }


UNEVEN = [
    Case((1, 1, 1), 1, 1, "mse"),
    Case((17, 5, 2), 7, 1, "cross_entropy", "nesterov", "gelu"),
    Case((6, 33), 304, 1, "cross_entropy", "momentum"),
    Case((33, 16, 33), 270, 1, "mse", "momentum", "silu", "bfloat16"),
    Case((40, 37, 10), 96, 1, "cross_entropy", "decayed"),
    Case((21, 19, 33), 100, 2, "cross_entropy", "decayed", "sigmoid"),
    Case((19, 31, 12), 48, 2, "mse", "nesterov", "tanh", "bfloat16"),
    Case((23, 50, 1), 290, 4, "mse", "momentum"),
    Case((70, 3), 19, 4, "mse", "nesterov", precision="bfloat16"),
    Case((129, 2), 272, 8, "cross_entropy", "nesterov"),
    Case((31, 130, 5), 260, 8, "cross_entropy", "plain", "gelu"),
    Case((300, 17), 41, 16, "cross_entropy", "decayed", precision="bfloat16"),
    Case((15, 250, 29), 77, 16, "mse", "plain", "sigmoid"),
]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if i >= 3 else ()) for i, case in enumerate(UNEVEN)],
    ids=str,
)
def test_uneven_shapes(
    cuda: str, only_cluster: Callable[[int], None], replicas: Callable[[int], None], case: Case
) -> None:
    only_cluster(case.cluster)
    replicas(1)
    history = assert_follows_numpy(case.sizes, **case.settings)
    words = "one block" if case.cluster == 1 else f"a cluster of {case.cluster} blocks"
    assert words in history.plan.reason


AHEAD = [
    Case((17, 33, 2), 7, 2, "cross_entropy", "decayed", "gelu"),
    Case((40, 37, 10), 33, 2, "mse", "nesterov", "tanh", "bfloat16"),
    Case((40, 60, 10), 64, 4, "cross_entropy", "momentum"),
    Case((1, 1, 1), 1, 1, "mse"),
    Case((33, 32, 33), 60, 1, "mse", "momentum", "silu", "bfloat16"),
    Case((21, 100, 10), 100, 4, "cross_entropy", "plain", "sigmoid"),
    Case((23, 50, 1), 128, 4, "mse", "momentum", precision="bfloat16"),
    Case((31, 130, 5), 112, 8, "cross_entropy", "nesterov", "gelu"),
    Case((15, 250, 29), 20, 16, "mse", "decayed", "sigmoid"),
    Case((784, 256, 10), 8, 16, "cross_entropy", "plain"),
    Case((784, 512, 10), 32, 16, "cross_entropy", "decayed", precision="bfloat16"),
]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if i >= 3 else ()) for i, case in enumerate(AHEAD)],
    ids=str,
)
@pytest.mark.usefixtures("looks_ahead")
def test_looking_ahead(cuda: str, only_cluster: Callable[[int], None], case: Case) -> None:
    only_cluster(case.cluster)
    history = assert_follows_numpy(case.sizes, **case.settings)
    assert "products of a batch ahead" in history.plan.reason


DIVIDED = [
    Case((100, 60, 10), 64, 4, "cross_entropy", "decayed", "tanh"),
    Case((90, 60, 17), 128, 4, "mse", "plain", "sigmoid", "bfloat16"),
    Case((90, 120, 3), 64, 4, "cross_entropy", "decayed", "tanh"),
    Case((300, 128, 3), 64, 8, "cross_entropy", "plain", "gelu"),
    Case((784, 256, 10), 128, 16, "cross_entropy", "plain", "tanh"),
]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if i else ()) for i, case in enumerate(DIVIDED)],
    ids=str,
)
@pytest.mark.usefixtures("looks_ahead")
def test_blocks_that_divide_the_features(
    cuda: str, only_cluster: Callable[[int], None], case: Case
) -> None:
    only_cluster(case.cluster)
    history = assert_follows_numpy(case.sizes, **case.settings)
    assert "of the features by wgmma" in history.plan.reason


REPLICATED = [
    (2, Case((17, 5, 2), 32, 1, "mse", "nesterov", "gelu")),
    (3, Case((40, 37, 10), 80, 2, "cross_entropy", "decayed")),  # of two, two and one tiles
    (7, Case((70, 3), 112, 4, "cross_entropy", "momentum", precision="bfloat16")),
    (4, Case((1, 1), 64, 1, "mse")),
    (8, Case((33, 16, 33), 500, 1, "mse", "momentum", "silu", "bfloat16")),
    (4, Case((300, 17), 250, 4, "mse", "nesterov", "tanh", "bfloat16")),
    (3, Case((15, 120, 29), 200, 8, "cross_entropy", "nesterov", "sigmoid")),
    (2, Case((30, 250, 12), 352, 16, "mse", "nesterov", "gelu")),
]
# More threads than the emulator has.
REPLICATED_WIDELY = [
    (7, Case((784, 256, 10), 1024, 16, "cross_entropy", "momentum")),
    (7, Case((784, 10), 1000, 16, "cross_entropy", "decayed", precision="bfloat16")),
    (2, Case((784, 256, 10), 512, 16, "mse", "nesterov", "gelu")),  # batches that do not stay
    (8, Case((64, 128, 40), 384, 8, "cross_entropy", "momentum", "gelu")),
]


# The last batch is short, and some replicas have no rows of it.
@pytest.mark.parametrize(
    ("count", "case"),
    [
        pytest.param(*pair, marks=pytest.mark.slow if i >= 2 else ())
        for i, pair in enumerate(REPLICATED)
    ],
    ids=str,
)
def test_replicas_that_partition_batches(
    cuda: str,
    only_cluster: Callable[[int], None],
    replicas: Callable[[int], None],
    count: int,
    case: Case,
) -> None:
    only_cluster(case.cluster)
    replicas(count)
    history = assert_follows_numpy(case.sizes, **case.settings)
    whole = "blocks" if case.cluster == 1 else f"clusters of {case.cluster} blocks"
    assert f"{count} {whole} that partition a batch" in history.plan.reason


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(("count", "case"), REPLICATED_WIDELY, ids=str)
def test_replicas_of_many_blocks(
    only_cluster: Callable[[int], None], replicas: Callable[[int], None], count: int, case: Case
) -> None:
    test_replicas_that_partition_batches("cuda", only_cluster, replicas, count, case)


@pytest.mark.parametrize(
    ("count", "case"),
    [
        (1, AHEAD[0]),
        pytest.param(1, UNEVEN[1], marks=pytest.mark.slow),
        pytest.param(*REPLICATED[0], marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.usefixtures("looks_ahead")
def test_debug_builds(
    cuda: str,
    only_cluster: Callable[[int], None],
    replicas: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    case: Case,
) -> None:
    monkeypatch.setenv("WARPFIT_DEBUG", "1")
    only_cluster(case.cluster)
    replicas(count)
    assert_follows_numpy(case.sizes, **case.settings)


def many_cases() -> list[Case]:
    """Return every size of network with most sizes of batches, and with all else in turns."""
    sizes = [
        (1, 1, 1),
        (3, 1),
        (6, 8, 3),
        (17, 33, 2),
        (64, 64, 10),
        (100, 7),
        (130, 100, 20),
        (784, 10),
    ]
    sizes += [(784, 256, 10), (784, 512, 10)]
    batches = (1, 7, 16, 33, 64, 128, 512)
    found = []
    for i in range(60):
        size, batch = sizes[i % 10], batches[i % 7]
        if size == (130, 100, 20):  # whose rows fill more of the shared memory than others'
            batch = min(batch, 256)
        # The registers of 16 blocks have no room for velocities of 784 x 512 weights.
        optimizers = list(OPTIMIZERS)[: 2 if size == (784, 512, 10) else 4]
        of_classes = "cross_entropy" if size[-1] > 1 else "binary_cross_entropy"
        found.append(
            Case(
                size,
                batch,
                loss=(of_classes, "mse")[i // 3 % 2],
                optimizer=optimizers[(i + i // 10) % len(optimizers)],
                activation=SMOOTH[(i // 7 + i) % 4],
                precision=("float16", "bfloat16", "float16")[i % 3],
            )
        )
    return found


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("case", cases_on_a_gpu(many_cases()), ids=str)
def test_many_cases(case: Case) -> None:
    assert_follows_numpy(case.sizes, **case.settings)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("least", [False, True], ids=["most", "least"])
@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Case((40, 37, 10), 80, 1, optimizer="momentum"), "one block"),
        (Case((100, 7), 100, 4, "mse"), "a cluster of 4 blocks"),
        (Case((20, 60, 3), 90, 2, optimizer="nesterov"), "a cluster of 2 blocks"),
    ],
    ids=["block", "features", "units"],
)
def test_batches_that_shared_memory_does_not_hold(
    cuda: str,
    only_cluster: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    case: Case,
    words: str,
    least: bool,
) -> None:
    only_cluster(case.cluster)
    limit = limit_that_keeps_no_tile(case, least)
    monkeypatch.setattr(backends.get(cuda).runtime, "max_shared_bytes", limit)
    assert words in assert_follows_numpy(case.sizes, **case.settings).plan.reason


def limit_that_keeps_no_tile(case: Case, least: bool) -> int:
    """Return bytes of shared memory at which tiles come twice a step: the most such bytes or the
    least.
    """
    x, y = data(case.sizes, case.loss)
    model = mlp(*case.sizes, activation=ACTIVATIONS[case.activation])
    optimizer = sgd(model, **OPTIMIZERS[case.optimizer])
    plan = fit(model, x, y, optimizer, batch_size=case.batch_size, loss=case.loss, epochs=0).plan
    network, found = plan.prepared.launch.network, []
    for limit in range(100_000, 0, -1024):
        launch = choose(network, backends.get("cuda").runtime.arch, limit, 1)
        if isinstance(launch, Obstacle):
            break
        if launch.kept == 0:
            assert launch.x_slots < launch.row_tiles >= 5
            found.append(limit)
    return found[-1] if least else found[0]


# -- many steps
# --------------------------------------------------------------------------------------------


# What products of numbers in half precision alone do to weights in 300 steps: without kinks they
# end a twentieth of the limit away; at ReLU's, which a unit may pass in one run and not in the
# other, up to one and a half times it.
TIMES_LIMIT = {"tanh": 0.1, "relu": 2.0}


def assert_follows_numpy_for_300_steps(
    sizes: tuple[int, ...], batch_size: int, epochs: int, activation: str, **settings: Any
) -> None:
    history = assert_follows_numpy(
        sizes,
        rows=blobs(300 // epochs * batch_size, sizes[0], sizes[-1]),
        activation=ACTIVATIONS[activation],
        times_limit=TIMES_LIMIT[activation],
        batch_size=batch_size,
        epochs=epochs,
        **settings,
    )
    assert len(history.step_losses) == 300
    assert history["loss"][-1] < 0.5 * history["loss"][0]


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("activation", ["tanh", pytest.param("relu", marks=pytest.mark.slow)])
def test_300_steps(cuda: str, activation: str, precision: str) -> None:
    assert_follows_numpy_for_300_steps((40, 40, 10), 16, 30, activation, precision=precision)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(
    "optimizer", [{"lr": 0.05}, {"lr": 0.005, "momentum": 0.9}], ids=["plain", "momentum"]
)
@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("activation", TIMES_LIMIT)
def test_300_steps_of_the_network_for_mnist(
    activation: str, precision: str, optimizer: dict[str, Any]
) -> None:
    settings = {"precision": precision, "optimizer": optimizer}
    assert_follows_numpy_for_300_steps((784, 256, 10), 64, 3, activation, **settings)


# Between a run and NumPy's with the same roundings only the order of sums is left, which takes
# numbers that are halfway to one side or the other, and units across 0. That is up to 3.3e-4 here,
# where the two are up to 2e-2 from NumPy's run in float32.
@pytest.mark.slow
@pytest.mark.in_turns(8)
@pytest.mark.parametrize(
    ("precision", "momentum"),
    [
        ("float16", 0.0),
        ("bfloat16", 0.9),
        pytest.param("float16", 0.9, marks=pytest.mark.slow),
        pytest.param("bfloat16", 0.0, marks=pytest.mark.slow),
    ],
)
def test_all_errors_of_300_steps_are_those_of_rounding(
    cuda: str, precision: str, momentum: float
) -> None:
    x, y = blobs(3200, 64, 10)
    model, lr = mlp(64, 64, 10), 0.1 if not momentum else 0.01
    start = [array.copy() for array in model.state_dict().values()]
    orders = (epoch_order(len(x), 5, epoch) for epoch in range(3))
    batches = ((x[rows], y[rows]) for order in orders for rows in order.reshape(-1, 32))
    scale = 1024 * 32 * (1 if momentum else 8)
    expected = np.concatenate(
        [a.ravel() for a in rounded_sgd(start, batches, precision, lr, momentum, scale)]
    )
    optimizer = sgd(model, lr, momentum=momentum)
    fit(model, x, y, optimizer, batch_size=32, epochs=3, precision=precision)
    moved = np.linalg.norm(expected - np.concatenate([array.ravel() for array in start]))
    assert np.linalg.norm(flat(model) - expected) <= 1e-3 * moved


@pytest.mark.gpu
@pytest.mark.slow
@on_gpu
def test_100000_steps_do_not_drift() -> None:
    # What most steps add is less than a weight in half precision could take in: weights that were
    # rounded at each step would end two thirds of the way off. Products in half precision alone,
    # with the weights in float32, end 2e-4 off float64, so that nothing is left over of most of
    # their errors, and this limit is ten times that.
    rng = np.random.default_rng(0)
    x = rng.standard_normal((800, 16)).astype("f4")
    y = np.tanh(x @ rng.normal(0, 0.25, (16, 2))) + rng.normal(0, 0.1, (800, 2))
    exact, model = (
        mlp(16, 16, 2, dtype=dtype, activation=nn.Tanh) for dtype in ("float64", "float32")
    )
    start = flat(exact)
    settings = {"loss": "mse", "batch_size": 8, "epochs": 1000}
    fit(exact, x, y, sgd(exact, 1e-3), device="cpu", **settings)
    history = fit(model, x, y, sgd(model, 1e-3), **settings)
    assert len(history.step_losses) == 100_000
    distance = np.linalg.norm(flat(model) - flat(exact))
    assert distance <= LIMITS["float16"] * np.linalg.norm(flat(exact) - start)


# -- what it does not run
# ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:x .*standardise")
def test_a_loss_that_is_not_finite_ends_the_run_at_its_step(cuda: str) -> None:
    x, y = data((6, 3))
    x[20] = 1e6  # beyond float16
    model = mlp(6, 3)
    with pytest.raises(
        DivergedError, match=r"epoch 1, step 2.* clip_norm or precision='float32' may help"
    ):
        fit(model, x, y, shuffle=False)


class Own(nn.Module):
    def __init__(self) -> None:
        self.inner = mlp(6, 3)

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class OwnLoss(losses.SoftmaxCrossEntropy):
    """A loss of a user, whose formula nobody here knows."""

    name = ""


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (
            lambda: mlp(6, 3),
            {"precision": "tf32"},
            "precision 'float16', 'bfloat16' or 'float32', got 'tf32'",
        ),
        (
            lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU()),
            {},
            "no activation at the end, got relu",
        ),
        (
            lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)),
            {},
            "dropout once after a linear layer, got 0",
        ),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)), {}, "no dropout at the end"),
        (
            lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3)),
            {},
            "linear layers, activations and dropout, got layer_norm",
        ),
        (
            lambda: nn.Sequential(nn.Linear(6, 3, bias=False)),
            {},
            "layers with a bias, got layer 0 without one",
        ),
        (
            lambda: mlp(6, 3),
            {"loss": OwnLoss()},
            "a loss among cross_entropy, .*, got OwnLoss",
        ),
        (lambda: mlp(6, 3), {"loss_scale": "dynamic"}, "a fixed loss_scale, got dynamic"),
        (lambda: mlp(6, 200), {}, "at most 128 outputs, got 200"),
    ],
)
def test_it_says_what_is_in_the_way(
    cuda: str, make: Any, settings: dict[str, Any], words: str
) -> None:
    x, y = blobs(NUM_ROWS)
    with pytest.raises(ConfigError, match=words):
        fit(make(), x, y, **settings)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda model: adam(model, l2=0.1, clip_norm=2.0), "clip_norm or l2, not both, got 2.0"),
        (
            lambda model: optim.SGD(list(model.parameters())[:1], 0.1),
            "every parameter to be trained",
        ),
    ],
)
def test_it_says_what_optimizer_it_takes(cuda: str, make: Any, words: str) -> None:
    x, y = blobs(NUM_ROWS)
    model = mlp(6, 3)
    with pytest.raises(ConfigError, match=words):
        fit(model, x, y, make(model))


def test_it_needs_a_gpu() -> None:
    x, y = blobs(NUM_ROWS)
    model = mlp(6, 3)
    with pytest.raises(ConfigError, match="engine 'one_launch': expected a CUDA device, got cpu"):
        wf.fit(model, x, y, optimizer=sgd(model), device="cpu", engine="one_launch", verbose=False)


# -- clusters
# ----------------------------------------------------------------------------------------------


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("sizes", "cluster", "settings"),
    [
        ((40, 37, 10), 2, {"batch_size": 33}),
        ((40, 100, 10), 4, {"batch_size": 64, "optimizer": OPTIMIZERS["momentum"]}),
        ((40, 250, 3), 16, {"loss": "mse", "optimizer": OPTIMIZERS["nesterov"]}),
        ((50, 256, 3), 16, {"batch_size": 1, "optimizer": {"lr": 0.01, "weight_decay": 0.01}}),
        pytest.param((784, 256, 10), 16, {"batch_size": 64}, marks=pytest.mark.slow),
        pytest.param((784, 10), 16, {"batch_size": 48}, marks=pytest.mark.slow),
        pytest.param(
            (784, 10), 8, {"batch_size": 128, "precision": "bfloat16"}, marks=pytest.mark.slow
        ),
        pytest.param(
            (100, 7),
            4,
            {"loss": "mse", "optimizer": OPTIMIZERS["momentum"]},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_clusters(
    cuda: str,
    only_cluster: Callable[[int], None],
    sizes: tuple[int, ...],
    cluster: int,
    settings: dict[str, Any],
) -> None:
    only_cluster(cluster)
    history = assert_follows_numpy(sizes, activation=nn.Tanh, **settings)
    assert f"a cluster of {cluster} blocks" in history.plan.reason


@pytest.mark.filterwarnings("ignore:x .*standardise")
def test_clusters_give_the_same_bits_and_stop_together(
    cuda: str, only_cluster: Callable[[int], None]
) -> None:
    only_cluster(4)
    x, y = blobs(NUM_ROWS)
    models = [mlp(6, 100, 3) for _ in range(2)]
    for model in models:
        fit(model, x, y, sgd(model, momentum=0.9))
    assert_same_weights(*models)
    x[20], diverging = 1e6, mlp(6, 100, 3)  # beyond float16
    with pytest.raises(DivergedError, match=r"epoch 1, step 2"):
        fit(diverging, x, y, sgd(diverging, momentum=0.9), shuffle=False)


@pytest.mark.parametrize("epochs", [1, 3])
def test_bytes_count_the_batches_of_a_launch(
    cuda: str, only_cluster: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    x, y = blobs(NUM_ROWS)
    only_cluster(1)
    # A step has rows of x in half precision, labels, a rate and three numbers of the record.
    batches, epoch = (
        5 * (2 * BATCH * (16 + 8) + 4 * BATCH + 4 + 24),
        2 * NUM_ROWS * 6 + 8 * NUM_ROWS,
    )
    if epochs == 3:  # of which a launch holds two
        monkeypatch.setattr(launch_plan, "LAUNCH_BYTES", 2 * batches)
    plans = [
        fit(mlp(6, 3), x, y, engine=name, epochs=epochs).plan
        for name in ("one_launch", "layerwise")
    ]
    # layerwise keeps x in half precision, and the labels, in the order of the epoch.
    assert plans[0].bytes - plans[1].bytes == min(epochs, 2) * batches - epoch


def test_bytes_count_what_adaptive_rules_take(cuda: str) -> None:
    x, y = blobs(NUM_ROWS)
    steps, parameters = -(-NUM_ROWS // BATCH), 6 * 3 + 3
    momentum, adam = (
        fit(model, x, y, make(model), epochs=1).plan
        for model, make in (
            (mlp(6, 3), lambda model: sgd(model, momentum=0.9)),
            (mlp(6, 3), lambda model: optim.Adam(model.parameters())),
        )
    )
    # Twelve bytes a step more than a rate, and a second slot.
    assert adam.bytes - momentum.bytes == 12 * steps + 4 * parameters


def test_bytes_count_what_replicas_exchange(
    cuda: str, only_cluster: Callable[[int], None], replicas: Callable[[int], None]
) -> None:
    x, y = blobs(NUM_ROWS)
    only_cluster(1)
    found = []
    for count in (1, 2):
        replicas(count)
        found.append(fit(mlp(6, 3), x, y, batch_size=32, epochs=0).plan.bytes)
    # Two quads of each of 128 threads, twice the gradients and once the weights; twice two of each
    # of 32 for biases.
    assert found[1] - found[0] == 16 * (2 * 3 * 128 + 2 * 2 * 32)


def test_a_launch_takes_no_more_epochs_than_its_batches_have_room(
    cuda: str, launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(NUM_ROWS)
    whole, cut = mlp(6, 3), mlp(6, 3)
    plan = fit(whole, x, y, epochs=7).plan
    bytes_of_epoch = 5 * plan.prepared.launch.step_bytes
    launches.clear()
    monkeypatch.setattr(launch_plan, "LAUNCH_BYTES", 3 * bytes_of_epoch)
    fit(cut, x, y, epochs=7)
    assert launches == [1, 3, 3]
    assert_same_weights(cut, whole)


def test_what_comes_between_epochs_decides_who_runs_a_network(
    cuda: str, launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the kernel that goes layer by layer validates within a launch: it does if that takes
    less time in all.
    """
    x, y = blobs(NUM_ROWS)
    assert fit(mlp(6, 8, 3), x, y).plan.prepared.launch.kernel == "one_launch"
    history = {}
    for cost, expected in ((1e6, [1, 5]), (0.0, [1] * 6)):
        launches.clear()
        monkeypatch.setattr(launch_plan, "MICROSECONDS_BETWEEN_LAUNCHES", cost)
        history[cost] = fit(mlp(6, 8, 3), x, y, epochs=6, validation_data=(x[:50], y[:50]))
        assert launches == expected
    np.testing.assert_allclose(history[1e6]["val_loss"], history[0.0]["val_loss"], rtol=5e-3)
    np.testing.assert_allclose(history[1e6]["loss"], history[0.0]["loss"], rtol=5e-3)


def test_early_stopping_within_the_launch_of_one_hidden_layer(
    cuda: str, launches: list[int]
) -> None:
    x, y = blobs(NUM_ROWS)
    stopping = wf.EarlyStopping(monitor="loss", patience=1, min_delta=10.0)
    history = fit(mlp(6, 8, 3), x, y, epochs=8, callbacks=[stopping])
    assert history.stopped_by.startswith("early stopping")
    assert (len(history.reports), launches) == (2, [1, 7])
