"""What an extra installs is asked for in one sentence, and not needed before."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.strict import STRICT
from warpfit.errors import ConfigError
from warpfit.extras import needs

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
# What the extras install for those who use warpfit, by the names of imports.
PACKAGES = (
    "typer",
    "pandas",
    "PIL",
    "platformdirs",
    "requests",
    "matplotlib",
    "onnx",
    "optuna",
    "nvtx",
    "ipywidgets",
    "starlette",
)

CORE = """
import tempfile
import numpy as np, warpfit as wf
x, y = np.random.default_rng(0).uniform(size=(40, 4)), np.arange(40) % 2
model = wf.MLPClassifier([3], max_iter=2, device="cpu", random_state=0)
model.fit(x, y)
search = wf.SweepCV(model, {"alpha": [0.1, 0.2]}, cv=2, n_jobs=1).fit(x, y)
with tempfile.TemporaryDirectory() as folder:
    model.save(folder + "/model")
    assert (wf.MLPClassifier.load(folder + "/model").predict(x) == model.predict(x)).all()
"""


MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run_without(packages: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            *STRICT,
            "-W",
            "ignore::UserWarning",
            "-c",
            MISSING.format(packages=packages) + code,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_says_what_to_install() -> None:
    done = run_without(("typer",), "from warpfit.cli import main; main(['datasets'])")
    assert done.returncode == 2
    assert done.stderr == "warpfit: the command line needs typer: pip install 'warpfit[cli]'\n"


TRY = """
from pathlib import Path
from warpfit.data import load_dataset
from warpfit.errors import ConfigError

def preprocessor():
    from warpfit.data import TablePreprocessor

def image():
    from warpfit.data.images import opened_image
    with opened_image(Path("a.png")):
        pass

for attempt in (preprocessor, image, lambda: load_dataset("mnist")):
    try:
        attempt()
    except ConfigError as error:
        print(error)
"""


def test_the_core_works_without_the_extras_and_what_needs_one_says_which() -> None:
    done = run_without(PACKAGES, CORE + TRY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "tables need pandas: pip install 'warpfit[data]'",
        "images need Pillow: pip install 'warpfit[data]'",
        "the user's cache needs platformdirs: pip install 'warpfit[data]'",
    ], done.stderr


def test_a_missing_module_of_our_own_is_no_extra() -> None:
    with pytest.raises(ModuleNotFoundError), needs("cli", "nothing needs"):
        import warpfit.nowhere  # noqa: F401
    with (
        pytest.raises(ConfigError, match=r"it needs nowhere: pip install 'warpfit\[cli\]'"),
        needs("cli", "it needs"),
    ):
        import nowhere  # noqa: F401


def test_every_extra_that_is_named_is_there() -> None:
    sources = (Path(__file__).parents[1] / "src").rglob("*.py")
    texts = "".join(path.read_text(encoding="utf-8") for path in sources)
    named = {part.split('"')[0] for part in texts.split('needs("')[1:]}
    assert named >= {"cli", "data", "plot"}
    assert named <= set(PROJECT["optional-dependencies"])
