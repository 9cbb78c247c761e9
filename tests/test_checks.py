from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warpfit.checks import check_count
from warpfit.errors import ConfigError


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_are_counts(value: Any) -> None:
    found = check_count("epochs", value, 3)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize("value", [2, 3.0, "3", True, None, np.ones(1, int)])
def test_all_else_is_none(value: Any) -> None:
    with pytest.raises(ConfigError, match="expected epochs to be an integer of at least 3, got"):
        check_count("epochs", value, 3)
