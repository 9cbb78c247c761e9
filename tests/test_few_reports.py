"""What pytest-xdist's processes tell the first one of tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.few_reports import tell_less


def told(events: list[tuple[str, dict[str, Any]]], **options: Any) -> list[str]:
    found: list[str] = []
    worker = SimpleNamespace(sendevent=lambda name, **event: found.append(name))
    config: Any = SimpleNamespace(
        option=SimpleNamespace(**options),
        pluginmanager=SimpleNamespace(get_plugins=lambda: [object(), worker]),
    )
    tell_less(config)
    for name, event in events:
        worker.sendevent(name, **event)
    return found


def report(outcome: str, when: str, duration: float = 0.001) -> tuple[str, dict[str, Any]]:
    return "testreport", {"data": {"outcome": outcome, "when": when, "duration": duration}}


@pytest.mark.parametrize(
    ("event", "is_told"),
    [
        (report("passed", "call"), True),
        (report("passed", "setup"), False),
        (report("passed", "setup", 0.1), True),
        (report("skipped", "setup"), True),
        (report("failed", "teardown"), True),
        (("logstart", {}), False),
        (("logfinish", {}), False),
        (("runtest_protocol_complete", {"item_index": 0}), True),
    ],
)
def test_what_is_not_shown_is_not_told(event: tuple[str, dict[str, Any]], is_told: bool) -> None:
    assert told([event], xmlpath=None) == [event[0]] * is_told
    assert told([event], xmlpath="junit.xml") == [event[0]]
