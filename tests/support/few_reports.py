"""Lets pytest-xdist's processes tell the first one only what it shows: of a test that passed two
messages of six, each of which wakes it up.
"""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["tell_less"]

SHOWN_SECONDS = 0.005  # by --durations


def tell_less(config: pytest.Config) -> None:
    """Leave out in this process, one of pytest-xdist's, what is not shown: that a test begins and
    ends, and was set up and torn down in no time.
    """
    if getattr(config.option, "xmlpath", None):  # is written when they are torn down
        return
    for plugin in config.pluginmanager.get_plugins():
        if hasattr(plugin, "sendevent"):
            plugin.sendevent = _shown_of(plugin.sendevent)


def _shown_of(send: Any) -> Any:
    def sendevent(name: str, **event: Any) -> None:
        if _is_shown(name, event):
            send(name, **event)

    return sendevent


def _is_shown(name: str, event: dict[str, Any]) -> bool:
    if name != "testreport":
        return name not in {"logstart", "logfinish"}
    report = event["data"]
    is_quiet = report["outcome"] == "passed" and report["when"] != "call"
    return not is_quiet or report["duration"] >= SHOWN_SECONDS
