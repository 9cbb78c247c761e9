"""Networks for tables, as scikit-learn's estimators: from a frame to predictions.

`classifier` and `regressor` are shells over `estimator`, which makes rows of a frame (`frames`,
`preprocessing`) for each network of a bag (`bags`), and hands them to a method (`methods`):
RealMLP (`realmlp`: `network`, `training`, `launched`) or TabM (`tabm`: `tabm_network`,
`tabm_training`). What methods share is in `members`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpfit.on_demand import imports_on_demand

if TYPE_CHECKING:
    from warpfit.tabular.classifier import TabularClassifier
    from warpfit.tabular.regressor import TabularRegressor
    from warpfit.tabular.spaces import search_space

__all__ = ["TabularClassifier", "TabularRegressor", "search_space"]

__getattr__, __dir__ = imports_on_demand(
    __name__,
    {
        "classifier": ("TabularClassifier",),
        "regressor": ("TabularRegressor",),
        "spaces": ("search_space",),
    },
)
