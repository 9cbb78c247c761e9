"""The ``warpfit`` command: one file per subcommand, no logic in it."""

from __future__ import annotations

from warpfit.cli.app import main

__all__ = ["main"]
