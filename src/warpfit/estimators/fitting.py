"""A fit: networks are prepared, trained, and taken over into the estimator.

One network goes to `fit_rows`, as every model does; those of an ensemble go to `warpfit.sweep`,
which trains them together on a GPU; the solver ``'lbfgs'`` goes to `fit_lbfgs`. A search prepares
many fits, trains all their networks together, and finishes each (`many_fits`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from warpfit.backends import check_device_name, first_device, resolve_device
from warpfit.callers import warn
from warpfit.errors import DivergedError, TrainingWarning
from warpfit.estimators import fitted
from warpfit.estimators.convergence import Convergence, EpochLog, reported_score
from warpfit.estimators.parameters import LBFGS, batch_rows, hidden_sizes
from warpfit.estimators.recipes import OUTPUT_FUNCTIONS, layer_widths, make_model, optimizer_of
from warpfit.estimators.rows import Indices, Rows, Split, check, row_weights, validation_rows
from warpfit.nn import Sequential
from warpfit.optim import Optimizer
from warpfit.training.callbacks import Callback, checked_callbacks
from warpfit.training.evaluate import predict_network
from warpfit.training.fit import fit_rows
from warpfit.training.lbfgs import fit_lbfgs
from warpfit.training.place import ChosenDevice, place_of
from warpfit.training.run import Run

if TYPE_CHECKING:
    from warpfit.engines.state_on_demand import OnDevice
    from warpfit.sweep.folds import SweepData
    from warpfit.sweep.tasks import Outcome, Task

# Why a network's training ended, as `History.stopped_by` has it, or its error.
Ending = str | Exception

INTERRUPT, EPOCHS = "interrupt", "epochs"


@dataclass(frozen=True)
class Network:
    """A network with its initial values, and the estimator that will hold the fitted ones."""

    holder: Any
    model: Sequential
    optimizer: Optimizer
    callbacks: list[Callback]  # scikit-learn's log and rule, and the user's own
    arguments: dict[str, Any]  # of `fit_rows`, beside data, callbacks and reason
    reason: str = ""  # for the device


@dataclass(frozen=True)
class Prepared:
    """A fit up to its training; L-BFGS needs no networks, only their holders."""

    estimator: Any
    split: Split
    holders: list[Any]  # the estimator, or the members of its ensemble
    networks: list[Network]
    incremental: bool  # one epoch of a partial fit
    goes_on: bool  # from what was trained before


def fit(estimator: Any, X: Any, y: Any, *more: Any, incremental: bool = False) -> None:
    """Fit an estimator; see `prepare` for the arguments, and `BaseMLP.fit`."""
    prepared = prepare(estimator, X, y, *more, incremental=incremental, is_alone=True)
    if len(prepared.networks) == 1:
        finish(prepared, [train(prepared)])
    else:
        from warpfit.sweep.elsewhere import runner_on
        from warpfit.sweep.here import run_here

        outcomes = run_here(tasks_of(prepared), runner=runner_on(estimator.device))
        finish(prepared, [ending_of(outcome) for outcome in outcomes])


def prepare(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    X_val: Any = None,
    y_val: Any = None,
    *,
    incremental: bool = False,
    checked: Rows | None = None,
    is_alone: bool = False,
    drawn: fitted.Drawn | None = None,
) -> Prepared:
    """Return all that a fit needs to be trained; random numbers are drawn in scikit-learn's order.

    Arguments are `BaseMLP.fit`'s, but for `incremental`, which says that it is a partial fit,
    `checked`: X and y, if they were checked before, for another estimator of this class,
    `is_alone`: whether no other fit is trained with it, and `drawn`: the initial values of fits
    before it.
    """
    sizes = hidden_sizes(estimator.hidden_layer_sizes)
    goes_on = hasattr(estimator, "coefs_") and (estimator.warm_start or incremental)
    if goes_on:
        fitted.check_members(estimator)
    rows = checked or check(estimator, X, y, incremental=incremental, reset=not goes_on)
    estimator.__dict__.update(rows.seen)
    weight = row_weights(estimator, rows, y, sample_weight, incremental=incremental)
    if weight is not None:
        rows = replace(rows, weight=weight)
    estimator.n_outputs_ = rows.y.shape[1]
    split = Split(rows, given=validation_rows(estimator, X_val, y_val))
    _check_validation(estimator, split, incremental=incremental)
    holders, networks = list[Any](), list[Network]()
    for holder, rng in fitted.holders_of(estimator, goes_on=goes_on):
        if not goes_on:
            widths = rows.source.shape[1], *sizes, estimator.n_outputs_
            fitted.begin(holder, widths, rng, rows.source.dtype, drawn)
        holders.append(holder)
        if estimator.solver == LBFGS:
            continue
        if estimator.early_stopping and split.validation is None:
            split = Split(rows, aside=_set_aside(holder, rows, rng))
        place = ChosenDevice(first_device(holder.device))
        check_device_name(place.device)
        if is_alone and holder is estimator:
            place = _place(holder, split)
        networks.append(_network(holder, split, rng, place, incremental=incremental))
    return Prepared(estimator, split, holders, networks, incremental, goes_on)


def _check_validation(estimator: Any, split: Split, *, incremental: bool) -> None:
    if estimator.solver == LBFGS:
        if split.given is not None:
            raise ValueError(
                "expected no X_val and y_val for the solver 'lbfgs', which has no epochs, got some"
            )
    elif estimator.early_stopping and incremental:
        raise ValueError("partial_fit does not support early_stopping=True")


def _set_aside(holder: Any, rows: Rows, rng: np.random.RandomState) -> tuple[Indices, Indices]:
    """Return the training rows, and those held out for validation."""
    from sklearn.model_selection import train_test_split

    is_stratified = holder._targets.are_stratified and rows.y.shape[1] == 1
    train, test = train_test_split(
        np.arange(rows.num_rows),
        random_state=rng,
        test_size=holder.validation_fraction,
        stratify=rows.y if is_stratified else None,
    )
    if len(test) < 2:
        raise ValueError(
            "The validation set is too small. Increase 'validation_fraction' or the size of your "
            "dataset."
        )
    return train, test


def _place(holder: Any, split: Split) -> ChosenDevice:
    """Return where a network is trained; one of a partial fit as if by all its epochs."""
    return place_of(
        holder.device,
        layer_widths((holder.coefs_, holder.intercepts_)),
        num_rows=split.num_rows,
        batch_size=batch_rows(holder.batch_size, split.num_rows),
        epochs=holder.max_iter,
        num_validated=0 if split.validation is None else split.validation.num_rows,
        engine=holder.engine,
        precision=holder.precision,
    )


def _network(
    holder: Any, split: Split, rng: np.random.RandomState, place: ChosenDevice, *, incremental: bool
) -> Network:
    """Return a holder's network, to be trained up to `max_iter` epochs, or one if incremental."""
    if split.validation is not None:
        fitted.begin_validation(holder)
    model = make_model(holder, (holder.coefs_, holder.intercepts_), holder.dropout, place.device)
    return Network(
        holder=holder,
        model=model,
        optimizer=optimizer_of(holder, model, split.num_rows, incremental=incremental),
        reason=place.reason,
        callbacks=[
            EpochLog(holder, split.num_rows, split.rows.weight is not None),
            Convergence(holder, _scorer(holder, split.validation)),
            *([] if holder.callbacks is None else checked_callbacks(holder.callbacks)),
        ],
        arguments={
            "loss": holder._targets.loss,
            "epochs": 1 if incremental else holder.max_iter,
            "batch_size": batch_rows(holder.batch_size, split.num_rows),
            "device": place.device,
            "precision": holder.precision,
            "loss_scale": "auto",
            "engine": holder.engine,
            # Calls that go on from one another see other orders and masks.
            "seed": int(rng.randint(np.iinfo(np.int32).max)) + holder.t_,
            "shuffle": holder.shuffle,
        },
    )


def _scorer(holder: Any, validation: Rows | None) -> Callable[[Run], float] | None:
    """Return the function from a run to the score of its weights, None without validation rows."""
    if validation is None:
        return None
    if holder._targets.reports_have_score and validation.weight is None:
        return reported_score

    def score(run: Run) -> float:
        network, arrays = run.plan.network, run.state.arrays
        outputs = predict_network(run.ops, network, arrays, validation.X, dtype=run.plan.dtype)
        predicted = OUTPUT_FUNCTIONS[holder.out_activation_](outputs)
        return float(holder._targets.score(predicted, validation.y, validation.weight))

    return score


def train(prepared: Prepared) -> Ending:
    """Train the only network of a fit, as `warpfit.fit` does."""
    (network,), split = prepared.networks, prepared.split
    train, targets = split.train, network.holder._targets
    validation = split.validation and (split.validation.X, targets.as_loss_takes(split.validation))
    try:
        history = fit_rows(
            network.model,
            train.X,
            targets.as_loss_takes(train),
            optimizer=network.optimizer,
            validation_data=validation,
            sample_weight=train.weight,
            callbacks=network.callbacks,
            reason=network.reason,
            **network.arguments,
        )
    except KeyboardInterrupt:
        return INTERRUPT
    except DivergedError as error:
        return error.with_traceback(None)  # whose frames keep the network
    return history.stopped_by


def tasks_of(
    prepared: Prepared, data: SweepData | None = None, fold: int | None = None
) -> list[Task]:
    """Return a fit's networks as tasks of a sweep, over a fold of the data or rows of their own."""
    from warpfit.sweep.tasks import Task

    if data is None:
        data, fold = _own_data(prepared)
    return [
        Task(number, each.model, each.optimizer, data, fold, each.arguments, each.callbacks)
        for number, each in enumerate(prepared.networks)
    ]


def _own_data(prepared: Prepared) -> tuple[SweepData, int | None]:
    """Return the rows of a fit, and which fold of them it is trained on."""
    from warpfit.sweep.folds import Fold, SweepData

    split, targets = prepared.split, prepared.estimator._targets
    rows, given = split.rows, split.given
    data = SweepData(
        rows.X,
        targets.as_loss_takes(rows),
        rows.weight,
        validation=None if given is None else (given.X, targets.as_loss_takes(given)),
        folds=() if split.aside is None else (Fold(*split.aside),),
    )
    return data, 0 if data.folds else None


def ending_of(outcome: Outcome) -> Ending:
    """Return how the training of a task ended."""
    from warpfit.sweep.tasks import INTERRUPTED

    if outcome.error is not None:
        return outcome.error
    return INTERRUPT if outcome.status == INTERRUPTED else outcome.history.stopped_by


def finish(
    prepared: Prepared, endings: Sequence[Ending], on_device: OnDevice | None = None
) -> None:
    """Copy the trained networks into the estimator; L-BFGS trains here.

    Endings are fewer than the networks if Ctrl-C came. One that is an error is raised, as is
    ValueError if weights are not finite. The finite weights of a single network may stay
    `on_device`; the estimator then does nothing but predict there.
    """
    estimator, num_trained = prepared.estimator, len(endings)
    for network, ending in zip(prepared.networks, endings, strict=False):
        _take_over(network, ending, on_device, incremental=prepared.incremental)
    if estimator.solver == LBFGS:
        num_trained = len(prepared.holders)
        for holder in prepared.holders:
            _minimize(holder, prepared.split.rows)
    untouched = fitted.networks_of(estimator)[num_trained:] if prepared.goes_on else []
    fitted.show_members(estimator, prepared.holders[:num_trained] + untouched)


def _take_over(
    network: Network, ending: Ending, on_device: OnDevice | None, *, incremental: bool
) -> None:
    """Copy a trained network into its estimator, and warn if it did not converge."""
    holder = network.holder
    if isinstance(ending, DivergedError):
        _give_up(network, ending)
    elif isinstance(ending, Exception):
        raise ending
    elif on_device is not None:
        fitted.hold_on_device(holder, on_device.arrays())
    else:
        fitted.hold(holder, network.model, network.optimizer)
    if ending == INTERRUPT:
        warn("Training interrupted by user.", TrainingWarning)
    elif ending == EPOCHS and not incremental:
        warn(
            f"Stochastic Optimizer: Maximum iterations ({holder.max_iter}) reached and the "
            "optimization hasn't converged yet.",
            ConvergenceWarning,
        )
    if on_device is None:
        _check_finite(holder)


def _give_up(network: Network, error: DivergedError) -> None:
    """End a run whose loss is not finite: with early stopping the best weights remain."""
    holder = network.holder
    if not holder.early_stopping:
        raise _not_finite() from error
    log, rule, *_ = network.callbacks
    cast(EpochLog, log).record(np.nan)
    cast(Convergence, rule).record_score(np.nan)
    if holder._best_weights is not None:
        holder.coefs_, holder.intercepts_ = holder._best_weights
    warn(f"Training ended early: {error}", ConvergenceWarning)


def lbfgs_device(holder: Any, num_rows: int) -> str:
    """Return where L-BFGS minimizes the loss of a network over all rows."""
    place = place_of(
        first_device(holder.device),
        layer_widths((holder.coefs_, holder.intercepts_)),
        num_rows=num_rows,
        batch_size=num_rows,
        epochs=holder.max_iter,
        precision=holder.precision,
    )
    return place.device


def _minimize(holder: Any, rows: Rows) -> None:
    """Run L-BFGS over all rows."""
    weights, device = (holder.coefs_, holder.intercepts_), lbfgs_device(holder, rows.num_rows)
    model = make_model(holder, weights, device=device).to(resolve_device(device))
    result = fit_lbfgs(
        model,
        rows.X,
        holder._targets.as_loss_takes(rows),
        loss=holder._targets.loss,
        l2=holder.alpha,
        sample_weight=rows.weight,
        max_iterations=holder.max_iter,
        max_evaluations=holder.max_fun,
        tolerance=holder.tol,
        on_iteration=_print_iteration if holder.verbose else None,
    )
    fitted.hold(holder, model)
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
        "Solver produced non-finite parameter weights. The input data may contain large values "
        "and need to be preprocessed."
    )
