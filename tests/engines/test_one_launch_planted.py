"""Mistakes planted in a copy of the kernel that goes layer by layer: the emulator catches each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warpfit as wf
from conftest import on_emulator
from support.devices import open_emulated
from support.one_launch import data, fit
from support.training import assert_same_weights, mlp
from warpfit.backends.cuda import jit
from warpfit.engines import launch_talk
from warpfit.errors import DeviceError, DivergedError

pytestmark = [
    on_emulator,
    pytest.mark.usefixtures("by_layers", "launches"),
    pytest.mark.in_turns(2),
]

SIZES = (6, 20, 9, 3)
X, LABELS = data(SIZES)
KERNEL = "one_launch_layers"

# What is replaced by what, each once in the source of the kernel with all its headers.
Mistake = dict[str, str]

WAITS_FOR_X = "wait(shared.x_full[now.slot()], pass.index() / X_SLOTS);"
WAITS_FOR_ROWS = "wait_or_give_up(full, phase);"
WAITS_FOR_GRADIENTS = (
    "await_bytes(layer_of<L>(shared.layers).dz_full, step, Shape<L>::bytes_of_others());"
)
FIRST_BARRIER = "barrier_of_cluster();  // no block writes to another that has not begun"
LAST_BARRIER = "barrier_of_cluster();  // nor to one that has left"
MAY_LEAVE = "if (talks.end_now(epochs_done)) break;"
LEAVES_ALONE = "if (talks.end_now(epochs_done) || own_rank() == 1) break;"
UNITS = "units(int pass) { return y[pass % COPIES]; }"
SENDS_GRADIENTS = "THREADS, now.step, sums);"
HAS_GRADIENTS = """missing |= comes(i) ? missing_marks(words[i], turn) : 0;
        if (missing == 0) break;"""
ADDS_UP = "if (RECORDERS > 1) add_up_recorders(sums, memory, pass.epoch);"
MARKS_PART = "store_relaxed(&place.epoch, epoch);"
WAITS_FOR_PARTS = "for (Patience patience; load_relaxed(&place.epoch) != epoch;) patience.wait();"


@pytest.fixture
def train(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    only_cluster: Callable[..., None],
    only_replicas: Callable[[int], None],
) -> Callable[..., Any]:
    """Trains by a copy of the kernel with a mistake, in clusters of two blocks, and returns the
    model.
    """
    monkeypatch.setattr(launch_talk, "PASSES_BETWEEN_TALKS", 1)
    only_cluster(2)

    def train_wrongly(mistake: Mistake, reverse: bool, replicas: int = 1, **settings: Any) -> Any:
        source = jit.flattened(KERNEL, ())
        for right, wrong in mistake.items():
            assert source.count(right) == 1, right
            source = source.replace(right, wrong)
        (tmp_path / f"{KERNEL}.cu").write_text(source)
        open_emulated(monkeypatch, folder=tmp_path, reverse=reverse)
        only_replicas(replicas)
        model = mlp(*SIZES)
        fit(model, X, LABELS, **{"epochs": 3, "batch_size": 16 * replicas, **settings})
        return model.to("cpu")

    return train_wrongly


ONCE_MORE = (
    r"expected \d+ arrivals in a phase of the barrier at .*, got one more, "
    r"while|something is on its way|a copy for which nobody has waited is in flight"
)
HAS_NOT_BEGUN = r"store_async_quad: block [01] of the cluster has not begun"
HAS_LEFT = (
    r"store_async_quad: block 1 of the cluster has left the kernel"
    r"|the block leaves while \d+ bytes are on their way to it, for which nobody waits"
)
WAITS_FOR_EVER = (
    r"deadlock: in block 1 of the cluster threads 0-255 wait at cluster_barrier .*; in block 0"
)


@pytest.mark.in_turns(8)
@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        pytest.param({WAITS_FOR_ROWS: ""}, ONCE_MORE, id="no wait"),
        pytest.param({WAITS_FOR_X: ""}, ONCE_MORE, id="no wait for x"),
        pytest.param({WAITS_FOR_ROWS: "wait_or_give_up(full, phase + 1);"}, ONCE_MORE, id="parity"),
        pytest.param(
            {WAITS_FOR_X: WAITS_FOR_X.replace(");", " + 1);")}, ONCE_MORE, id="parity of x"
        ),
        pytest.param({FIRST_BARRIER: "__syncthreads();"}, HAS_NOT_BEGUN, id="has not begun"),
        pytest.param({WAITS_FOR_GRADIENTS: ""}, ONCE_MORE, id="no wait for gradients"),
        pytest.param(
            {MAY_LEAVE: LEAVES_ALONE, LAST_BARRIER: "__syncthreads();"}, HAS_LEFT, id="has left"
        ),
        pytest.param({MAY_LEAVE: LEAVES_ALONE}, WAITS_FOR_EVER, id="leaves alone"),
    ],
)
def test_what_blocks_of_a_cluster_do_wrongly(
    train: Callable[..., Any], mistake: Mistake, message: str
) -> None:
    for reverse in (False, True):
        with pytest.raises(
            DeviceError, match=rf"^kernel {KERNEL}, block \(\d, 0, 0\).*: ({message})"
        ):
            train(mistake, reverse)


@pytest.mark.slow
def test_units_that_others_have_not_read_are_poisoned(train: Callable[..., Any]) -> None:
    for reverse in (False, True):
        with pytest.raises(DivergedError, match="epoch 1, step 2"):
            train({UNITS: "units(int) { return y[0]; }"}, reverse)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(
            {HAS_GRADIENTS: HAS_GRADIENTS.replace("if (missing == 0) ", "")}, id="no wait"
        ),
        pytest.param(
            {SENDS_GRADIENTS: SENDS_GRADIENTS.replace("now.step", "now.step + 1")}, id="step"
        ),
    ],
)
def test_what_replicas_do_wrongly(train: Callable[..., Any], mistake: Mistake) -> None:
    for reverse in (False, True):
        with pytest.raises(DeviceError, match=r"deadlock: in .* wait at let_others_run"):
            train(mistake, reverse, replicas=2)


STOPS: dict[str, Any] = {"epochs": 12, "callbacks": [wf.EarlyStopping("loss", patience=1)]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "orders"),
    [
        pytest.param({ADDS_UP: ""}, (False, True), id="each for itself"),
        pytest.param(
            {MARKS_PART: MARKS_PART.replace("epoch);", "1U);")},
            (False, True),
            id="epoch",
            marks=pytest.mark.slow,
        ),
        # In the other order they happen to agree.
        pytest.param({WAITS_FOR_PARTS: ""}, (False,), id="no wait", marks=pytest.mark.slow),
    ],
)
def test_replicas_that_do_not_decide_alike(
    train: Callable[..., Any], mistake: Mistake, orders: tuple[bool, ...]
) -> None:
    for reverse in orders:
        with pytest.raises(DeviceError, match=r"deadlock: in .* wait at let_others_run"):
            train(mistake, reverse, replicas=2, **STOPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, pytest.param(STOPS, marks=pytest.mark.slow)], ids=["", "stops"]
)
def test_a_copy_without_a_mistake(train: Callable[..., Any], settings: dict[str, Any]) -> None:
    for replicas in (1, 2):
        assert_same_weights(
            *(train({}, reverse, replicas, **settings) for reverse in (False, True))
        )
