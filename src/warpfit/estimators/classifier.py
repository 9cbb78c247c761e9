"""MLPClassifier: labels, several labels at once, probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import _check_partial_fit_first_call, type_of_target

from warpfit.attributes import kept_if_it_fails
from warpfit.checks import Array
from warpfit.estimators import fitting
from warpfit.estimators.binarizer import binarizer_of
from warpfit.estimators.mlp import BaseMLP, is_stochastic
from warpfit.estimators.parameters import CONSTRAINTS, hold, validating_parameters
from warpfit.estimators.predictions import predicted, share_of_right
from warpfit.estimators.targets import Labels
from warpfit.optim import Schedule
from warpfit.training.callbacks import Callback


class MLPClassifier(ClassifierMixin, BaseMLP):
    """Multi-layer perceptron classifier: scikit-learn's, trained by this package, on a GPU where
    there is one.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int
        Units of each hidden layer.
    activation : str
        Of the hidden layers: ``'identity'``, ``'logistic'``, ``'tanh'``, ``'relu'``, and, beyond
        scikit-learn, the other names of ``warpfit.backends.activations.ACTIVATIONS``, such as
        ``'gelu'``.
    solver : str
        ``'sgd'``, ``'adam'``, ``'lbfgs'`` (SciPy's, over all rows at once), and, beyond
        scikit-learn, ``'adamw'``.
    alpha : float
        alpha / (2 n) · Σ w² joins the loss, n the rows of a batch, or the sum of their weights;
        biases are left out. Not for ``'adamw'``.
    batch_size : int or 'auto'
        ``'auto'`` is 200, or all rows if they are fewer. The last, shorter batch of an epoch
        counts.
    learning_rate : str or Schedule
        For ``'sgd'``: ``'constant'``; ``'invscaling'``, which is learning_rate_init / (1 +
        t)^power_t with t the rows seen; ``'adaptive'``, which divides the rate by 5 where training
        would have ended, until it is 1e-6. Beyond scikit-learn, for every stochastic solver:
        ``'cosine'`` and ``'one_cycle'`` from learning_rate_init over max_iter epochs, or a schedule
        of `warpfit.optim`, whose own rate counts.
    learning_rate_init : float
    power_t : float
    max_iter : int
        Epochs at most; iterations at most for ``'lbfgs'``.
    shuffle : bool
        Whether every epoch of a stochastic solver has its own order. It is not scikit-learn's
        order.
    random_state : int, RandomState or None
        Decides initial values, which are scikit-learn's, rows held out, likewise, orders, and
        dropout.
    tol : float
        What counts as an improvement of the loss, or of the validation score; largest component of
        the gradient at which ``'lbfgs'`` ends.
    verbose : bool or int
        Whether each epoch is printed.
    warm_start : bool
        Whether `fit` goes on from the weights of the last one.
    momentum : float
        In [0, 1], for ``'sgd'``.
    nesterovs_momentum : bool
    early_stopping : bool
        Whether rows are held out, or those given to `fit` used, to score each epoch on; training
        ends when the score does not improve, and the weights of the best epoch remain.
    validation_fraction : float
    beta_1, beta_2, epsilon : float
        For ``'adam'`` and ``'adamw'``.
    n_iter_no_change : int or inf
        Epochs without an improvement, more than which end training.
    max_fun : int
        Evaluations of the loss at most, for ``'lbfgs'``.
    class_weight : 'balanced', dict or None
        Weights of the classes, which multiply sample weights; ``'balanced'`` is N / (C · rows of
        the class).
    weight_decay : float
        For ``'adamw'``: each step multiplies all weights by 1 - rate · weight_decay.
    dropout : float
        Probability in [0, 1) that a hidden unit is left out of a training step; ``'lbfgs'`` leaves
        out none.
    n_ensemble : int
        Networks that are trained together, on the same rows, and whose probabilities (a regressor's
        predictions) are averaged. The first is the one that there would be with 1, on a GPU but for
        rounding. Each of the others has a random_state drawn from this one's, for its initial
        values, orders and dropout; rows held out are the same for all. Ctrl-C ends all training,
        and leaves the networks that there are; on several devices none.
    callbacks : sequence of Callback, optional
        Called between epochs, as `warpfit.fit`'s, for each network in turn. The estimator predicts
        as the network is by then; ``coefs_`` are those that training began with until it ends.
    device : str or list of str
        ``'auto'`` is the first CUDA device, or the CPU where there is none and for a fit or a
        prediction that is short there; or ``'cpu'``, ``'cuda'``, ``'cuda:1'``, ... A list of these,
        or ``'cuda:all'``, trains a network on several, which share each batch, and
        distributes the networks of an ensemble or a search over them. L-BFGS and predictions take
        the first.
    precision : str
        ``'auto'`` is the dtype of X on the CPU, and what the engine makes of float32 on a GPU; see
        `warpfit.fit`.
    engine : str
        See `warpfit.fit`.

    Attributes
    ----------
    classes_ : ndarray (n_classes,)
    coefs_, intercepts_ : list of ndarray (in, out), list of ndarray (out,)
        A layer's weights and biases, on the host, in the dtype of X.
    loss_ : float
        The last epoch's, the penalty included: the mean over its rows, each batch taken before its
        update.
    best_loss_ : float or None
        None with early stopping.
    loss_curve_ : list of float
    validation_scores_ : list of float or None
        None without validation rows.
    best_validation_score_ : float or None
    validation_loss_curve_ : list of float or None
        The loss on the validation rows, without the penalty and their weights. Not in scikit-learn.
    n_iter_ : int
        Epochs, or iterations of ``'lbfgs'``, of the last fit.
    t_ : int
        Rows trained on in all epochs.
    estimators_ : list of MLPClassifier
        Only if n_ensemble is more than 1: the networks, each a fitted estimator with
        ``n_ensemble=1``. Weights, losses, scores, curves and counts above are then the first one's.
    n_features_in_ : int
    feature_names_in_ : ndarray (n_features_in_,)
        If X has names for all.
    n_layers_, n_outputs_ : int
    out_activation_ : str
        ``'softmax'``, or ``'logistic'`` for two classes and for several labels at once.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from warpfit import MLPClassifier
    >>> X, y = make_classification(random_state=1)
    >>> classifier = MLPClassifier(random_state=1, max_iter=300, device="cpu").fit(X, y)
    >>> classifier.predict(X[:5])
    array([1, 1, 1, 0, 0])
    >>> classifier.predict_proba(X[:1]).round(2)
    array([[0.01, 0.99]])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CONSTRAINTS,
        "class_weight": [StrOptions({"balanced"}), dict, None],
    }

    loss = "log_loss"
    _targets = property(Labels)

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        activation: str = "relu",
        *,
        solver: str = "adam",
        alpha: float = 0.0001,
        batch_size: int | str = "auto",
        learning_rate: str | Schedule = "constant",
        learning_rate_init: float = 0.001,
        power_t: float = 0.5,
        max_iter: int = 200,
        shuffle: bool = True,
        random_state: Any = None,
        tol: float = 1e-4,
        verbose: bool | int = False,
        warm_start: bool = False,
        momentum: float = 0.9,
        nesterovs_momentum: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        n_iter_no_change: float = 10,
        max_fun: int = 15000,
        class_weight: str | dict[Any, float] | None = None,
        weight_decay: float = 0.01,
        dropout: float = 0.0,
        n_ensemble: int = 1,
        callbacks: Sequence[Callback] | None = None,
        device: str | Sequence[str] = "auto",
        precision: str = "auto",
        engine: str = "auto",
    ) -> None:
        hold(self, locals())

    @available_if(is_stochastic)
    @validating_parameters
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None) -> Self:
        """Train for one epoch on X and y, going on from the weights and the optimizer as they are.

        Parameters
        ----------
        X, y, sample_weight
            As `fit`'s; y need not hold every class.
        classes : array_like (n_classes,), optional
            All classes that any call will see; must be given at the first call.

        Returns
        -------
        self
        """
        with kept_if_it_fails(self):
            if _check_partial_fit_first_call(self, classes):
                is_multilabel = type_of_target(y).startswith("multilabel")
                self._label_binarizer = binarizer_of(y if is_multilabel else classes)
            fitting.fit(self, X, y, sample_weight, incremental=True)
        return self

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row, (n_samples,), or the labels of each,
        (n_samples, n_classes).

        Parameters
        ----------
        X : array_like or sparse matrix (n_samples, n_features)

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        return self._targets.decoded(predicted(self, X, for_labels=True))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of `predict`: the share of rows that are right in all their labels.

        Parameters
        ----------
        X : array_like or sparse matrix (n_samples, n_features)
        y : array_like (n_samples,) or (n_samples, n_classes)
        sample_weight : array_like (n_samples,), optional

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        if sample_weight is None and type(self).predict is MLPClassifier.predict:
            found = share_of_right(self, X, y)
            if found is not None:
                return found
        return self._targets.score_decoded(self.predict(X), y, sample_weight)

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class for each row, (n_samples, n_classes), as `classes_`
        has them.

        Parameters and errors as `predict`'s. Of several labels at once each has its own, and they
        need not add up to 1.
        """
        probabilities = predicted(self, X)
        if probabilities.shape[1] == 1:
            return np.hstack([1 - probabilities, probabilities])
        return probabilities

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithm of `predict_proba`."""
        probabilities = self.predict_proba(X)
        return np.log(probabilities, out=probabilities)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
