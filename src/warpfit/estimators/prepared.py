"""A fit that is ready to be trained: checked rows, and networks with their initial values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

from warpfit.estimators.convergence import Convergence, EpochLog, reported_score
from warpfit.estimators.fitted import begin, begin_validation, check_members, holders_of
from warpfit.estimators.parameters import LBFGS, batch_rows, hidden_sizes
from warpfit.estimators.recipes import OUTPUT_FUNCTIONS, SCHEDULES, make_model, make_optimizer, make_schedule
from warpfit.estimators.rows import Indices, Rows, Split, check, row_weights, validation_rows
from warpfit.nn import Sequential
from warpfit.optim import Constant, Optimizer, Schedule
from warpfit.training.callbacks import Callback, checked_callbacks
from warpfit.training.evaluate import predict_network
from warpfit.training.run import Run

__all__ = ["Network", "Prepared", "prepare"]


@dataclass(frozen=True)
class Network:
    """A network with its initial values, and the estimator that is to hold what it learns."""

    holder: Any
    model: Sequential
    optimizer: Optimizer
    log: EpochLog
    convergence: Convergence
    arguments: dict[str, Any]  # of `fit_rows`, beside data and callbacks

    @property
    def callbacks(self) -> list[Callback]:
        """What is called between epochs, the user's own last."""
        own = [] if self.holder.callbacks is None else checked_callbacks(self.holder.callbacks)
        return [self.log, self.convergence, *own]


@dataclass(frozen=True)
class Prepared:
    """A fit up to its training; L-BFGS needs no networks, only their holders."""

    estimator: Any
    split: Split
    holders: list[Any]  # the estimator, or the members of its ensemble
    networks: list[Network]
    incremental: bool  # one epoch of a partial fit
    goes_on: bool  # from what was trained before


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
) -> Prepared:
    """Return all that a fit needs to be trained; random numbers are drawn in scikit-learn's order.

    Parameters
    ----------
    estimator : BaseMLP
    X, y, sample_weight, X_val, y_val
        As `BaseMLP.fit` takes them.
    incremental : bool
        Whether it is a partial fit.
    checked : Rows, optional
        X and y, if they were checked before, for another estimator of this class.
    """
    sizes = hidden_sizes(estimator.hidden_layer_sizes)
    goes_on = hasattr(estimator, "coefs_") and (estimator.warm_start or incremental)
    if goes_on:
        check_members(estimator)
    rows = checked or check(estimator, X, y, incremental=incremental, reset=not goes_on)
    estimator.__dict__.update(rows.seen)
    rows = replace(rows, weight=row_weights(estimator, rows.X, y, sample_weight, incremental=incremental))
    estimator.n_outputs_ = rows.y.shape[1]
    split = Split(rows, given=validation_rows(estimator, X_val, y_val))
    _check_validation(estimator, split, incremental=incremental)
    holders, networks = list[Any](), list[Network]()
    for holder, rng in holders_of(estimator, goes_on=goes_on):
        if not goes_on:
            begin(holder, [rows.X.shape[1], *sizes, estimator.n_outputs_], rng, rows.X.dtype)
        holders.append(holder)
        if estimator.solver == LBFGS:
            continue
        if estimator.early_stopping and split.validation is None:
            split = Split(rows, aside=_set_aside(holder, rows, rng))
        networks.append(_network(holder, split, rng, incremental=incremental))
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
    """Return which rows to train on, and which are the share that is set aside for validation."""
    is_stratified = holder._targets.are_stratified and rows.y.shape[1] == 1
    train, test = train_test_split(
        np.arange(len(rows.X)),
        random_state=rng,
        test_size=holder.validation_fraction,
        stratify=rows.y if is_stratified else None,
    )
    if len(test) < 2:
        raise ValueError(
            "The validation set is too small. Increase 'validation_fraction' or the size of your dataset."
        )
    return train, test


def _network(holder: Any, split: Split, rng: np.random.RandomState, *, incremental: bool) -> Network:
    """Return a holder's network, to be trained up to `max_iter` epochs, or for one if incremental."""
    if split.validation is not None:
        begin_validation(holder)
    model = make_model(holder, (holder.coefs_, holder.intercepts_), holder.dropout)
    return Network(
        holder=holder,
        model=model,
        optimizer=_optimizer(holder, model, split.num_rows, incremental=incremental),
        log=EpochLog(holder, split.num_rows, split.rows.weight is not None),
        convergence=Convergence(holder, _scorer(holder, split.validation)),
        arguments={
            "loss": holder._targets.loss,
            "epochs": 1 if incremental else holder.max_iter,
            "batch_size": batch_rows(holder.batch_size, split.num_rows),
            "device": holder.device,
            "precision": holder.precision,
            "loss_scale": "auto",
            "engine": holder.engine,
            # Calls that go on from one another see other orders and masks.
            "seed": int(rng.randint(np.iinfo(np.int32).max)) + holder.t_,
            "shuffle": holder.shuffle,
        },
    )


def _optimizer(holder: Any, model: Sequential, num_rows: int, *, incremental: bool) -> Optimizer:
    """Return the optimizer of a run: one that goes on where the last one was, if incremental."""
    goes_on = incremental and hasattr(holder, "_optimizer_state")
    if not goes_on:
        holder._rate_scale = 1.0
    policy = holder.learning_rate
    if holder.solver != "sgd" and not isinstance(policy, Schedule) and policy not in SCHEDULES:
        policy = "constant"
    schedule = make_schedule(
        policy, holder.learning_rate_init, power=holder.power_t, num_rows=num_rows, seen=holder.t_
    )
    if goes_on and policy == "invscaling":
        schedule = Constant(holder.learning_rate_init / (holder.t_ + 1) ** holder.power_t)
    optimizer = make_optimizer(holder, model, schedule)
    if goes_on and holder._optimizer_state["slots"].keys() == optimizer.make_slots().keys():
        optimizer.load_state_dict(holder._optimizer_state)
    return optimizer


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
