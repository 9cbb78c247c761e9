"""``warpfit cache``."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Annotated, Any

import typer

from warpfit.cli.console import Printer
from warpfit.cli.options import MOST_ROWS, OF_LAUNCHES, taking
from warpfit.errors import ConfigError

ACTIONS = ("show", "clear", "build")
OF_FORMS = ("hidden", "activation", "optimizer", "batch_size")


@taking({name: OF_LAUNCHES[name] for name in OF_FORMS})
def cache(
    context: typer.Context,
    action: Annotated[
        str,
        typer.Argument(
            metavar="[ACTION]",
            help="show; clear, with what $WARPFIT_AUTOTUNE found; or build, for the usual networks "
            "in one launch or the one that the options name.",
        ),
    ] = "show",
    arch: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Build for this, such as sm_90, not the first GPU's."),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=MOST_ROWS, help="Training rows.")
    ] = None,
    features: Annotated[int | None, typer.Option(metavar="N", min=1, help="Of a row.")] = None,
    outputs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Classes, or numbers to predict.")
    ] = None,
    **_: Any,
) -> None:
    """Show how many compiled kernels are kept, and where; clear them, or build some ahead."""
    if action not in ACTIONS:
        raise ConfigError(f"expected {', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}, got {action!r}")
    named = {name: value for name, value in context.params.items() if value is not None}
    del named["action"]
    if named and action != "build":
        raise ConfigError(f"expected --{next(iter(named)).replace('_', '-')} with build only")
    printer = Printer()
    if action == "build":
        _build(printer, named.pop("arch", None), named)
    else:
        is_cleared = action == "clear"
        printer.line("removed " * is_cleared + kernel_cache(clear=is_cleared))


def _build(printer: Printer, arch: str | None, form: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.progress import track

    from warpfit.backends.cuda import jit
    from warpfit.training.paper import USUAL_FORMS, kernels_on_paper

    begun = perf_counter()
    arch, kernels = kernels_on_paper([form] if form else USUAL_FORMS, arch)
    done = track(
        jit.build(kernels, arch),
        f"compiling for {arch}",
        total=len(kernels),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    num_new, seconds = sum(done), perf_counter() - begun
    printer.line(f"{len(kernels)} kernels for {arch}, {num_new} of them new, in {seconds:.1f} s")
    printer.line(kernel_cache())


def kernel_cache(*, clear: bool = False) -> str:
    """Return in words what the cache of compiled kernels holds, or held before it was cleared."""
    from warpfit.backends.cuda import autotune, machine_code

    try:
        use = machine_code.clear_cache() if clear else machine_code.cache_use()
        if clear:
            autotune.forget()
    except OSError as error:
        act = "clear" if clear else "read"
        raise ConfigError(f"cannot {act} the cache: {error.strerror}: {error.filename}") from error
    plural = "" if use.num_kernels == 1 else "s"
    return f"{use.num_kernels} kernel{plural}, {use.num_bytes / 2**20:.1f} MiB, in {use.folder}"
