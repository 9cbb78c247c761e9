"""What `import warpfit` needs, and what it leaves for later."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import warpfit
from support.strict import STRICT

HEAVY = [
    "scipy",
    "sklearn",
    "matplotlib",
    "requests",
    "PIL",
    "rich",
    "typer",
    "pydantic",
    "multiprocessing",
    "safetensors",
    "cuda",
    "torch",
    "pandas",
    "onnx",
    "optuna",
]

TRAIN = """
import numpy as np
import warpfit as wf
x = np.random.default_rng(0).uniform(size=(32, 4))
model = wf.nn.Sequential(wf.nn.Linear(4, 3), wf.nn.ReLU(), wf.nn.Linear(3, 2))
optimizer = wf.optim.Adam(model.parameters())
wf.fit(model, x, x[:, 0] > 0.5, optimizer=optimizer, epochs=2, callbacks=[wf.EarlyStopping("loss")])
assert wf.predict(model, x).shape == (32, 2)
assert wf.evaluate(model, x, x[:, 0] > 0.5).loss < 2
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, *STRICT, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(code: str) -> set[str]:
    """Return what is imported after the code has run in a process of its own: packages, and of
    ours the rooms."""
    names = run(f"import sys\n{code}\nprint('loaded', *sys.modules)").rpartition("loaded")[2]
    parts = [name.split(".") for name in names.split()]
    return {name for name, *_ in parts} | {
        f"{name}.{rest[0]}" for name, *rest in parts if rest and name == "warpfit"
    }


def test_import_alone_imports_nothing_else() -> None:
    found = loaded_by("import warpfit")
    assert {name for name in found if name.startswith("warpfit.")} == {
        "warpfit.on_demand",
        "warpfit.other_packages",
        "warpfit.version",
    }
    assert "numpy" not in found


def test_training_leaves_heavy_packages_alone() -> None:
    found = loaded_by(TRAIN)
    assert {"numpy", "warpfit.training"} <= found
    assert {*HEAVY, "warpfit.sweep", "warpfit.estimators", "warpfit.plots"}.isdisjoint(found)


def test_import_and_training_work_without_them() -> None:
    run(f"import sys\nfor name in {HEAVY}: sys.modules[name] = None\n{TRAIN}")


def test_a_name_that_is_not_there_is_missed() -> None:
    with pytest.raises(AttributeError, match="module 'warpfit' has no attribute 'MLPTransformer'"):
        warpfit.MLPTransformer  # noqa: B018


FIT = """
import warnings
import warpfit as wf
warnings.simplefilter("ignore")
model = wf.MLPClassifier((3,), max_iter=2).fit([[0.0], [1.0], [2.0]], [0, 1, 1])
model.predict_proba([[0.5]])
"""


def modules_after(code: str) -> set[str]:
    """Return all modules that are imported after the code has run in a process of its own."""
    code = f"import sys\n{code}\nprint('loaded', *sys.modules)"
    return set(run(code).rpartition("loaded")[2].split())


@pytest.mark.slow
def test_a_fit_leaves_searches_and_other_forms_alone() -> None:
    found = modules_after(FIT)
    assert {"sklearn.base", "warpfit.estimators.classifier"} <= found
    assert found.isdisjoint(
        {
            "sklearn.callback",
            "sklearn.metrics",
            "sklearn.model_selection",
            "sklearn.neural_network",
            "sklearn.preprocessing",
            "warpfit.sweep",
            "warpfit.engines.launch_plan",
            "warpfit.engines.launch_run",
            "warpfit.engines.many_members",
            "warpfit.engines.streaming",
            "warpfit.estimators.search",
            "warpfit.estimators.storage",
            "warpfit.backends.cuda",
            "rich",
            "safetensors",
            "scipy.stats",
        }
    )


@pytest.mark.slow
def test_a_fit_imports_less_of_others_than_the_import_of_scikit_learns_own() -> None:
    def of_others(code: str) -> set[str]:
        not_theirs = {"warpfit", *sys.stdlib_module_names}
        return {name for name in modules_after(code) if name.partition(".")[0] not in not_theirs}

    assert of_others(FIT) < of_others("from sklearn.neural_network import MLPClassifier")


def test_every_public_name_is_there() -> None:
    assert sorted(warpfit.__all__) == warpfit.__all__
    for name in warpfit.__all__:
        assert getattr(warpfit, name) is not None
    assert warpfit.__version__


@pytest.mark.parametrize(
    "module",
    [
        "nn",
        "optim",
        "losses",
        "data",
        "autograd",
        "training",
        "estimators",
        "errors",
        "optuna",
    ],
)
def test_modules_export_what_they_say(module: str) -> None:
    imported = __import__(f"warpfit.{module}", fromlist=["__all__"])
    assert all(hasattr(imported, name) for name in imported.__all__)


@pytest.mark.parametrize(
    "module", ["", ".nn", ".optim", ".losses", ".data", ".autograd", ".errors", ".optuna"]
)
def test_dir_shows_what_is_public_and_nothing_else(module: str) -> None:
    imported = importlib.import_module(f"warpfit{module}")
    shown = set(dir(imported))
    assert shown - {"__version__"} == set(imported.__all__)
    assert ("__version__" in shown) == (module == "")
    assert all(hasattr(imported, name) for name in shown)


@pytest.mark.slow
def test_a_command_on_the_cpu_leaves_cuda_and_matplotlib_alone(tmp_path: Path) -> None:
    flags = f"'train --data digits --device cpu --epochs 1 --out {tmp_path}/run'.split()"
    end = "except SystemExit: print('loaded', *sys.modules)"
    code = f"import sys\nfrom warpfit.cli import main\ntry: main({flags})\n{end}"
    found = set(run(code).rpartition("loaded")[2].split())
    assert {"warpfit.training.jobs", "warpfit.pictures"} <= found
    assert found.isdisjoint({"warpfit.backends.cuda", "matplotlib"})
