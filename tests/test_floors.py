"""How the package is built: imports point down and never in a circle, and no file is long."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "warpfit"

# From the top to the bottom, as docs/design.md draws it. A room imports itself and those of lower
# lines; "" is `warpfit` itself, which has the public names.
FLOORS = (
    ("__main__",),
    ("cli",),
    ("apps.ladder", "apps.notebook", "apps.playground"),
    ("",),
    ("accel",),
    ("estimators", "optuna", "tabular"),
    ("sweep",),
    ("training",),
    ("engines", "standard_checks"),
    ("gradcheck",),
    ("plots", "pictures"),
    ("figure",),
    ("display",),
    ("nn", "losses", "optim"),
    ("autograd",),
    ("data", "backends"),
    (
        "random",
        "permutation",
        "blas",
        "cores",
        "callers",
        "extras",
        "files",
        "on_demand",
        "version",
    ),
    ("checks", "other_packages", "attributes"),
    ("errors",),
)
# What computes with the operations that it is handed, whichever backend they are of.
WITHOUT_BACKENDS = ("nn", "losses", "optim", "autograd")

MOST_LINES = 500


def module_of(path: Path) -> str:
    """Return a file's module without the package's name: "" is the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(source: str) -> Iterator[str]:
    """Yield the modules of the package that a source imports, wherever it does: lazily, or for
    types only.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "expected imports by their full names"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
        else:
            continue
        for name in names:
            package, _, module = name.partition(".")
            if package == "warpfit":
                yield module if module in MODULES else module.rpartition(".")[0]


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    return {
        module: set(imported(path.read_text(encoding="utf-8"))) for module, path in MODULES.items()
    }


def room_of(module: str) -> str:
    rooms = [room for floor in FLOORS for room in floor if f"{module}.".startswith(f"{room}.")]
    return rooms[0] if rooms else module


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import warpfit.errors", {"errors"}),
        ("from warpfit import errors, fit", {"errors", ""}),
        ("from warpfit.nn import Linear", {"nn"}),
        ("def f():\n    from warpfit.nn.linear import Linear", {"nn.linear"}),
        (
            "if TYPE_CHECKING:\n    from warpfit.training.history import History",
            {"training.history"},
        ),
        ("import_module('warpfit.cli')", {"cli"}),
        ("import numpy, warpfit_other.nn", set()),
    ],
)
def test_every_kind_of_import_counts(source: str, found: set[str]) -> None:
    assert set(imported(source)) == found


def test_no_imports_in_a_circle(imports: dict[str, set[str]]) -> None:
    assert circle_in({module: others - {module} for module, others in imports.items()}) == []


def test_imports_point_down(imports: dict[str, set[str]]) -> None:
    height = {room: -floor for floor, rooms in enumerate(FLOORS) for room in rooms}
    assert {room_of(module) for module in MODULES} == {*height, "apps"}
    ups = [
        f"{module or 'warpfit'} imports {other or 'warpfit'}"
        for module, others in imports.items()
        for other in sorted(others)
        if (here := room_of(module)) != (there := room_of(other)) and height[there] >= height[here]
    ]
    assert ups == []


@pytest.mark.parametrize("room", WITHOUT_BACKENDS)
def test_what_is_handed_its_operations_knows_no_backend(
    room: str, imports: dict[str, set[str]]
) -> None:
    own = [module for module in MODULES if room_of(module) == room]
    assert own
    for module in own:
        assert not [
            o for o in imports[module] if o.startswith(("backends.cuda", "backends.numpy"))
        ], module


def test_no_file_is_long() -> None:
    sources = [path for end in ("py", "cu", "cuh") for path in PACKAGE.rglob(f"*.{end}")]
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources}
    long = {
        path.relative_to(PACKAGE).as_posix() for path, count in lines.items() if count > MOST_LINES
    }
    assert not long
