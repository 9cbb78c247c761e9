"""Searches on clusters, by the schedulers that they have: the bits of this process, also where a
worker is killed on the way.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from joblib import parallel_config

from support.clusters import RAYS_ENVIRONMENT, dask_cluster, needs_dask, needs_ray, ray_cluster
from warpfit.sweep.workers import cluster_of_joblib

SCRIPT = Path(__file__).with_name("workers.py")
ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT / "tests"), *filter(None, sys.path)]
    own = {"OPENBLAS_NUM_THREADS": "1", "WARPFIT_DEVICE": "cpu", **RAYS_ENVIRONMENT}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **own}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="wf", ignore_cleanup_errors=True) as name:
        yield Path(name)


def results(*command: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what searches found elsewhere, and here."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return found["elsewhere"], found["here"]


def assert_same(found: dict[str, Any], expected: dict[str, Any], words: str) -> None:
    assert found.keys() == expected.keys()
    for name in {"fit_many", "halving"} & found.keys():
        assert found[name]["weights"] == expected[name]["weights"]
        assert found[name]["records"] == expected[name]["records"]
        assert words in found[name]["plan"]
    for name in ("SweepCV", "optuna"):
        assert found.get(name) == expected.get(name)
    if "accel" in found:
        if found["accel"]["where"] != ["scikit-learn"]:
            assert found["accel"]["scores"] == expected["accel"]["scores"]
        assert len(set(chain(*found["accel"]["scores"]))) > 1


def killed(kind: str, where: str, folder: Path, *searches: str) -> Any:
    """Return what searches found elsewhere, where each killed a worker, what they found here, and
    the cards that processes were given which trained.
    """
    notes = folder / "notes"
    notes.mkdir()
    given = ("--killed", str(notes), "--searches", *searches)
    found, here = results(sys.executable, str(SCRIPT), kind, where, *given)
    assert {path.parent.name for path in notes.glob("*/killed")} == {*searches} - {"accel"}
    return found, here, {path.name.partition("-")[2] for path in notes.glob("*/[0-9]*-*")}


@pytest.mark.slow
def test_a_pool_of_processes() -> None:
    given = ("processes", "--searches", "fit_many", "SweepCV")
    found = results(sys.executable, str(SCRIPT), *given)
    assert_same(*found, "2 shards by ProcessPoolExecutor, on cpu")


@pytest.mark.slow
def test_joblibs_processes_one_of_which_is_killed(folder: Path) -> None:
    found, here, _ = killed("loky", "", folder, "fit_many", "SweepCV", "accel")
    assert_same(found, here, "2 processes of one BLAS thread each")
    assert found["accel"]["where"] == ["cpu, 2 processes"]


@pytest.mark.slow
@needs_dask
@pytest.mark.parametrize("kind", ["dask", "joblib-dask"])
def test_dasks_workers_one_of_which_is_killed(folder: Path, kind: str) -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed")
    by_dask, by_joblib = ("SweepCV", "halving", "optuna"), ("fit_many", "SweepCV", "accel")
    names = by_dask if kind == "dask" else by_joblib
    with dask_cluster(folder, environment()) as where:
        found, here, cards = killed(kind, where, folder, *names)
    assert cards == {"0", "1"}
    name = "ClientExecutor" if kind == "dask" else "dask"
    assert_same(found, here, f"by {name}, on cpu")
    if "accel" in found:
        assert found["accel"]["where"][0].startswith("dask, ")


def cluster_within() -> str:
    from joblib import parallel_config

    from warpfit.sweep.workers import cluster_of_joblib

    with parallel_config("dask"):
        return cluster_of_joblib()


@pytest.mark.slow
@needs_dask
def test_a_search_within_a_call_of_dasks_is_left_to_joblib(folder: Path) -> None:
    from distributed import Client

    with dask_cluster(folder, environment()) as where, Client(scheduler_file=where) as client:
        with parallel_config("dask"):
            assert cluster_of_joblib() == "dask"
        assert client.submit(cluster_within).result(timeout=60) == ""


@pytest.mark.slow
@needs_ray
def test_rays_workers_one_of_which_is_killed(folder: Path) -> None:
    with ray_cluster(folder, environment()) as where:
        found, here, cards = killed("ray", where, folder, "fit_many", "SweepCV", "accel")
    assert cards == {"0", "1"}
    assert_same(found, here, "2 shards by ray, on cpu")
    assert found["accel"]["where"] == ["scikit-learn"]


def mpiexec() -> str | None:
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
@pytest.mark.skipif(mpiexec() is None, reason="no mpiexec was found, of an MPI library")
def test_mpis_workers() -> None:
    python = (sys.executable, "-m", "mpi4py.futures", str(SCRIPT), "mpi", "--searches", "halving")
    found = results(str(mpiexec()), "-n", "3", *python)
    assert_same(*found, "2 shards by MPIPoolExecutor, on cpu")
