"""Trains neural networks with CUDA kernels of its own, and with NumPy where there is no GPU.

>>> import numpy as np
>>> import warpfit as wf
>>> from warpfit import autograd, data, losses, nn, optim
>>> digits = data.load_dataset("digits", flat=True)
>>> x, y = digits.x_train[:200], digits.y_train[:200]
>>> model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
>>> opt = optim.Adam(model.parameters(), lr=0.01)
>>> history = wf.fit(model, x, y, optimizer=opt, epochs=20)

Examples of other docstrings begin with these names, and with a model that is not trained.

nn
    Layers, and modules of your own: ``help(warpfit.nn)``.
optim
    Optimizers and learning-rate schedules.
losses
    Losses, by name or as values.
data
    Data sets, the user's own data, batches.
autograd
    Tensors, for modules and losses that are not made of layers.
errors
    What is raised, and when.

`fit`, `evaluate` and `predict` work with models, `save` and `load` with their files. `lr_find`
looks for a learning rate; `EarlyStopping`, `Checkpoint` and others are callbacks of `fit`.
`fit_many` trains a network for every candidate, and `optuna` does so for studies. `MLPClassifier`,
`MLPRegressor` and `SweepCV` are scikit-learn's, `TabularClassifier` and `TabularRegressor` for
tables. ``help(warpfit.fit)`` describes one of them; all together are below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpfit.on_demand import imports_on_demand
from warpfit.version import __version__ as __version__

if TYPE_CHECKING:
    from warpfit import accel, autograd, data, errors, losses, nn, optim, optuna, tabular
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
        MLflowLog,
        Profile,
        Run,
        TensorBoardLog,
        TrainedModel,
        WandbLog,
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
    "MLflowLog",
    "Profile",
    "RandomizedSweepCV",
    "Run",
    "Sweep",
    "SweepCV",
    "TabularClassifier",
    "TabularRegressor",
    "Tensor",
    "TensorBoardLog",
    "TrainedModel",
    "WandbLog",
    "accel",
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
    "optuna",
    "predict",
    "save",
    "tabular",
    "tensor",
]


def __dir__() -> list[str]:
    """Return what is public."""
    return [*__all__, "__version__"]


HOMES: dict[str, tuple[str, ...]] = {
    "accel": (),
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
    "optuna": (),
    "random": ("manual_seed",),
    "sweep": ("Halving", "Sweep", "fit_many"),
    "tabular": ("TabularClassifier", "TabularRegressor"),
}
# What has no other home is of `training`.
HOMES["training"] = tuple({*__all__}.difference(HOMES, *HOMES.values()))

if not TYPE_CHECKING:  # which is to know what there is
    __getattr__, _ = imports_on_demand(__name__, HOMES)
