"""Networks trained by one kernel beside those trained step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import warpfit as wf
from conftest import on_emulator
from support.devices import assert_bits_when_late, open_emulated
from warpfit import backends
from warpfit.data.order import epoch_order
from warpfit.errors import ConfigError, Obstacle, TrainingWarning, required
from warpfit.losses import BinaryCrossEntropy, Loss, MeanSquaredError, SoftmaxCrossEntropy
from warpfit.tabular import launched, realmlp
from warpfit.tabular.launched import Launched, Task, launch_of
from warpfit.tabular.network import Columns, RealMLP, set_initial_values
from warpfit.tabular.training import Rows, Steps, train

Array = npt.NDArray[Any]

SEED, LR = 3, 0.04


@dataclass(frozen=True)
class Case:
    """A network, and how it is trained."""

    columns: Columns
    hidden: tuple[int, ...]
    activation: str
    outputs: int
    batch: int
    num_rows: int = 40
    epochs: int = 3

    @property
    def are_labels(self) -> bool:
        return self.activation == "selu"

    @property
    def loss(self) -> Loss:
        return SoftmaxCrossEntropy(label_smoothing=0.1) if self.are_labels else MeanSquaredError()

    def table(self) -> tuple[Array, Array]:
        random = np.random.default_rng(0)
        plain = random.normal(size=(self.num_rows, self.columns.num_plain))
        codes = [random.integers(0, size, self.num_rows) for size in self.columns.num_codes]
        x = np.column_stack([plain, *codes]).astype(np.float32)
        signal = np.abs(x[:, :1]) + x[:, -1:] * np.arange(1, self.outputs + 1)
        if self.are_labels:
            return x, np.digitize(signal[:, 0], np.arange(1, self.outputs)).astype(np.int64)
        return x, ((signal - signal.mean(axis=0)) / signal.std(axis=0)).astype(np.float32)

    def bounds(self, y: Array) -> Array | None:
        return None if self.are_labels else np.stack([y.min(axis=0) + 0.5, y.max(axis=0)])

    def network(self, x: Array, seed: int = 1) -> RealMLP:
        network = RealMLP(
            self.columns, self.outputs, self.activation, seed=seed, hidden=self.hidden
        )
        set_initial_values(network, x, seed)
        return network

    def task(self, device: str, seed: int = 1) -> Task:
        x, y = self.table()
        ops = backends.get(device)
        rows = Rows(ops.asarray(x), ops.asarray(y))
        return Task(self.network(x, seed), rows, rows, self.bounds(y), SEED)

    def run(self, device: str, seeds: Sequence[int] = (1,), **changes: Any) -> Launched:
        """Return what is trained of networks of some seeds, as one launch with some changes."""
        tasks = [self.task(device, seed) for seed in seeds]
        found = launch_of(device, tasks[0].network, self.loss, self.batch, len(tasks))
        launch = replace(required(found), **changes)
        run = Launched(device, tasks, launch, lr=LR, n_epochs=self.epochs)
        for _ in run.epochs():
            pass
        return run

    def losses_of_steps(self) -> Array:
        """Return the losses (steps,) of the reference."""
        x, y = self.table()
        num_batches = len(x) // self.batch
        steps, found = (
            Steps(self.network(x).train(), self.loss, LR, self.epochs * num_batches),
            [],
        )
        for epoch in range(self.epochs):
            order = epoch_order(len(x), SEED, epoch)
            for batch in np.split(order[: num_batches * self.batch], num_batches):
                found.append(float(steps.step(x[batch], y[batch])))
        return np.array(found)


CLASSES = Case(Columns(3), (24, 24), "selu", 3, batch=12)
NUMBERS = Case(Columns(2, 3, (3, 4)), (40, 40, 40), "mish", 2, batch=16)
# Whose last block of rows is not full, and whose first layer's inputs are more than those that
# warps add up together.
WIDE = Case(Columns(33, 1), (16,), "mish", 1, batch=13)
PLAIN = Case(Columns(0, 5), (16, 16), "selu", 2, batch=16)
MANY = Case(Columns(2), (16,), "selu", 40, batch=16)
# With more tiles of inputs than there are warps, and an odd number of them.
BROAD = Case(Columns(2, 250, (5,)), (24,) * 4, "selu", 2, batch=16)
# Of whose tiles of units some warps have two: few inputs are added up together, and many.
ONE = Case(Columns(3), (328,), "selu", 2, batch=12)
ONE_BROAD = Case(Columns(3, 130), (300,), "mish", 1, batch=16)
DEEP = Case(Columns(3), (40,) * 5, "selu", 2, batch=12)
CASES = {
    "classes": CLASSES,
    "numbers": NUMBERS,
    "wide": WIDE,
    "plain": PLAIN,
    "many": MANY,
    "broad": BROAD,
    "one": ONE,
    "one, broad": ONE_BROAD,
}


def assert_steps_are_those_of_the_reference(case: Case, run: Launched, rtol: float) -> None:
    np.testing.assert_allclose(
        run.losses_of_steps(0, case.epochs)[0], case.losses_of_steps(), rtol=rtol
    )


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_reference(cuda: str, name: str) -> None:
    rtol = 1e-2 if name.startswith("one") else 5e-3  # of more products, more is rounded
    assert_steps_are_those_of_the_reference(CASES[name], CASES[name].run(cuda), rtol)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("row_tiles", [1, 2])
@pytest.mark.parametrize("case", [DEEP, ONE], ids=["five layers", "one"])
def test_layers_by_8_and_by_16_rows(cuda: str, case: Case, row_tiles: int) -> None:
    """What dropout keeps of five layers is in one word, or in two."""
    assert_steps_are_those_of_the_reference(case, case.run(cuda, row_tiles=row_tiles), 1e-2)


@pytest.mark.parametrize("name", ["classes", "numbers"])
def test_in_bfloat16(cuda: str, name: str) -> None:
    run = CASES[name].run(cuda, dtype="bfloat16")
    assert_steps_are_those_of_the_reference(CASES[name], run, 5e-2)


@on_emulator
def test_blocks_that_have_nothing_to_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """They must not tell others of steps to come."""
    open_emulated(monkeypatch, num_multiprocessors=30)
    case = replace(CLASSES, hidden=(16,), batch=8, num_rows=16)
    assert_steps_are_those_of_the_reference(case, case.run("cuda"), 5e-3)


def test_errors_and_the_best_parameters_are_those_of_the_reference(cuda: str) -> None:
    for case in (CLASSES, NUMBERS):
        run = case.run(cuda)
        run.hand_over()
        x, y = case.table()
        bounds = case.bounds(y)

        def error(outputs: Array, y: Array = y, bounds: Array | None = bounds) -> float:
            if bounds is None:
                return float((outputs.argmax(axis=1) != y).mean())
            return float(np.sqrt(np.square(np.clip(outputs, *bounds) - y).mean()))

        network = case.network(x)
        outcome = train(
            network,
            Rows(x, y),
            x,
            error,
            loss=case.loss,
            lr=LR,
            n_epochs=case.epochs,
            batch_size=case.batch,
            seed=SEED,
            report=lambda outcome: None,
        )
        found = run.ops.to_numpy(run.errors)[0, 1:]
        np.testing.assert_allclose(found, outcome.errors, rtol=1e-2, atol=0.026)
        trained = run.tasks[0].network
        for own, theirs in zip(trained.parameters(), network.parameters(), strict=True):
            np.testing.assert_allclose(own.numpy(), theirs.numpy(), rtol=0.1, atol=0.05)


def test_the_latest_of_equal_epochs_is_the_best(cuda: str) -> None:
    x, y = CLASSES.table()
    task = replace(CLASSES.task(cuda), validation=Rows(x[:1], y[:1]))
    launch = required(launch_of(cuda, task.network, CLASSES.loss, CLASSES.batch))
    run = Launched(cuda, [task], launch, lr=1e-4, n_epochs=3)
    ((_, errors),) = run.epochs()
    assert len(set(errors[0])) == 1
    vectors = slice(-launch.shape.num_vectors, None)
    now, best = (run.ops.to_numpy(run.parameters[0][slot])[vectors] for slot in (0, 3))
    np.testing.assert_array_equal(best, now)


def test_an_error_that_is_not_finite_is_never_the_best(cuda: str) -> None:
    x, _ = CLASSES.table()
    task = CLASSES.task(cuda)
    last: Any = task.network.linears[2]
    last.bias.data[:] = np.nan
    launch = required(launch_of(cuda, task.network, CLASSES.loss, CLASSES.batch))
    run = Launched(cuda, [task], launch, lr=LR, n_epochs=2)
    ((_, errors),) = run.epochs()
    assert np.isnan(errors).all()
    run.hand_over()
    np.testing.assert_array_equal(
        task.network.scale.weight.numpy(), CLASSES.network(x).scale.weight.numpy()
    )


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("row_tiles", [1, 2])
def test_a_network_among_others_has_the_bits_that_it_has_alone(cuda: str, row_tiles: int) -> None:
    case = replace(CLASSES, epochs=2)
    together = case.run(cuda, seeds=(1, 2), row_tiles=row_tiles)
    for place, seed in enumerate((1, 2)):
        alone = case.run(cuda, seeds=(seed,), row_tiles=row_tiles)
        for own, others in ((alone.losses, together.losses), (alone.errors, together.errors)):
            np.testing.assert_array_equal(
                alone.ops.to_numpy(own)[0], together.ops.to_numpy(others)[place]
            )
        np.testing.assert_array_equal(
            alone.ops.to_numpy(alone.parameters)[0],
            together.ops.to_numpy(together.parameters)[place],
        )


def test_where_launches_are_cut_changes_no_bit(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CLASSES.run(cuda)
    monkeypatch.setattr(launched, "STEPS_AT_ONCE", 1)
    in_parts = CLASSES.run(cuda)
    np.testing.assert_array_equal(
        whole.ops.to_numpy(whole.parameters), in_parts.ops.to_numpy(in_parts.parameters)
    )


@on_emulator
def test_a_warp_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(CLASSES, hidden=(16, 16, 16), num_rows=26, epochs=1)

    def trained() -> list[Any]:
        run = case.run("cuda")
        return [run.ops.to_numpy(run.parameters), run.losses_of_steps(0, case.epochs)]

    assert_bits_when_late(monkeypatch, trained, blocks=3, warps=16, num_multiprocessors=4)


def classes_of(num_rows: int) -> tuple[Array, Array]:
    x = np.random.default_rng(0).normal(size=(num_rows, 3))
    return x, np.where(x[:, 0] > 0, "yes", "no")


SMALL: dict[str, Any] = {"hidden_layer_sizes": 16, "n_epochs": 3, "batch_size": 16}


def test_an_estimator_trains_its_bag_as_one_launch(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, init = [], Launched.__init__

    def noted(self: Launched, device: str, tasks: Sequence[Task], *rest: Any, **more: Any) -> None:
        sizes.append(len(tasks))
        init(self, device, tasks, *rest, **more)

    monkeypatch.setattr(Launched, "__init__", noted)
    x, y = classes_of(60)
    settings: dict[str, Any] = {**SMALL, "n_folds": 2, "random_state": 0}
    model = wf.TabularClassifier(device=cuda, **settings).fit(x, y)
    assert sizes == [2]
    slow = wf.TabularClassifier(device="cpu", **settings).fit(x, y)
    for own, other in zip(model.members_, slow.members_, strict=True):
        np.testing.assert_allclose(own.losses, other.losses, rtol=1e-2)
        np.testing.assert_allclose(own.errors, other.errors, atol=0.07)
    wf.TabularClassifier(device=cuda, precision="float32", **{**settings, "n_epochs": 1}).fit(x, y)
    assert sizes == [2]


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("num_rows", [63, 31])
def test_folds_with_batches_of_their_own_are_launched_apart(
    cuda: str, monkeypatch: pytest.MonkeyPatch, num_rows: int
) -> None:
    """One has 31 rows and the other 32, which are two batches; or 15, which are a batch, and 16."""
    x, _ = classes_of(num_rows)
    found = [
        wf.TabularRegressor(device=device, n_folds=2, random_state=0, **SMALL).fit(x, x[:, 1])
        for device in (cuda, "cpu")
    ]
    for own, other in zip(*(model.members_ for model in found), strict=True):
        np.testing.assert_allclose(own.losses, other.losses, rtol=2e-2)


def test_time_ends_between_launches(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launched, "STEPS_AT_ONCE", 1)
    x, y = classes_of(60)
    model = wf.TabularClassifier(device=cuda, time_limit=1e-9, random_state=0, **SMALL)
    with pytest.warns(TrainingWarning, match="1 of 3 epochs"):
        model.fit(x, y)
    assert len(model.loss_curve_) == 1


def test_half_precision_needs_a_gpu() -> None:
    model = wf.TabularClassifier(device="cpu", precision="float16", **SMALL)
    with pytest.raises(ConfigError, match="precision 'float16': expected a CUDA device, got"):
        model.fit(*classes_of(40))


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_so_it_does_for_tabm(precision: str) -> None:
    model = wf.TabularClassifier("tabm", device="cpu", precision=precision, **SMALL)
    with pytest.raises(ConfigError, match=f"'float32' or None for TabM .*, got '{precision}'"):
        model.fit(*classes_of(40))


def obstacle(network: RealMLP, loss: Loss, device: str = "cuda", **settings: Any) -> str:
    found = launch_of(device, network, loss, 32, **settings)
    assert isinstance(found, Obstacle)
    return str(found)


@pytest.mark.usefixtures("emulated")
def test_what_is_in_the_way() -> None:
    loss, columns = SoftmaxCrossEntropy(), Columns(3)
    plain = RealMLP(columns, 2, "selu")
    assert "expected a CUDA device, got 'cpu'" in obstacle(plain, loss, "cpu")
    assert "BinaryCrossEntropy" in obstacle(plain, BinaryCrossEntropy())
    assert "expected no sample weights" in obstacle(plain, loss, is_weighted=True)
    uneven = RealMLP(columns, 2, "selu", hidden=(8, 16))
    assert "the same width, got [8, 16]" in obstacle(uneven, loss)
    broad = RealMLP(columns, 2, "selu", hidden=(257, 257))
    assert "of at most 512, got (12, 257, 257, 2)" in obstacle(broad, loss)
    broader = RealMLP(columns, 2, "selu", hidden=(513,))
    assert "layers of 1 to 256 units, or one of at most 512, got" in obstacle(broader, loss)
    assert "bytes of shared memory" in obstacle(RealMLP(Columns(600), 2, "selu"), loss)
    assert "at most 128 outputs, got 129" in obstacle(RealMLP(columns, 129, "selu"), loss)
    deep = RealMLP(columns, 2, "selu", hidden=(8,) * 9)
    assert "at most 8 hidden layers, got 9" in obstacle(deep, loss)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    open_emulated(monkeypatch)


@on_emulator
def test_older_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    open_emulated(monkeypatch, arch="sm_75")
    found = obstacle(RealMLP(Columns(3), 2, "selu"), SoftmaxCrossEntropy())
    assert "from sm_80 on, got sm_75" in found


@pytest.mark.parametrize(
    ("precision", "far", "dtype"),
    [
        ("auto", 500.0, "float16"),
        ("auto", 520.0, "bfloat16"),
        ("float16", 520.0, "float16"),
    ],
)
def test_far_targets_are_for_bfloat16(precision: str, far: float, dtype: str) -> None:
    """With two outputs: 4 · 510 / 2 · 64 is float16's range."""
    training: Any = SimpleNamespace(settings={"precision": precision})
    y = np.zeros((5, 2), np.float32)
    y[3, 1] = -far
    assert realmlp._dtype_of(training, Rows(None, y)) == dtype
    assert realmlp._dtype_of(training, Rows(None, np.arange(5))) == "float16"
