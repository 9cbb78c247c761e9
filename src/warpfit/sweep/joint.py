"""What a search asks of an estimator whose fits may train together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from warpfit.training.place import RunCosts


class FitCosts(NamedTuple):
    """What fits cost."""

    # From parameters and a number of rows to the runs of such a fit.
    runs: Callable[[Mapping[str, Any], int], Sequence[RunCosts | None]]
    cpu_factor: float  # how many times as long as prices say they take on the CPU
    at_once: float  # networks that a GPU trains in the time of one


class FittedJointly(ABC):
    """An estimator whose `fit` has three parts: it prepares networks, trains them, and takes them
    over. A search may train those of many fits in one call.
    """

    device: Any  # as `fit` takes it

    @abstractmethod
    def _checked_targets(self, y: Any) -> Any:
        """Return targets as an array, (N,) or (N, outputs), or raise ValueError."""

    @abstractmethod
    def _prepared(
        self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None
    ) -> Any:
        """Return what `fit` would train."""

    @abstractmethod
    def _trained(self, prepared: Sequence[Any], is_over: Callable[[], bool]) -> list[Any]:
        """Return what comes of each of some fits of one `_kind`, trained until that is over."""

    @abstractmethod
    def _take_over(self, prepared: Any, trained: Any) -> None:
        """Set what a fitted estimator has."""

    @abstractmethod
    def _kind(self) -> tuple[Hashable, int] | None:
        """Return what is equal of estimators whose fits train together, and how many networks each
        has; None if it trains alone.
        """

    @abstractmethod
    def _fit_costs(self, X: Any, y: Any) -> FitCosts:
        """Return what fits to parts of these rows cost."""
