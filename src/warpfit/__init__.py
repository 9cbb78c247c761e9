"""warpfit trains neural networks with kernels of its own; with NumPy where there is no GPU.

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

`fit`, `evaluate` and `predict` work with models, `save` and `load` with their files; `fit_many`
trains a network for every candidate; `MLPClassifier` and `MLPRegressor` are scikit-learn's.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    from warpfit.training import (
        Callback,
        Checkpoint,
        CSVLog,
        EarlyStopping,
        Evaluation,
        History,
        JSONLLog,
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

__all__ = [
    "CSVLog",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "Evaluation",
    "Halving",
    "History",
    "JSONLLog",
    "MLPClassifier",
    "MLPRegressor",
    "Profile",
    "RandomizedSweepCV",
    "Run",
    "Sweep",
    "SweepCV",
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


MODULES = ("autograd", "data", "errors", "losses", "nn", "optim")
HOMES = {  # of names that are neither modules nor in `training`
    **dict.fromkeys(("Tensor", "no_grad", "tensor"), "autograd"),
    **dict.fromkeys(("Halving", "Sweep", "fit_many"), "sweep"),
    **dict.fromkeys(
        ("MLPClassifier", "MLPRegressor", "RandomizedSweepCV", "SweepCV", "from_sklearn"),
        "estimators",
    ),
    "manual_seed": "random",
}


def __getattr__(name: str) -> Any:
    """Import what is public when it is first asked for: no command or script needs all of it."""
    if name in MODULES:
        return import_module(f"warpfit.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"warpfit.{HOMES.get(name, 'training')}"), name)
    globals()[name] = value
    return value
