"""The training loop: the epochs of an engine, and what goes on between them.

Reports come from the engine; callbacks, validation, snapshots and checkpoints follow at borders,
and the numbers go back into the model and the optimizer however the run ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from warpfit import backends
from warpfit.backends import communicators
from warpfit.backends.contract.communicator import Alone
from warpfit.backends.numpy.processes import processes
from warpfit.engines.at_once import is_of_package
from warpfit.engines.base import (
    EpochReport,
    Plan,
    Prepared,
    StepListener,
    Stopping,
    TrainingData,
)
from warpfit.engines.replicas import arrays_of
from warpfit.engines.unlocked import UnlockedProperty
from warpfit.errors import ConfigError, DivergedError, FileFormatError
from warpfit.files import PathLike
from warpfit.nn.module import Module
from warpfit.optim.base import Optimizer
from warpfit.optim.schedules import Schedule
from warpfit.training.callbacks import Callback, Checkpoint, EarlyStopping
from warpfit.training.checkpoints import CallbackState, Snapshot, load_checkpoint, save_checkpoint
from warpfit.training.devices import agree_on
from warpfit.training.evaluate import evaluate_network, rows_at_once
from warpfit.training.metrics import Metrics
from warpfit.training.plan import engine_of
from warpfit.training.precisions import Planned, Planner
from warpfit.training.run import Run
from warpfit.training.same_run import check_same_data, data_digests
from warpfit.training.state import remember_loss, show, write_back


@dataclass
class TrainingLoop:
    """A run with what goes on around it."""

    run: Run
    optimizer: Optimizer
    data: TrainingData
    validation: TrainingData | None
    callbacks: list[Callback]
    planner: Planner
    metrics: Metrics | None = None
    # Reads the data of the next epoch, where each has its own.
    next_data: Callable[[], TrainingData] | None = None

    def __post_init__(self) -> None:
        # The run at its last border: what remains when it is broken off.
        self.whole = Snapshot(self.run.state, [], [])
        self.diverged: DivergedError | None = None
        self.trained = _names_with_gradient(self.run.model)
        # Hands out the same buffers at every validation.
        self.evaluator = backends.create(self.run.plan.device)
        self._follow_plan()

    def _follow_plan(self) -> None:
        """Take up what the run's plan says of its engine."""
        self.engine, prepared = engine_of(self.run.plan), cast(Prepared, self.run.plan.prepared)
        self.engine_validates = prepared.validates
        # Those of other processes have a loop, too.
        self.ranks = processes() if self.run.plan.has_processes else Alone()
        # Whose rule the engine follows by itself.
        self.followed = self.looking[0] if prepared.stops else None

    @property
    def looking(self) -> list[Callback]:
        return _looking(self.callbacks)

    @UnlockedProperty
    def data_digests(self) -> dict[str, str]:
        """What a checkpoint says of the data."""
        return data_digests(self.data, self.validation)

    def resume(self, path: PathLike, *, new_data: bool) -> None:
        run = self.run

        def check_data(header: Mapping[str, Any]) -> None:
            if not new_data:
                decides = self._follows_reports()
                check_same_data(path, header, run.plan, self.data_digests, decides=decides)

        stored = load_checkpoint(path, self._plan_for, run.state, run.ops, check_data)
        if stored.state.epoch > run.plan.epochs:
            raise ConfigError(
                f"expected epochs to be at least the {stored.state.epoch} that {path} has done, "
                f"got {run.plan.epochs}"
            )
        try:
            self._go_to(stored)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FileFormatError(f"{path} holds no state of these callbacks: {error}") from error
        self.whole = stored
        if not new_data:
            self._stop_if_over()

    def _stop_if_over(self) -> None:
        """End a run that early stopping had ended when its checkpoint was written."""
        for callback in self.callbacks:
            if isinstance(callback, EarlyStopping):
                callback.stop_if_over(self.run)

    def _plan_for(self, header: Mapping[str, Any]) -> Plan:
        """Return the run's plan, from here on in the precision that a checkpoint's run has."""
        stored = header["plan"]
        while header.get("later_precisions") and any(
            getattr(self.run.plan, name) != stored[name] for name in ("engine", "precision")
        ):
            planned = self.planner.after(self.run.plan)
            if planned is None:
                break
            self._go_on_by(planned)
        return self.run.plan

    def _go_to(self, snapshot: Snapshot) -> None:
        """Put the run and its callbacks, known by their kind, where they stood at `snapshot`."""
        history = self.run.history
        self.run.state, history.reports = snapshot.state, list(snapshot.reports)
        history.later_precisions = dict(snapshot.later_precisions)
        remembered = list(snapshot.callbacks)
        for callback in self.callbacks:
            kind = type(callback).__name__
            same = (state for state in remembered if state.kind == kind)
            own = (state for state in same if callback.is_own(state.numbers))
            known = next(own, CallbackState(kind, {}, {}))
            callback.resume(known.numbers, known.arrays)
            remembered = [state for state in remembered if state is not known]

    def _snapshot(self) -> Snapshot:
        """Return the run as it stands; a state that goes on is copied."""
        run = self.run
        remembered = [
            CallbackState(type(c).__name__, *c.checkpoint_state()) for c in self.callbacks
        ]
        is_over = run.stop_reason is not None or run.state.epoch == run.plan.epochs
        state = run.state if is_over else run.state.copy(run.ops)
        history = run.history
        return Snapshot(state, list(history.reports), remembered, dict(history.later_precisions))

    def carry_out(self) -> None:
        """Run, and hand the numbers over, however it ends; an early error changes nothing."""
        run = self.run
        if self.ranks.size > 1:
            self._agree()
        try:
            self._start()
            try:
                self._train()
            finally:
                write_back(self.whole.state, run.model, self.optimizer, run.plan.loss)
        except BaseException as error:
            if error is not self.diverged:  # which all ranks find together
                self.ranks.abort(error)
            raise
        finally:
            self._tell(lambda callback: callback.close())

    def _start(self) -> None:
        """Let callbacks see the model as the run begins; if one refuses, it is as it was."""
        run, model = self.run, self.run.model
        untouched = [
            (holder, holder.promised("data") or partial(dict, data=holder.data))
            for holder in model.named_arrays().values()
        ]
        loss = model.loss
        show(model, run.state)
        remember_loss(model, run.plan.loss)
        try:
            if self.metrics is not None:
                self.metrics.try_on(self.evaluator, run.state.arrays)
            self._tell(lambda callback: callback.on_start(run))
        except BaseException:
            for holder, maker in untouched:
                holder.promise(maker, "data")
            remember_loss(model, loss)
            raise

    def _train(self) -> None:
        run = self.run
        if self.ranks.size > 1:
            self._take_over_arrays()
        try:
            self._train_epochs()
        except KeyboardInterrupt:
            self._go_to(self.whole)
            run.stop("interrupt")
        show(run.model, run.state)
        run.history.stopped_by = run.stop_reason or "epochs"
        self._save_checkpoints(due=lambda checkpoint: True)
        self._tell(lambda callback: callback.on_end(run))
        if self.ranks.size > 1:
            self._hand_out()
        self.whole = replace(self.whole, state=run.state)

    def _agree(self) -> None:
        """Raise ConfigError unless all processes were asked for the same run."""
        plan, state = self.run.plan, self.run.state
        counts = {"epochs": plan.epochs, "seed": state.seed, "epoch": state.epoch}
        own = {**plan.identity(), **counts, "step": state.step}
        del own["device"]
        agree_on(self.ranks, own, data_digests(self.data, None))

    def _hand_out(self) -> None:
        """Let processes that followed have the results, which callbacks may have changed."""
        history, state = self.run.history, self.run.state
        shared = self.ranks.share((history.reports, history.stopped_by, state.step))
        history.reports, history.stopped_by, state.step = shared
        self._take_over_arrays()

    def _take_over_arrays(self) -> None:
        """Let processes that follow have the parameters, buffers and slots of rank 0."""
        run = self.run
        communicators.of_process(run.plan.device).broadcast(arrays_of(run.state))

    def _train_epochs(self) -> None:
        run = self.run
        self.whole = self._snapshot()
        while (error := self._train_on()) is not None:
            self.diverged = error
            planned = self.planner.after(run.plan)
            if planned is None:
                raise error
            self._go_back(error)
            run.history.later_precisions[run.state.epoch + 1] = planned.plan.precision
            run.history.plan = _with_reason(
                run.history.plan, _switch(run.plan, planned.plan, error)
            )
            self._go_on_by(planned)
            self.whole = self._snapshot()

    def _train_on(self) -> DivergedError | None:
        """Train to the end, or to where the loss or a weight is not finite."""
        listens = any(_listens_to_steps(callback) for callback in self.callbacks)
        stopping = None if self.followed is None else self.followed.hand_over()
        train = self._trainer(self._on_step if listens else None, stopping)
        run = self.run
        # It may be over before it begins; of several ranks, the others hear of that.
        remaining = run.plan.epochs - run.state.epoch if run.stop_reason is None else 0
        return self._tell_of(
            train(remaining) if self.next_data is None else self._one_by_one(train, remaining)
        )

    def _go_back(self, error: DivergedError) -> None:
        """Take the run back to the end of the epoch before an error.

        The epochs since the last border are trained again: which of them had a state of their own
        depends on how many were trained at once.
        """
        last: DivergedError | None = error
        while last is not None:
            self.run.state = self.whole.state.copy(self.run.ops)
            show(self.run.model, self.run.state)
            train = self._trainer(None, self._rule_then())
            last = self._tell_of(train(last.epoch - 1 - self.run.state.epoch))

    def _rule_then(self) -> Stopping | None:
        """Return the rule that the engine follows as it stood at the last border."""
        if self.followed is None:
            return None
        rule, kind = self.followed.hand_over(), type(self.followed).__name__
        numbers = next(own.numbers for own in self.whole.callbacks if own.kind == kind)
        rule.best, rule.bad_epochs = numbers["best"], numbers["bad_epochs"]
        return rule

    def _go_on_by(self, planned: Planned) -> None:
        """Let what comes be computed as another plan says."""
        if self.followed is not None:
            self.followed.resume(*self.followed.checkpoint_state())  # keeps weights by itself
        self.run.plan, data, self.validation = planned
        self.data = data if self.next_data is None else self.data
        self._follow_plan()

    def _trainer(
        self, on_step: StepListener | None, stopping: Stopping | None
    ) -> Callable[[int], Iterator[EpochReport]]:
        """Return what trains for some epochs from where the run stands."""
        run, validation = self.run, self.validation if self.engine_validates else None

        def train(epochs: int) -> Iterator[EpochReport]:
            return self.engine.run(
                run.plan,
                run.state,
                self.data,
                epochs,
                on_step,
                self._is_border,
                validation,
                stopping,
            )

        return train

    def _tell_of(self, reports: Iterator[EpochReport]) -> DivergedError | None:
        """Let all hear of each epoch as it is done; return what diverged, if anything."""
        with closing(reports):  # type: ignore[type-var]
            while True:
                try:
                    report = next(reports, None)
                except DivergedError as error:
                    return error
                if report is None or self._is_over_after(report):
                    return None

    def _is_over_after(self, report: EpochReport) -> bool:
        """Let all hear of an epoch; return whether somebody stops the run there."""
        run = self.run
        if run.plan.reports(report.epoch) and report.epoch > run.history.last_epoch:
            run.history.reports.append(self._completed(report))
            self._observe()
            self._tell_of_epoch()
        if report.epoch < run.state.epoch:
            return False  # the state is that of a later epoch, whose report is still to come
        self.whole = self._snapshot()
        self._save_checkpoints(due=lambda checkpoint: run.state.epoch % checkpoint.every == 0)
        return run.stop_reason is not None

    def _one_by_one(
        self, train: Callable[[int], Iterator[EpochReport]], epochs: int
    ) -> Iterator[EpochReport]:
        """Yield the reports of epochs of which each has its own data."""
        for idx in range(epochs):
            if idx and self.next_data is not None:
                self.data = self.next_data()
            yield from train(1)

    def _tell_of_epoch(self) -> None:
        """Let callbacks act after an epoch; who looks at the run finds the model up to date."""
        run = self.run
        is_seen = any(c.needs_model and c is not self.followed for c in self.looking)
        if is_seen:
            show(run.model, run.state)
        self._tell(lambda callback: callback.on_epoch_end(run))
        run.state.was_shown = not all(is_of_package(callback) for callback in self.callbacks)
        if is_seen:
            self._check_trained()

    def _check_trained(self) -> None:
        """Raise ConfigError if a callback has frozen parameters, or others than at the start."""
        names = _names_with_gradient(self.run.model)
        if names != self.trained:
            raise ConfigError(
                "expected the same parameters to train from the first epoch to the last, but "
                f"requires_grad of {', '.join(sorted(names ^ self.trained))} was changed on the "
                "way; change it between two calls of fit"
            )

    def _is_border(self, epoch: int) -> bool:
        """Return whether anyone needs the state after an epoch, or may change what follows."""
        if any(isinstance(c, Checkpoint) and epoch % c.every == 0 for c in self.callbacks):
            return True
        return self.run.plan.reports(epoch) and (
            self.metrics is not None
            or (self.validation is not None and not self.engine_validates)
            or _watches_the_loss(self.run.plan.optimizer.lr)
            or any(
                callback.may_act_after(epoch)
                for callback in self.looking
                if callback is not self.followed
            )
        )

    def _follows_reports(self) -> bool:
        """Return whether what reports say, validation included, may decide how the run goes on."""
        return _watches_the_loss(self.run.plan.optimizer.lr) or bool(self.looking)

    def _completed(self, report: EpochReport) -> EpochReport:
        """Return a report with what the engine has not found: validation and metrics."""
        report = self._with_validation(report)
        if self.metrics is None:
            return report
        return replace(report, metrics=self.metrics.of(self.evaluator, self.run.state.arrays))

    def _with_validation(self, report: EpochReport) -> EpochReport:
        if self.validation is None or self.engine_validates:
            return report
        run, plan = self.run, self.run.plan
        result = evaluate_network(
            self.evaluator,
            plan.network,
            run.state.arrays,
            plan.loss,
            self.validation.x,
            self.validation.y,
            batch_size=rows_at_once(plan.network, plan.device),
            dtype=plan.dtype,
        )
        return replace(report, val_loss=result.loss, val_accuracy=result.accuracy)

    def _observe(self) -> None:
        """Let a schedule that watches the loss see the last report."""
        report, state = self.run.report, self.run.state
        watched = report.loss if report.val_loss is None else report.val_loss
        state.plateau = self.run.plan.optimizer.lr.observe(state.plateau, watched)

    def _on_step(self, step: int, steps_per_epoch: int) -> None:
        for callback in self.callbacks:
            callback.on_step(step, steps_per_epoch)

    def _tell(self, act: Callable[[Callback], None]) -> None:
        for callback in self.callbacks:
            act(callback)

    def _save_checkpoints(self, due: Callable[[Checkpoint], bool]) -> None:
        for checkpoint in self.callbacks:
            if isinstance(checkpoint, Checkpoint) and due(checkpoint):
                save_checkpoint(
                    checkpoint.path, self.run.plan, self.whole, self.run.ops, self.data_digests
                )


def _switch(before: Plan, after: Plan, error: DivergedError) -> str:
    return (
        f"epoch {error.epoch} was not finite in {before.precision} ({before.engine}), "
        f"{after.precision} ({after.engine}) goes on"
    )


def _with_reason(plan: Plan, why: str) -> Plan:
    """Return a plan whose reason says so; that of an earlier run may."""
    return plan if why in plan.reason else replace(plan, reason=f"{plan.reason}; {why}")


def rule_of(callbacks: Sequence[Callback], schedule: Schedule) -> Stopping | None:
    """Return a callback's rule to end a run, if nothing else looks at it between epochs."""
    looking = _looking(callbacks)
    return looking[0].rule() if len(looking) == 1 and not _watches_the_loss(schedule) else None


def _looking(callbacks: Sequence[Callback]) -> list[Callback]:
    """Return the callbacks that look at the run after an epoch."""
    return [callback for callback in callbacks if _looks_at_the_run(callback)]


def _names_with_gradient(model: Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def _listens_to_steps(callback: Callback) -> bool:
    return type(callback).on_step is not Callback.on_step


def _looks_at_the_run(callback: Callback) -> bool:
    return callback.needs_run and type(callback).on_epoch_end is not Callback.on_epoch_end


def _watches_the_loss(schedule: Schedule) -> bool:
    return type(schedule).observe is not Schedule.observe
