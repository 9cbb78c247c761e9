"""Attributes of an estimator, of which a fit that fails changes none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def kept_if_it_fails(estimator: Any) -> Iterator[None]:
    """Give an estimator the attributes back that it has now, lists as they are, if an error comes:
    else it would predict with old weights for new columns, or name new classes.
    """
    before = {
        name: list(value) if type(value) is list else value
        for name, value in vars(estimator).items()
    }
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
