"""Training: from data and a model to reports, checkpoints and files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from warpfit.training.callbacks import Callback, Checkpoint, CSVLog, EarlyStopping, JSONLLog
from warpfit.training.evaluate import Evaluation, evaluate, predict
from warpfit.training.fit import fit
from warpfit.training.history import History
from warpfit.training.run import Run
from warpfit.training.storage import load, load_metadata, save

if TYPE_CHECKING:
    from warpfit.training.profile import Profile
    from warpfit.training.trained import TrainedModel, load_trained

__all__ = [
    "CSVLog",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "Evaluation",
    "History",
    "JSONLLog",
    "Profile",
    "Run",
    "TrainedModel",
    "evaluate",
    "fit",
    "load",
    "load_metadata",
    "load_trained",
    "predict",
    "save",
]

# What a training needs not, and is imported when it is first asked for.
HOMES = {"Profile": "profile", "TrainedModel": "trained", "load_trained": "trained"}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    globals()[name] = value
    return value
