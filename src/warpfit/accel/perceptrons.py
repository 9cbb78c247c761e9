"""scikit-learn's perceptrons, fitted by estimators of ours, and given what these learned."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

from warpfit.accel.records import SKLEARN, UNTOLD, Where, recorded

if TYPE_CHECKING:
    from warpfit.estimators.fitting import Ending

THEIRS = "sklearn.neural_network._multilayer_perceptron"
# What sparse rows may become as dense ones, in bytes.
MOST_DENSE = 1 << 30
# Multiplications of a prediction that takes less time than to ask where it is best done.
FEW_PRODUCTS = 1 << 20

# Fits that are prepared, and wait for others to be trained with.
_WAITING: ContextVar[list[Fit] | None] = ContextVar("waiting", default=None)


def fit_by(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of scikit-learn's `_fit`, which goes on to it for what we cannot."""

    @wraps(original)
    def _fit(
        self: Any, X: Any, y: Any, sample_weight: Any = None, incremental: bool = False
    ) -> Any:
        def by_sklearn() -> None:
            weights = {} if sample_weight is None else {"sample_weight": sample_weight}
            original(self, X, y, incremental=incremental, **weights)

        with recorded(f"{type(self).__name__}.{'partial_fit' if incremental else 'fit'}") as where:
            where.why = why_not(self, X) or (incremental and _why_not_in_parts(self, X)) or ""
            if not where.why:
                fit = Fit(self, incremental, by_sklearn)
                with fit.falling_back(where):
                    fit.start(X, y, sample_weight, where)
            if where.place == SKLEARN:
                by_sklearn()
        return self

    return _fit


def outputs_by(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `_forward_pass_fast`: many rows are predicted on a GPU."""

    @wraps(original)
    def _forward_pass_fast(self: Any, X: Any, check_input: bool = True) -> Any:
        device = _gpu_for(self, X) if check_input else ""
        if not device:
            return original(self, X, check_input=check_input)
        with recorded(f"{type(self).__name__}.predict") as where:
            where.why = why_not(self, X)
            if not where.why:
                try:
                    found = _outputs(self, X)
                    where.place = device
                    return found
                except Exception as error:
                    where.why = why_error(error)
            return original(self, X, check_input=check_input)

    return _forward_pass_fast


def is_perceptron(thing: Any) -> bool:
    """Return whether something is a perceptron of scikit-learn, of no class derived from one."""
    theirs = sys.modules.get(THEIRS)
    return theirs is not None and type(thing) in (theirs.MLPClassifier, theirs.MLPRegressor)


def why_not(theirs: Any, X: Any) -> str:
    """Return why this package cannot do what an estimator is to do with rows; "" if it can."""
    for kind in type(theirs).__mro__:
        if overridden := _overridden(kind):
            return f"{kind.__name__} overrides {', '.join(overridden)}"
    if hasattr(X, "nnz") and (nbytes := 8 * X.shape[0] * X.shape[1]) > MOST_DENSE:
        return f"X is sparse, and would take {nbytes / 2**30:.1f} GiB as a dense array"
    return ""


@cache
def _overridden(kind: type) -> list[str]:
    """Return the inner methods of scikit-learn's perceptrons that a class has of its own."""
    theirs = sys.modules[THEIRS]
    known = (theirs.BaseMultilayerPerceptron, theirs.MLPClassifier, theirs.MLPRegressor)
    if kind in known or not issubclass(kind, theirs.BaseMultilayerPerceptron):
        return []
    inner = {
        name
        for each in known
        for name, value in vars(each).items()
        if name.startswith("_") and not name.startswith("__") and callable(value)
    }
    return sorted(inner & vars(kind).keys())


def why_error(error: Exception) -> str:
    """Return an error as why something falls back, or raise it: where a loss is no longer finite,
    scikit-learn's own code would go on to the last epoch, and then raise the same.
    """
    from warpfit.errors import DivergedError

    if isinstance(error.__cause__, DivergedError):
        raise error
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


@contextmanager
def deferred() -> Iterator[list[Fit]]:
    """Let fits only be prepared meanwhile; all are trained and finished later."""
    waiting: list[Fit] = []
    token = _WAITING.set(waiting)
    try:
        yield waiting
    finally:
        _WAITING.reset(token)


class Fit:
    """A fit, or one epoch of a partial fit, of a perceptron of scikit-learn, by an estimator of
    ours; `by_sklearn` does the same by scikit-learn's own code.
    """

    def __init__(self, theirs: Any, incremental: bool, by_sklearn: Callable[[], None]) -> None:
        self.theirs, self.incremental, self.by_sklearn = theirs, incremental, by_sklearn

    def start(self, X: Any, y: Any, sample_weight: Any, where: Where) -> None:
        """Train, or wait, if others are to be trained with it."""
        from warpfit import backends

        with backends.expecting_no_device():
            self._start(X, y, sample_weight, where)

    def _start(self, X: Any, y: Any, sample_weight: Any, where: Where) -> None:
        from warpfit.accel.conversion import ours_of, where_trained
        from warpfit.estimators import fitting

        waiting = _WAITING.get()
        goes_on = self.incremental or self.theirs.warm_start
        self.ours = ours_of(self.theirs, goes_on=goes_on, is_watched=waiting is None)
        self.prepared = fitting.prepare(
            self.ours, X, y, sample_weight, incremental=self.incremental, is_alone=waiting is None
        )
        if waiting is not None:
            waiting.append(self)
            where.place = UNTOLD
            return
        endings = [fitting.train(self.prepared)] if self.prepared.networks else []
        where.place, where.why = where_trained(self.prepared)
        self.finish(endings)

    def finish(self, endings: Sequence[Ending]) -> None:
        """Give scikit-learn's estimator what was learned."""
        from warpfit.estimators import fitting
        from warpfit.estimators.as_sklearn import fill

        fitting.finish(self.prepared, endings)
        fill(self.theirs, self.ours, copies=False)

    @contextmanager
    def falling_back(self, where: Where) -> Iterator[None]:
        """Let an error be why scikit-learn is to do it, from the random numbers that there were."""
        rng = self.theirs.random_state
        state = rng.get_state() if hasattr(rng, "get_state") else None
        try:
            yield
        except Exception as error:
            where.place, where.why = SKLEARN, why_error(error)
            if state is not None:
                rng.set_state(state)


def _why_not_in_parts(theirs: Any, X: Any) -> str:
    """Return why a partial fit is scikit-learn's: on the CPU what surrounds an epoch is longer."""
    from warpfit.training.place import place_of

    shape: Any = getattr(X, "shape", ())
    num_rows, num_features = shape if len(shape) == 2 else (0, 0)
    hidden = theirs.hidden_layer_sizes
    widths = (num_features, *(hidden if hasattr(hidden, "__iter__") else [hidden]), 1)
    place = place_of("auto", widths, num_rows=num_rows, batch_size=200, epochs=theirs.max_iter)
    if place.device != "cpu" and _gpu():
        return ""
    return f"a partial fit on the CPU; {place.reason or 'there is no GPU'}"


def _gpu_for(theirs: Any, X: Any) -> str:
    """Return the GPU that predicts rows, if they are so many; "" without a GPU, and for few."""
    shape: Any = getattr(X, "shape", ())
    products = shape[0] * sum(coef.size for coef in theirs.coefs_) if len(shape) == 2 else 0
    if products < FEW_PRODUCTS:
        return ""
    from warpfit.training.place import predicting_place

    widths = (len(theirs.coefs_[0]), *(coef.shape[1] for coef in theirs.coefs_))
    return "" if predicting_place("auto", widths, shape[0]) == "cpu" else _gpu()


def _gpu() -> str:
    """Return the device that 'auto' is for long runs, "" if that is the CPU."""
    from warpfit import backends

    with backends.expecting_no_device():
        device = backends.resolve_device("auto")
    return "" if device == "cpu" else device


def _outputs(theirs: Any, X: Any) -> Any:
    """Return what our estimator predicts, in the dtype of scikit-learn's."""
    from warpfit.accel.conversion import ours_to_predict
    from warpfit.estimators.predictions import predicted

    return predicted(ours_to_predict(theirs), X).astype(theirs.coefs_[0].dtype, copy=False)
