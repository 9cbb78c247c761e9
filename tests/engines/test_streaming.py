"""Data that stays on the host: the bits of a run whose data is on the device, wherever epochs are
cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from emulator.runtime import EmulatedRuntime
from support.one_launch import BATCH, NUM_ROWS, Images, fit
from support.training import assert_same_weights, blobs, mlp, sgd
from warpfit import backends, nn, optim
from warpfit.backends.cuda import one_launch
from warpfit.backends.cuda.one_launch_layers import LayersLaunch
from warpfit.backends.cuda.trained_network import TrainedNetwork
from warpfit.data.order import epoch_order
from warpfit.engines import launch_plan, launch_run, pace, scaling, streaming
from warpfit.engines.base import TrainingData
from warpfit.engines.streaming import Cut, Piece, Stream, cut_of
from warpfit.errors import DivergedError, Obstacle
from warpfit.training import loop

STEPS = -(-NUM_ROWS // BATCH)
Stage = Callable[..., None]


@pytest.fixture
def stage(cuda: str, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Lets data stay on the host, in pieces of so many batches, or come to the device for None."""

    def cut(data: TrainingData, batch: int, *others: int) -> Cut:
        return Cut(len(data), batch, steps)

    steps = 1

    def choose(number: int | None) -> None:
        nonlocal steps
        steps = number or 1
        monkeypatch.setattr(launch_plan, "_is_to_stream", lambda *_: number is not None)
        monkeypatch.setattr(launch_plan, "cut_of", cut)

    return choose


def trained(
    make: Callable[[], nn.Module], make_optimizer: Any, x: Any, y: Any, **settings: Any
) -> Any:
    """Return all that a run leaves, and its plan's reason."""
    model = make()
    optimizer = make_optimizer(model)
    history = fit(model, x, y, optimizer, **{"epochs": 3, **settings})
    reports = [(r.epoch, r.loss, r.accuracy, r.lr, r.num_rows) for r in history]
    return (
        model.state_dict(),
        optimizer.state_dict(),
        history.step_losses,
        reports,
    ), history.plan.reason


def assert_same_however_it_is_cut(
    stage: Stage, *settings: Any, pieces: tuple[int, ...], **more: Any
) -> None:
    """Assert that streamed runs, in pieces of so many batches, leave the bits of one that is
    not.
    """
    stage(None)
    expected, _ = trained(*settings, **more)
    batch = more.get("batch_size", BATCH)
    for steps in pieces:
        stage(steps)
        found, reason = trained(*settings, **more)
        np.testing.assert_equal(found, expected)
        assert f"in {-(-NUM_ROWS // (steps * batch))} launches an epoch" in reason


def momentum(model: nn.Module) -> Any:
    return sgd(model, optim.Cosine(0.1, warmup_epochs=1), momentum=0.9)


def dropping() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 20, seed=1),
        nn.Tanh(),
        nn.Dropout(0.3),
        nn.Linear(20, 9, seed=2),
        nn.ReLU(),
        nn.Linear(9, 3, seed=3),
    )


# -- the same bits
# -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_by_warps_in_roles(stage: Stage) -> None:
    x, y = blobs(NUM_ROWS)
    assert_same_however_it_is_cut(
        stage, lambda: mlp(6, 8, 3), momentum, x, y, pieces=(1, 2, 3, 4, 5, 9)
    )


def test_layer_by_layer_with_all_that_counts_steps(stage: Stage) -> None:
    x, y = blobs(NUM_ROWS)
    weights = np.random.default_rng(3).random(NUM_ROWS)
    assert_same_however_it_is_cut(
        stage,
        dropping,
        lambda model: optim.AdamW(model.parameters(), optim.OneCycle(0.01), weight_decay=0.1),
        x,
        y,
        pieces=(1, 2, 4),
        sample_weight=weights,
    )


@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_rows_in_their_own_order_and_targets_of_several_numbers(
    stage: Stage, precision: str
) -> None:
    x, labels = blobs(NUM_ROWS)
    y = np.eye(3, dtype="f4")[labels]
    more: dict[str, Any] = {"loss": "mse", "shuffle": False, "precision": precision}
    assert_same_however_it_is_cut(stage, lambda: mlp(6, 3), sgd, x, y, pieces=(1, 3), **more)


def test_images(stage: Stage) -> None:
    case = Images("padded", BATCH, (4, 4), 1)
    x, y = (array[:NUM_ROWS] for array in case.rows)
    assert_same_however_it_is_cut(
        stage, case.make, lambda model: sgd(model, 0.1, momentum=0.9), x, y, pieces=(1, 3)
    )


@pytest.mark.slow
def test_replicas(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_launch, "REPLICAS", ((0, 2),))
    if isinstance(backends.get("cuda").runtime, EmulatedRuntime):
        monkeypatch.setattr(backends.get("cuda").runtime, "num_multiprocessors", 132)
    one_launch.choose.cache_clear()
    x, y = blobs(NUM_ROWS, 100)
    assert_same_however_it_is_cut(
        stage, lambda: mlp(100, 200, 3), momentum, x, y, pieces=(1, 2), batch_size=2 * BATCH
    )
    one_launch.choose.cache_clear()


@pytest.mark.slow
def test_a_streamed_run_does_not_look_ahead(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could at no cut, and so cuts would change bits."""
    monkeypatch.setattr(one_launch, "AHEAD_TILES", 1)
    one_launch.choose.cache_clear()
    x, y = blobs(NUM_ROWS)
    found = []
    for steps in (None, 1, 2, 5):
        stage(steps)
        left, reason = trained(lambda: mlp(6, 8, 3), sgd, x, y)
        assert ("a batch ahead" in reason) == (steps is None)
        found.append(left)
    one_launch.choose.cache_clear()
    for other in found[2:]:
        np.testing.assert_equal(other, found[1])


def bytes_in_file(folder: Path, x: Any) -> Any:
    """Return numbers of a file that begin at an odd byte."""
    (folder / "x").write_bytes(b"?" + x.tobytes())
    return np.memmap(folder / "x", x.dtype, "r", offset=1, shape=x.shape)


@pytest.mark.parametrize("kind", ["uint8", "float64", "of other machines", "in a file"])
def test_data_of_other_kinds(stage: Stage, tmp_path: Path, kind: str) -> None:
    x, y = blobs(NUM_ROWS)
    given = {
        "uint8": lambda: (255 * x).astype("u1"),
        "float64": lambda: x.astype("f8"),
        "of other machines": lambda: x.astype(">f4"),
        "in a file": lambda: bytes_in_file(tmp_path, x),
    }[kind]()
    assert_same_however_it_is_cut(stage, lambda: mlp(6, 3), sgd, given, y, pieces=(2,), epochs=1)


def test_a_checkpoint_serves_both(stage: Stage, tmp_path: Path) -> None:
    x, y = blobs(NUM_ROWS)
    stage(None)
    whole, first, second = (mlp(6, 8, 3) for _ in range(3))
    fit(whole, x, y, momentum(whole), epochs=4)
    fit(
        first,
        x,
        y,
        momentum(first),
        epochs=4,
        callbacks=[wf.Checkpoint(tmp_path / "run"), StopsAt(2)],
    )
    stage(2)
    fit(second, x, y, momentum(second), epochs=4, resume_from=tmp_path / "run")
    assert_same_weights(second, whole)


class StopsAt(wf.Callback):
    """Stops a run after an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch_end(self, run: Any) -> None:
        if run.report.epoch == self.epoch:
            run.stop("callback")


# -- runs that end early
# ---------------------------------------------------------------------------------------


def test_ctrl_c_within_an_epoch_leaves_the_weights_of_the_last_whole_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(NUM_ROWS)
    stage(2)
    stopped, expected = mlp(6, 3), mlp(6, 3)
    expected_optimizer, optimizer = (sgd(model, momentum=0.9) for model in (expected, stopped))
    fit(expected, x, y, expected_optimizer, epochs=2)
    fetch, closed = Stream.fetch, []

    def interrupted(stream: Stream, piece: Piece) -> None:
        if piece == (2, 4 * BATCH, NUM_ROWS - 4 * BATCH):
            raise KeyboardInterrupt
        fetch(stream, piece)

    close = Stream.close
    monkeypatch.setattr(Stream, "fetch", interrupted)
    monkeypatch.setattr(Stream, "close", lambda stream: (closed.append(stream), close(stream)))
    history = fit(stopped, x, y, optimizer, epochs=9)
    assert (history.stopped_by, history["epoch"], len(closed)) == ("interrupt", [1, 2], 1)
    np.testing.assert_equal(optimizer.state_dict(), expected_optimizer.state_dict())
    assert_same_weights(stopped, expected)


@pytest.mark.filterwarnings("ignore:x .*standardise")
@pytest.mark.parametrize("seconds", [0.0, 1e3])
def test_a_loss_that_is_not_finite_ends_the_run_at_its_step(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    x, y = blobs(NUM_ROWS)
    x[40] = 1e6  # beyond float16
    stage(1)
    monkeypatch.setattr(pace, "LAUNCH_SECONDS", seconds)  # how often somebody looks
    launched, train = [], launch_run.StreamedRun._train_piece
    monkeypatch.setattr(
        launch_run.StreamedRun,
        "_train_piece",
        lambda run, piece, *others: launched.append(piece) or train(run, piece, *others),
    )
    with pytest.raises(DivergedError, match=r"epoch 1, step 3"):
        fit(mlp(6, 3), x, y, shuffle=False)
    assert len(launched) == (3 if seconds == 0 else STEPS)


def test_what_breaks_off_the_first_piece_closes_the_stream(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(NUM_ROWS)
    stage(1)
    closed: list[Any] = []
    close = Stream.close

    def fails(*_: Any) -> None:
        raise OSError("expected a disk, got none")

    monkeypatch.setattr(streaming, "order_at", fails)
    monkeypatch.setattr(Stream, "close", lambda stream: (closed.append(stream), close(stream)))
    with pytest.raises(OSError, match="expected a disk"):
        fit(mlp(6, 3), x, y)
    assert len(closed) == 1


# -- when data is streamed
# -------------------------------------------------------------------------------------


@pytest.fixture
def left(cuda: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets the device have so many bytes left."""
    device = backends.get(cuda).runtime
    return lambda nbytes: monkeypatch.setattr(device, "memory_left", lambda: nbytes)


def test_data_that_has_no_room_is_streamed(
    left: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(1000)
    models = [mlp(6, 3) for _ in range(2)]
    resident = fit(models[0], x, y, engine="auto", precision="auto").plan
    left(60_000)
    streamed = fit(models[1], x, y, engine="auto", precision="auto").plan
    assert_same_weights(*models)
    assert (streamed.engine, streamed.precision) == ("one_launch", "float16")
    assert "launches an epoch" not in resident.reason
    assert (
        "; x stays on the host, and comes to the device in 3 launches an epoch" in streamed.reason
    )
    assert streamed.bytes < 60_000 < resident.bytes
    assert streamed.identity() == resident.identity()


def test_data_on_the_device_stays_there(left: Callable[[int], None], cuda: str) -> None:
    x, y = (backends.get(cuda).asarray(rows) for rows in blobs(1000))
    left(60_000)
    assert "launches an epoch" not in fit(mlp(6, 3), x, y, epochs=0).plan.reason


def test_targets_on_the_device_are_fetched(left: Callable[[int], None], cuda: str) -> None:
    x, y = blobs(1000)
    left(60_000)
    models = [mlp(6, 3) for _ in range(2)]
    for model, targets in zip(models, (y, backends.get(cuda).asarray(y)), strict=True):
        assert "launches an epoch" in fit(model, x, targets, epochs=1).plan.reason
    assert_same_weights(*models)


def test_other_engines_do_not_stream(left: Callable[[int], None]) -> None:
    x, y = blobs(1000)
    left(60_000)
    settings = {"precision": "tf32", "epochs": 0}
    assert fit(mlp(6, 3), x, y, engine="layerwise", **settings).plan.engine == "layerwise"
    assert fit(mlp(6, 3), x, y, engine="auto", **settings).plan.engine == "graph"


@pytest.mark.filterwarnings("ignore:x .*standardise")
def test_numbers_that_one_launch_does_not_take_are_not_streamed(
    left: Callable[[int], None], cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger than float16 takes, on a device without bfloat16."""
    x, y = blobs(1000)
    left(60_000)
    # Kernels are loaded for the architecture that is there, before an older one is said to be.
    scaling.magnitude(backends.get(cuda).asarray(x))
    monkeypatch.setattr(backends.get(cuda).runtime, "arch", "sm_75")
    plan = fit(mlp(6, 3), 2000 * x, y, engine="auto", precision="auto", epochs=0).plan
    assert (plan.engine, plan.precision) == ("graph", "float32")
    assert (
        "one_launch: expected an architecture whose tensor cores multiply bfloat16" in plan.reason
    )
    plan = fit(mlp(6, 3), x, y, engine="auto", precision="auto", epochs=0).plan
    assert (plan.engine, plan.prepared.is_streamed) == ("one_launch", True)


@pytest.mark.filterwarnings("ignore:x .*standardise")
def test_the_largest_number_of_all_pieces_counts(
    left: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(1000)
    x[700] = -2000
    left(60_000)
    monkeypatch.setattr(scaling, "PIECE_BYTES", 240)
    plan = fit(mlp(6, 3), x, y, precision="auto", epochs=0).plan
    assert plan.precision == "bfloat16"
    assert "x reaches 2000" in plan.reason


def test_validation_data_that_has_no_room_is_evaluated_all_the_same(
    left: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(3000)
    given, found = [], []
    evaluate = loop.evaluate_network

    def noted(ops: Any, *others: Any, **settings: Any) -> Any:
        given.append(type(others[3]).__name__)
        return evaluate(ops, *others, **settings)

    monkeypatch.setattr(loop, "evaluate_network", noted)
    monkeypatch.setattr(launch_plan, "MICROSECONDS_BETWEEN_LAUNCHES", 0)  # no kernel validates
    for nbytes in (1 << 30, 60_000):
        left(nbytes)
        history = fit(mlp(6, 3), x[:1000], y[:1000], validation_data=(x, y), epochs=1)
        found.append((history["val_loss"], history["val_accuracy"], history["loss"]))
    assert given == ["DeviceArray", "ndarray"]
    assert found[0] == found[1]


def test_rows_that_have_been_brought_to_a_device_have_room_there(
    left: Callable[[int], None],
) -> None:
    x, y = blobs(1000)
    plan, rows = fit(mlp(6, 3), x, y, epochs=0).plan, TrainingData(x, y)
    left(x.nbytes)
    assert launch_plan.has_room(plan, rows, 0)
    assert not launch_plan.has_room(plan, rows, 1)
    assert rows.on(plan.device) is rows.on(plan.device)
    left(0)
    assert launch_plan.has_room(plan, rows, 1)


# -- cuts
# --------------------------------------------------------------------------------------------------


def rows_of(num_rows: int) -> TrainingData:
    return TrainingData(np.zeros((num_rows, 6), "f4"), np.zeros(num_rows, "i8"))


@pytest.mark.parametrize(
    ("num_rows", "batch", "steps"), [(70, 16, 2), (64, 16, 4), (64, 16, 1), (5, 16, 3), (1, 1, 1)]
)
def test_pieces_are_whole_batches_and_have_each_row_once(
    num_rows: int, batch: int, steps: int
) -> None:
    cut = Cut(num_rows, batch, steps)
    pieces = list(cut.pieces(7))
    assert len(pieces) == cut.launches
    assert np.concatenate(
        [np.arange(p.first, p.first + p.num_rows) for p in pieces]
    ).tolist() == list(range(num_rows))
    assert all(p.first % batch == 0 and p.num_rows % batch == 0 for p in pieces[:-1])
    assert {p.epoch for p in pieces} == {7}
    assert max(p.num_rows for p in pieces) == cut.most_rows


def test_pieces_are_as_large_as_makes_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    data, room = rows_of(10_000), 1 << 30
    monkeypatch.setattr(streaming, "PIECE_BYTES", 16_384)
    assert cut_of(data, 16, 1024, room, 100).steps == 16
    assert cut_of(data, 16, 64, room, 100).steps == 32  # x and targets of a batch take 512 bytes
    assert cut_of(data, 16, 64, room, 5).steps == 5
    assert cut_of(data, 16, 20_000, room, 100).steps == 1
    least = 2 * (512 + 256) + 1024  # arrays begin at multiples of 256 bytes
    cut = cut_of(data, 16, 1024, 3 * least, 100)
    assert cut.steps == 3
    assert cut.bytes_of(data, 1024) <= 3 * least
    obstacle = f"expected at most 1700 bytes for single batches, 2 in flight, got {1024 + 2 * 768}"
    assert re.fullmatch(obstacle, str(cut_of(data, 16, 1024, 1700, 100)))


def test_pieces_leave_room_for_the_record_of_an_epoch_and_what_is_exchanged() -> None:
    data = TrainingData(np.zeros((512, 8), np.float32), np.zeros(512, np.int64))
    network = TrainedNetwork("float16", (8, 3), (), (), BATCH, "cross_entropy")
    launch = LayersLaunch(network, 1, 1, 1, replicas=3)
    plan: Any = SimpleNamespace(batch_size=BATCH)
    record = np.empty((network.batches(len(data)), launch.recorders, 3))  # as reports.py has it
    assert launch.record_bytes(len(data)) == record.nbytes
    others = launch.record_bytes(len(data)) + launch.exchange_bytes
    least = others + Cut(len(data), BATCH, 1).bytes_of(data, launch.step_bytes)
    for most in range(least, 4 * least, 500):
        cut = launch_plan.cut_for(launch, plan, data, most)
        assert isinstance(cut, Cut)
        assert cut.bytes_of(data, launch.step_bytes) + others <= most
    assert "for single batches" in str(launch_plan.cut_for(launch, plan, data, least - 1))


def test_more_rows_than_an_order_has() -> None:
    x = np.broadcast_to(np.uint8(0), (2**31 + 1, 1))
    found = cut_of(TrainingData(x, x), 16, 1, 1 << 40, 1)
    assert found == Obstacle(f"expected at most 2**31 rows, got {2**31 + 1}")


# -- the stream alone
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 4])
def test_rows_come_in_the_order_of_their_epoch(cuda: str, seed: int | None) -> None:
    ops = backends.get(cuda)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((NUM_ROWS, 5)).astype("f8"), np.arange(NUM_ROWS)
    weights = rng.random(NUM_ROWS).astype("f4")
    cut = Cut(NUM_ROWS, BATCH, 2)
    stream = Stream(ops, TrainingData(x, y, weights), cut, seed)
    for epoch in (0, 1):
        found: list[Any] = []
        for piece in cut.pieces(epoch):
            stream.fetch(piece)
            with stream.received() as arrays:
                copies = [ops.copy(array) for array in arrays]
            found.append([copy.numpy() for copy in copies])
        rows = np.arange(NUM_ROWS) if seed is None else epoch_order(NUM_ROWS, seed, epoch)
        for expected, parts in zip((x, y, weights), zip(*found, strict=True), strict=True):
            np.testing.assert_array_equal(np.concatenate(parts), expected[rows])
    stream.close()
