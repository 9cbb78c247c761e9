"""What the suites of `warpfit bench` share, and those that run without a GPU, small."""

from __future__ import annotations

import json
import os
import stat
import sys
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from warpfit.backends.cuda.jit import source_of
from warpfit.errors import ConfigError, DeviceError

ROOT = Path(__file__).resolve().parents[1]
LATER = perf_counter() + 1e6


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that imports a benchmark by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module


@pytest.fixture
def small_data(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for MNIST: 300 training rows, 100 to test, of the same width, that can be told
    apart.
    """

    def rows(part: str) -> tuple[Any, Any]:
        count = 300 if part == "train" else 100
        rng = np.random.default_rng(len(part))
        labels = rng.integers(0, 10, count)
        x = 0.2 * rng.random((count, 784), np.float32)
        for row, label in enumerate(labels):
            x[row, 70 * label : 70 * label + 70] += 0.8
        return x, labels

    for name in ("one_launch", "train", "report_run", "engine_curves", "mnist_fast"):
        monkeypatch.setattr(scripts(name), "mnist", rows)


@pytest.fixture
def results(scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that results are written to and read from."""
    modules = [
        scripts(name) for name in ("harness", "charts", "report")
    ]  # all before the first is changed
    for module in modules:
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    return tmp_path


def run(script: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["a script", *arguments])
    script.main()


def read(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


def page(scripts: Any, name: str) -> str:
    """Return a page of docs with a table."""
    text = f"<!-- results: {name} -->\n<!-- end -->\n"
    return str(scripts("report").render(text))


# -- the list
# -------------------------------------------------------------------------------------------------


def test_every_suite_is_a_script(scripts: Any) -> None:
    suite = scripts("suite")
    folder = ROOT / "benchmarks"
    for name, found in suite.SUITES.items():
        text = (folder / f"{found.script}.py").read_text(encoding="utf-8")
        assert "run_command(main)" in text, name
    assert all((folder / f"{tool}.py").is_file() for tool in suite.TOOLS)


def test_parts_of_convolutions_that_need_no_gpu(
    scripts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cnn = scripts("cnn")
    monkeypatch.setattr(cnn, "why_unavailable", lambda: "no driver")
    assert cnn.parts_of(None) == cnn.parts_of(["cpu"]) == ["cpu"]
    with pytest.raises(DeviceError, match=r"part 'steps' needs an NVIDIA GPU, .*: no driver"):
        cnn.parts_of(["cpu", "steps"])
    monkeypatch.setattr(cnn, "why_unavailable", lambda: None)
    assert cnn.parts_of(None) == list(cnn.PARTS)


def test_every_script_is_a_suite(scripts: Any) -> None:
    suite = scripts("suite")
    known = {found.script for found in suite.SUITES.values()} | set(suite.TOOLS)
    helpers = {"harness", "charts", "digests", "suite", "stages", "table_data", "waits_calls"}
    helpers |= {
        "convolutions",
        "ladder_peers",
        "residual",
        "scaling_cases",
        "scaling_checks",
        "scaling_pages",
        "table_pages",
        "table_variants",
    }
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.py")} == known | helpers


def test_what_a_suite_lacks_is_told(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = scripts("suite")
    wanting = suite.Suite("gemm", "products", packages=("no_such_package",))
    with pytest.raises(
        ConfigError, match="bench gemm needs no_such_package, which is not installed"
    ):
        suite.check_can_run("gemm", wanting, [])
    monkeypatch.setattr("warpfit.backends.cuda.runtime.why_unavailable", lambda: "no driver")
    with pytest.raises(DeviceError, match="bench ops needs an NVIDIA GPU: no driver"):
        suite.check_can_run("ops", suite.SUITES["ops"], [])
    suite.check_can_run("ops", suite.SUITES["ops"], ["--help"])


def test_a_suite_that_a_cpu_may_be_asked_for(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = scripts("suite")
    monkeypatch.setattr("warpfit.backends.cuda.runtime.why_unavailable", lambda: "no driver")
    found = {name: each for name, each in suite.SUITES.items() if each.on_cpu}
    assert set(found) == {"scaling", "optuna", "mnist-fast"}
    for name, each in found.items():
        option, value = each.on_cpu.split()
        assert f'"{option}"' in (ROOT / "benchmarks" / f"{each.script}.py").read_text("utf-8")
        suite.check_can_run(name, each, [option, value])
        suite.check_can_run(name, each, [f"{option}={value}"])
        with pytest.raises(DeviceError, match=f"needs an NVIDIA GPU, or {option} cpu.*: no driver"):
            suite.check_can_run(name, each, ["--rows", "1"])
    assert "at once (without a GPU: --device cpu)" in suite.listing()
    assert "copy on the device\n" in suite.listing()


def test_results_go_where_they_are_told(scripts: Any, tmp_path: Path) -> None:
    suite = scripts("suite")
    arguments, folder = suite.results_folder(
        ["--minutes", "1", "--out", str(tmp_path / "new"), "--again"]
    )
    assert arguments == ["--minutes", "1", "--again"]
    assert folder == tmp_path / "new"
    assert folder.is_dir()
    assert suite.results_folder(["--again"]) == (["--again"], None)


def test_a_users_mistake_is_one_line(scripts: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ConfigError("expected this, got that")

    with pytest.raises(SystemExit) as exit_of:
        scripts("harness").run_command(fail)
    assert exit_of.value.code == 2
    assert capsys.readouterr().err == "warpfit: expected this, got that\n"


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("scaling", "--parts", "some of right, fast, launch, sweep, peers, got 'x'"),
        ("scaling", "--rows", "some of 4x4096/8192, .*, got 'x'"),
        ("scaling", "--counts", "numbers from 1 on with commas, got 'x'"),
        ("layerwise", "--parts", "some of mlp, cnn, first_step, got 'x'"),
        ("cnn", "--parts", "some of steps, lenet, residual, convolutions, accuracy, cpu, got 'x'"),
        ("layerwise", "--batches", "numbers from 1 on with commas, got 'x'"),
        ("ladder", "--networks", "some of softmax-regression, mlp, deep, got 'x'"),
        ("airbench", "--modes", "some of max-autotune, reduce-overhead, default, got 'x'"),
        ("estimators", "--parts", "some of cpu, tabular, gpu, search, got 'x'"),
        ("one_launch", "--peers", "some of .*, got 'x'"),
    ],
)
def test_names_that_a_suite_does_not_know(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, name: str, option: str, message: str
) -> None:
    script = scripts(name)
    with pytest.raises(ConfigError, match=f"^argument {option}: expected {message}$"):
        run(script, monkeypatch, option, "x")
    with pytest.raises(ConfigError, match=r"^unrecognized arguments: --none-such$"):
        run(script, monkeypatch, "--none-such")


# -- compare
# --------------------------------------------------------------------------------------------------


def spread(
    median: float, least: float | None = None, largest: float | None = None
) -> dict[str, float]:
    return {
        "median": median,
        "min": median if least is None else least,
        "max": median if largest is None else largest,
    }


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ({"us": spread(10, 9, 11)}, {"us": spread(12, 10.5, 13)}, "WORSE"),
        ({"us": spread(10, 9, 11)}, {"us": spread(12, 9.5, 13)}, ""),  # within the spread
        ({"us": spread(10, 9, 11)}, {"us": spread(10.4, 10.3, 10.5)}, ""),  # within the threshold
        ({"us": spread(12, 10.5, 13)}, {"us": spread(10, 9, 11)}, "better"),
        ({"tflops": 100.0}, {"tflops": 90.0}, "WORSE"),
        ({"tflops": 90.0}, {"tflops": 100.0}, "better"),
        ({"accuracy": 0.98}, {"accuracy": 0.976}, ""),
        ({"accuracy": 0.98}, {"accuracy": 0.974}, "WORSE"),
        ({"torch_graph tf32": {"us": 10.0}}, {"torch_graph tf32": {"us": 20.0}}, "peer"),
        ({"first_call": 1.0}, {"first_call": 2.0}, ""),
    ],
)
def test_what_got_worse(scripts: Any, before: Any, after: Any, verdict: str) -> None:
    (line,) = scripts("compare").compared(before, after)
    assert line.verdict(0.05) == verdict


def test_figures_of_lists_are_found_by_what_rows_are_called(scripts: Any) -> None:
    compare = scripts("compare")
    rows = [
        {"shape": "256", "dtype": dtype, "us": us}
        for dtype, us in (("tf32", 1.0), ("float16", 2.0))
    ]
    lines = compare.compared({"rows": rows}, {"rows": rows[::-1]})
    assert {line.path: line.ratio for line in lines} == {
        ("rows", "tf32, 256", "us"): 1,
        ("rows", "float16, 256", "us"): 1,
    }


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda path: path.stem
)
def test_every_results_file_is_as_good_as_itself(scripts: Any, path: Path) -> None:
    compare = scripts("compare")
    found = compare.read(str(path))
    lines = compare.compared(found, found)
    names = [line.path for line in lines]
    assert len(set(names)) == len(names)
    assert not any(line.verdict(0.05) in ("WORSE", "better") for line in lines)
    if path.stem not in ("engine_curves", "counters", "optuna_values"):
        assert lines


def test_other_machines_are_told(scripts: Any) -> None:
    old = {"environment": {"gpu": "A", "commit": "1", "packages": {"numpy": "1"}}}
    new = {"environment": {"gpu": "B", "commit": "2", "packages": {"numpy": "1"}}}
    assert scripts("compare").differences_of_machines(old, new) == ["gpu: A and B"]


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_file_of_something_else_is_refused(scripts: Any, tmp_path: Path, content: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="to be a results file"):
        scripts("compare").read(str(path))


# -- charts
# --------------------------------------------------------------------------------------------------


def test_a_chart_knows_its_results(
    scripts: Any, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charts = scripts("charts")
    monkeypatch.setattr(charts, "ROOT", results)

    def draw(found: dict[str, Any]) -> Any:
        from matplotlib.figure import Figure

        figure = Figure()
        figure.subplots().plot(found["numbers"])
        return figure

    chart = charts.Chart("chart.png", "numbers", draw)
    assert not charts.is_stale(chart)  # there are no results
    (results / "numbers.json").write_text('{"numbers": [1, 2]}')
    assert charts.is_stale(chart)
    charts.write(chart)
    assert not charts.is_stale(chart)
    (results / "numbers.json").write_text('{"numbers": [1, 3]}')
    assert charts.is_stale(chart)


def test_a_table_that_does_not_match_its_results_is_found(
    scripts: Any, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = scripts("report")
    monkeypatch.setattr(report, "ROOT", results)
    monkeypatch.setattr(report, "PAGES", ("page.md",))
    rows = {"a case": {"us": 1.0, "gb_per_second": 2.0, "of_copy": 0.5}}
    env = {
        "cpu": "CPU",
        "cores": 2,
        "python": "3",
        "packages": {},
        "commit": "abc",
        "date": "today",
    }
    found = {"environment": env, "copy_gb_per_second": 4.0, "rows": rows}
    (results / "bandwidth.json").write_text(json.dumps(found))
    (results / "page.md").write_text("above\n<!-- results: bandwidth -->\n<!-- end -->\nbelow\n")
    assert report.stale_pages(check=True) == ["page.md"]
    assert report.stale_pages(check=False) == ["page.md"]
    assert "| a case | 1 | 2 | 0.50 |" in (results / "page.md").read_text()
    assert report.stale_pages(check=True) == []
    rows["a case"]["us"] = 3.0
    (results / "bandwidth.json").write_text(json.dumps(found))
    assert report.stale_pages(check=True) == ["page.md"]


# -- train
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def train(scripts: Any, small_data: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The suite, with few rounds, without what empties caches."""
    script = scripts("train")
    monkeypatch.setattr(script, "ROUNDS", 2)
    monkeypatch.setattr(script, "CALLS", 2)
    monkeypatch.setattr(scripts("one_launch"), "TURNS", 1)
    monkeypatch.setattr(script, "why_unavailable", lambda: "none here")
    for name in (
        "WARPFIT_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "XLA_PYTHON_CLIENT_PREALLOCATE",
    ):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    return script


def test_steps_on_the_cpu(
    train: Any, scripts: Any, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(train, monkeypatch, "--batches", "64,32")
    found = read(results, "train")
    assert list(found["rows"]) == ["32", "64"]
    for batch, row in found["rows"].items():
        cell = row["programs"]["warpfit NumPy float32"]
        assert cell["steps"] == -(-300 // int(batch))
        us = cell["us"]["median"]
        assert cell["samples_per_second"] == pytest.approx(int(batch) / us * 1e6)
        assert cell["epoch_seconds"] == pytest.approx(us / 1e6 * -(-60_000 // int(batch)))
        assert 0 < cell["forward_us"]["min"] <= cell["forward_us"]["median"]
        peer = row["programs"]["torch_eager_cpu float32"]
        assert "us" in peer or peer["reason"].startswith("ModuleNotFoundError")
    table = page(scripts, "train")
    assert "| 32 | warpfit, NumPy float32 | " in table
    assert "(images/train.png)" in table
    steps, _ = train.draw(found).axes
    lines = {line.get_label(): line.get_xdata().tolist() for line in steps.get_lines()}
    assert lines["warpfit, NumPy float32"] == [32, 64]


@pytest.mark.slow
def test_what_has_no_time_left_is_left_to_the_next_call(
    train: Any, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(train, monkeypatch, "--batches", "64", "--minutes", "0")
    assert read(results, "train")["rows"]["64"]["programs"] == {}
    run(train, monkeypatch, "--batches", "64")
    first = read(results, "train")["rows"]["64"]["programs"]
    assert "us" in first["warpfit NumPy float32"]
    programs = train.programs_of(64, first, has_gpu=False, again=False)
    assert [name for name in programs if not name.startswith("warpfit")] == [
        name for name, cell in first.items() if "reason" in cell
    ]


def test_results_of_another_machine_are_not_kept(train: Any, scripts: Any, results: Path) -> None:
    row = {
        "network": "784-256-10",
        "batch": 64,
        "programs": {"torch_eager_cpu float32": {"us": spread(1)}},
    }
    env = scripts("harness").environment()
    (results / "train.json").write_text(json.dumps({"environment": env, "rows": {"64": row}}))
    assert "torch_eager_cpu float32" in train.kept_rows(env)["64"]["programs"]
    assert train.kept_rows({**env, "cpu": "another"}) == {}


def test_on_a_gpu_there_are_all_engines_and_peers(train: Any) -> None:
    programs = train.programs_of(64, {}, has_gpu=True, again=False)
    assert [train.label_of(name) for name in programs] == [
        "warpfit, NumPy float32",
        "warpfit, layerwise float32",
        "warpfit, graph float16",
        "warpfit, one_launch float16",
        "PyTorch eager, CPU, float32",
        "PyTorch eager, float32",
        "PyTorch compile + CUDA graph, bfloat16",
        "JAX scan, unroll=8, bfloat16",
    ]


def test_traces_are_apart_from_the_measurements(
    train: Any, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "ROOT", results)
    run(train, monkeypatch, "--batches", "64", "--profile")
    trace = json.loads(
        (results / "runs/bench-train/trace-64-warpfit-NumPy-float32.json").read_text()
    )
    assert {"epoch 1", "epoch 2"} <= {event["name"] for event in trace["traceEvents"]}
    assert not (results / "train.json").exists()


def test_estimators_without_a_gpu_are_measured_on_the_cpu(
    scripts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimators = scripts("estimators")
    monkeypatch.setattr("warpfit.backends.cuda.runtime.why_unavailable", lambda: "none here")
    assert estimators.parts_that_run("cuda") == ["cpu", "tabular"]
    monkeypatch.setattr("warpfit.backends.cuda.runtime.why_unavailable", lambda: None)
    assert estimators.parts_that_run("cuda") == list(estimators.PARTS)


@pytest.mark.parametrize(("kind", "precision"), [("Layerwise", "float32"), ("Graph", "float16")])
def test_parts_of_a_step_on_a_device(cuda: str, train: Any, kind: str, precision: str) -> None:
    one_launch = import_module("one_launch")
    rng = np.random.default_rng(0)
    rows = rng.random((32, 6), np.float32), rng.integers(0, 3, 32)
    program = getattr(train, kind)(one_launch.Case((6, 8, 3), 16), precision, *rows)
    parts, runtime = train.parts_of_ours(program)
    assert runtime is not None
    before = {name: parts.ops.to_numpy(array) for name, array in parts.state.parameters.items()}
    found = train.parts_us(program)
    parts.whole()
    loss, weight, _ = parts.ops.to_numpy(parts.record)[0]
    assert 0 < loss < 3
    assert weight == 16
    for name, array in parts.state.parameters.items():
        np.testing.assert_array_equal(parts.ops.to_numpy(array), before[name])
    assert found["forward_us"]["min"] > 0


# -- the report's run
# -----------------------------------------------------------------------------------------


def test_the_reports_run(
    scripts: Any, small_data: None, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_run = scripts("report_run")
    monkeypatch.setattr(report_run, "why_unavailable", lambda: "none here")
    run(report_run, monkeypatch, "--epochs", "3")
    found = read(results, "report_run")
    runs = found["rows"]["NumPy float32"]
    assert runs["sum"]["losses"][-1] < runs["mean"]["losses"][-1]
    assert runs["sum"]["accuracy"] > 0.9
    table = page(scripts, "report_run")
    assert "| the report's CPU | 29.86 s | 298.62 s | - | - | 97.93% |" in table
    assert "| the report's Tesla T4 | 225 ms | 2.25 s | - | 93.86% | - |" in table
    assert "| warpfit, NumPy float32 | " in table
    assert len(report_run.draw(found).axes[0].patches) == 3


def test_a_sum_is_a_mean_at_a_higher_rate(scripts: Any, small_data: None) -> None:
    """Two epochs with a short last batch, against steps by the gradient of the sum."""
    import warpfit as wf
    from warpfit.losses import SoftmaxCrossEntropy
    from warpfit.nn import backward, forward

    report_run = scripts("report_run")
    x, y = report_run.mnist("train")
    trained, _, _ = report_run.fitted("NumPy float32", "sum", 2, (x, y))
    model = report_run.initial_model()
    optimizer = wf.optim.SGD(model.parameters(), report_run.LR)
    loader = wf.data.DataLoader(x, y, report_run.BATCH, seed=report_run.SEED)
    for _ in range(2):
        for rows, labels in loader:
            _, grad = SoftmaxCrossEntropy.forward_and_grad(forward(model, rows), labels)
            backward(model, grad * len(rows))
            optimizer.step()
    for name, array in model.state_dict().items():
        np.testing.assert_allclose(trained.state_dict()[name], array, rtol=1e-4, atol=1e-5)


def test_speed_is_numpys_time_over_ours(scripts: Any) -> None:
    speed = scripts("report_run").speed_over_numpy
    rows = {
        "NumPy float32": {"mean": {"epoch_seconds": spread(2.0)}},
        "graph float16": {"mean": {"epoch_seconds": spread(0.01)}},
        "one_launch float32": {"mean": {"reason": "no"}},
    }
    assert speed(rows, "graph float16") == pytest.approx(200)
    assert speed(rows, "one_launch float32") is None


# -- loss curves
# ----------------------------------------------------------------------------------------------


def test_numpy_follows_pytorch_step_by_step(
    scripts: Any,
    small_data: None,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    curves = scripts("engine_curves")
    monkeypatch.setattr("warpfit.backends.cuda.runtime.why_unavailable", lambda: "none here")
    run(curves, monkeypatch, "--steps", "4")
    found = read(results, "engine_curves")
    network = found["networks"]["784-256-10"]
    assert network["reference"] == "PyTorch float32"
    assert len(network["runs"]["NumPy float32"]["losses"]) == 4
    assert 0 < network["runs"]["NumPy float32"]["largest_difference"] < 1e-5
    assert "largest difference of a step's loss: " in capsys.readouterr().out
    assert "The largest distance of ours is " in page(scripts, "engine_curves")
    above, _ = curves.draw(found).axes
    assert {line.get_label() for line in above.get_lines()} == {"PyTorch float32", "NumPy float32"}


def test_without_pytorch_numpy_is_the_reference(
    scripts: Any, small_data: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = scripts("engine_curves")
    monkeypatch.setattr(curves, "find_spec", lambda name: None)
    runs = curves.runs_of(curves.NETWORKS["784-256-10"], 2, has_gpu=False)
    found = curves.compared(runs)
    assert found["reference"] == "NumPy float32"
    assert found["runs"]["PyTorch float32"] == {"reason": "PyTorch is not installed"}
    assert found["runs"]["NumPy float32"]["largest_difference"] == 0


@pytest.mark.slow
def test_engines_on_a_device_are_compared(
    cuda: str, scripts: Any, small_data: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = scripts("engine_curves")
    monkeypatch.setattr(curves, "find_spec", lambda name: None)
    monkeypatch.setattr(curves, "PRECISIONS", ("float32", "float16"))
    rng = np.random.default_rng(0)
    rows = rng.random((40, 6), np.float32), rng.integers(0, 3, 40)
    monkeypatch.setattr(curves, "mnist", lambda part: rows)
    found = curves.compared(curves.runs_of(curves.Network((6, 8, 3), 8, 0.1), 5, has_gpu=True))
    runs = found["runs"]
    assert runs["graph float16"]["has_bits_of_layerwise"]
    assert runs["one_launch float16"]["largest_difference"] < 0.01
    assert runs["layerwise float32"]["largest_difference"] < 1e-5


# -- counters
# -------------------------------------------------------------------------------------------------

DETAILS = """==PROF== Connected to process 1
"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","one_launch","GPU Speed Of Light Throughput","Duration","ns","3,045,120"
"0","one_launch","GPU Speed Of Light Throughput","SM Frequency","hz","1,755,000,000"
"0","one_launch","GPU Speed Of Light Throughput","Memory Throughput","%","12.5"
"0","one_launch","Memory Workload Analysis","Memory Throughput","byte/second","5,000"
"0","one_launch","Launch Statistics","Registers Per Thread","register/thread","168"
"0","one_launch","Command line profiler","sm__x.avg.pct_of_peak_sustained_active","%","40.25"
"0","one_launch","Occupancy","Achieved Occupancy","%","n/a"
"""


@pytest.fixture
def fake_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that puts a program named ncu on the PATH, which prints what it is told."""

    def put(output: str, code: int = 0) -> None:
        script = tmp_path / "ncu"
        script.write_text(
            f"#!{sys.executable}\nimport sys\nif '--version' in sys.argv: print('Version "
            "1.2')\nelif '--query-metrics' in sys.argv: print('sm__pipe_tensor_cycles_active  "
            f"what it is')\nelse:\n    print({output!r})\n    sys.exit({code})\n"
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path))

    return put


def test_every_case_of_the_counters_is_a_kernel(scripts: Any) -> None:
    for name in scripts("counters").CASES:
        assert f" {name}(" in source_of(name)


def test_mnist_fast_trains_each_seed_and_all_at_once(
    scripts: Any, small_data: None, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(scripts("mnist_fast"), monkeypatch, "--device", "cpu", "--seeds", "2", "--turns", "1")
    found = read(results, "mnist_fast")
    accuracies = [each["accuracy"] for each in found["runs"]]
    assert found["accuracy"] == np.mean(accuracies)
    assert found["together"][0]["accuracy"] == accuracies
    assert found["first_call"]["engine"] == "layerwise"


@pytest.mark.slow
def test_airbench_trains_its_recipe(
    scripts: Any, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ("--rows", "8", "--batch-size", "4", "--turns", "1")
    run(scripts("airbench"), monkeypatch, "--device", "cpu", "--ours-alone", *sizes)
    cell = read(results, "airbench")["programs"]["warpfit float16"]
    assert cell["steps"] == 2
    assert cell["us"]["median"] > 0


def test_levels_are_those_whose_kernels_are_counted(scripts: Any) -> None:
    pytest.importorskip("torch")
    levels = scripts("levels").levels(132)
    names = ("matmul_naive", "matmul_tiled", "matmul_register", "matmul_mma", "gemm_sm90")
    cases = scripts("counters").CASES
    for name in names:
        (number,) = cases[name].run.args
        assert levels[number][1].kernel == name


def test_counters_are_read_from_ncu(
    scripts: Any, results: Path, fake_ncu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ncu(DETAILS)
    run(scripts("counters"), monkeypatch, "--cases", "one_launch")
    counters = read(results, "counters")["cases"]["one_launch"]["counters"]
    assert counters == {
        "Duration": {"value": 3045120, "unit": "ns"},
        "SM Frequency": {"value": 1.755e9, "unit": "hz"},
        "Memory Throughput": {"value": 12.5, "unit": "%"},
        "Registers Per Thread": {"value": 168, "unit": "register/thread"},
    }
    table = page(scripts, "counters")
    assert "| Duration | 3,045 µs |" in table
    assert "| SM Frequency | 1.75 GHz |" in table or "| SM Frequency | 1.76 GHz |" in table
    assert "Nsight Compute: Version 1.2. Nsight Systems: not installed." in table


def test_tensor_cores_are_asked_for_by_the_name_they_have(scripts: Any, fake_ncu: Any) -> None:
    counters = scripts("counters")
    fake_ncu("")
    metric = counters.tensor_metric(counters.find_ncu())
    assert metric == "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
    command = counters.command_of("ncu", "one_launch", metric)
    assert command[command.index("--metrics") + 1] == metric
    assert command[-3:] == [counters.__file__, "--worker", "one_launch"]
    found = counters.counters_of(DETAILS, "sm__x.avg.pct_of_peak_sustained_active")
    assert found["Tensor Cores"] == {"value": 40.25, "unit": "%"}


def test_what_cannot_be_counted_is_told(
    scripts: Any, results: Path, fake_ncu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ncu("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission", code=1)
    run(scripts("counters"), monkeypatch, "--cases", "one_launch")
    case = read(results, "counters")["cases"]["one_launch"]
    assert case["reason"] == "==ERROR== ERR_NVGPUCTRPERM - no permission"
    assert (
        "Not counted, `one_launch` (an epoch of 784-256-10, batch 64, float16): ==ERROR== ERR"
        in page(scripts, "counters")
    )


def test_without_ncu_it_says_so(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = scripts("counters")
    monkeypatch.setattr(counters.shutil, "which", lambda name, path=None: None)
    with pytest.raises(ConfigError, match="bench counters needs ncu"):
        counters.find_ncu()


# -- scaling
# --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_several_ranks_are_checked_and_measured(
    scripts: Any, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling = scripts("scaling")
    case = scaling.Case(32, (8, 16, 16, 4))
    monkeypatch.setattr(scaling, "CASES", (case,))
    monkeypatch.setattr(scaling, "LAUNCHED", (((8, 16, 4), 32),))
    told = [(case, "eager", 200.0), (case, "one", 100.0)]
    monkeypatch.setattr(scaling, "steps_of_peer", lambda cases, count, deadline: iter(told))
    monkeypatch.setattr(
        scaling, "seconds_of_sweep", lambda devices, counts, _: {n: 3.0 / n for n in counts}
    )
    (results / "scaling.json").write_text(
        '{"environment": {}, "8 devices": {"fast": {}}, "2 CPUs": {"old": 1}}'
    )
    run(scaling, monkeypatch, "--devices", "cpu,cpu", "--rows", case.name)
    of_all = read(results, "scaling")
    found = of_all["2 CPUs"]
    assert found["old"] == 1
    assert of_all["8 devices"] == {"fast": {}}
    assert case.name == "8-16x2-4/32"
    assert found["devices"] == ["cpu", "cpu"]
    assert all("date" in found[part].pop("environment") for part in scaling.PARTS)
    assert len(found["right"]) == 6
    assert all(check["passed"] for check in found["right"].values())
    of_two = found["fast"][case.name]["2"]
    assert of_two["us"] > 0
    assert of_two["expected"]["ratio"] == of_two["expected"]["us"] / of_two["us"]
    assert "on device 'cpu'" in found["launch"]["8-16-4/32"]["one_launch on 2"]
    assert found["peers"][f"{case.name} on 2"] == {"eager": {"us": 200.0}, "one": {"us": 100.0}}
    assert found["sweep"]["784-128-10"]["2"] == {"seconds": 1.5, "efficiency": 1.0}
