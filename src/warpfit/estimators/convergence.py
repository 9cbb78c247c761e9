"""scikit-learn's work between two epochs: curves, adaptive learning rate, convergence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from warpfit.engines.base import Stopping
from warpfit.estimators.fitted import keep_best
from warpfit.training.callbacks import Callback
from warpfit.training.run import Run

SMALLEST_RATE = 1e-6
DIVISOR = 5
# That a kernel counts without improvement, at most.
MOST_EPOCHS = 2**31 - 2


class EpochLog(Callback):
    """Writes an estimator's curves and counts by epochs, and prints the loss if it is verbose.

    Meanwhile the estimator knows its run, so that it predicts as the network is by then. An epoch
    has `num_rows` rows.
    """

    needs_run = needs_model = False

    def __init__(self, estimator: Any, num_rows: int, has_weights: bool) -> None:
        self.estimator, self.num_rows = estimator, num_rows
        # An epoch's loss is the mean over its batches by their rows: without weights that is the
        # report's.
        self.needs_step_losses = has_weights

    def on_start(self, run: Run) -> None:
        self.estimator.n_iter_ = 0
        self.estimator._run = run

    def close(self) -> None:
        vars(self.estimator).pop("_run", None)

    def on_epoch_end(self, run: Run) -> None:
        report = run.report
        loss = report.loss
        if len(report.step_losses):
            loss = _mean_over_rows(report.step_losses, run.plan.batch_size, report.num_rows)
        self.record(loss)
        if report.val_loss is not None:
            self.estimator.validation_loss_curve_.append(report.val_loss)

    def record(self, loss: float) -> None:
        """Record an epoch that is done."""
        estimator = self.estimator
        estimator.n_iter_ += 1
        estimator.t_ += self.num_rows
        estimator.loss_ = loss
        estimator.loss_curve_.append(loss)
        if estimator.verbose:
            print(f"Iteration {estimator.n_iter_}, loss = {loss:.8f}")


def _mean_over_rows(step_losses: Any, batch_size: int, num_rows: int) -> float:
    """Return the mean of the batches' losses by their rows, as scikit-learn, not their weights."""
    rows = np.full(len(step_losses), batch_size)
    rows[-1] = num_rows - batch_size * (len(step_losses) - 1)
    return float(step_losses @ rows / num_rows)


def reported_score(run: Run) -> float:
    """Return the accuracy on the validation rows, which a report has."""
    return cast(float, run.report.val_accuracy)


class Convergence(Callback):
    """Ends a run, or divides its rate by 5, when it has not improved by `tol` for too many epochs.

    What is watched is the training loss, or, with early stopping, the score on the validation rows,
    which may be NaN; the best weights are then kept. Counts and bests live in the estimator,
    because warm starts go on with them.
    """

    needs_model = False

    def __init__(self, estimator: Any, score: Callable[[Run], float] | None = None) -> None:
        self.estimator, self.score = estimator, score
        self.last_epoch = 0
        self._followed: Stopping | None = None

    def rule(self) -> Stopping | None:
        is_more = self._is_adaptive or self.score not in (None, reported_score)
        return None if is_more else self._as_it_stands()

    @property
    def _is_adaptive(self) -> bool:
        return bool(self.estimator.solver == "sgd" and self.estimator.learning_rate == "adaptive")

    def hand_over(self) -> Stopping:
        self._followed = self._as_it_stands()
        return self._followed

    def _as_it_stands(self) -> Stopping:
        estimator = self.estimator
        best = (
            estimator.best_validation_score_ if estimator.early_stopping else estimator.best_loss_
        )
        return Stopping(
            "val_accuracy" if estimator.early_stopping else "loss",
            int(min(estimator.n_iter_no_change, MOST_EPOCHS)) + 1,
            float(estimator.tol),
            bool(estimator.early_stopping),
            float(best) if best is not None and np.isfinite(best) else None,
            estimator._no_improvement_count,
            any_gain_is_best=True,
        )

    def on_start(self, run: Run) -> None:
        self.last_epoch, self._followed = run.state.epoch, None
        run.scale_lr(self.estimator._rate_scale)

    def may_act_after(self, epoch: int) -> bool:
        """Return whether there is a score to find or, at worst, too long no improvement."""
        estimator = self.estimator
        at_worst = estimator._no_improvement_count + epoch - self.last_epoch
        return self.score is not None or at_worst > estimator.n_iter_no_change

    def on_epoch_end(self, run: Run) -> None:
        estimator, self.last_epoch = self.estimator, run.report.epoch
        if self.score is not None:
            self.record_score(self.score(run), run)
        if not estimator.early_stopping:
            self._watch_loss()
        if estimator._no_improvement_count > estimator.n_iter_no_change:
            self._act(run)

    def record_score(self, score: float, run: Run | None = None) -> None:
        """Record a score and, with early stopping, its effect; the run's weights if it is best."""
        estimator = self.estimator
        estimator.validation_scores_.append(score)
        if estimator.verbose:
            print(f"Validation score: {score:f}")
        if estimator.early_stopping:
            estimator._no_improvement_count += 1
            if not score < estimator.best_validation_score_ + estimator.tol:
                estimator._no_improvement_count = 0
        if score > estimator.best_validation_score_:
            estimator.best_validation_score_ = score
            if run is not None and estimator.early_stopping:
                keep_best(
                    estimator,
                    self._followed.best_arrays if self._followed else run.state.parameters,
                )

    def _watch_loss(self) -> None:
        estimator = self.estimator
        is_stalled = estimator.loss_ > estimator.best_loss_ - estimator.tol
        estimator._no_improvement_count = estimator._no_improvement_count + 1 if is_stalled else 0
        estimator.best_loss_ = min(estimator.best_loss_, estimator.loss_)

    def _act(self, run: Run) -> None:
        estimator = self.estimator
        watched = "Validation score" if estimator.early_stopping else "Training loss"
        reason = (
            f"{watched} did not improve more than tol={estimator.tol:f} "
            f"for {estimator.n_iter_no_change} consecutive epochs."
        )
        if self._is_adaptive and run.report.lr > SMALLEST_RATE:
            run.scale_lr(1 / DIVISOR)
            estimator._rate_scale /= DIVISOR
            estimator._no_improvement_count = 0
            self._say(f"{reason} Setting learning rate to {run.report.lr / DIVISOR:f}")
            return
        self._say(f"{reason} {'Learning rate too small. ' if self._is_adaptive else ''}Stopping.")
        run.stop(reason)

    def _say(self, text: str) -> None:
        if self.estimator.verbose:
            print(text)
