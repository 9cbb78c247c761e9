from __future__ import annotations

import sys
from contextlib import ExitStack

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from warpfit.blas import _libraries, one_blas_thread


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_the_last_to_leave_gives_blas_its_threads_back() -> None:
    with threadpool_limits(limits=2, user_api="blas"):
        before = blas_threads()
        first, second = ExitStack(), ExitStack()
        first.enter_context(one_blas_thread())
        second.enter_context(one_blas_thread())
        assert blas_threads() == {1}
        first.close()
        assert blas_threads() == {1}
        second.close()
        assert blas_threads() == before
        with one_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == before


def test_libraries_are_looked_for_again_only_with_other_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = _libraries()
    assert _libraries() is before
    monkeypatch.setitem(sys.modules, "another_module", sys)
    assert _libraries() is not before
