from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from warpfit.checks import check_count, check_fields, ranged
from warpfit.errors import ConfigError


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_are_counts(value: Any) -> None:
    found = check_count("epochs", value, 3)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize("value", [2, 3.0, "3", True, None, np.ones(1, int)])
def test_all_else_is_none(value: Any) -> None:
    with pytest.raises(ConfigError, match="expected epochs to be an integer of at least 3, got"):
        check_count("epochs", value, 3)


@dataclass(frozen=True)
class Share:
    value: float = ranged("in [0, 1)", 0.5)


@dataclass(frozen=True)
class OtherShare(Share):
    value: float = 0.25


@pytest.mark.parametrize("kind", [Share, OtherShare])
def test_a_field_keeps_its_range_with_another_default(kind: Any) -> None:
    check_fields("share", kind())
    with pytest.raises(ConfigError, match=r"share: expected value in \[0, 1\), got 1.5"):
        check_fields("share", kind(1.5))
