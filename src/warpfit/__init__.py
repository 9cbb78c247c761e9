"""warpfit trains neural networks with kernels of its own; with NumPy where there is no GPU.

>>> import warpfit as wf
>>> model = wf.nn.Sequential(wf.nn.Linear(784, 256), wf.nn.ReLU(), wf.nn.Linear(256, 10))
>>> opt = wf.optim.SGD(model.parameters(), lr=0.1)
>>> history = wf.fit(model, x, y, optimizer=opt, epochs=5)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpfit.on_demand import imports_on_demand
from warpfit.version import __version__ as __version__

if TYPE_CHECKING:
    from warpfit import autograd, data, errors, losses, nn, optim
    from warpfit.autograd.tape import no_grad
    from warpfit.autograd.tensor import Tensor, tensor
    from warpfit.estimators import (
        MLPClassifier,
        MLPRegressor,
        RandomizedSweepCV,
        SweepCV,
        from_sklearn,
    )
    from warpfit.random import manual_seed
    from warpfit.sweep import Halving, Sweep
    from warpfit.sweep.fit_many import fit_many
    from warpfit.tabular import TabularClassifier, TabularRegressor
    from warpfit.training import (
        Callback,
        Checkpoint,
        CSVLog,
        EarlyStopping,
        Evaluation,
        History,
        JSONLLog,
        LRCurve,
        Profile,
        Run,
        TrainedModel,
        load,
        load_metadata,
        load_trained,
        predict,
        save,
    )
    from warpfit.training.evaluate import evaluate
    from warpfit.training.fit import fit
    from warpfit.training.lr_find import lr_find

__all__ = [
    "CSVLog",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "Evaluation",
    "Halving",
    "History",
    "JSONLLog",
    "LRCurve",
    "MLPClassifier",
    "MLPRegressor",
    "Profile",
    "RandomizedSweepCV",
    "Run",
    "Sweep",
    "SweepCV",
    "TabularClassifier",
    "TabularRegressor",
    "Tensor",
    "TrainedModel",
    "autograd",
    "data",
    "errors",
    "evaluate",
    "fit",
    "fit_many",
    "from_sklearn",
    "load",
    "load_metadata",
    "load_trained",
    "losses",
    "lr_find",
    "manual_seed",
    "nn",
    "no_grad",
    "optim",
    "predict",
    "save",
    "tensor",
]


def __dir__() -> list[str]:
    """Return what is public."""
    return [*__all__, "__version__"]


__getattr__, _ = imports_on_demand(
    __name__,
    {
        "autograd": ("Tensor", "no_grad", "tensor"),
        "data": (),
        "errors": (),
        "estimators": (
            "MLPClassifier",
            "MLPRegressor",
            "RandomizedSweepCV",
            "SweepCV",
            "from_sklearn",
        ),
        "losses": (),
        "nn": (),
        "optim": (),
        "random": ("manual_seed",),
        "sweep": ("Halving", "Sweep", "fit_many"),
        "tabular": ("TabularClassifier", "TabularRegressor"),
        "training": (
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
        ),
    },
)
