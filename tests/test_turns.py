"""Cases that take turns, and that no test is left out of `make test` by the marks of its cases."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from support.turns import COLLECTED, has_turn, is_slow_as_a_whole, mark_turns, never_run

SOURCE = """
import pytest

slow, gpu = pytest.mark.slow, pytest.mark.gpu
each = pytest.mark.parametrize
first_slow = [pytest.param(0, marks=slow)]

@pytest.mark.in_turns(2)
@each("case", [*first_slow, 1, pytest.param(2, marks=gpu), 3, pytest.param(4, marks=slow), 5])
def test_some_slow(case): ...

@pytest.mark.in_turns(3)
@each("second", [pytest.param(0, marks=slow), 1])
@each("first", [pytest.param(0, marks=slow), 1])
def test_one_of_four(first, second): ...

class TestInAClass:
    @pytest.mark.in_turns(2)
    @each("case", [0, 1])
    def test_some_slow(self, case): ...

@each("case", [*first_slow, pytest.param(1, marks=[slow]), pytest.param(2, marks=gpu)])
def test_forgotten(case): ...

@slow
@each("case", [0, 1])
def test_slow(case): ...

@slow
class TestSlow:
    def test_slow(self): ...

@gpu
def test_gpu(): ...
"""


@pytest.fixture
def items(pytester: pytest.Pytester) -> list[Any]:
    pytester.makeini("[pytest]\nmarkers =\n  slow\n  gpu\n  in_turns(n)")
    items = pytester.getitems(SOURCE)
    mark_turns(items)
    return items


def test_cases_that_are_slow_already_take_no_turn(items: list[Any]) -> None:
    run = [
        i.name for i in items if not (i.get_closest_marker("slow") or i.get_closest_marker("gpu"))
    ]
    assert run == [
        "test_some_slow[1]",
        "test_one_of_four[1-1]",
        "test_some_slow[0]",
    ]


@pytest.mark.parametrize("each", [2, 3, 4, 6, 8, 12])
def test_no_value_of_a_parameter_is_left_out(each: int) -> None:
    cases = product(range(12), range(4), range(2))
    run = [case for place, case in enumerate(cases) if has_turn(place, each)]
    assert len(run) == 96 // each
    thirds, seconds, firsts = ({case[axis] for case in run} for axis in range(3))
    assert (firsts, seconds) == ({*range(2)}, {*range(4)})
    assert len(thirds) >= min(8, 48 // each)


def test_a_test_whose_cases_are_all_slow_is_found(items: list[Any]) -> None:
    assert [name.split("::")[1] for name in never_run(items)] == ["test_forgotten"]


def test_what_is_slow_as_a_whole() -> None:
    namespace: dict[str, Any] = {}
    exec(SOURCE, namespace)
    assert [name for name, value in namespace.items() if is_slow_as_a_whole(name, value)] == [
        "test_slow",
        "TestSlow",
    ]


def test_every_test_of_this_session_has_a_case(request: pytest.FixtureRequest) -> None:
    """Of `make test`, in which all tests are collected, or of the files that pytest was given."""
    assert never_run(request.config.stash[COLLECTED]) == []
