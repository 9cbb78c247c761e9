"""The ``warpfit`` command: one file per subcommand, no logic in it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from warpfit.errors import ConfigError
from warpfit.extras import needs

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line `arguments` (``sys.argv``'s if None) and exit."""
    try:
        with needs("cli", "the command line needs"):
            from warpfit.cli.app import main as run
    except ConfigError as error:
        print("warpfit:", error, file=sys.stderr)
        sys.exit(2)
    run(arguments)
