"""A fit among many: its error, its scores and its times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from traceback import format_exc
from typing import Any

from sklearn.metrics._scorer import _MultimetricScorer
from sklearn.model_selection._validation import _score

from warpfit.estimators.predictions import PredictedRows
from warpfit.estimators.splits import Fits, Side, Split

# What scikit-learn's search makes its results of.
Result = dict[str, Any]


class OneFit:
    """A fit of `estimator`, which subclasses make, prepare and `finish`.

    Attributes
    ----------
    error : str or None
        The traceback of what it raised.
    seconds : float
        That it has taken so far.
    """

    estimator: Any

    def __init__(self, fits: Fits, split: Split) -> None:
        self.fits, self.split = fits, split
        self.error: str | None = None
        self.seconds = 0.0

    def finish(self, sides: Sequence[PredictedRows | None]) -> None:
        """Have the estimator take over what was trained, of which these rows are then predicted."""
        raise NotImplementedError

    @contextmanager
    def told(self) -> Iterator[None]:
        """Count the time, and keep an error for the search, which warns of it, or raise it."""
        start = perf_counter()
        try:
            yield
        except Exception:
            if self.fits.error_score == "raise":
                raise
            self.error = format_exc()
        self.seconds += perf_counter() - start

    def result(
        self, test: PredictedRows | None = None, train: PredictedRows | None = None
    ) -> Result:
        """Finish the fit; return its scores on the split's rows, or its own (None), and times."""
        if self.error is None:
            with self.told():
                self.finish([test, train] if self.fits.return_train_score else [test])
        start = perf_counter()
        result: Result = {
            "fit_error": self.error,
            "test_scores": self.scores(self.split.test, test),
            "n_test_samples": len(self.split.test.rows),
            "fit_time": self.seconds,
            "score_time": perf_counter() - start,
        }
        if self.fits.return_train_score:
            result["train_scores"] = self.scores(self.split.train, train)
        if self.fits.return_estimator:
            result["estimator"] = self.estimator
        return result

    def scores(self, side: Side, shared: PredictedRows | None) -> Any:
        """Return the scores on rows, of their own: the scorer may change them."""
        if self.error is not None:
            scorer, error_score = self.fits.scorer, self.fits.error_score
            is_one = not isinstance(scorer, _MultimetricScorer)
            return error_score if is_one else dict.fromkeys(scorer._scorers, error_score)
        side = Side(self.fits, side.rows, self.split.train.rows)
        return self.scored(side.X, side)

    def scored(self, X: Any, side: Side) -> Any:
        """Return what the scorer says of rows X."""
        fits = self.fits
        return _score(self.estimator, X, side.y, fits.scorer, side.params, fits.error_score)
