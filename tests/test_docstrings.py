"""What is public says what it takes and what it raises, and has an example, which runs."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import warpfit as wf
from warpfit.training.trained import ModelCard

MODULES = (
    "warpfit",
    "warpfit.accel",
    *(
        f"warpfit.{name}"
        for name in ("nn", "optim", "losses", "data", "autograd", "optuna", "tabular")
    ),
)
MANY = 3  # arguments from which on they are described one by one

# Values that others make, and estimators, whose parameters `fit` checks, as scikit-learn's does.
RAISE_NOTHING = {
    "Evaluation",
    "Report",
    "LRCurve",
    "Run",
    "Sweep",
    "Optimized",
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


# Each once, by the last of its names.
EXAMPLES = {
    name: thing
    for thing, name in {
        getattr(module, name): f"{module.__name__}.{name}"
        for module in map(import_module, MODULES)
        for name in module.__all__
        if callable(getattr(module, name))
    }.items()
}


@pytest.fixture(scope="module")
def beginning() -> str:
    """Return the package's own example up to its last line, with which all others begin."""
    (example,) = doctest.DocTestFinder(recurse=False).find(wf, "warpfit")
    return "".join(line.source for line in example.examples[:-1])


@pytest.fixture
def names(beginning: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what an example begins with: those lines' names, and the file of a trained model."""
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(beginning, found)
    card = ModelCard("digits", None, (64,), (64,), tuple("0123456789"), None)
    wf.TrainedModel(found["model"], card).save("digits.safetensors")
    return found


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_public_name_has_an_example_that_runs(name: str, names: dict[str, Any]) -> None:
    if name.startswith("warpfit.optuna"):
        pytest.importorskip("optuna")
    text = inspect.cleandoc(vars(EXAMPLES[name]).get("__doc__") or EXAMPLES[name].__doc__ or "")
    example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert example.examples, f"{name} has no example"
    told: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=told.append)
    assert not failed, "".join(told)
