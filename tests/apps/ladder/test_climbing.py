"""The climb: every rung trains the same network as NumPy does, and says what it did or why it did
not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import on_gpu
from support.training import blobs
from warpfit.apps import ladder
from warpfit.apps.ladder import RUNGS, Record, climb
from warpfit.apps.ladder.climbing import fitting
from warpfit.apps.ladder.rungs import program_of
from warpfit.apps.ladder.task import Task, make_task
from warpfit.errors import ConfigError, DataError, ShapeError

NAMES = [rung.name for rung in RUNGS]
HALF_FROM = NAMES.index("tensor-cores")


def small_task(network: tuple[int, ...] = (12, 16, 4), rows: int = 44) -> Task:
    x, y = blobs(rows, network[0], network[-1])
    return Task(network, 16, 1.0, x, y)


def losses_of(
    task: Task, name: str, device: str, epochs: int = 2, half: str = "float16"
) -> list[Any]:
    (rung,) = (rung for rung in RUNGS if rung.name == name)
    return [
        epoch.step_losses for epoch in program_of(rung, task, device, half).run(len(task.x), epochs)
    ]


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("name", NAMES[1:])
def test_every_rung_follows_numpy_step_by_step(name: str, cuda: str) -> None:
    task = small_task()
    expected, found = losses_of(task, "numpy", "cpu"), losses_of(task, name, cuda)
    is_half = NAMES.index(name) >= HALF_FROM
    for one, other in zip(expected, found, strict=True):
        assert one.shape == (3,)
        np.testing.assert_allclose(other, one, rtol=0, atol=4e-3 if is_half else 1e-5)
    assert found[1].mean() < found[0].mean() - 0.05  # it learns, and so its updates are seen


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("network", [(12, 4), (12, 8, 8, 8, 4)])
@pytest.mark.parametrize("name", ["textbook", "fused", "preloaded"])
def test_networks_without_and_with_many_hidden_layers_do_too(
    name: str, network: tuple[int, ...], cuda: str
) -> None:
    task = small_task(network)
    expected, found = losses_of(task, "numpy", "cpu"), losses_of(task, name, cuda, half="bfloat16")
    np.testing.assert_allclose(np.ravel(found), np.ravel(expected), rtol=0, atol=2e-2)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("textbook", "matmul_naive"),
        ("fused", "matmul_naive"),
        ("tiled", "matmul_tiled"),
        ("register", "matmul_register"),
        ("pinned", "matmul_mma"),
    ],
)
def test_every_rung_has_the_products_that_it_names(name: str, kernel: str, cuda: str) -> None:
    from warpfit.apps.ladder.trainer import StepByStep

    (rung,) = (rung for rung in RUNGS if rung.name == name)
    program = program_of(rung, small_task(), cuda)
    assert isinstance(program, StepByStep)
    program.prepare()
    launches = program.ops._products.values()  # type: ignore[attr-defined]
    assert {launch.config.kernel for launch in launches} == {kernel}


@pytest.mark.slow
def test_a_rung_tells_how_long_the_device_works(cuda: str) -> None:
    (record,) = climb(device=cuda, data=blobs(80, 12), epochs=1, rungs=["no-readback"])
    assert (record.device_ms or 0) > 0
    (numpy,) = climb(device=cuda, data=blobs(80, 12), epochs=1, rungs=["numpy"])
    assert numpy.device_ms is None


@pytest.mark.slow
def test_the_timed_steps_are_those_of_the_rung(cuda: str) -> None:
    for name in ("textbook", "fewer-reports", "pinned", "preloaded"):
        (rung,) = (rung for rung in RUNGS if rung.name == name)
        program = program_of(rung, small_task(), cuda)
        before = losses_of(small_task(), name, cuda)
        assert (program.device_seconds() or 0) > 0
        after = [epoch.step_losses for epoch in program.run(44, 2)]
        np.testing.assert_array_equal(
            np.ravel(after), np.ravel(before)
        )  # they leave nothing behind


def test_reports_are_fewer_where_they_should_be(cuda: str) -> None:
    found = losses_of(small_task(rows=16), "fewer-reports", cuda, epochs=12)
    assert [number for number, losses in enumerate(found) if losses is not None] == [0, 10, 11]


def test_a_climb_tells_of_every_rung_as_it_comes(cuda: str) -> None:
    told: list[str] = []
    result = climb(
        device=cuda,
        data=blobs(80, 12),
        epochs=2,
        lr=0.2,
        rungs=["numpy", "no-readback", "fused"],
        on_start=lambda rung: told.append(f"start {rung.name}"),
        on_rung=lambda record: told.append(f"{record.name} {record.ran}"),
    )
    assert told == [
        "start numpy",
        "numpy True",
        "start no-readback",
        "no-readback True",
        "start fused",
        "fused True",
    ]
    numpy, first, second = result
    assert (numpy.gain, numpy.gain_over_first) == (None, None)
    found = [record.ms_per_epoch or 0.0 for record in result]
    assert (first.gain, second.gain) == (found[0] / found[1], found[1] / found[2])
    assert second.gain_over_first == found[0] / found[2]
    assert second.loss == pytest.approx(numpy.loss, abs=1e-5)
    assert second.accuracy == numpy.accuracy
    assert (second.epochs, second.steps, second.is_scaled, result.steps) == (2, 2, False, 2)
    assert result.network == "12-256-3"


@pytest.fixture(scope="module")
def on_cpu() -> ladder.Result:
    """A climb without a GPU."""
    return climb("softmax-regression", device="cpu", data=blobs(300, 12), epochs=2)


def test_without_a_gpu_rungs_say_why_they_did_not_run(on_cpu: ladder.Result) -> None:
    assert [record.name for record in on_cpu] == NAMES
    assert [record.name for record in on_cpu if record.ran] == ["numpy"]
    for record in on_cpu[1:]:
        assert record.reason.startswith("it needs a CUDA device: ")
        assert len(record.reason) > len("it needs a CUDA device: ") + 10


def test_a_result_is_written_and_read_back(on_cpu: ladder.Result, tmp_path: Path) -> None:
    ladder.save(on_cpu, tmp_path / "new" / "folder")
    paths = on_cpu.files
    assert [path.name for path in paths] == ["ladder.json", "ladder.png"]
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    stored = json.loads(paths[0].read_text(encoding="utf-8"))
    assert stored["versions"]["numpy"] == np.__version__
    again = ladder.Result.from_dict(stored)
    assert [record.to_dict() for record in again] == [record.to_dict() for record in on_cpu]
    assert again.title == on_cpu.title == "12-3, batch 128, 300 rows of the given data: CPU"


@pytest.mark.filterwarnings("ignore:x .*standardise")
def test_what_fails_does_not_take_the_others_with_it() -> None:
    x, y = blobs(40, 12)
    result = climb(device="cpu", data=(x * 1e30, y), lr=1e30, rungs=["numpy", "textbook"], epochs=1)
    assert [record.ran for record in result] == [False, False]
    assert "not finite" in result[0].reason


def test_a_climb_that_breaks_off_leaves_no_folder(tmp_path: Path) -> None:
    def stop(record: Record) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        climb(
            device="cpu",
            data=blobs(40),
            epochs=1,
            rungs=["numpy"],
            out=tmp_path / "a" / "b",
            on_rung=stop,
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("step_seconds", "expected"),
    [
        (0.001, (100, 10)),
        (0.2, (100, 5)),
        (0.5, (100, 2)),
        (0.6, (80, 2)),
        (100.0, (10, 2)),
    ],
)
def test_a_slow_rung_trains_for_less(step_seconds: float, expected: tuple[int, int]) -> None:
    x, y = blobs(100)
    task = Task((6, 3), 10, 0.1, x, y)
    assert fitting(task, 10, step_seconds) == expected


def test_times_of_fewer_steps_are_scaled_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpfit.apps.ladder.climbing.RUNG_SECONDS", 1e-9)
    (record,) = climb(device="cpu", data=blobs(1000, 12), rungs=["numpy"])
    assert (record.steps, record.epochs, record.is_scaled) == (1, 2, True)
    assert (record.ms_per_epoch or 0) > (record.seconds or 0) * 1e3 / 2


def test_names_of_rungs() -> None:
    assert ladder.parse_names("numpy, graph,") == ["numpy", "graph"]
    assert ladder.parse_names("fused..register") == [
        "fused",
        "tiled",
        "register",
    ]
    assert ladder.parse_names("..textbook") == ["numpy", "textbook"]
    for text in ("numpi", "", "numpy..nothing", "numpy..jax-scan"):
        with pytest.raises(ConfigError, match="expected"):
            ladder.parse_names(text)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (
            {"network": "cnn"},
            ConfigError,
            "expected a network among softmax-regression, mlp, deep, got 'cnn'",
        ),
        ({"hidden": 0}, ConfigError, "hidden"),
        ({"epochs": 0}, ConfigError, "epochs"),
        ({"rows": -1}, ConfigError, "rows"),
        ({"lr": 0.0}, ConfigError, "learning rate"),
        ({"precision": "float8"}, ConfigError, "'float16' or 'bfloat16', got 'float8'"),
        ({"rungs": ["top"]}, ConfigError, "'top'"),
        ({"rungs": []}, ConfigError, "at least one"),
        ({"data": (np.zeros((3, 2)), np.zeros(2, int))}, ShapeError, "3 and 2"),
        ({"device": "voodoo"}, ConfigError, "'voodoo'"),
    ],
)
def test_misuse(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        climb(**{"device": "cpu", "data": blobs(10), "epochs": 1, **settings})


def test_data_needs_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "numbers.npz", x=np.zeros((9, 2)), y=np.linspace(0, 1, 9))
    with pytest.raises(DataError, match="classes"):
        make_task(data=str(tmp_path / "numbers.npz"))


def test_bytes_are_scaled() -> None:
    x = np.arange(12, dtype=np.uint8).reshape(3, 2, 2) * 20
    task = make_task("deep", data=(x, np.array([0, 1, 2])), hidden=7, rows=2)
    assert task.sizes == (4, 7, 7, 7, 3)
    assert task.title == "4-7-7-7-3, batch 32, 2 rows of the given data"
    np.testing.assert_allclose(task.x, (x[:2] / 255).reshape(2, 4), rtol=1e-6)


def test_every_rung_says_what_it_is_and_where_to_read_it() -> None:
    package = Path(ladder.__file__).parents[2]
    assert len(set(NAMES)) == len(NAMES)
    for rung in RUNGS:
        assert all((rung.title, rung.changes, rung.saves, rung.if_little))
        assert all((package / path).exists() for path in rung.source), rung.name


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("network", ["softmax-regression", "mlp", "deep"])
def test_every_rung_runs_on_a_gpu(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # All epochs, however busy the machine is.
    monkeypatch.setattr("warpfit.apps.ladder.climbing.RUNG_SECONDS", 600.0)
    x, y = blobs(2000, 784, 10)
    records: list[Record] = list(climb(network, device="cuda", data=(x, y), epochs=3, lr=0.05))
    assert [record.reason for record in records] == [""] * len(RUNGS)
    for record in records[1:]:
        assert record.loss == pytest.approx(records[0].loss, abs=0.02), record.name
