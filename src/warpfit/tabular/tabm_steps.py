"""A step of TabM's training: its loss and gradients, and AdamW's update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from warpfit.backends import Array, Backend
from warpfit.backends.base import MemberUpdate, Number
from warpfit.backends.update_rules import UpdateNumbers
from warpfit.losses import Loss
from warpfit.optim.adam import AdamSpec
from warpfit.optim.schedules import as_schedule
from warpfit.tabular.tabm_network import Draw, TabM, flat

ADAM = AdamSpec(as_schedule(1.0))


@dataclass(frozen=True)
class Settings:
    """How TabM learns."""

    lr: float = 2e-3
    weight_decay: float = 3e-4  # decoupled, of all but biases and the lines of embeddings
    dropout: float = 0.1
    max_norm: float | None = None  # largest joint norm of a step's gradients


class StepNumbers(NamedTuple):
    """What differs from step to step besides rows; each may lie on the device."""

    step: Number  # of the run, for dropout
    row: Number  # of the record
    # rate and eps: AdamW's, with its bias corrections.
    rate: Number
    eps: Number


class Batch(NamedTuple):
    """Rows of each of E members: x (E, M, columns); targets and weights (E M, ...), one member's
    after another's.
    """

    x: Array
    y: Array
    weights: Array | None


class Part(NamedTuple):
    """What some members have of a step: their mean loss, and gradients by name."""

    loss: Array
    gradients: dict[str, Array]


class Steps:
    """The steps of one training.

    Parameters
    ----------
    network : TabM
        Where its parameters live, steps are computed.
    loss : Loss
    settings : Settings
    seed : int
        Of dropout.
    """

    def __init__(self, network: TabM, loss: Loss, settings: Settings, seed: int) -> None:
        self.network, self.loss, self.settings, self.seed = network, loss, settings, seed
        parameters = {name: each.data for name, each in network.named_parameters() if each.size}
        # Those that decay first.
        self.names = sorted(parameters, key=_is_kept)
        self.parameters = parameters
        zeros = network.backend.zeros
        self.moments = {
            name: [zeros(each.shape, each.dtype) for _ in range(2)]
            for name, each in parameters.items()
        }

    def numbers(self, step: int, row: int) -> StepNumbers:
        """Return the numbers of a step, counted from 0."""
        update = ADAM.update_numbers(step + 1, self.settings.lr)
        return StepNumbers(step, row, update.rate, update.eps)

    def part(
        self,
        ops: Backend,
        batch: Batch,
        step: Number,
        members: slice = slice(None),
        share: float = 1.0,
    ) -> Part:
        """Return what some members have of a step, their loss counted by a share."""
        draw = Draw(self.settings.dropout, self.seed, step)
        outputs, pullback = self.network.vjp(ops, batch.x, draw, members)
        loss, _, gradient = self.loss.vjp(
            ops, flat(ops, outputs), batch.y, sample_weight=batch.weights
        )
        dy = gradient()
        if share != 1:
            dy = ops.binary("mul", dy, share)
        return Part(loss, pullback(ops.reshape(dy, outputs.shape)))

    def recorded(
        self,
        ops: Backend,
        batch: Batch,
        numbers: StepNumbers,
        record: Array,
        values: Mapping[str, Array] | None = None,
        update: MemberUpdate | None = None,
    ) -> dict[str, Array]:
        """Return the gradients of a step of all members, by name, and write its loss to the record
        (steps, 3); `values` and `update` are those of `TabM.vjp`.
        """
        draw = Draw(self.settings.dropout, self.seed, numbers.step)
        outputs, pullback = self.network.vjp(ops, batch.x, draw, values=values, update=update)
        rows, weights = flat(ops, outputs), batch.weights
        dy = self.loss.train_step(ops, rows, batch.y, record, numbers.row, sample_weight=weights)
        if dy is None:  # no operation does all of that
            loss, weight, gradient = self.loss.vjp(ops, rows, batch.y, sample_weight=weights)
            ops.record_step(record, numbers.row, loss, weight, None, None)
            dy = gradient()
        return pullback(ops.reshape(dy, outputs.shape))

    def member_update(
        self, copies: Mapping[str, Array], numbers: StepNumbers
    ) -> MemberUpdate | None:
        """Return how all layers are updated at once, and with them the copies of shared weights;
        None if gradients are clipped, or there are others.
        """
        has_others = self.network.embedding is not None
        if has_others or self.settings.max_norm is not None:
            return None
        names = [name for name in self.names if name in copies]
        return MemberUpdate(
            self.network.layered(self.parameters),
            [
                self.network.layered({name: each[slot] for name, each in self.moments.items()})
                for slot in range(2)
            ],
            [copies[name] for name in sorted(names)],
            self._numbers(numbers, self.settings.weight_decay),
        )

    def update(self, ops: Backend, gradients: Mapping[str, Array], numbers: StepNumbers) -> None:
        """Change all parameters by their gradients, which may be clipped in place."""
        if self.settings.max_norm is not None:
            ops.clip_by_norm([gradients[name] for name in self.names], self.settings.max_norm)
        for is_kept in (False, True):
            names = [name for name in self.names if _is_kept(name) == is_kept]
            ops.update_parameters(
                ADAM.rule,
                [self.parameters[name] for name in names],
                [gradients[name] for name in names],
                [[self.moments[name][slot] for name in names] for slot in range(2)],
                self._numbers(numbers, 0.0 if is_kept else self.settings.weight_decay),
            )

    def _numbers(self, numbers: StepNumbers, decay: float) -> UpdateNumbers:
        of_rule = ADAM.update_numbers(1, self.settings.lr)
        kept = 1 - self.settings.lr * decay
        return of_rule._replace(rate=numbers.rate, eps=numbers.eps, kept=kept)


def _is_kept(name: str) -> bool:
    """Whether a parameter does not decay."""
    return name.endswith("bias") or name == "embedding.weight"
