"""``python -m warpfit.accel``: programs run as Python runs them, and say what ran where."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest

from support.commands import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
CPU = {**ENVIRONMENT, "WARPFIT_DEVICE": "cpu"}


def run(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**CPU, **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def accelerated(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "warpfit.accel", *arguments)


PROGRAM = """
import pickle, sys
print(__name__, sys.argv, __file__, sys.path[0])
class Thing: pass
assert type(pickle.loads(pickle.dumps(Thing()))) is Thing
def fail():
    raise KeyError("no such row")
what = sys.argv[1]
if what == "code":
    sys.exit(3)
if what == "words":
    sys.exit("enough")
if what == "interrupt":
    raise KeyboardInterrupt
try:
    1 / 0
except ZeroDivisionError:
    fail()
"""


@pytest.mark.parametrize("what", ["code", "words", "interrupt", "error"])
@pytest.mark.parametrize("name", ["program.py", "folder/program.py", "-m"])
def test_a_program_runs_and_ends_as_by_python(tmp_path: Path, what: str, name: str) -> None:
    (tmp_path / "folder").mkdir()
    for folder in (tmp_path, tmp_path / "folder"):
        (folder / "program.py").write_text(PROGRAM)
    words = ["-m", "program"] if name == "-m" else [name]
    expected = run(tmp_path, *words, what, "--x")
    found = accelerated(tmp_path, *words, what, "--x")
    assert (found.returncode, found.stdout, found.stderr) == (
        expected.returncode,
        expected.stdout,
        expected.stderr,
    )
    codes = {"code": 3, "words": 1, "interrupt": -signal.SIGINT, "error": 1}
    assert found.returncode == codes[what]


def test_a_program_with_a_wrong_line_is_shown_as_by_python(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("x = (\n")
    expected, found = run(tmp_path, "wrong.py"), accelerated(tmp_path, "wrong.py")
    assert "SyntaxError" in found.stderr
    assert (found.returncode, found.stderr) == (expected.returncode, expected.stderr)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.py"], "expected a script, got 'nowhere.py', which is no file"),
        (["-m", "no.where"], "expected a module, got 'no.where', which cannot be imported"),
        (["-m"], "expected the name of a module after -m, got none"),
        ([], "expected a script or -m with a module, got neither"),
        (["--repot", "x.py"], "expected --report, -m or a script, got '--repot'"),
    ],
)
def test_misuse_is_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    found = accelerated(tmp_path, *arguments)
    assert (found.returncode, found.stdout) == (2, "")
    (line,) = found.stderr.splitlines()
    assert line.startswith(f"warpfit.accel: {sentence}")


# As scikit-learn's gallery uses its perceptrons, in small.
GALLERY = {
    "alpha.py": """
        import numpy as np
        from sklearn.datasets import make_circles, make_moons
        from sklearn.model_selection import train_test_split
        from sklearn.neural_network import MLPClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        moons = make_moons(noise=0.3, random_state=0)
        circles = make_circles(noise=0.1, factor=0.3, random_state=1)
        for X, y in (moons, circles):
            X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=42)
            for alpha in np.logspace(-1, 0, 3):
                model = make_pipeline(
                    StandardScaler(),
                    MLPClassifier(solver="lbfgs", alpha=alpha, random_state=1, max_iter=60,
                                  early_stopping=True, hidden_layer_sizes=[10, 10]),
                )
                model.fit(X_train, y_train)
                assert model.score(X_train, y_train) > 0.8
                grid = np.c_[np.ones(5), np.ones(5)]
                assert model.predict_proba(grid)[:, 1].shape == (5,)
        """,
    "curves.py": """
        import warnings
        from sklearn.datasets import load_digits
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPClassifier
        from sklearn.preprocessing import MinMaxScaler
        X, y = load_digits(return_X_y=True)
        X = MinMaxScaler().fit_transform(X)[:600]
        kinds = [
            {"solver": "sgd", "learning_rate": "constant", "momentum": 0},
            {"solver": "sgd", "learning_rate": "invscaling", "momentum": 0.9,
             "nesterovs_momentum": False},
            {"solver": "sgd", "learning_rate": "adaptive", "momentum": 0.9},
            {"solver": "adam"},
        ]
        for kind in kinds:
            mlp = MLPClassifier(random_state=0, max_iter=15, learning_rate_init=0.05, **kind)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", category=ConvergenceWarning)
                mlp.fit(X, y[:600])
            print(mlp.score(X, y[:600]), mlp.loss_)
            assert len(mlp.loss_curve_) == mlp.n_iter_ == 15
        assert mlp.coefs_[0].T.reshape(-1, 8, 8).shape == (100, 8, 8)
        """,
    "dependence.py": """
        from sklearn.compose import TransformedTargetRegressor
        from sklearn.datasets import make_friedman1
        from sklearn.inspection import partial_dependence, permutation_importance
        from sklearn.neural_network import MLPRegressor
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import QuantileTransformer, StandardScaler
        X, y = make_friedman1(400, random_state=0)
        model = make_pipeline(
            QuantileTransformer(n_quantiles=100),
            TransformedTargetRegressor(
                MLPRegressor(hidden_layer_sizes=(30, 15), learning_rate_init=0.01,
                             early_stopping=True, random_state=0),
                transformer=StandardScaler(),
            ),
        ).fit(X, y)
        assert model.score(X, y) > 0.7
        assert partial_dependence(model, X, [0], grid_resolution=5)["average"].shape == (1, 5)
        assert permutation_importance(model, X, y, n_repeats=2).importances_mean.shape == (10,)
        """,
    "out_of_core.py": """
        import numpy as np
        from sklearn.feature_extraction.text import HashingVectorizer
        from sklearn.neural_network import MLPClassifier
        words = np.array(["grain", "wheat", "oil", "gold"])
        rng = np.random.default_rng(0)
        y = rng.integers(0, 2, 400)
        texts = [" ".join(words[rng.integers(0, 2, 6) + 2 * label]) for label in y]
        X = HashingVectorizer(n_features=256, alternate_sign=False).transform(texts)
        model = MLPClassifier((8,), learning_rate_init=0.1, random_state=0)
        for start in range(0, 400, 50):
            part = slice(start, start + 50)
            model.partial_fit(X[part], y[part], classes=[0, 1])
        assert model.score(X, y) > 0.95
        """,
}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", GALLERY)
def test_programs_as_in_the_gallery_run_unchanged(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(dedent(GALLERY[name]))
    found = accelerated(tmp_path, "--report", name)
    assert found.returncode == 0, found.stderr
    assert "Error" not in found.stderr
    report = found.stderr[found.stderr.index("warpfit.accel: ") :]
    backs = 8 if name == "out_of_core.py" else 0
    assert report.startswith(f"warpfit.accel: {backs} calls fell back to scikit-learn\n")
    assert re.search(rf"^MLP\w+\.(partial_)?fit +{name}:\d+ +", report, re.MULTILINE)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("value", ["1", "0", "", None])
def test_the_variable_installs_it_in_a_whole_process(tmp_path: Path, value: str | None) -> None:
    program = """
        import site, sys
        site.addsitedir(sys.argv[1])
        print("warpfit.accel" in sys.modules, "numpy" in sys.modules)
        from sklearn.neural_network import MLPClassifier
        print(hasattr(MLPClassifier._fit, "__wrapped__"))
        """
    (tmp_path / "program.py").write_text(dedent(program))
    site = tmp_path / "site"
    site.mkdir()
    (site / "warpfit_accel.pth").write_bytes((ROOT / "src" / "warpfit_accel.pth").read_bytes())
    variable = {} if value is None else {"WARPFIT_ACCEL": value}
    found = run(tmp_path, "program.py", str(site), **variable)
    is_on = value == "1"
    assert found.stdout.split() == [str(is_on), "False", str(is_on)], found.stderr


def test_the_wheel_has_what_hears_the_variable() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    included = built["targets"]["wheel"]["force-include"]
    assert included == {"src/warpfit_accel.pth": "warpfit_accel.pth"}
    assert (ROOT / "src" / "warpfit_accel.pth").read_text().count("\n") == 1


@pytest.mark.slow
def test_a_program_without_perceptrons_imports_nothing_of_training(tmp_path: Path) -> None:
    program = """
        import sys
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import cross_val_score
        cross_val_score(LogisticRegression(), [[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], cv=2)
        print(*sorted(name for name in sys.modules if name.startswith("warpfit.")))
        """
    (tmp_path / "program.py").write_text(dedent(program))
    found = accelerated(tmp_path, "--report", "program.py")
    rooms = {name.split(".")[1] for name in found.stdout.split()}
    assert rooms == {"accel", "callers", "on_demand", "other_packages", "version"}
    assert found.stderr == "warpfit.accel: no perceptron was trained\n"


@pytest.mark.slow
def test_a_notebook_loads_it() -> None:
    pytest.importorskip("IPython")
    code = """
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        from sklearn.neural_network import MLPClassifier  # before it is loaded
        print(shell.run_line_magic("load_ext", "warpfit.accel"))
        print(hasattr(MLPClassifier._fit, "__wrapped__"))
        shell.run_line_magic("unload_ext", "warpfit.accel")
        print(hasattr(MLPClassifier._fit, "__wrapped__"))
        """
    found = run(ROOT, "-c", dedent(code))
    assert found.stdout.split() == ["None", "True", "False"], found.stderr
