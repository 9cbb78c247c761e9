"""Searches by workers elsewhere, one of which may be killed on the way; prints what the same
searches in this process should say, too.

python workers.py processes | mpi | loky | dask <file> | joblib-dask <file> | ray <address>
    [--killed <folder>] --searches fit_many halving SweepCV accel optuna
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from joblib import parallel_config
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier

import warpfit as wf
from support.sweeps import build
from support.training import blobs

X, Y = blobs(80)


@contextmanager
def arguments_of(kind: str, where: str) -> Iterator[dict[str, Any]]:
    """Let workers of a kind be there, and yield what searches take to have them."""
    if kind == "processes":
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
            yield {"executor": executor}
    elif kind == "mpi":
        from mpi4py.futures import MPIPoolExecutor

        with MPIPoolExecutor() as executor:
            yield {"executor": executor}
    elif kind == "dask":
        from distributed import Client

        with Client(scheduler_file=where) as client:
            client.wait_for_workers(2, timeout=60)
            yield {"executor": client.get_executor()}
    else:
        with joblibs_backend(kind, where):
            yield {}


@contextmanager
def joblibs_backend(kind: str, where: str) -> Iterator[None]:
    if kind == "loky":
        with parallel_config("loky", n_jobs=2):
            yield
    elif kind == "joblib-dask":
        from distributed import Client

        with Client(scheduler_file=where) as client:
            client.wait_for_workers(2, timeout=60)
            with parallel_config("dask"):
                yield
    else:
        import ray
        from ray.util.joblib import register_ray

        ray.init(address=where, log_to_driver=False, logging_level="ERROR")
        register_ray()
        with parallel_config("ray", n_jobs=2, ray_remote_args={"num_gpus": 1}):
            yield
        ray.shutdown()


class Killed(wf.Callback):
    """Leaves a note of its process in a folder, and kills the process that writes the third."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_start(self, run: Any) -> None:
        if os.environ.get("SEARCHES") == str(os.getpid()):
            return
        card = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
        (self.folder / f"{os.getpid()}-{card}").touch()
        killed = self.folder / "killed"
        if len(list(self.folder.glob("run-*"))) == 2 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / f"run-{os.getpid()}-{id(run)}").touch()


def sweep(callbacks: list[wf.Callback], **arguments: Any) -> dict[str, Any]:
    grid = {"lr": [0.1, 1e38, 0.3], "width": [4, 8]}
    given = {"folds": 2, "epochs": 3, "device": "cpu", "verbose": False, **arguments}
    found = wf.fit_many(build, X, Y, grid=grid, callbacks=callbacks, **given)
    weights = [model.state_dict() for model in found.models]
    digest = sha256(b"".join(array.tobytes() for arrays in weights for array in arrays.values()))
    return {
        "weights": digest.hexdigest(),
        "records": [{**record, "seconds": 0} for record in found],
        "plan": found.plan.reason,
    }


def scores(search: Any) -> list[list[float]]:
    search.fit(X, Y)
    return [list(search.cv_results_[f"split{fold}_test_score"]) for fold in range(2)]


FEW: dict[str, Any] = {"hidden_layer_sizes": (8,), "max_iter": 4, "random_state": 0}
SPACE = {"alpha": [1e-4, 1.0], "learning_rate_init": [0.01, 0.1]}


def by_sweep_cv(callbacks: list[wf.Callback], **arguments: Any) -> Any:
    ours = wf.MLPClassifier(**FEW, callbacks=callbacks)
    return scores(wf.SweepCV(ours, SPACE, cv=2, refit=False, **arguments))


def by_accel(callbacks: list[wf.Callback], n_jobs: int | None = None) -> dict[str, Any]:
    wf.accel.install()
    wf.accel.forget()
    theirs = GridSearchCV(MLPClassifier(**FEW), SPACE, cv=2, refit=False, n_jobs=n_jobs)
    found = {"scores": scores(theirs), "where": [call.where for call in wf.accel.report().calls]}
    wf.accel.uninstall()
    return found


def by_optuna(callbacks: list[wf.Callback], **arguments: Any) -> list[float]:
    import optuna

    from support.studies import optimize

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler, pruner = optuna.samplers.RandomSampler(seed=0), optuna.pruners.NopPruner()
    study = optuna.create_study(sampler=sampler, pruner=pruner)
    optimize(study, n_trials=6, batch=6, fit_callbacks=callbacks, **{"n_jobs": -1, **arguments})
    return [trial.value for trial in study.trials]


SEARCHES: dict[str, Any] = {
    "optuna": by_optuna,
    "fit_many": sweep,
    "halving": partial(sweep, halving=2),
    "SweepCV": by_sweep_cv,
    "accel": by_accel,
}


def searches(names: list[str], folder: Path | None, **arguments: Any) -> dict[str, Any]:
    return {name: SEARCHES[name](killing(folder, name), **arguments) for name in names}


def killing(folder: Path | None, search: str) -> list[wf.Callback]:
    if folder is None or search == "accel":
        return []
    (folder / search).mkdir(exist_ok=True)
    return [Killed(folder / search)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("where", nargs="?", default="")
    parser.add_argument("--killed", type=Path)
    parser.add_argument("--searches", nargs="+", choices=list(SEARCHES), required=True)
    given = parser.parse_args()
    os.environ["SEARCHES"] = str(os.getpid())
    warnings.simplefilter("ignore", ConvergenceWarning)
    with arguments_of(given.kind, given.where) as arguments:
        found = searches(given.searches, given.killed, **arguments)
    here = searches(given.searches, given.killed, n_jobs=1)
    print(json.dumps({"elsewhere": found, "here": here}))


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
