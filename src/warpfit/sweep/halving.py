"""Rules that stop candidates between epochs, and successive halving, by which only the better part
goes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, lcm
from numbers import Real
from typing import Any

from warpfit.checks import check_count
from warpfit.errors import ConfigError
from warpfit.sweep.groups import Group
from warpfit.sweep.metric import Metric
from warpfit.sweep.tasks import INTERRUPTED, PAUSED, STOPPED, Outcome, Task


class Rule(ABC):
    """A rule by which some candidates do not go on after some epochs, the rungs."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The word with which the messages of networks that it stops begin."""

    @abstractmethod
    def rungs(self, epochs: int, report_every: int = 1) -> list[int]:
        """Return the epochs after which candidates may be stopped, for runs of so many epochs:
        reported ones.
        """

    @abstractmethod
    def stopped(
        self,
        until: int,
        paused: Mapping[int, Outcome],
        ended: Mapping[int, Outcome],
        metric: Metric,
        num_folds: int,
    ) -> dict[int, str]:
        """Return which networks do not go on after a rung, by their numbers, and why.

        Parameters
        ----------
        until : int
            The epoch of the rung.
        paused, ended : mapping of int to Outcome
            Networks that may go on, and that are through, less those of candidates that were
            stopped before.
        metric : Metric
        num_folds : int
            Networks of a candidate, with consecutive numbers.

        Raises
        ------
        Exception
            What a rule that asks others gets from them; it ends the sweep.
        """


@dataclass(frozen=True)
class Halving(Rule):
    """A rule: after `min_epochs` epochs, and each time `factor` times as many, one in `factor`
    candidates goes on.

    Where not every epoch is reported, candidates are compared after the next that all of them
    report.

    Parameters
    ----------
    factor : float
        Above 1.
    min_epochs : int
        Epochs before the first rung.

    Raises
    ------
    ConfigError
        If one of them is something else.

    References
    ----------
    Jamieson, Talwalkar: Non-stochastic best arm identification and hyperparameter optimization
    (2016).

    Examples
    --------
    >>> wf.Halving(factor=3, min_epochs=1)
    Halving(factor=3.0, min_epochs=1)
    """

    factor: float = 3.0
    min_epochs: int = 1

    def __post_init__(self) -> None:
        factor: Any = self.factor
        if isinstance(factor, bool) or not isinstance(factor, Real) or not 1 < float(factor) < inf:
            raise ConfigError(f"Halving: expected a finite factor above 1, got {self.factor!r}")
        object.__setattr__(self, "factor", float(factor))
        check_count("min_epochs", self.min_epochs, 1)

    @property
    def name(self) -> str:
        return "halving"

    def rungs(self, epochs: int, report_every: int = 1) -> list[int]:
        """Return the epochs after which candidates are compared, for runs of so many epochs:
        reported ones.
        """
        rungs: list[int] = []
        at = float(self.min_epochs)
        while (reported := ceil(round(at) / report_every) * report_every) < epochs:
            if reported not in rungs:
                rungs.append(reported)
            at *= self.factor
        return rungs

    def survivors(self, num_candidates: int) -> int:
        """Return how many of the candidates at a rung go on: at least one."""
        return max(1, ceil(num_candidates / self.factor))

    def stopped(
        self,
        until: int,
        paused: Mapping[int, Outcome],
        ended: Mapping[int, Outcome],
        metric: Metric,
        num_folds: int,
    ) -> dict[int, str]:
        going_on, places = _decide(self, metric, paused, ended, num_folds)
        return {number: message_of(*places[number], until) for number in set(paused) - going_on}


def as_halving(halving: Any) -> Rule | None:
    """Return the rule that `halving` stands for: None, a rule, or the factor of a `Halving`."""
    if halving is None or isinstance(halving, Rule):
        return halving
    if isinstance(halving, bool) or not isinstance(halving, Real):
        raise ConfigError(f"expected halving as a Halving, its factor or None, got {halving!r}")
    return Halving(halving)  # type: ignore[arg-type]


def run_in_rungs(
    run: Callable[[Sequence[Group]], Iterator[Outcome]],
    groups: Sequence[Group],
    rule: Rule,
    metric: Metric,
    num_folds: int,
) -> Iterator[Outcome]:
    """Train the groups' networks from rung to rung, and yield what came of each, once it is known.

    A network that goes on has the bits of one that never paused.

    Parameters
    ----------
    run : function of groups
        Trains them up to each task's `until`, as `Runner.run` does.
    groups : sequence of Group
    rule : Rule
        Where the rungs are, and which candidates go on.
    metric : Metric
        What they are ranked by.
    num_folds : int
        Tasks of a candidate, with consecutive numbers. They go on or stop together, by their mean.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C, behind the outcomes of networks that had paused.
    """
    tasks = [task for group in groups for task in group.tasks]
    epochs = max(task.arguments["epochs"] for task in tasks)
    report_every = lcm(*(task.arguments.get("report_every", 1) for task in tasks))
    networks = _Networks(rule, metric, num_folds)
    try:
        for until in rule.rungs(epochs, report_every):
            yield from networks.train(run(_until(groups, until)))
            yield from networks.stop(until)
            groups = _going_on(groups, networks.paused)
            if not groups:
                return
        yield from networks.train(run(_until(groups, None)))
    except KeyboardInterrupt:
        yield from networks.interrupt()
        raise


@dataclass
class _Networks:
    """The networks of all candidates, on their way from rung to rung."""

    rule: Rule
    metric: Metric
    num_folds: int
    # paused and ended: those that came to this rung, and those that are through, by their numbers.
    paused: dict[int, Outcome] = field(default_factory=dict)
    ended: dict[int, Outcome] = field(default_factory=dict)
    # Those that paused at the last rung, and whose turn has not come again.
    before: dict[int, Outcome] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)  # of each network, up to here

    def train(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Take up what comes of training to the next rung, and yield what is through."""
        self.before, self.paused, is_interrupted = self.paused, {}, False
        for outcome in outcomes:
            number = outcome.number
            outcome.seconds += self.seconds.get(number, 0.0)
            self.seconds[number] = outcome.seconds
            is_interrupted |= outcome.status == INTERRUPTED
            self.before.pop(number, None)
            if outcome.status == PAUSED:
                self.paused[number] = outcome
            else:
                self.ended[number] = outcome
                yield outcome
        if is_interrupted:
            raise KeyboardInterrupt

    def stop(self, until: int) -> Iterator[Outcome]:
        """Stop the networks that the rule stops at a rung, and yield them."""
        stopped = self.rule.stopped(until, self.paused, self.ended, self.metric, self.num_folds)
        halved = {number // self.num_folds for number in stopped}
        for number in sorted(stopped):
            outcome = self.paused.pop(number)
            outcome.halved_after = until
            yield _stopped(outcome, stopped[number], STOPPED)
        self.ended = {
            number: each
            for number, each in self.ended.items()
            if number // self.num_folds not in halved
        }

    def interrupt(self) -> Iterator[Outcome]:
        """Yield the networks at this rung, and those whose turn had not come again since the
        last.
        """
        for outcome in (*self.paused.values(), *self.before.values()):
            yield _stopped(outcome, "interrupt", INTERRUPTED)


def _until(groups: Sequence[Group], until: int | None) -> list[Group]:
    return [
        replace(group, tasks=tuple(replace(task, until=until) for task in group.tasks))
        for group in groups
    ]


def _going_on(groups: Sequence[Group], paused: dict[int, Outcome]) -> list[Group]:
    """Return the groups of the networks that go on, from where they paused."""

    def from_pause(task: Task) -> Task:
        return replace(task, checkpoint=paused[task.number].checkpoint)

    kept = [
        replace(
            group, tasks=tuple(from_pause(task) for task in group.tasks if task.number in paused)
        )
        for group in groups
    ]
    return [group for group in kept if group.tasks]


def _decide(
    rule: Halving,
    metric: Metric,
    paused: Mapping[int, Outcome],
    ended: Mapping[int, Outcome],
    num_folds: int,
) -> tuple[set[int], dict[int, tuple[int, int]]]:
    """Return the networks that go on, and where all came in, as `message_of` takes it.

    A candidate that is through with its epochs is compared with those that are not; one with a fold
    that diverged or failed is out.
    """
    both = {**ended, **paused}
    members: dict[int, list[Outcome]] = {}
    for number in sorted(both):
        members.setdefault(number // num_folds, []).append(both[number])
    keys = {
        c: metric.key(outcomes) if have_results(outcomes) else None
        for c, outcomes in members.items()
    }
    in_play = [
        candidate
        for candidate, outcomes in members.items()
        if any(o.number in paused for o in outcomes)
    ]
    done = [
        candidate
        for candidate in members
        if candidate not in in_play and have_results(members[candidate])
    ]
    ranked = sorted(
        (c for c in (*in_play, *done) if keys[c] is not None),
        key=lambda c: (keys[c], c),
    )
    num_compared = len(in_play) + len(done)
    best = set(ranked[: rule.survivors(num_compared)])
    place = {candidate: idx + 1 for idx, candidate in enumerate(ranked)}
    going_on = {o.number for c in in_play if c in best for o in members[c] if o.number in paused}
    places = {o.number: (place.get(c, 0), num_compared) for c in in_play for o in members[c]}
    return going_on, places


def message_of(place: int, num_compared: int, after: int) -> str:
    """Return why a network does not go on after so many epochs: its candidate's place, 0 if a fold
    has no result.
    """
    verdict = f"{place} of {num_compared}" if place else "a fold has no result"
    return f"halving: {verdict} after {after} epoch{'' if after == 1 else 's'}"


def have_results(outcomes: Iterable[Outcome]) -> bool:
    """Return whether a candidate's networks all have a report, and no error."""
    return all(outcome.report is not None and outcome.error is None for outcome in outcomes)


def _stopped(outcome: Outcome, message: str, status: str) -> Outcome:
    outcome.status, outcome.message, outcome.checkpoint = status, message, None
    outcome.history.stopped_by = message
    return outcome
