"""Training: from data and a model to reports, checkpoints and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpfit.on_demand import imports_on_demand
from warpfit.training.callbacks import Callback, Checkpoint, CSVLog, EarlyStopping, JSONLLog
from warpfit.training.evaluate import Evaluation, evaluate, predict
from warpfit.training.fit import fit
from warpfit.training.history import History
from warpfit.training.lr_find import LRCurve, lr_find
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
    "LRCurve",
    "Profile",
    "Run",
    "TrainedModel",
    "evaluate",
    "fit",
    "load",
    "load_metadata",
    "load_trained",
    "lr_find",
    "predict",
    "save",
]

# What a training does not need.
__getattr__, __dir__ = imports_on_demand(
    __name__, {"profile": ("Profile",), "trained": ("TrainedModel", "load_trained")}
)
