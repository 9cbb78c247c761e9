"""Processes that come to the files from both ends have the same tests in the same order."""

from __future__ import annotations

import pytest

from support.both_ends import BothEnds

SOURCE = """
import pytest
with open("order", "a") as order:
    order.write({name!r})

@pytest.mark.parametrize("case", [2, 1])
def test_it(case): ...
"""


@pytest.mark.parametrize(("worker", "order"), [("gw0", "abcd"), ("gw11", "dcba")])
def test_files_are_read_from_an_end_and_tests_keep_their_order(
    worker: str, order: str, pytester: pytest.Pytester
) -> None:
    pytester.makeini("[pytest]")
    places = ["one/test_1.py", "one/test_2.py", "test_first.py", "two/test_3.py"]
    for place, name in zip(places, "abcd", strict=True):
        path = pytester.path / place
        path.parent.mkdir(exist_ok=True)
        path.write_text(SOURCE.format(name=name))
    session = pytester.inline_run("--collect-only", plugins=[BothEnds(worker)])
    (finished,) = session.getcalls("pytest_collection_finish")
    assert [item.nodeid for item in finished.session.items] == [
        f"{place}::test_it[{case}]" for place in places for case in (2, 1)
    ]
    assert (pytester.path / "order").read_text() == order
