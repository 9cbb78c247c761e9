"""What the page may ask of the server, and within what bounds; all else is refused."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.apps.playground.points import POINT_SETS
from warpfit.backends.activations import ACTIVATIONS
from warpfit.errors import ConfigError
from warpfit.training.settings import OPTIMIZERS

DIGITS, POINTS = "digits", "points"
TASKS = (DIGITS, POINTS)

DRAWING_SIZE = 112  # pixels of a side of what the page sends of a drawing
MAX_BYTES = 32 * 1024  # of a message; a drawing takes 17 KiB
MAX_SHOWN = 40  # characters of a wrong value that an error repeats
LARGEST_ID = 2**53 - 1  # the largest integer that JavaScript keeps exactly


@dataclass(frozen=True)
class Whole:
    """An integer from `least` to `most`."""

    least: int
    most: int

    def check(self, name: str, value: Any) -> int:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not self.least <= value <= self.most
        ):
            raise ConfigError(
                f"expected {name} to be an integer from {self.least} to {self.most}, got "
                f"{_shown(value)}"
            )
        return value


@dataclass(frozen=True)
class Number:
    """A number from `least` to `most`."""

    least: float
    most: float

    def check(self, name: str, value: Any) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not self.least <= value <= self.most:
            raise ConfigError(
                f"expected {name} to be a number from {self.least:g} to {self.most:g}, got "
                f"{_shown(value)}"
            )
        return float(value)


@dataclass(frozen=True)
class Choice:
    """One of some names."""

    names: tuple[str, ...]

    def check(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in self.names:
            raise ConfigError(f"expected {name} among {', '.join(self.names)}, got {_shown(value)}")
        return value


Bound = Whole | Number | Choice

BOUNDS: dict[str, Bound] = {
    "width": Whole(1, 512),
    "depth": Whole(0, 4),
    "activation": Choice(tuple(ACTIVATIONS)),
    "optimizer": Choice(OPTIMIZERS),
    "lr": Number(1e-5, 10.0),
    "batch_size": Whole(1, 1024),
    "epochs": Whole(1, 1000),
}
POINT_BOUNDS: dict[str, Bound] = {"name": Choice(tuple(POINT_SETS)), "noise": Number(0.0, 0.5)}
# By the names of the page's controls.
PAGE_BOUNDS = {**BOUNDS, "points": POINT_BOUNDS["name"], "noise": POINT_BOUNDS["noise"]}


@dataclass(frozen=True)
class Settings:
    """A network of `depth` hidden layers of `width` units, and how it is trained."""

    width: int
    depth: int
    activation: str
    optimizer: str
    lr: float
    batch_size: int
    epochs: int


@dataclass(frozen=True)
class PointChoice:
    """A set of points of the plane, by its name, and how noisy it is."""

    name: str
    noise: float


MANY_DIGITS = 10_000
OF_MANY_DIGITS = Settings(128, 1, "relu", "adam", 0.001, 128, 5)
OF_FEW_DIGITS = Settings(128, 1, "relu", "adam", 0.001, 16, 20)
OF_POINTS = Settings(16, 2, "tanh", "adam", 0.01, 32, 300)
DEFAULT_POINTS = PointChoice("spirals", 0.05)


@dataclass(frozen=True)
class Train:
    """Train a network: the one that is there, or if `afresh`, or where it is another, a new one.

    If `epochs` is 0, the new network stays as it is.
    """

    task: str
    settings: Settings
    points: PointChoice | None
    afresh: bool
    epochs: int


@dataclass(frozen=True)
class Stop:
    """End the training that is under way."""


@dataclass(frozen=True)
class Predict:
    """Say which digit a drawing is."""

    id: int  # repeated in the answer
    pixels: npt.NDArray[np.uint8]  # (DRAWING_SIZE, DRAWING_SIZE), white on black


@dataclass(frozen=True)
class Sample:
    """Show a digit of the test set."""


Request = Train | Stop | Predict | Sample


def contents(num_digits: int) -> dict[str, Any]:
    """Return the page's bounds and defaults, for so many digits to train on, JSON-ready."""
    of_digits = OF_MANY_DIGITS if num_digits >= MANY_DIGITS else OF_FEW_DIGITS
    return {
        "bounds": {name: asdict(bound) for name, bound in PAGE_BOUNDS.items()},
        "defaults": {DIGITS: asdict(of_digits), POINTS: asdict(OF_POINTS)},
        "points": asdict(DEFAULT_POINTS),
        "drawing_size": DRAWING_SIZE,
    }


def parse(text: str) -> Request:
    """Return the request that a message asks for.

    Raises
    ------
    ConfigError
        If it is too long, no JSON, or anything in it is missing, unknown or out of bounds.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise ConfigError(f"expected a message of at most {MAX_BYTES} bytes, got a longer one")
    message = _object("the message", _decoded(text))
    kind = message.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise ConfigError(f"expected type among {', '.join(_READERS)}, got {_shown(kind)}")
    return reader(message)


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_without_repeats)
    except ConfigError:
        raise
    except (ValueError, RecursionError):
        raise ConfigError("expected a message in JSON, got something else") from None


def _refuse(name: str) -> Any:
    raise ConfigError(f"expected finite numbers, got {name}")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ConfigError("expected every key once in an object, got one twice")
    return dict(pairs)


def _train(message: dict[str, Any]) -> Train:
    _check_keys("the message", message, ("type", "task", "settings", "afresh"), ("points",))
    if not isinstance(message["afresh"], bool):
        raise ConfigError(f"expected afresh to be true or false, got {_shown(message['afresh'])}")
    settings = _settings(message["settings"])
    return _of_task(message, settings, message["afresh"], settings.epochs)


def _reset(message: dict[str, Any]) -> Train:
    _check_keys("the message", message, ("type", "task", "settings"), ("points",))
    return _of_task(message, _settings(message["settings"]), True, 0)


def _of_task(message: dict[str, Any], settings: Settings, afresh: bool, epochs: int) -> Train:
    task = Choice(TASKS).check("task", message["task"])
    if (task == POINTS) != ("points" in message):
        raise ConfigError(
            f"expected points for the task {POINTS}, and for no other, got task {task!r}"
        )
    points = (
        PointChoice(**_checked("points", message["points"], POINT_BOUNDS))
        if task == POINTS
        else None
    )
    return Train(task, settings, points, afresh, epochs)


def _settings(value: Any) -> Settings:
    return Settings(**_checked("settings", value, BOUNDS))


def _stop(message: dict[str, Any]) -> Stop:
    _check_keys("the message", message, ("type",))
    return Stop()


def _sample(message: dict[str, Any]) -> Sample:
    _check_keys("the message", message, ("type",))
    return Sample()


def _predict(message: dict[str, Any]) -> Predict:
    _check_keys("the message", message, ("type", "id", "pixels"))
    number, text = Whole(0, LARGEST_ID).check("id", message["id"]), message["pixels"]
    if not isinstance(text, str):
        raise ConfigError(f"expected pixels in base64, got {_shown(text)}")
    try:
        pixels = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    except (binascii.Error, ValueError):
        raise ConfigError("expected pixels in base64, got other characters") from None
    if pixels.size != DRAWING_SIZE**2:
        raise ConfigError(
            f"expected {DRAWING_SIZE}×{DRAWING_SIZE} pixels of a byte, got {pixels.size} bytes"
        )
    return Predict(number, pixels.reshape(DRAWING_SIZE, DRAWING_SIZE))


_READERS: dict[str, Callable[[dict[str, Any]], Request]] = {
    "train": _train,
    "reset": _reset,
    "stop": _stop,
    "predict": _predict,
    "sample": _sample,
}


def _checked(what: str, value: Any, bounds: Mapping[str, Bound]) -> dict[str, Any]:
    """Return the values of an object with exactly the keys of `bounds`, each within its bound."""
    given = _object(what, value)
    _check_keys(what, given, tuple(bounds))
    return {name: bound.check(name, given[name]) for name, bound in bounds.items()}


def _object(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"expected {what} to be an object, got {_shown(value)}")
    return value


def _check_keys(
    what: str, given: Mapping[str, Any], needed: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
    missing = [name for name in needed if name not in given]
    if missing:
        raise ConfigError(f"expected {missing[0]} in {what}, got none")
    unknown = [name for name in given if name not in (*needed, *optional)]
    if unknown:
        raise ConfigError(
            f"expected only {', '.join((*needed, *optional))} in {what}, got {_shown(unknown[0])}"
        )


def _shown(value: Any) -> str:
    """Return a wrong value as an error shows it: short, on one line."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST_ID:
        return "a larger integer"
    if isinstance(value, float) and not math.isfinite(value):
        return "a number too large"
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
