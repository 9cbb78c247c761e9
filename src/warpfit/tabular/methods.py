"""The methods that an estimator may be asked for, by name."""

from __future__ import annotations

from collections.abc import Mapping

from warpfit.tabular.members import Method
from warpfit.tabular.realmlp import REALMLP
from warpfit.tabular.tabm import TABM, TABM_PLE

METHODS: Mapping[str, Method] = {"realmlp": REALMLP, "tabm": TABM, "tabm_ple": TABM_PLE}
