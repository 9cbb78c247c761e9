"""scikit-learn's `MLPClassifier` and `MLPRegressor` over this package's training.

`classifier` and `regressor` are shells of parameters and fitted attributes over `mlp.BaseMLP`. A
fit (`fitting`) prepares networks on checked rows (`rows`, `targets`), trains them by
`warpfit.training`, and keeps what they have learned (`fitted`). Between epochs `convergence` writes
curves and ends the run; `predictions` asks what is fitted. `search` does many fits (`many_fits`),
whose networks train together. Other forms of what is fitted are in `storage`, `sklearn_models`,
`as_sklearn` and `onnx_graph`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpfit.on_demand import imported_later, imports_on_demand

if TYPE_CHECKING:
    from warpfit.estimators.classifier import MLPClassifier
    from warpfit.estimators.regressor import MLPRegressor
    from warpfit.estimators.search import RandomizedSweepCV, SweepCV
    from warpfit.estimators.sklearn_models import from_sklearn

__all__ = ["MLPClassifier", "MLPRegressor", "RandomizedSweepCV", "SweepCV", "from_sklearn"]

# Nearly half of the time of this import would be that of SciPy's statistics, which no fit needs.
with imported_later("scipy.stats"):
    import sklearn.base  # noqa: F401

# A fit needs no search, nor what that imports.
__getattr__, __dir__ = imports_on_demand(
    __name__,
    {
        "classifier": ("MLPClassifier",),
        "regressor": ("MLPRegressor",),
        "search": ("RandomizedSweepCV", "SweepCV"),
        "sklearn_models": ("from_sklearn",),
    },
)
