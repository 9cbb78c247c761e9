"""A fit: networks are prepared, trained, and taken over into the estimator.

One network goes to `fit_rows`, as every model does; those of an ensemble go to `warpfit.sweep`, which
trains them together on a GPU; the solver ``'lbfgs'`` goes to `fit_lbfgs`. A search prepares many fits,
trains all their networks together, and finishes each (`many_fits`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from warpfit.backends import resolve_device
from warpfit.callers import warn
from warpfit.errors import DivergedError, TrainingWarning
from warpfit.estimators.fitted import hold, networks_of, show_members
from warpfit.estimators.parameters import LBFGS
from warpfit.estimators.prepared import Network, Prepared, prepare
from warpfit.estimators.recipes import make_model
from warpfit.estimators.rows import Rows, Split
from warpfit.sweep.folds import Fold, SweepData
from warpfit.sweep.here import run_here
from warpfit.sweep.tasks import INTERRUPTED, Outcome, Task
from warpfit.training.fit import fit_rows
from warpfit.training.lbfgs import fit_lbfgs

__all__ = ["Ending", "ending_of", "finish", "fit", "tasks_of"]

# Why a network's training ended, as `History.stopped_by` has it, or its error.
Ending = str | Exception

INTERRUPT, EPOCHS = "interrupt", "epochs"


def fit(estimator: Any, X: Any, y: Any, *more: Any, incremental: bool = False) -> None:
    """Fit an estimator; see `prepare` for the arguments, and `BaseMLP.fit`."""
    prepared = prepare(estimator, X, y, *more, incremental=incremental)
    if len(prepared.networks) == 1:
        finish(prepared, [_train(prepared.networks[0], prepared.split)])
    else:
        finish(prepared, [ending_of(outcome) for outcome in run_here(tasks_of(prepared))])


def _train(network: Network, split: Split) -> Ending:
    """Train one network, as `fit` does."""
    train, targets = split.train, network.holder._targets
    validation = split.validation and (split.validation.X, targets.as_loss_takes(split.validation.y))
    try:
        history = fit_rows(
            network.model,
            train.X,
            targets.as_loss_takes(train.y),
            optimizer=network.optimizer,
            validation_data=validation,
            sample_weight=train.weight,
            callbacks=network.callbacks,
            **network.arguments,
        )
    except KeyboardInterrupt:
        return INTERRUPT
    except DivergedError as error:
        return error.with_traceback(None)  # whose frames keep the network
    return history.stopped_by


def tasks_of(prepared: Prepared) -> list[Task]:
    """Return the networks of a fit as tasks of a sweep, which share their rows."""
    split, targets = prepared.split, prepared.estimator._targets
    rows, given = split.rows, split.given
    data = SweepData(
        rows.X,
        targets.as_loss_takes(rows.y),
        rows.weight,
        validation=None if given is None else (given.X, targets.as_loss_takes(given.y)),
        folds=() if split.aside is None else (Fold(*split.aside),),
    )
    fold = 0 if data.folds else None
    return [
        Task(number, each.model, each.optimizer, data, fold, each.arguments, each.callbacks)
        for number, each in enumerate(prepared.networks)
    ]


def ending_of(outcome: Outcome) -> Ending:
    """Return how the training of a task ended."""
    if outcome.error is not None:
        return outcome.error
    return INTERRUPT if outcome.status == INTERRUPTED else outcome.history.stopped_by


def finish(prepared: Prepared, endings: Sequence[Ending]) -> None:
    """Let the estimator have what its networks have learned; those of L-BFGS learn it here.

    Endings are fewer than the networks if Ctrl-C came. One that is an error is raised, as is ValueError
    if weights are not finite.
    """
    estimator, num_trained = prepared.estimator, len(endings)
    for network, ending in zip(prepared.networks, endings, strict=False):
        _take_over(network, ending, incremental=prepared.incremental)
    if estimator.solver == LBFGS:
        num_trained = len(prepared.holders)
        for holder in prepared.holders:
            _minimize(holder, prepared.split.rows)
    untouched = networks_of(estimator)[num_trained:] if prepared.goes_on else []
    show_members(estimator, prepared.holders[:num_trained] + untouched)


def _take_over(network: Network, ending: Ending, *, incremental: bool) -> None:
    """Take over what a network has learned, and warn if its rule did not end it."""
    holder = network.holder
    if isinstance(ending, DivergedError):
        _give_up(network, ending)
    elif isinstance(ending, Exception):
        raise ending
    else:
        hold(holder, network.model, network.optimizer)
    if ending == INTERRUPT:
        warn("Training interrupted by user.", TrainingWarning)
    elif ending == EPOCHS and not incremental:
        warn(
            f"Stochastic Optimizer: Maximum iterations ({holder.max_iter}) reached and the optimization "
            "hasn't converged yet.",
            ConvergenceWarning,
        )
    _check_finite(holder)


def _give_up(network: Network, error: DivergedError) -> None:
    """End a run whose loss is no number: with early stopping the best weights remain."""
    holder = network.holder
    if not holder.early_stopping:
        raise _not_finite() from error
    network.log.record(np.nan)
    network.convergence.record_score(np.nan)
    if holder._best_weights is not None:
        holder.coefs_, holder.intercepts_ = holder._best_weights
    warn(f"Training ended early: {error}", ConvergenceWarning)


def _minimize(holder: Any, rows: Rows) -> None:
    """Run L-BFGS over all rows."""
    model = make_model(holder, (holder.coefs_, holder.intercepts_)).to(resolve_device(holder.device))
    result = fit_lbfgs(
        model,
        rows.X,
        holder._targets.as_loss_takes(rows.y),
        loss=holder._targets.loss,
        l2=holder.alpha,
        sample_weight=rows.weight,
        max_iterations=holder.max_iter,
        max_evaluations=holder.max_fun,
        tolerance=holder.tol,
        on_iteration=_print_iteration if holder.verbose else None,
    )
    hold(holder, model)
    holder.n_iter_, holder.loss_ = min(result.num_iterations, holder.max_iter), result.loss
    if not result.converged:
        warn(
            f"lbfgs failed to converge after {holder.n_iter_} iterations: {result.message}",
            ConvergenceWarning,
        )
    _check_finite(holder)


def _print_iteration(number: int, loss: float) -> None:
    print(f"Iteration {number}, loss = {loss:.8f}")


def _check_finite(holder: Any) -> None:
    if not all(np.isfinite(array).all() for array in (*holder.coefs_, *holder.intercepts_)):
        raise _not_finite()


def _not_finite() -> ValueError:
    return ValueError(
        "Solver produced non-finite parameter weights. The input data may contain large values and need to be "
        "preprocessed."
    )
