"""What is public says what it takes and what it raises."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

MODULES = (
    "warpfit",
    *(f"warpfit.{name}" for name in ("nn", "optim", "losses", "data", "autograd")),
)
MANY = 3  # arguments from which on they are described one by one

# Values that others make, and estimators, whose parameters `fit` checks, as scikit-learn's does.
RAISE_NOTHING = {
    "Evaluation",
    "LRCurve",
    "Run",
    "Sweep",
    "MLPClassifier",
    "MLPRegressor",
    "SweepCV",
    "RandomizedSweepCV",
    "TabularClassifier",
    "TabularRegressor",
}


def sections(thing: Any) -> dict[str, str]:
    """Return the sections of a NumPy-style docstring, by their names."""
    parts = re.split(r"^(\w+)\n-+$", inspect.cleandoc(thing.__doc__ or ""), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def overrides(kind: type, name: str) -> bool:
    """Whether a method is described by a class above its own."""
    return any(
        name in vars(base) for base in kind.__mro__[1:] if base.__module__.startswith("warpfit.")
    )


def methods_of(public: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for kind in public.__mro__:
        if kind.__module__.partition(".")[0] != "warpfit":
            continue
        for name, value in vars(kind).items():
            method = getattr(value, "__func__", value)
            if (
                inspect.isfunction(method)
                and not name.startswith("_")
                and not overrides(kind, name)
            ):
                yield f"{kind.__name__}.{name}", method


def public_callables() -> dict[str, Any]:
    """Return all that users may call, by name: functions, classes and their methods."""
    found: dict[str, Any] = {}
    for module in map(import_module, MODULES):
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, type):
                if issubclass(thing, Exception):
                    continue
                found.update(methods_of(thing))
            if callable(thing):
                found[name] = thing
    return found


def arguments_of(thing: Any) -> list[str]:
    return [name for name in inspect.signature(thing).parameters if name not in ("self", "cls")]


CALLABLES = public_callables()
WITH_MANY = sorted(name for name, thing in CALLABLES.items() if len(arguments_of(thing)) >= MANY)


def described(thing: Any) -> str:
    """Return what a docstring says of arguments, with what it refers to: "All others as
    `Adam`'s".
    """
    found = sections(thing)
    text = found.get("Parameters", "") + found.get("Attributes", "")
    others = re.findall(r"others as `(\w+)`'s", text)
    return text + "".join(described(CALLABLES[other]) for other in others)


def test_there_are_many() -> None:
    assert len(WITH_MANY) > 50
    assert {"fit", "Conv2d", "Adam", "Loss.vjp"} <= set(WITH_MANY)


@pytest.mark.parametrize("name", WITH_MANY)
def test_every_argument_is_described(name: str) -> None:
    text = described(CALLABLES[name])
    assert [
        argument
        for argument in arguments_of(CALLABLES[name])
        if not re.search(rf"\b{argument}\b", text)
    ] == []


@pytest.mark.parametrize("name", WITH_MANY)
def test_errors_are_described(name: str) -> None:
    assert ("Raises" in sections(CALLABLES[name])) == (name not in RAISE_NOTHING)
