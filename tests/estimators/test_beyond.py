"""What scikit-learn's perceptrons do not offer."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification, make_regression
from sklearn.preprocessing import scale

from warpfit import losses, optim
from warpfit.errors import ConfigError
from warpfit.estimators import MLPClassifier, MLPRegressor
from warpfit.training import Callback
from warpfit.training.run import Run

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Array = npt.NDArray[Any]
Data = tuple[Array, Array]

FEW: dict[str, Any] = {
    "hidden_layer_sizes": (12,),
    "learning_rate_init": 0.02,
    "max_iter": 40,
    "random_state": 0,
}


@pytest.fixture
def labelled() -> Data:
    return make_classification(240, 8, n_informative=5, weights=[0.85], flip_y=0.1, random_state=0)


@pytest.fixture
def numbers() -> Data:
    X, y = make_regression(200, 5, noise=5.0, random_state=0)
    return X, scale(y)


class Rates(Callback):
    """Takes down the learning rate of every epoch."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_epoch_end(self, run: Run) -> None:
        self.rates.append(run.report.lr)


class Interrupt(Callback):
    """Acts as Ctrl-C in the third epoch."""

    def on_step(self, step: int, steps_per_epoch: int) -> None:
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 3 * steps_per_epoch - 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("activation", ["leaky_relu", "gelu", "silu"])
def test_activations(numbers: Data, activation: str) -> None:
    X, y = numbers
    for solver in ("adam", "lbfgs"):
        assert MLPRegressor(activation=activation, solver=solver, **FEW).fit(X, y).score(X, y) > 0.9


@pytest.mark.parametrize("loss", ["absolute_error", "huber", losses.Huber(delta=0.5)])
def test_losses_that_mind_outliers_less(numbers: Data, loss: Any) -> None:
    X, y = numbers
    spoilt = y.copy()
    spoilt[::10] += 30
    errors = [
        np.abs(MLPRegressor(loss, **FEW).fit(X, spoilt).predict(X) - y).mean()
        for loss in (loss, "squared_error")
    ]
    assert errors[0] < errors[1] / 2


def test_class_weights_are_sample_weights(labelled: Data) -> None:
    X, y = labelled
    names = np.array(["no", "yes"])[y]
    by_class = MLPClassifier(class_weight={"yes": 5.0}, **FEW).fit(X, names)
    by_row = MLPClassifier(**FEW).fit(X, names, np.where(y, 5.0, 1.0))
    np.testing.assert_array_equal(by_class.predict_proba(X), by_row.predict_proba(X))


def test_balanced_classes_find_more_of_the_rare_one(labelled: Data) -> None:
    X, y = labelled
    plain, balanced = (
        MLPClassifier(class_weight=weight, **FEW).fit(X, y).predict(X)[y == 1].sum()
        for weight in (None, "balanced")
    )
    assert balanced > plain


def test_balanced_needs_all_rows(labelled: Data) -> None:
    X, y = labelled
    with pytest.raises(ValueError, match="'balanced' is not supported for partial_fit"):
        MLPClassifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1])
    MLPClassifier(class_weight={1: 2.0}).partial_fit(X, y, classes=[0, 1])


def test_dropout_is_of_training_alone(labelled: Data) -> None:
    X, y = labelled
    plain, dropping = (MLPClassifier(dropout=p, **FEW).fit(X, y) for p in (0.0, 0.5))
    assert dropping.loss_ > plain.loss_
    np.testing.assert_array_equal(dropping.predict_proba(X), dropping.predict_proba(X))
    again = clone(dropping).fit(X, y)
    np.testing.assert_array_equal(again.coefs_[0], dropping.coefs_[0])


def test_partial_fits_see_other_orders_and_masks(labelled: Data) -> None:
    X, y = labelled
    still = {**FEW, "learning_rate_init": 1e-30, "dropout": 0.5}
    classifier = MLPClassifier(**still)
    for _ in range(3):
        classifier.partial_fit(X, y, classes=[0, 1])
    assert len(set(classifier.loss_curve_)) == 3


def test_adamw_decays_all_weights(numbers: Data) -> None:
    X, y = numbers
    sizes = [
        np.abs(MLPRegressor(solver="adamw", weight_decay=decay, **FEW).fit(X, y).coefs_[0]).mean()
        for decay in (0.0, 5.0)
    ]
    assert sizes[1] < sizes[0] / 2


@pytest.mark.parametrize(
    ("learning_rate", "first", "last"),
    [
        ("cosine", 0.02, 0.02 * (1 + np.cos(np.pi * 39 / 40)) / 2),
        (optim.Step(0.5, every=30, factor=0.1), 0.5, 0.05),
    ],
)
def test_schedules(numbers: Data, learning_rate: Any, first: float, last: float) -> None:
    rates = Rates()
    settings = {**FEW, "batch_size": len(numbers[0]), "n_iter_no_change": np.inf}
    MLPRegressor(learning_rate=learning_rate, callbacks=[rates], **settings).fit(*numbers)
    np.testing.assert_allclose([rates.rates[0], rates.rates[-1]], [first, last])


class LogLink(losses.MeanSquaredError):
    def values(self, ops: Any, outputs: Any) -> Any:
        return ops.unary("exp", outputs)


@pytest.mark.parametrize(
    "loss", [losses.BinaryCrossEntropy(), losses.SoftmaxCrossEntropy(), LogLink()]
)
def test_a_regressors_outputs_are_its_predictions(numbers: Data, loss: Any) -> None:
    name = type(loss).__name__
    with pytest.raises(ConfigError, match=f"the values that are predicted, or poisson, got {name}"):
        MLPRegressor(loss, **FEW).fit(*numbers)


@pytest.mark.parametrize("kind", [MLPClassifier, MLPRegressor])
def test_a_callback_may_predict_with_the_estimator_that_trains(
    kind: Any, labelled: Data, numbers: Data
) -> None:
    X, y = labelled if kind is MLPClassifier else numbers
    seen: list[tuple[Array, Array]] = []

    class Predicts(Callback):
        def on_epoch_end(self, run: Run) -> None:
            seen.append((estimator.predict(X), copy.deepcopy(estimator).coefs_[0]))

    estimator = kind(callbacks=[Predicts()], **{**FEW, "dropout": 0.2, "max_iter": 5})
    estimator.fit(X, y)
    np.testing.assert_array_equal(seen[-1][0], estimator.predict(X))
    if kind is MLPRegressor:
        assert not np.array_equal(seen[0][0], seen[1][0])
    assert "_run" not in vars(estimator)


def test_policies_of_scikit_learn_are_for_sgd(numbers: Data) -> None:
    for solver, falls in (("sgd", True), ("adam", False), ("adamw", False)):
        rates = Rates()
        settings = {**FEW, "solver": solver, "learning_rate": "invscaling", "callbacks": [rates]}
        MLPRegressor(**settings).fit(*numbers)
        assert (rates.rates[-1] < rates.rates[0]) is falls


@pytest.mark.parametrize("kind", [MLPClassifier, MLPRegressor])
def test_rows_to_validate_on(kind: Any, labelled: Data) -> None:
    X, y = labelled
    watched = kind(**FEW).fit(X[:160], y[:160], X_val=X[160:], y_val=y[160:])
    plain = kind(**FEW).fit(X[:160], y[:160])
    assert watched.loss_curve_ == plain.loss_curve_
    assert len(watched.validation_scores_) == len(watched.validation_loss_curve_) == watched.n_iter_
    assert watched.validation_scores_[-1] == pytest.approx(watched.score(X[160:], y[160:]))
    assert watched.best_validation_score_ == max(watched.validation_scores_)
    assert plain.validation_scores_ is None
    assert plain.validation_loss_curve_ is None
    assert watched.fit(X, y).validation_scores_ is None


@pytest.mark.parametrize("kind", [MLPClassifier, MLPRegressor])
def test_early_stopping_on_given_rows(kind: Any, labelled: Data) -> None:
    X, y = labelled
    names = y if kind is MLPRegressor else np.array(["no", "yes"])[y]
    settings = {**FEW, "early_stopping": True, "n_iter_no_change": 3, "max_iter": 200}
    estimator = kind(**settings).fit(X[:160], names[:160], X_val=X[160:], y_val=names[160:])
    assert estimator.n_iter_ < 200
    assert estimator.t_ == 160 * estimator.n_iter_
    assert estimator.score(X[160:], names[160:]) == pytest.approx(max(estimator.validation_scores_))


def test_rows_to_validate_on_are_checked(labelled: Data) -> None:
    X, y = labelled
    classifier = MLPClassifier(**FEW)
    with pytest.raises(ValueError, match="both X_val and y_val, or neither"):
        classifier.fit(X, y, X_val=X)
    with pytest.raises(ValueError, match="as many rows in X_val as in y_val, got 10 and 9"):
        classifier.fit(X, y, X_val=X[:10], y_val=y[:9])
    with pytest.raises(ValueError, match=r"y_val to hold classes of y, got \[2\] besides"):
        classifier.fit(X, y, X_val=X[:2], y_val=[0, 2])
    with pytest.raises(ValueError, match="no X_val and y_val for the solver 'lbfgs'"):
        MLPClassifier(solver="lbfgs").fit(X, y, X_val=X, y_val=y)
    with pytest.raises(ValueError, match="X has 3 features"):
        classifier.fit(X, y, X_val=X[:2, :3], y_val=[0, 1])


def test_interrupted_training_keeps_what_it_has(numbers: Data) -> None:
    with pytest.warns(UserWarning, match="Training interrupted by user"):
        regressor = MLPRegressor(callbacks=[Interrupt()], batch_size=20, **FEW).fit(*numbers)
    assert regressor.n_iter_ == len(regressor.loss_curve_) == 2
    assert np.isfinite(regressor.predict(numbers[0])).all()


def test_precision_and_engine(numbers: Data) -> None:
    X, y = numbers
    single = MLPRegressor(precision="float32", engine="layerwise", device="cpu", **FEW).fit(X, y)
    double = MLPRegressor(**FEW).fit(X, y)
    assert single.coefs_[0].dtype == double.coefs_[0].dtype == np.float64
    assert (single.coefs_[0] == single.coefs_[0].astype(np.float32)).all()
    np.testing.assert_allclose(single.loss_curve_[:5], double.loss_curve_[:5], rtol=1e-4)
    for wrong in ({"engine": "steam"}, {"device": "abacus"}, {"precision": "float8"}):
        with pytest.raises(ConfigError, match=next(iter(wrong.values()))):
            MLPRegressor(**FEW, **wrong).fit(X, y)
