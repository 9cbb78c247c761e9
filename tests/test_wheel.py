"""What is built for a package index: its README leads somewhere from there, and an environment that
holds nothing else runs its examples.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from support.mnist import find_mnist

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "https://example.org/warpfit"
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Run a command, and return what it printed."""
    given = {**os.environ, **environment}
    done = subprocess.run(command, cwd=cwd, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel that the backend builds with what is installed here."""
    pytest.importorskip("hatchling", reason="hatchling is not installed; make test installs it")
    folder = tmp_path_factory.mktemp("built")
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    run(*command, cwd=ROOT, WARPFIT_SOURCE=SOURCE)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel that is built as `make wheel` does."""
    for name in ("build", "twine"):
        pytest.importorskip(name, reason=f"{name} is not installed; make lint installs it")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, WARPFIT_SOURCE=SOURCE)
    run(sys.executable, "-m", "twine", "check", "--strict", *folder.iterdir())
    (found,) = folder.glob("*.whl")
    return found


def test_links_of_its_readme_lead_to_the_version(built: Path) -> None:
    with zipfile.ZipFile(built) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = archive.read(name).decode("utf-8")
    version = re.search(r"^Version: (.+)$", metadata, re.MULTILINE)
    assert version is not None
    there = f"{SOURCE}/(?:blob|raw)/v{re.escape(version[1])}/"
    links = LINK.findall(metadata)
    assert [link for link in links if not re.match(there, link)] == []
    assert [re.sub(there, "", link) for link in links] == LINK.findall(README)
    assert f"Project-URL: Source, {SOURCE}" in metadata


def test_it_holds_the_package(built: Path) -> None:
    package = ROOT / "src" / "warpfit"
    files = [p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    with zipfile.ZipFile(built) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {
        "warpfit_accel.pth",
        *(file.relative_to(package.parent).as_posix() for file in files),
    }


@pytest.mark.slow
def test_an_empty_environment_runs_the_readmes_examples(wheel: Path, tmp_path: Path) -> None:
    if (data := find_mnist()) is None:
        pytest.skip("MNIST is not on this machine")
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    alone = {"PYTHONPATH": "", "WARPFIT_DATA": str(data)}
    packages = f"{wheel}[cli,plot]"
    run(programs / "python", "-m", "pip", "install", "--quiet", "--no-compile", packages, **alone)
    script = tmp_path / "readme.py"
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    script.write_text("\n".join(blocks), encoding="utf-8")
    printed = run(programs / "python", script, cwd=tmp_path, **alone)
    assert "layerwise on the CPU" in printed
    assert (tmp_path / "curves.png").exists()
    assert (tmp_path / "model.safetensors").exists()
    assert "train" in run(programs / "warpfit", "--help", **alone)
