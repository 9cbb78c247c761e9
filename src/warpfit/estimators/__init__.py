"""scikit-learn's `MLPClassifier` and `MLPRegressor` over this package's training.

The shells hold parameters and fitted attributes; everything that computes is elsewhere. Who calls what, in a fit:

* `mlp.BaseMLP` checks the input as scikit-learn does, draws initial values (`initial`), sets validation rows aside,
  puts model, loss, optimizer and schedule together (`recipes`), and hands them, as tasks, to `warpfit.sweep`;
* which trains them by `fit`, on any engine, which calls back between epochs:
  `convergence.EpochLog` writes the curves, `convergence.Convergence` scores the validation rows, keeps the best
  weights, lowers the rate of ``learning_rate='adaptive'`` and ends the run;
* the solver ``'lbfgs'`` goes to `warpfit.training.lbfgs.fit_lbfgs` instead;
* `classifier` and `regressor` say what targets and outputs mean: encoding, loss, score, prediction.

A fit stands still while its networks train (`mlp.BaseMLP._training`), so that `search.SweepCV` has those of all
candidates and folds trained together (`many_fits`).

What is fitted takes other forms in `sklearn_models`, `storage` (safetensors) and `onnx_graph`.

Fitted weights are NumPy's arrays, whatever the device: ``coefs_`` and ``intercepts_`` are all that prediction reads.
"""

from __future__ import annotations

from warpfit.estimators.classifier import MLPClassifier
from warpfit.estimators.regressor import MLPRegressor
from warpfit.estimators.search import RandomizedSweepCV, SweepCV
from warpfit.estimators.sklearn_models import from_sklearn

__all__ = ["MLPClassifier", "MLPRegressor", "RandomizedSweepCV", "SweepCV", "from_sklearn"]
