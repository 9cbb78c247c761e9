"""What the benchmarks of the estimators compute: trials of every part at small sizes, tables, and
statistics.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from support.mnist import find_mnist

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The benchmark's module, which lives beside the others and imports them by name; without data
    sets.
    """
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("WARPFIT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return import_module("estimators")


@pytest.fixture
def scores(bench: Any) -> Any:
    return import_module("estimator_scores")


@pytest.fixture
def report(bench: Any) -> Any:
    return import_module("report")


@pytest.mark.parametrize("part", ["cpu", "tabular"])
def test_parts_on_the_cpu(
    bench: Any, report: Any, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = bench.measure([part], bench.SMALL, 1, "no device")
    for row in parts[part]["rows"].values():
        assert row["ratio"]["median"] == pytest.approx(1 / row["speed"]["median"])
    assert capsys.readouterr().out.count("hoped for: at most") == len(parts[part]["rows"])
    table = report.estimators_cpu({"parts": parts})
    assert all(f"| {case} | " in table for case in parts[part]["rows"])
    assert report.estimators_gpu({"parts": parts}) == ""


@pytest.mark.slow
def test_part_on_a_gpu(cuda: str, bench: Any, report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SOLVERS", ("adam",))
    parts = bench.measure(["gpu"], bench.SMALL, 1, cuda)
    ((case, row),) = parts["gpu"]["rows"].items()
    seconds = {stage: measured["median"] for stage, measured in row["stages"].items()}
    assert all(value > 0 for value in seconds.values())
    table = report.estimators_gpu({"parts": parts})
    assert "Of scikit-learn's 2 epochs 1 were measured" in table
    assert f"| training | {seconds['training'] * 1e3:.1f} ms |" in table
    assert case in table


def test_search(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, and without processes of its own."""
    monkeypatch.setattr(bench, "GridSearchCV", lambda *args, n_jobs, **more: search(*args, **more))
    search = import_module("sklearn.model_selection").GridSearchCV
    rows = bench.measure_search(bench.SMALL, 1, "cpu")
    assert [row.get("least_speed") for row in rows.values()] == [5.0, None]


def test_clocks_leave_nothing_behind(bench: Any) -> None:
    engine = import_module("warpfit.training.plan").ENGINES["layerwise"]
    before = engine.run, import_module("warpfit.training.fit").as_rows
    with bench.clocked(bench.Clocks(stages=(*bench.STAGES, bench.TRAINING, bench.OTHER))):
        assert engine.run is not before[0]
    assert (engine.run, import_module("warpfit.training.fit").as_rows) == before


@pytest.mark.slow
@pytest.mark.skipif(find_mnist() is None, reason="no MNIST on this machine")
def test_rows_are_mnists_where_it_is(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARPFIT_DATA", raising=False)
    made_up, _, name = bench.mnist_like(50)
    assert (made_up.shape, made_up.dtype, name) == (
        (50, 784),
        np.float32,
        "made-up rows of MNIST's shape",
    )
    monkeypatch.setenv("WARPFIT_DATA", str(find_mnist()))
    pixels, labels, name = bench.mnist_like(50)
    assert (pixels.shape, pixels.dtype, pixels.max(), name) == ((50, 784), np.float32, 1.0, "MNIST")
    assert labels[:5].tolist() == [5, 0, 4, 1, 9]


def test_parts_not_measured_stay(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    assert bench.kept_parts() == {}
    (tmp_path / "estimators.json").write_text(json.dumps({"parts": {"gpu": 1}}))
    assert bench.kept_parts() == {"gpu": 1}


def test_statistics_of_differences(scores: Any) -> None:
    rng = np.random.default_rng(0)
    other = rng.normal(0.9, 0.02, 20)
    same = scores.compared(other + rng.normal(0, 0.002, 20), other)
    assert same["p_t"] > 0.05
    assert same["p_wilcoxon"] > 0.05
    assert same["p_equivalence"] < 1e-6
    low, high = same["interval"]
    assert low < same["difference"] < high
    worse = scores.compared(other - 0.02 + rng.normal(0, 0.002, 20), other)
    assert max(worse["p_t"], worse["p_wilcoxon"]) < 1e-4
    assert worse["p_equivalence"] > 0.99
    equal = scores.compared(other, other)
    assert (equal["difference"], equal["p_t"], equal["p_equivalence"]) == (0, 1, 0)
    differences = np.subtract(same["warpfit_scores"], other)
    interval = stats.ttest_1samp(differences, 0).confidence_interval()
    np.testing.assert_allclose([low, high], interval, rtol=1e-9)


def test_table_of_scores(scores: Any, report: Any) -> None:
    row = scores.compared([0.9, 0.8, 0.73], [0.8, 0.8, 0.8])
    measured = {
        "environment": bench_environment(),
        "seeds": 3,
        "bound": 0.01,
        "rows": {"digits": row},
    }
    table = report.estimator_scores({"devices": {"cpu": measured}})
    assert "| digits | 0.8100 | 0.8000 | 0.0000 | +0.0100 (" in table


def bench_environment() -> dict[str, Any]:
    return {
        "cpu": "CPU",
        "cores": 2,
        "date": "today",
        "python": "3.12",
        "commit": "abc",
        "packages": {},
    }


def test_made_up_houses_are_like_those_of_the_census(scores: Any) -> None:
    X, y = scores.california_like()
    assert X.shape == (4000, 8)
    assert np.isfinite(X).all()
    assert (y == y.max()).mean() == pytest.approx(0.05, abs=1e-3)  # cut at the top
    nearness = stats.spearmanr(X[:, 0], y).statistic
    assert 0.3 < nearness < 0.9  # income tells most, but not all


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("digits", {"hidden_layer_sizes": (32,), "max_iter": 40}),
        ("breast cancer", {"hidden_layer_sizes": (16,)}),
        ("diabetes", {"hidden_layer_sizes": (16,)}),
        ("California-like", {"max_iter": 20}),
    ],
)
def test_scores_are_those_of_scikit_learn(scores: Any, name: str, settings: dict[str, Any]) -> None:
    """Over eight seeds; a tenth of the learning rate must be found, or the test would find
    nothing.
    """
    case, seeds = scores.CASES[name], range(8)
    slower = {"learning_rate_init": 1e-4}
    for own, differs in (({}, False), (slower, True)):
        pairs = [scores.scores_of(case, seed, settings, {"device": "cpu", **own}) for seed in seeds]
        row = scores.compared(*zip(*pairs, strict=True))
        assert (abs(row["difference"]) > 4 * row["standard_error"]) is differs
