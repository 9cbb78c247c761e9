"""What of the package has no gradient check."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import isfunction

import warpfit.standard_checks as checks
from warpfit import nn
from warpfit.autograd import formulas
from warpfit.losses import Loss
from warpfit.nn import Layer
from warpfit.nn.junction import JunctionSpec
from warpfit.nn.spec import LayerSpec


def unchecked() -> list[str]:
    """Return the names of the package's operators, layers and losses that `standard_checks` leaves
    out.
    """
    operators = {
        name
        for name, value in vars(formulas).items()
        if isfunction(value) and not name.startswith("_")
    }
    layers = [layer for layer, _ in checks._layer_cases().values()]
    exported = {
        value for value in vars(nn).values() if isinstance(value, type) and issubclass(value, Layer)
    }
    return sorted(
        [
            *(operators - checks._op_cases().keys()),
            *_names_beyond(exported, {Layer, *map(type, layers)}),
            *_names_beyond(
                LayerSpec.by_kind.values(), {JunctionSpec, *(type(x.spec) for x in layers)}
            ),
            *_names_beyond(Loss.by_name.values(), set(map(type, checks._loss_cases()))),
        ]
    )


def _names_beyond(kinds: Iterable[type], known: set[type]) -> list[str]:
    """Return the names of the classes that are not known, those of users' own left out."""
    return [kind.__name__ for kind in set(kinds) - known if kind.__module__.startswith("warpfit.")]
