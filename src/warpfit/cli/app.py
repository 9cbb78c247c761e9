"""Runs a command, and turns what goes wrong into one line and an exit code.

0: done. 1: the fault is ours, or the training diverged, or a check failed. 2: the user's input is
at fault. 130: interrupted by Ctrl-C.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from copy import copy
from importlib import import_module
from typing import Annotated, Any, NoReturn, TextIO

import typer

import warpfit
from warpfit.errors import (
    CompileError,
    DeviceWarning,
    DivergedError,
    KernelError,
    WarpfitError,
    WarpfitWarning,
)

OK, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130
WARPFIT_DEBUG = "WARPFIT_DEBUG"
# Each is a module's function of the same name, in the order in which the help lists them.
COMMANDS = (
    *("train", "sweep", "evaluate", "predict", "plan", "ladder"),
    *("playground", "info", "gradcheck", "datasets", "cache", "bench"),
)

# Typer brings its own copy of click or uses the one installed, by version; its public name leads to
# either.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    help="Trains neural networks, and says how good they are.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name in COMMANDS:
    _module = import_module(f"warpfit.cli.{_name}")
    _command = getattr(_module, _name)
    app.command(context_settings=getattr(_module, "CONTEXT_SETTINGS", None))(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"warpfit {warpfit.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line `arguments` (``sys.argv``'s if None) and exit."""
    given = sys.argv[1:] if arguments is None else arguments
    sys.exit(_run(list(given) or ["--help"]))


@functools.cache
def _parser(command: str) -> Any:
    """Return what parses the command line: for all commands, if there is none of that name.

    Building it reads the annotations of each of its commands.
    """
    chosen = copy(app)
    commands: list[Any] = app.registered_commands
    named = [each for each in commands if each.callback.__name__ == command]
    chosen.registered_commands = named or commands
    return typer.main.get_command(chosen)


def _run(arguments: list[str]) -> int:
    try:
        with warnings.catch_warnings():
            # The commands say it in a line of their own.
            warnings.simplefilter("ignore", DeviceWarning)
            warnings.showwarning = _show_warning
            parser = _parser(arguments[0])
            return parser.main(arguments, prog_name="warpfit", standalone_mode=False) or OK
    except CompileError as error:
        print("warpfit:", error, file=sys.stderr)  # a compiler's log is lines
        return FAILED
    except WarpfitError as error:
        _say(str(error))
        return FAILED if isinstance(error, (DivergedError, KernelError)) else MISUSED
    except _UsageError as error:
        _say(f"{_message_of(error)}; see `{_command_of(error)} --help`")
        return MISUSED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except MemoryError as error:
        _say(f"not enough memory: {error}")
        return FAILED
    except Exception as error:
        if os.environ.get(WARPFIT_DEBUG) == "1":
            traceback.print_exc()
        _say(
            f"unexpected {type(error).__name__}: {error} (please report this, with what "
            f"{WARPFIT_DEBUG}=1 and `warpfit info --report` print)"
        )
        return FAILED


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of this package without a line of code; of others', as Python does."""
    if issubclass(category, WarpfitWarning):
        _say(f"warning: {message}")
    else:
        print(warnings.formatwarning(message, category, filename, lineno), end="", file=sys.stderr)


def _say(sentence: str) -> None:
    """Print one line on stderr, whatever line breaks the message has."""
    print("warpfit:", " ".join(line.strip() for line in sentence.splitlines()), file=sys.stderr)


def _message_of(error: Any) -> str:
    return str(error.format_message()).rstrip(".")


def _command_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else "warpfit"
