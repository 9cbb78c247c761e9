"""``python -m warpfit.accel script.py``: a script as Python runs it, with perceptrons of ours."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import NamedTuple, NoReturn

from warpfit.accel import install, report

USAGE = "python -m warpfit.accel [--report] (script.py | -m module) [argument ...]"


class Command(NamedTuple):
    """What is to be run, with its arguments."""

    name: str
    arguments: list[str]
    is_module: bool = False
    has_report: bool = False


def main(arguments: Sequence[str]) -> None:
    """Run a script or a module; its errors and exit codes are this process's."""
    command = _parsed(list(arguments))
    install()
    try:
        if command.is_module:
            _run_module(command)
        else:
            _run_script(command)
    except SystemExit:
        raise
    except BaseException:
        _hide_own_frames()
        raise
    finally:
        if command.has_report:
            print(report(), file=sys.stderr)


def _parsed(arguments: list[str]) -> Command:
    has_report = False
    while arguments and arguments[0].startswith("-"):
        option = arguments.pop(0)
        if option in ("-h", "--help"):
            print(f"usage: {USAGE}")
            sys.exit(0)
        if option == "-m":
            if not arguments:
                _refuse("expected the name of a module after -m, got none")
            return Command(_module(arguments[0]), arguments[1:], True, has_report)
        if option != "--report":
            _refuse(f"expected --report, -m or a script, got {option!r}; usage: {USAGE}")
        has_report = True
    if not arguments:
        _refuse(f"expected a script or -m with a module, got neither; usage: {USAGE}")
    if not os.path.isfile(arguments[0]):
        _refuse(f"expected a script, got {arguments[0]!r}, which is no file")
    return Command(arguments[0], arguments[1:], False, has_report)


def _module(name: str) -> str:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        _refuse(f"expected a module, got {name!r}, which cannot be imported")
    return name


def _refuse(sentence: str) -> NoReturn:
    print(f"warpfit.accel: {sentence}", file=sys.stderr)
    sys.exit(2)


def _run_module(command: Command) -> None:
    """Run a module as ``python -m`` does, by the same function."""
    sys.argv = [sys.argv[0], *command.arguments]
    sys.modules["__main__"] = ModuleType("__main__")
    runpy._run_module_as_main(command.name)  # type: ignore[attr-defined]


def _run_script(command: Command) -> None:
    """Run a script as ``python`` does: its folder is the first of `sys.path`, and the module
    `__main__` is its own, for pickles and for processes that it starts.
    """
    path = os.path.abspath(command.name)
    sys.argv = [command.name, *command.arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    main_module = ModuleType("__main__")
    vars(main_module).update(
        __file__=path, __builtins__=builtins, __loader__=SourceFileLoader("__main__", path)
    )
    sys.modules["__main__"] = main_module
    with io.open_code(path) as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), vars(main_module))


def _hide_own_frames() -> None:
    """Let Python print the error that is being raised as if nothing had run the script."""
    hook = sys.excepthook

    def without_own(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        while trace is not None and trace.tb_frame.f_code.co_filename != __file__:
            trace = trace.tb_next
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        hook(kind, error.with_traceback(trace), trace)

    sys.excepthook = without_own


if __name__ == "__main__":
    main(sys.argv[1:])
