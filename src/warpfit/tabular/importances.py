"""How much networks lose without a column: importances by permutation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.errors import ConfigError
from warpfit.tabular.bags import HeldOut
from warpfit.tabular.members import Trained

Array = npt.NDArray[Any]
Outputs = Callable[[Trained, Array], Array]

REPEATS = 5


class NoRowsError(ConfigError, AttributeError):
    """There are no rows to compute importances of: the attribute is not there."""


def importances_of(
    members: Sequence[Trained], held_out: Sequence[HeldOut], outputs_of: Outputs
) -> Array:
    """Return by how much the validation error grows on average when a column's cells change rows.

    Each network is asked of the rows that it was validated on, `REPEATS` times with another
    permutation, which its seed decides.

    Parameters
    ----------
    members : sequence of Trained
    held_out : sequence of HeldOut
        Of each split; networks have them in turns.
    outputs_of : function
        From a network and cells to its outputs.

    Returns
    -------
    ndarray (features,) float64
    """
    found = [
        _importances(member, held_out[idx % len(held_out)], outputs_of)
        for idx, member in enumerate(members)
    ]
    return np.asarray(np.mean(found, axis=0))


def _importances(member: Trained, rows: HeldOut, outputs_of: Outputs) -> Array:
    places, targets = member.preprocessor.places_in_cells(), member.targets
    encoded, draws = targets.encoded(rows.y), np.random.RandomState(member.seed % 2**32)
    orders = [draws.permutation(len(rows.cells)) for _ in range(REPEATS)]

    def error(cells: Array) -> float:
        return targets.error(outputs_of(member, cells), encoded, rows.weights)

    whole, found = error(rows.cells), np.zeros(len(places))
    for feature, own in enumerate(places):
        for order in orders:
            cells = rows.cells.copy()
            cells[:, own] = cells[order][:, own]
            found[feature] += (error(cells) - whole) / REPEATS
    return found
