"""The exceptions that warpfit raises, and its warnings.

Every message is one sentence that says what was expected and what came. All exceptions derive from
:class:`WarpfitError`; each also derives from the built-in exception that a caller would think of
first, so that ``except ValueError`` keeps working. All warnings derive from
:class:`WarpfitWarning`, a UserWarning.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, TypeVar

__all__ = [
    "CompileError",
    "ConfigError",
    "ConfigWarning",
    "DTypeError",
    "DataError",
    "DataWarning",
    "DeviceError",
    "DeviceWarning",
    "DivergedError",
    "FileFormatError",
    "IndexingError",
    "KernelError",
    "Obstacle",
    "ShapeError",
    "TrainingWarning",
    "WarpfitError",
    "WarpfitWarning",
]


Found = TypeVar("Found")


def __dir__() -> list[str]:
    """Return what is public."""
    return __all__


@dataclass(frozen=True)
class Obstacle:
    """What is in the way, as a value: a sentence that says what was expected and what came.

    Attributes
    ----------
    sentence : str
    excess : float
        Of an obstacle of size, how many times as much was needed as there is.
    """

    sentence: str
    excess: float = inf

    def __str__(self) -> str:
        return self.sentence


def required(found: Found | Obstacle) -> Found:
    """Return what was found, or raise ConfigError with what was in the way."""
    if isinstance(found, Obstacle):
        raise ConfigError(str(found))
    return found


class WarpfitError(Exception):
    """Base of everything that warpfit raises on purpose."""


class ShapeError(WarpfitError, ValueError):
    """An array has the wrong number of dimensions or the wrong sizes."""


class DTypeError(WarpfitError, TypeError):
    """An array or an argument has a dtype that the operation does not take."""


class ConfigError(WarpfitError, ValueError):
    """An argument, a flag or a configuration value is out of range or unknown."""


class IndexingError(WarpfitError, IndexError):
    """An index is no place of an array."""


class DeviceError(WarpfitError, RuntimeError):
    """A device is missing, unknown, or lacks what was asked of it."""


class CaptureError(DeviceError):
    """A device was told to do what a graph that is being captured cannot hold."""


class KernelError(DeviceError):
    """A device failed at what it was told to do, through no fault of the user."""


class CompileError(WarpfitError, RuntimeError):
    """A kernel did not compile; the message carries the compiler's log."""


class DataError(WarpfitError, ValueError):
    """The data cannot be trained on: missing, empty, not finite, labels out of range."""


class FileFormatError(DataError):
    """A file is not what its name promises: wrong magic, cut short, foreign content."""


class WarpfitWarning(UserWarning):
    """Base of everything that warpfit warns of; it names the line of the user's code."""


class ConfigWarning(WarpfitWarning):
    """An argument or a setting has no effect, or another one than it says."""


class DataWarning(WarpfitWarning):
    """Data, or a model's numbers, are taken as they are, and are hardly what was meant."""


class DeviceWarning(WarpfitWarning):
    """Work goes to another device than one might think."""


class TrainingWarning(WarpfitWarning):
    """A training did not end as it was meant to."""


class DivergedError(WarpfitError, ArithmeticError):
    """The loss, or a weight, became NaN or infinite.

    Attributes
    ----------
    epoch, step : int
        Where it happened, both counted from 1; ``step`` counts over the whole run.
    lr : float
        The learning rate of that step.
    last_finite_loss : float or None
        The loss of the last step whose loss was finite; None if there was none.
    remedies : str
        What may help.
    """

    def __init__(
        self,
        *,
        epoch: int,
        step: int,
        lr: float,
        last_finite_loss: float | None,
        remedies: str = "a lower learning rate or clip_norm",
    ) -> None:
        self.epoch, self.step, self.lr, self.last_finite_loss = epoch, step, lr, last_finite_loss
        self.remedies = remedies
        before = (
            "no earlier loss was finite"
            if last_finite_loss is None
            else (f"the last finite loss was {last_finite_loss:.6g}")
        )
        super().__init__(
            f"the loss or a weight is not finite in epoch {epoch}, step {step}, at learning rate "
            f"{lr:g}; {before}; {remedies} may help"
        )

    def __reduce__(self) -> Any:
        """Let it go from process to process."""
        again = partial(
            DivergedError,
            epoch=self.epoch,
            step=self.step,
            lr=self.lr,
            last_finite_loss=self.last_finite_loss,
            remedies=self.remedies,
        )
        return again, ()
