"""One trial of a study: asked for, built, reported and told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from warpfit.checks import brief
from warpfit.errors import ConfigError
from warpfit.extras import needs
from warpfit.nn.module import Module
from warpfit.optim.base import Optimizer
from warpfit.random import seeded
from warpfit.sweep.candidates import FIT_ARGUMENTS, Candidate
from warpfit.sweep.fit_many import model_and_optimizer

if TYPE_CHECKING:
    from optuna import Study, Trial

Build = Callable[["Trial"], Sequence[Any]]

ERROR = "error"  # the user attribute that says why a trial failed


def needs_optuna() -> Any:
    """Return Optuna's package, or raise ConfigError that says how to get it."""
    with needs("optuna", "warpfit.optuna needs"):
        import optuna

    return optuna


def logger() -> Any:
    """Return the logger of this package, as verbose as `optuna.logging` says."""
    return needs_optuna().logging.get_logger("optuna.warpfit")


@dataclass
class AskedTrial:
    """A trial that the study has as running, until it is told."""

    trial: Trial
    reported: set[int] = field(default_factory=set)  # steps whose values the study has
    network: tuple[Module, Optimizer] | None = None  # what `build` made
    settings: Candidate = field(default_factory=dict)  # of `fit`'s arguments, the trial's own
    is_told: bool = False
    value: float | None = None  # what the study was told, if the trial completed

    @property
    def number(self) -> int:
        return int(self.trial.number)

    @property
    def candidate(self) -> Candidate:
        """The trial as `fit_many` takes it."""
        return {"trial": self.number, **self.settings}

    def build(self, build: Build, seed: int) -> None:
        """Let `build` make the network, from the initial values of the seed that it is to have.

        Raises
        ------
        ConfigError
            If what is made is no model, optimizer and settings.
        """
        self._build(build, seed)
        own_seed = self.settings.get("seed", seed)
        if own_seed != seed:  # which is known only now
            self._build(build, own_seed)

    def _build(self, build: Build, seed: int) -> None:
        with seeded(seed):
            made: Any = build(self.trial)
        if not isinstance(made, tuple | list) or len(made) not in (2, 3):
            raise ConfigError(
                "expected build to return (model, optimizer) or (model, optimizer, settings), got "
                f"{brief(made)}"
            )
        self.network, self.settings = model_and_optimizer(made[:2]), _settings(*made[2:])

    def report(self, values: Mapping[int, float]) -> None:
        """Report the values of epochs, counted from 1, that the study has not yet.

        Optuna's steps count from 0, as its pruners take them.
        """
        for epoch, value in values.items():
            if epoch - 1 not in self.reported:
                self.reported.add(epoch - 1)
                self.trial.report(value, epoch - 1)

    def tell(self, study: Study, value: float) -> None:
        """Tell the study what came out."""
        self._tell(study, value)
        self.value = value

    def tell_pruned(self, study: Study) -> None:
        """Tell the study that the trial was stopped; its value is the last one reported."""
        self._tell(study, state=needs_optuna().trial.TrialState.PRUNED)

    def tell_failed(self, study: Study, error: str) -> None:
        """Tell the study that the trial failed, and why in a user attribute."""
        self.trial.set_user_attr(ERROR, error)
        self._tell(study, state=needs_optuna().trial.TrialState.FAIL)
        logger().warning(
            f"Trial {self.number} failed with parameters: {self.trial.params} because of the "
            f"following error: {error}."
        )

    def _tell(self, study: Study, value: float | None = None, state: Any = None) -> None:
        study.tell(self.trial, value, state)
        self.is_told, self.network = True, None


def _settings(settings: Any = None) -> Candidate:
    """Return what `build` gave beside the network; None and nothing are no settings."""
    found = {} if settings is None else settings
    if not isinstance(found, Mapping):
        raise ConfigError(f"expected build's settings as a dict, got {brief(found)}")
    unknown = [name for name in found if name not in FIT_ARGUMENTS]
    if unknown:
        raise ConfigError(
            f"expected build's settings among {', '.join(FIT_ARGUMENTS)}, got {unknown[0]!r}"
        )
    return dict(found)


def running_trials(study: Study) -> list[AskedTrial]:
    """Return the trials that the study has as running, which a process that was killed left."""
    optuna = needs_optuna()
    running = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
    return [
        AskedTrial(optuna.Trial(study, each._trial_id), set(each.intermediate_values))
        for each in running
    ]
