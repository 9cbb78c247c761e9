"""scikit-learn's `MLPClassifier` and `MLPRegressor` over this package's training.

`classifier` and `regressor` are shells of parameters and fitted attributes over `mlp.BaseMLP`. A
fit (`fitting`) prepares networks on checked rows (`rows`, `targets`), trains them by
`warpfit.training`, and keeps what they have learned (`fitted`). Between epochs `convergence` writes
curves and ends the run; `predictions` asks what is fitted. `search` does many fits (`many_fits`),
whose networks train together. Other forms of what is fitted are in `storage`, `sklearn_models`,
`as_sklearn` and `onnx_graph`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warpfit.estimators.classifier import MLPClassifier
    from warpfit.estimators.regressor import MLPRegressor
    from warpfit.estimators.search import RandomizedSweepCV, SweepCV
    from warpfit.estimators.sklearn_models import from_sklearn

__all__ = ["MLPClassifier", "MLPRegressor", "RandomizedSweepCV", "SweepCV", "from_sklearn"]

HOMES = {
    "MLPClassifier": "classifier",
    "MLPRegressor": "regressor",
    "RandomizedSweepCV": "search",
    "SweepCV": "search",
    "from_sklearn": "sklearn_models",
}


def __getattr__(name: str) -> Any:
    """Import what is public when it is first asked for: a fit needs no search, nor what that
    imports.
    """
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    globals()[name] = value
    return value
