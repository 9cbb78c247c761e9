"""Attributes of an estimator, and of those it consists of: a fit that fails changes none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def kept_if_it_fails(estimator: Any) -> Iterator[None]:
    """Give an estimator and its `estimators_` the attributes back that they have now, lists as they
    are, if an error comes: else it would predict with old weights for new columns, or name new
    classes.
    """
    holders = (estimator, *getattr(estimator, "estimators_", ()))
    before = [_attributes(holder) for holder in holders]
    try:
        yield
    except BaseException:
        for holder, attributes in zip(holders, before, strict=True):
            vars(holder).clear()
            vars(holder).update(attributes)
        raise


def _attributes(holder: Any) -> dict[str, Any]:
    return {
        name: list(value) if type(value) is list else value for name, value in vars(holder).items()
    }
