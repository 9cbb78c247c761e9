"""``warpfit cache``."""

from __future__ import annotations

from typing import Annotated

import typer

from warpfit.cli.console import Printer
from warpfit.errors import ConfigError

__all__ = ["cache", "kernel_cache"]

ACTIONS = ("show", "clear")


def cache(
    action: Annotated[
        str, typer.Argument(help=f"{' or '.join(ACTIONS)}.", metavar="[ACTION]")
    ] = "show",
) -> None:
    """Show how many compiled kernels are kept, and where; or remove them, and what
    $WARPFIT_AUTOTUNE found.
    """
    if action not in ACTIONS:
        raise ConfigError(f"expected {' or '.join(ACTIONS)}, got {action!r}")
    Printer().line(f"removed {kernel_cache(clear=True)}" if action == "clear" else kernel_cache())


def kernel_cache(*, clear: bool = False) -> str:
    """Return in words what the cache of compiled kernels holds, or held before it was cleared."""
    from warpfit.backends.cuda import autotune, jit

    try:
        use = jit.clear_cache() if clear else jit.cache_use()
        if clear:
            autotune.forget()
    except OSError as error:
        act = "clear" if clear else "read"
        raise ConfigError(f"cannot {act} the cache: {error.strerror}: {error.filename}") from error
    plural = "" if use.num_kernels == 1 else "s"
    return f"{use.num_kernels} kernel{plural}, {use.num_bytes / 2**20:.1f} MiB, in {use.folder}"
