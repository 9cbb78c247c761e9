"""Studies of Optuna, and what builds their trials' networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import warpfit as wf
from support.sweeps import build as build_candidate
from support.training import blobs

X, Y = blobs(90)
HELD_OUT = X[60:], Y[60:]


def storage_at(path: Path) -> Any:
    """Return a storage in a file, SQLite's if it ends in ``.db``, else a journal."""
    from optuna.storages import JournalStorage, get_storage
    from optuna.storages.journal import JournalFileBackend

    is_sqlite = path.suffix == ".db"
    return (
        get_storage(f"sqlite:///{path}")
        if is_sqlite
        else JournalStorage(JournalFileBackend(str(path)))
    )


def build(trial: Any) -> Any:
    """Return 6-width-3 with the trial's rate and width."""
    rate = trial.suggest_float("lr", 1e-4, 1.0, log=True)
    return build_candidate({"lr": rate, "width": trial.suggest_categorical("width", [4, 8])})


def optimize(study: Any, build: Any = build, **arguments: Any) -> Any:
    """Optimize a study on a few rows."""
    given = {
        "validation_data": HELD_OUT,
        "epochs": 3,
        "batch_size": 16,
        "device": "cpu",
        "n_jobs": 1,
        **arguments,
    }
    return wf.optuna.optimize(study, build, X[:60], Y[:60], **given)


def value_alone(params: dict[str, Any], epochs: int = 3) -> float:
    """Return the validation loss of a trial's network that `fit` trains by itself."""
    wf.manual_seed(0)
    model, optimizer = build_candidate(params)
    history = wf.fit(
        model,
        X[:60],
        Y[:60],
        optimizer=optimizer,
        epochs=epochs,
        batch_size=16,
        validation_data=HELD_OUT,
        device="cpu",
        seed=0,
        verbose=False,
    )
    return float(np.asarray(history["val_loss"])[-1])
