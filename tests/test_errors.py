"""Exceptions that go from process to process."""

from __future__ import annotations

import pickle

import pytest

from warpfit import errors
from warpfit.errors import DivergedError


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name != "DivergedError"])
def test_errors_pickle_with_their_message(name: str) -> None:
    error = getattr(errors, name)("expected this, got that")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error)
    assert str(copied) == "expected this, got that"


@pytest.mark.parametrize("last", [None, 0.25])
def test_a_divergence_pickles_with_its_numbers(last: float | None) -> None:
    error = DivergedError(epoch=2, step=31, lr=0.5, last_finite_loss=last, remedies="less")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is DivergedError
    assert str(copied) == str(error)
    assert (copied.epoch, copied.step, copied.lr, copied.last_finite_loss) == (2, 31, 0.5, last)
