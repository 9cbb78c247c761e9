"""Parameter groups: learning rates and weight decays that some parameters have of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from warpfit.autograd import Tensor
from warpfit.checks import brief, check_number, some
from warpfit.errors import ConfigError

# What optimizers are made of: parameters, or groups of them.
Parameters = Sequence[Tensor | Mapping[str, Any]]

PARAMS, LR, WEIGHT_DECAY = "params", "lr", "weight_decay"


@dataclass(frozen=True)
class ParameterGroup:
    """The settings of some of an optimizer's parameters, which follow each other in its list."""

    size: int  # how many parameters
    lr: float  # a schedule scales it as it scales the optimizer's
    weight_decay: float | None = None  # None where the optimizer has none
    # Whether the optimizer leaves them to the other one that it has; see `Muon`.
    is_other: bool = field(default=False, repr=False)

    def factor(self, lr: float) -> float:
        """Return its rate as a multiple of the optimizer's."""
        return 1.0 if self.lr == lr else self.lr / lr


def read_groups(
    kind: str, given: Sequence[Mapping[str, Any]], lr: float, weight_decay: float | None
) -> tuple[list[Any], tuple[ParameterGroup, ...]]:
    """Return the parameters of all groups, and the groups; none if all are as the optimizer is.

    Parameters
    ----------
    kind : str
        The optimizer's, for messages.
    given : sequence of mapping
        As users write them.
    lr, weight_decay : float
        The optimizer's own, for groups that do not say otherwise.

    Raises
    ------
    ConfigError
        If a group is empty, has other settings, or numbers out of range.
    """
    parameters: list[Any] = []
    groups: list[ParameterGroup] = []
    for place, group in enumerate(given):
        where = f"group {place} of {kind}"
        if not isinstance(group, Mapping):
            raise ConfigError(
                f"{kind}: expected groups of parameters after the first, got {brief(group)}"
            )
        own = _parameters_of(group, where)
        _check_names(group, where, has_decay=weight_decay is not None)
        rate = _number(group.get(LR, lr), f"the lr of {where}")
        if rate != lr == 0:
            raise ConfigError(
                f"{kind}: expected an lr above 0, of which that of a group is a multiple, got 0"
            )
        decay = group.get(WEIGHT_DECAY, weight_decay)
        decay = None if weight_decay is None else _number(decay, f"the weight_decay of {where}")
        parameters += own
        groups.append(ParameterGroup(len(own), rate, decay))
    differ = any((group.lr, group.weight_decay) != (lr, weight_decay) for group in groups)
    return parameters, tuple(groups) if differ else ()


def are_several(given: Any) -> bool:
    """Return whether something can be iterated over, as no array of one number can."""
    return isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0


def _parameters_of(group: Mapping[str, Any], where: str) -> list[Any]:
    given = group.get(PARAMS, ())
    if isinstance(given, Tensor):
        return [given]
    if not are_several(given) or isinstance(given, str | bytes):
        raise ConfigError(f"expected the parameters of {where}, got {brief(given)}")
    own = list(given)
    if not own:
        raise ConfigError(f"expected parameters in {where}, under {PARAMS!r}, got none")
    return own


def _check_names(group: Mapping[str, Any], where: str, *, has_decay: bool) -> None:
    known = [PARAMS, LR, WEIGHT_DECAY] if has_decay else [PARAMS, LR]
    if unknown := [str(name) for name in group if name not in known]:
        raise ConfigError(
            f"expected nothing but {', '.join(known)} in {where}, got {some(unknown)}"
        )


def _number(value: Any, name: str) -> float:
    check_number(name, value, 0)
    if float(value) == inf:
        raise ConfigError(f"expected {name} to be finite, got inf")
    return float(value)
