"""The table of optimizers' updates: an entry is all that is known of a rule on the host.

Kernels have the same formulas in ``cuda/kernels/ops/optim/update_rules.cuh``, under the same names.
The optimizers of the package are in ``optim``, a file each. Everything else reads this table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warpfit.errors import ConfigError

Array = npt.NDArray[Any]
Empty = Callable[[tuple[int, ...], Any], Array]
# Of `UpdateNumbers` those that may differ from step to step: the first ones.
NUMBERS_OF_STEP = 4


class UpdateNumbers(NamedTuple):
    """The numbers of an update, those that a rule does not name left as they are.

    The first four may differ from step to step. They may lie on a device, and be arrays of several
    steps.
    """

    rate: Any  # learning rate, with what bias corrections make of it
    eps: Any = 0.0  # what a denominator has besides the root
    kept: Any = 1.0  # the share of a parameter that decoupled weight decay leaves
    # How often the average joins the gradient, in a step that looks ahead along it.
    ahead: Any = 0.0
    decay: float = 0.0  # what part of a parameter joins its gradient
    # Share of the last velocity that is kept; for Lion, the average's share of a step's direction.
    momentum: float = 0.0
    # of_mean and of_square: shares of themselves that averages of gradients and of their squares
    # keep.
    of_mean: float = 0.0
    of_square: float = 0.0
    nesterov: bool = False  # whether a step looks ahead along the velocity
    rate_in_velocity: bool = False  # whether the velocity has the learning rates of its steps in it


@dataclass(frozen=True)
class UpdateRule:
    """An entry of the table."""

    # `apply(w, g, slots, n, empty)` changes a parameter and its slots in place, by the gradient and
    # the `UpdateNumbers` n; `empty(shape, dtype)` gives memory to compute in.
    apply: Callable[[Array, Array, Sequence[Array], UpdateNumbers, Empty], None]
    # The fields of `UpdateNumbers` that it reads, in the kernels' order; 6 at most.
    numbers: tuple[str, ...]
    # How many arrays it may keep for each parameter; the most of them with momentum.
    slots: tuple[int, ...]
    # Whether an update by a sum of gradients is the sum of updates. Kernels of whole steps then may
    # take parts of a batch one after the other.
    is_linear: bool = False


def rule_of(name: str, num_slots: int, momentum: float) -> UpdateRule:
    """Return the rule of this name that keeps so many slots, or raise ConfigError."""
    if name not in UPDATE_RULES:
        raise ConfigError(f"expected an update among {', '.join(UPDATE_RULES)}, got {name!r}")
    rule = UPDATE_RULES[name]
    allowed = rule.slots[-1:] if momentum else rule.slots
    if num_slots not in allowed:
        known = " or ".join(map(str, allowed))
        of_momentum = f" for momentum {momentum:g}" if momentum else ""
        raise ConfigError(
            f"update_parameters: expected {known} slots of {name}{of_momentum}, got {num_slots}"
        )
    return rule


def _decayed(w: Array, g: Array, n: UpdateNumbers) -> Array:
    return g + n.decay * w if n.decay else g


def _sgd(w: Array, g: Array, slots: Sequence[Array], n: UpdateNumbers, empty: Empty) -> None:
    """w ← w - rate · d, with v ← momentum · v + g.

    d is g without momentum, v with it, g + momentum · v with Nesterov's.

    With `rate_in_velocity`, scikit-learn's form, v ← momentum · v - rate · g, then w ← w + v, or
    w + momentum · v - rate · g.
    """
    g = _decayed(w, g, n)
    if not slots:
        w -= np.multiply(g, n.rate, out=empty(g.shape, g.dtype))
        return
    (v,) = slots
    # A learning rate inside the velocity scales what goes in; outside, what comes out.
    if n.rate_in_velocity:
        g = np.multiply(g, -n.rate, out=empty(g.shape, g.dtype))
    v *= n.momentum
    v += g
    step, scratch = v, empty(v.shape, v.dtype)
    if n.nesterov:
        step = np.multiply(v, n.momentum, out=scratch)
        step += g
    if not n.rate_in_velocity:
        step = np.multiply(step, -n.rate, out=scratch)
    w += step


def _adam(w: Array, g: Array, slots: Sequence[Array], n: UpdateNumbers, empty: Empty) -> None:
    """w ← kept · w - rate · m / (√v + eps), m and v averages of gradients and their squares."""
    m, v = slots
    if n.kept != 1:
        w *= n.kept
    g = _decayed(w, g, n)
    scratch = np.multiply(g, 1 - n.of_mean, out=empty(g.shape, g.dtype))
    m *= n.of_mean
    m += scratch
    np.multiply(g, g, out=scratch)
    scratch *= 1 - n.of_square
    v *= n.of_square
    v += scratch
    np.sqrt(v, out=scratch)
    scratch += n.eps
    np.divide(m, scratch, out=scratch)
    scratch *= n.rate
    w -= scratch


def _rmsprop(w: Array, g: Array, slots: Sequence[Array], n: UpdateNumbers, empty: Empty) -> None:
    """w ← w - rate · d with s ← of_square · s + (1 - of_square) g².

    d is g / (√s + eps), or with momentum the velocity of that.
    """
    s, *velocity = slots
    g = _decayed(w, g, n)
    s *= n.of_square
    s += (1 - n.of_square) * g * g
    direction = g / (np.sqrt(s) + n.eps)
    for v in velocity:
        v *= n.momentum
        v += direction
        direction = v
    w -= n.rate * direction


def _lion(w: Array, g: Array, slots: Sequence[Array], n: UpdateNumbers, empty: Empty) -> None:
    """w ← kept · w - rate · sign(momentum · m + (1 - momentum) · g).

    Then m ← of_mean · m + (1 - of_mean) · g.
    """
    (m,) = slots
    direction = np.multiply(m, n.momentum, out=empty(m.shape, m.dtype))
    direction += (1 - n.momentum) * g
    np.sign(direction, out=direction)
    direction *= n.rate
    if n.kept != 1:
        w *= n.kept
    w -= direction
    m *= n.of_mean
    m += (1 - n.of_mean) * g


def _adagrad(w: Array, g: Array, slots: Sequence[Array], n: UpdateNumbers, empty: Empty) -> None:
    """w ← w - rate · g / (√s + eps) with s ← s + g²."""
    (s,) = slots
    g = _decayed(w, g, n)
    s += g * g
    w -= n.rate * g / (np.sqrt(s) + n.eps)


def _adadelta(w: Array, g: Array, slots: Sequence[Array], n: UpdateNumbers, empty: Empty) -> None:
    """w ← w - rate · d, d = √(u + eps) / √(s + eps) · g.

    s and u are averages of the squares of gradients and of d, that of gradients with this step's.
    """
    s, u = slots
    g = _decayed(w, g, n)
    s *= n.of_square
    s += (1 - n.of_square) * g * g
    direction = np.sqrt(u + n.eps) / np.sqrt(s + n.eps) * g
    u *= n.of_square
    u += (1 - n.of_square) * direction * direction
    w -= n.rate * direction


def _nadam(w: Array, g: Array, slots: Sequence[Array], n: UpdateNumbers, empty: Empty) -> None:
    """w ← w - rate · (g + ahead · m) / (√v + eps), m and v averages of gradients and squares."""
    m, v = slots
    g = _decayed(w, g, n)
    m *= n.of_mean
    m += (1 - n.of_mean) * g
    v *= n.of_square
    v += (1 - n.of_square) * g * g
    w -= n.rate * (g + n.ahead * m) / (np.sqrt(v) + n.eps)


UPDATE_RULES: dict[str, UpdateRule] = {
    "sgd": UpdateRule(
        _sgd,
        ("rate", "momentum", "decay", "nesterov", "rate_in_velocity"),
        slots=(0, 1),
        is_linear=True,
    ),
    "adam": UpdateRule(_adam, ("rate", "eps", "kept", "of_mean", "of_square", "decay"), slots=(2,)),
    "rmsprop": UpdateRule(
        _rmsprop, ("rate", "of_square", "eps", "decay", "momentum"), slots=(1, 2)
    ),
    "lion": UpdateRule(_lion, ("rate", "kept", "momentum", "of_mean"), slots=(1,)),
    "adagrad": UpdateRule(_adagrad, ("rate", "eps", "decay"), slots=(1,)),
    "adadelta": UpdateRule(_adadelta, ("rate", "of_square", "eps", "decay"), slots=(2,)),
    "nadam": UpdateRule(
        _nadam, ("rate", "eps", "ahead", "of_mean", "of_square", "decay"), slots=(2,)
    ),
}
