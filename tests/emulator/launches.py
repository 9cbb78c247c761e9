"""A pytest plugin that writes down which kernels were launched on the emulator: ``pytest -p
emulator.launches``.

At the end of the session the file $WARPFIT_LAUNCHES holds a list of [name, defines], once for each
kernel.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from emulator.runtime import EmulatedRuntime

_launched: dict[Any, None] = {}
_launch = EmulatedRuntime.launch_cluster


def _recorded(self: EmulatedRuntime, function: Any, *settings: Any) -> None:
    _launch(self, function, *settings)
    _launched[function.variant] = None


def pytest_configure() -> None:
    """Record launches from now on."""
    EmulatedRuntime.launch_cluster = _recorded  # type: ignore[method-assign]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was launched."""
    found = [[name, dict(defines)] for name, defines in _launched]
    Path(os.environ["WARPFIT_LAUNCHES"]).write_text(json.dumps(found), encoding="utf-8")
