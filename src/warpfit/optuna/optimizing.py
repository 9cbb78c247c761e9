"""Batches of trials, from asking to telling, as `study.optimize` does one after the other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any

from warpfit.checks import brief, check_choice, check_count, check_flag, check_number
from warpfit.errors import ConfigError, WarpfitError
from warpfit.nn.module import Module
from warpfit.optuna.pruning import rule_of, values_of_epochs
from warpfit.optuna.trials import AskedTrial, Build, logger, needs_optuna, running_trials
from warpfit.random import check_seed
from warpfit.sweep.fit_many import fit_many
from warpfit.sweep.halving import Rule, as_halving
from warpfit.sweep.metric import COLUMNS, SCORE, as_scoring
from warpfit.sweep.planning import SweepPlan
from warpfit.sweep.records import Record, Sweep
from warpfit.sweep.tasks import DONE, STOPPED

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

StudyCallback = Callable[["Study", "FrozenTrial"], None]
Errors = tuple[type[Exception], ...]

# Of `fit_many`, what a batch of trials decides itself.
OWN = ("build", "x", "y", "grid", "candidates", "callbacks", "keep_models", "on_plan")


@dataclass
class Optimized:
    """What `optimize` leaves beside the study.

    Attributes
    ----------
    best_model : Module or None
        The network of the best trial of this call, with folds that of its best fold; None if no
        trial completed. Among equal values of a batch the lower loss decides, where
        ``study.best_trial`` is the first.
    best_value : float or None
        What the study was told of that trial.
    best_number : int or None
        That trial's number.
    ask_seconds, train_seconds, tell_seconds : float
        Of asking, `build` and its suggestions included; of training, in which pruners are asked;
        and of reporting and telling, callbacks included.

    Examples
    --------
    >>> wf.optuna.Optimized(best_value=0.98, best_number=7).best_number
    7
    """

    best_model: Module | None = None
    best_value: float | None = None
    best_number: int | None = None
    ask_seconds: float = 0.0
    train_seconds: float = 0.0
    tell_seconds: float = 0.0


def optimize(
    study: Study,
    build: Build,
    x: Any,
    y: Any,
    *,
    n_trials: int | None = None,
    timeout: float | None = None,
    batch: int = 128,
    catch: Iterable[type[Exception]] | type[Exception] = (),
    callbacks: Iterable[StudyCallback] | None = None,
    resume: bool = False,
    metric: Any = None,
    halving: Any = None,
    fit_callbacks: Sequence[Any] = (),
    **settings: Any,
) -> Optimized:
    """Optimize an Optuna study as `study.optimize` does, but train the trials' networks by batches,
    each in one `fit_many`.

    A trial's intermediate values are those of its reported epochs, at steps that count from 0.
    Successive halving compares the trials of a batch, on a GPU within the launch where one kernel
    takes them all; any other pruner is asked after every reported epoch, between two launches. A
    trial whose network diverges or fails is told as failed, with the reason in its user attribute
    ``error``, and the others go on.

    Parameters
    ----------
    study : optuna.Study
        Of one direction, with any storage, sampler and pruner. A direction of ``'maximize'`` takes
        the accuracy, ``'minimize'`` the loss, unless `metric` says otherwise.
    build : function
        From a trial, whose ``suggest_...`` it calls, to ``(model, optimizer)`` as `fit_many` takes
        them, or ``(model, optimizer, settings)`` with a dict of what in `fit_many` candidates may
        set: ``batch_size``, ``epochs``, ``loss``, ``seed``, ... It may raise `optuna.TrialPruned`.
        Layers that are given no seed draw theirs from the trial's.
    x, y : array_like
        As `fit_many` takes them.
    n_trials : int, optional
        How many trials this call makes. Without, and without `timeout`, they end by
        ``study.stop()`` or Ctrl-C.
    timeout : float, optional
        Seconds after which no batch begins.
    batch : int
        Trials that are asked for, and trained, at a time.
    catch : exception class, or several
        What `build`, or a network that cannot be planned, may raise without an end to it all; its
        trial has failed then. Else the error is raised once the others of the batch are told.
    callbacks : iterable of function, optional
        Called as ``callback(study, trial)`` for every trial, when all of its batch are told.
        ``study.stop()`` ends it all after the batch.
    resume : bool
        Whether the trials that the study has as running are trained first: those that a process
        left that was killed. Only where no other process works at the study.
    metric : str or function, optional
        As `fit_many`'s: a column that the study's direction fits, the name of a scorer of
        scikit-learn to maximize, or a function of model, x and y in either direction.
    halving : Halving or float, optional
        In place of the study's pruner, among the trials of a batch.
    fit_callbacks : sequence of Callback
        `fit_many`'s ``callbacks``.
    **settings
        All others of `fit_many`: ``validation_data`` or ``folds``, ``epochs``, ``batch_size``,
        ``loss``, ``device``, ``seed``, ``n_jobs``, ``executor``, ...; ``verbose`` is False.

    Returns
    -------
    Optimized
        The best network, and how long asking, training and telling took.

    Raises
    ------
    ConfigError
        If Optuna is not installed, or an argument is not what is described here.
    KeyboardInterrupt
        After Ctrl-C, when all that is finished is told; the trials that were running are told as
        failed.
    Exception
        As `fit_many`, if it trains none of a batch, and as `build`, unless `catch` names its class.

    Examples
    --------
    >>> import numpy as np
    >>> import optuna
    >>> import warpfit as wf
    >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
    >>> x = np.random.default_rng(0).uniform(size=(64, 4)).astype("float32")
    >>> def build(trial):
    ...     width = trial.suggest_categorical("width", [8, 16])
    ...     model = wf.nn.Sequential(wf.nn.Linear(4, width), wf.nn.ReLU(), wf.nn.Linear(width, 2))
    ...     lr = trial.suggest_float("lr", 0.01, 1, log=True)
    ...     return model, wf.optim.SGD(model.parameters(), lr=lr)
    >>> study = optuna.create_study(direction="maximize")
    >>> settings = {"folds": 2, "epochs": 2, "device": "cpu", "n_jobs": 1}
    >>> found = wf.optuna.optimize(study, build, x, x[:, 0] > 0.5, n_trials=8, batch=4, **settings)
    >>> len(study.trials), found.best_value == study.best_value
    (8, True)
    """
    optuna = needs_optuna()
    if not isinstance(study, optuna.Study) or len(study.directions) != 1:
        raise ConfigError(
            f"expected a study of Optuna's with one direction, got {type(study).__name__}"
            + (f" with {len(study.directions)}" if isinstance(study, optuna.Study) else "")
        )
    most = None if n_trials is None else check_count("n_trials", n_trials, 1)
    if timeout is not None:
        check_number("timeout", timeout, 0)
    if not callable(build):
        raise ConfigError(f"expected build to be a function of a trial, got {brief(build)}")
    _check_settings(settings)
    has_validation = any(settings.get(name) is not None for name in ("validation_data", "folds"))
    is_maximized = study.direction == optuna.study.StudyDirection.MAXIMIZE
    batches = _Batches(
        study=study,
        build=build,
        rows=(x, y),
        metric=_metric(metric, is_maximized=is_maximized, has_validation=has_validation),
        is_maximized=is_maximized,
        halving=as_halving(halving),
        settings={"verbose": False, **settings, "callbacks": fit_callbacks},
        catch=_classes_to_catch(catch),
        callbacks=_study_callbacks(callbacks),
        left=running_trials(study) if check_flag("resume", resume) else [],
    )
    if not has_validation:
        logger().warning(
            "Neither folds nor validation_data are given: trials are compared on the training rows."
        )
    batches.run(most, timeout, check_count("batch", batch, 1))
    return batches.found


def _check_settings(settings: dict[str, Any]) -> None:
    """Raise ConfigError if `fit_many` takes no such argument from here."""
    known = set(inspect.signature(fit_many).parameters) - set(OWN)
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise ConfigError(f"expected settings of fit_many, got {unknown[0]!r}")
    check_seed(settings.get("seed", 0))
    check_count("epochs", settings.get("epochs", 1), 1)


def _classes_to_catch(catch: Any) -> Errors:
    """Return classes of exceptions as a tuple, or raise ConfigError."""
    found = tuple(catch) if isinstance(catch, Iterable) else (catch,)
    if not all(isinstance(each, type) and issubclass(each, Exception) for each in found):
        raise ConfigError(f"expected catch as classes of exceptions, got {brief(catch)}")
    return found


def _study_callbacks(callbacks: Any) -> tuple[StudyCallback, ...]:
    """Return functions of a study and a trial as a tuple, or raise ConfigError."""
    if callbacks is None:
        return ()
    found = tuple(callbacks) if isinstance(callbacks, Iterable) else (None,)
    if not all(map(callable, found)):
        raise ConfigError(
            f"expected callbacks as functions of a study and a trial, got {brief(callbacks)}"
        )
    return found


def _metric(metric: Any, *, is_maximized: bool, has_validation: bool) -> Any:
    """Return the metric that `fit_many` is to rank by; more is better if it is a function's."""
    if metric is None:
        return ("val_" if has_validation else "") + ("accuracy" if is_maximized else "loss")
    if callable(metric):
        return metric if is_maximized else partial(_negated, metric)
    scoring = as_scoring(metric)
    is_column = scoring is metric  # and no scorer's name
    if is_column:
        check_choice("metric", metric, COLUMNS)
    if metric.startswith("val_") and not has_validation:
        raise ConfigError(
            f"expected validation_data or folds for the metric {metric!r}, got neither"
        )
    if (is_column and metric.endswith("loss")) == is_maximized:
        direction = "maximize" if is_maximized else "minimize"
        raise ConfigError(
            f"expected a metric that a study with direction {direction!r} fits, got {metric!r}"
        )
    return scoring


def _negated(metric: Callable[[Module, Any, Any], float], model: Module, x: Any, y: Any) -> float:
    return -metric(model, x, y)


class _PlannedError(Exception):
    """Ends `fit_many` before anything trains."""


@dataclass
class _Batches:
    """Batches of a study's trials, one after the other."""

    study: Study
    build: Build
    rows: tuple[Any, Any]
    metric: Any
    is_maximized: bool
    halving: Rule | None
    settings: dict[str, Any]
    catch: Errors
    callbacks: tuple[StudyCallback, ...]
    left: list[AskedTrial]
    found: Optimized = field(default_factory=Optimized)
    errors: list[Exception] = field(default_factory=list)

    @property
    def sign(self) -> int:
        """-1 if `fit_many`'s scores are values with the other sign."""
        return -1 if callable(self.metric) and not self.is_maximized else 1

    def run(self, most: int | None, timeout: float | None, size: int) -> None:
        """Train batches until all trials are made, or time is over, or the study is stopped."""
        start, count = perf_counter(), 0
        with _stoppable(self.study) as stop:
            while not stop.is_set() and (most is None or count < most):
                if timeout is not None and perf_counter() - start >= timeout:
                    return
                count += self._run_batch(size if most is None else min(size, most - count), stop)

    def _run_batch(self, size: int, stop: Event) -> int:
        """Ask for so many trials, or fewer once the study is stopped, and return how many."""
        asked: list[AskedTrial] = []
        try:
            with self._seconds("ask_seconds"):
                self._ask(size, asked, stop)
            with self._seconds("train_seconds"):
                able = [each for each in asked if not each.is_told]
                sweep = self._train(able) if able else None
            with self._seconds("tell_seconds"):
                if sweep is not None:
                    self._tell([each for each in able if not each.is_told], sweep)
                self._call_back(asked)
        except BaseException as error:
            self._fail_rest(asked, error)
            raise
        self._log(asked)
        if self.errors:
            raise self.errors[0]
        return len(asked)

    @contextmanager
    def _seconds(self, name: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            setattr(self.found, name, getattr(self.found, name) + perf_counter() - start)

    # -- asking

    def _ask(self, size: int, asked: list[AskedTrial], stop: Event) -> None:
        """Ask for trials, and build their networks; an error that is not to be caught ends that."""
        while len(asked) < size and not stop.is_set() and not self.errors:
            one = self.left.pop(0) if self.left else AskedTrial(self.study.ask())
            asked.append(one)
            try:
                one.build(self.build, self.settings.get("seed", 0))
            except needs_optuna().TrialPruned:
                one.tell_pruned(self.study)
            except Exception as error:
                self._refuse(one, error)

    def _refuse(self, one: AskedTrial, error: Exception) -> None:
        """Let a trial fail before it trains, and keep the error if it is to be raised."""
        one.tell_failed(self.study, _words(error))
        if not isinstance(error, self.catch):
            self.errors.append(error)

    # -- training

    def _train(self, batch: Sequence[AskedTrial]) -> Sweep | None:
        """Train the batch less what cannot be planned; None if nothing is left, or all fail."""
        plans: list[SweepPlan] = []
        try:
            return self._fit(batch, plans.append)
        except WarpfitError as error:
            if plans:  # all failed on the way
                for each in batch:
                    self._refuse(each, error)
                return None
            able = [each for each in batch if self._is_planned(each)]
            if len(able) == len(batch):
                raise
        return self._train(able) if able else None

    def _is_planned(self, one: AskedTrial) -> bool:
        """Return whether a trial's network can be planned by itself; if not, its trial fails."""

        def stop(plan: SweepPlan) -> None:
            raise _PlannedError

        try:
            self._fit([one], stop)
        except _PlannedError:
            return True
        except WarpfitError as error:
            self._refuse(one, error)
        return False

    def _fit(self, batch: Sequence[AskedTrial], on_plan: Callable[[SweepPlan], None]) -> Sweep:
        networks = {each.number: each.network for each in batch}
        return fit_many(
            lambda candidate: networks[candidate["trial"]],  # type: ignore[arg-type, return-value]
            *self.rows,
            candidates=[each.candidate for each in batch],
            metric=self.metric,
            halving=self._rule(batch),
            keep_models=False,
            on_plan=on_plan,
            **self.settings,
        )

    def _rule(self, batch: Sequence[AskedTrial]) -> Rule | None:
        if self.halving is not None:
            return self.halving
        return rule_of(self.study.pruner, batch, self.sign)

    # -- telling

    def _tell(self, batch: Sequence[AskedTrial], sweep: Sweep) -> None:
        """Tell what came of the batch's trials, in their order."""
        folds = max(1, sweep.plan.num_folds)
        rule = self._rule(batch)
        for idx, one in enumerate(batch):
            members = slice(idx * folds, (idx + 1) * folds)
            if sweep.metric.name != SCORE:
                one.report(values_of_epochs(sweep.histories[members], sweep.metric))
            self._tell_one(one, sweep.records[members], sweep.candidates[idx]["score"], rule)
        if sweep.interrupted:
            raise KeyboardInterrupt
        self._keep_best(batch, sweep)

    def _tell_one(
        self, one: AskedTrial, records: Sequence[Record], score: float | None, rule: Rule | None
    ) -> None:
        failed = [record for record in records if record["status"] not in (DONE, STOPPED)]
        if failed:
            status, message = failed[0]["status"], failed[0]["message"]
            one.tell_failed(self.study, f"{status}: {message}" if message else status)
        elif rule is not None and any(_is_pruned(record, rule) for record in records):
            one.tell_pruned(self.study)
        elif score is None:
            one.tell_failed(self.study, "the metric is no finite number")
        else:
            one.tell(self.study, self.sign * score)

    def _keep_best(self, batch: Sequence[AskedTrial], sweep: Sweep) -> None:
        """Keep the model of the best trial that completed, if none before was better."""
        best = next((i for i, each in enumerate(sweep.candidates) if each["rank"] == 1), None)
        value = None if best is None else batch[best].value
        if best is None or value is None:
            return
        found, before = self.found, self.found.best_value
        if before is None or (value > before if self.is_maximized else value < before):
            found.best_value, found.best_number = value, batch[best].number
            found.best_model = sweep.best_model

    def _call_back(self, asked: Sequence[AskedTrial]) -> None:
        if not self.callbacks:
            return
        trials = self.study.get_trials(deepcopy=True)
        for one in asked:
            for callback in self.callbacks:
                callback(self.study, trials[one.number])

    def _fail_rest(self, asked: Sequence[AskedTrial], error: BaseException) -> None:
        """Let no trial stay running that this call asked for, or took up."""
        words = "interrupt" if isinstance(error, KeyboardInterrupt) else _words(error)
        states = (needs_optuna().trial.TrialState.RUNNING,)
        # As the study has it: the error may have come between a trial's being told and our knowing.
        running = {each.number for each in self.study.get_trials(deepcopy=False, states=states)}
        for one in asked:
            if one.number in running:
                one.tell_failed(self.study, words)

    def _log(self, asked: Sequence[AskedTrial]) -> None:
        found = self.found
        best = "" if found.best_value is None else f"; best {found.best_value:.6g}"
        number = "" if found.best_number is None else f" of trial {found.best_number}"
        logger().info(f"Trials {asked[0].number} to {asked[-1].number} finished{best}{number}.")


def _is_pruned(record: Record, rule: Rule) -> bool:
    return bool(record["status"] == STOPPED and record["message"].startswith(f"{rule.name}: "))


def _words(error: BaseException) -> str:
    name = "" if isinstance(error, WarpfitError) else f"{type(error).__name__}: "
    return f"{name}{error}"


@contextmanager
def _stoppable(study: Any) -> Iterator[Event]:
    """Let ``study.stop()`` set an event in this block; else it only works in `study.optimize`."""
    stop = Event()
    study.stop = stop.set
    try:
        yield stop
    finally:
        vars(study).pop("stop", None)
