"""Runs commands as the shell would, and a small model that many tests look at."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from support.commands import DIGITS, Invoke, Outcome, run_main


def tree(folder: Path) -> Sequence[Path]:
    return sorted(folder.rglob("*"))


@pytest.fixture
def invoke() -> Invoke:
    """Return the function that runs ``warpfit`` with arguments in this process."""
    return run_main


@pytest.fixture
def misuse(tmp_path: Path) -> Invoke:
    """Return the function that runs a command, and checks that it fails as a user's mistake must.

    That is: exit code 2, one line on stderr, nothing on stdout, and no file more or less.
    """

    def run(*arguments: str | Path) -> Outcome:
        before = tree(tmp_path)
        outcome = run_main(*arguments)
        assert outcome.code == 2, outcome
        assert outcome.err.startswith("warpfit: "), outcome
        assert outcome.err.count("\n") == 1, outcome
        assert outcome.out == ""
        assert tree(tmp_path) == before
        return outcome

    return run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test in an empty folder, without the machine's datasets and without network."""

    def no_network(*_: object) -> Path:
        from warpfit.errors import DataError

        raise DataError("no connection")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warpfit.data.registry.user_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr("warpfit.data.registry.fetch", no_network)


@pytest.fixture
def drawn() -> None:
    """What tests ask for that look at pictures."""


@pytest.fixture(autouse=True)
def blank_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pictures that no test looks at be empty files: drawing is half of a short run."""
    if find_spec("matplotlib") and "drawn" not in request.fixturenames:
        monkeypatch.setattr(
            "matplotlib.figure.Figure.savefig", lambda _, path, **options: path.touch()
        )


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a short run on digits."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    outcome = run_main("train", *DIGITS, "--out", folder)
    assert outcome.code == 0, outcome
    return folder


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    """Return an .npz file of 60 rows of 5 numbers in three classes, easy to tell apart."""
    labels = np.arange(60) % 3
    x = np.random.default_rng(0).normal(size=(60, 5)) + 3 * labels[:, None]
    path = tmp_path / "blobs.npz"
    np.savez(path, x=x, y=labels)
    return path


@pytest.fixture
def tiny_images(tmp_path: Path) -> Path:
    """Return an .npz file of 40 images of 8×8 pixels in two classes: bright above, or bright
    below.
    """
    labels = np.arange(40) % 2
    images = np.random.default_rng(0).integers(0, 60, size=(40, 8, 8))
    images[labels == 0, :4] += 150
    images[labels == 1, 4:] += 150
    path = tmp_path / "images.npz"
    np.savez(path, x=images.astype(np.uint8), y=np.where(labels == 0, "above", "below"))
    return path
