"""Muon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar

from warpfit.autograd import Tensor
from warpfit.backends import Array, Backend
from warpfit.backends.matrix_updates import MatrixNumbers, matrix_of
from warpfit.backends.update_rules import NUMBERS_OF_STEP, UpdateNumbers
from warpfit.checks import kind_of, ranged
from warpfit.errors import ConfigError
from warpfit.optim.adam import AdamSpec
from warpfit.optim.base import Optimizer, OptimizerSpec
from warpfit.optim.groups import ParameterGroup, Parameters
from warpfit.optim.schedules import Constant, Schedule, as_schedule

# What a matrix's rate is multiplied by, given its outputs and inputs.
ADJUSTMENTS = {
    "original": lambda outputs, inputs: sqrt(max(1.0, outputs / inputs)),
    "match_rms_adamw": lambda outputs, inputs: 0.2 * sqrt(max(outputs, inputs)),
    "none": lambda outputs, inputs: 1.0,
}
# The rate of AdamW for all that is no matrix, as a share of Muon's.
SHARE_OF_ADAMW = {"original": 0.015, "match_rms_adamw": 1.0, "none": 0.015}


def _adamw(weight_decay: float) -> AdamSpec:
    """Return AdamW with the settings that Muon's authors use beside it."""
    return AdamSpec(
        Constant(1e-3), betas=(0.9, 0.95), eps=1e-10, weight_decay=weight_decay, decoupled=True
    )


@dataclass(frozen=True)
class MuonSpec(OptimizerSpec):
    """w ← (1 - lr · weight_decay) · w - lr · factor · d, d being an average of the gradients whose
    singular values are all about 1; see ``update_matrices`` of the backends' contract.
    """

    kind: ClassVar[str] = "muon"
    momentum: float = ranged("in [0, 1)", 0.95)
    nesterov: bool = True
    weight_decay: float = ranged("of at least 0", 0.1)
    ns_steps: int = 5
    adjust_lr_fn: str = "match_rms_adamw"
    normalize: bool = False
    # What steps the groups that are marked.
    others: OptimizerSpec | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(1 <= self.ns_steps < 100, "ns_steps in [1, 100)", self.ns_steps)
        known = f"adjust_lr_fn among {', '.join(ADJUSTMENTS)}"
        self.require(self.adjust_lr_fn in ADJUSTMENTS, known, self.adjust_lr_fn)

    @property
    def slot_names(self) -> tuple[str, ...]:
        # Every parameter has all slots; the average of a matrix is in the first.
        return (self.others.slot_names if self.others else ()) or ("average",)

    def _part(self, group: ParameterGroup) -> OptimizerSpec:
        if not group.is_other or self.others is None:
            return super()._part(group)
        return self.others._part(group)

    def update_numbers(self, step: Any, lr: Any) -> UpdateNumbers:
        return UpdateNumbers(lr, kept=1 - lr * self.weight_decay)

    def numbers(self, step: int, lr: float) -> tuple[float, ...]:
        return tuple(self.update_numbers(step, lr)[:NUMBERS_OF_STEP])

    def apply(
        self,
        ops: Backend,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        slots: Mapping[str, Sequence[Array]],
        *,
        step: int,
        lr: float,
        numbers: Array | None = None,
    ) -> None:
        found: Any = self.numbers(step, lr) if numbers is None else numbers
        of_step = UpdateNumbers(*(found[idx] for idx in range(NUMBERS_OF_STEP)))
        ops.update_matrices(
            parameters,
            gradients,
            slots[self.slot_names[0]],
            [self._factor(tuple(w.shape)) for w in parameters],
            MatrixNumbers(
                of_step.rate,
                of_step.kept,
                self.momentum,
                self.nesterov,
                self.ns_steps,
                self.normalize,
            ),
        )

    def _factor(self, shape: tuple[int, ...]) -> float:
        inputs, outputs = matrix_of(shape)
        return ADJUSTMENTS[self.adjust_lr_fn](max(1, outputs), max(1, inputs))

    def to_dict(self) -> dict[str, Any]:
        others = None if self.others is None else self.others.to_dict()
        return {**super().to_dict(), "others": others}


class Muon(Optimizer):
    """Muon: matrices move along an average of their gradients with all singular values about 1.

    Parameters with fewer than two axes, such as biases, are updated by another optimizer. Weights
    of convolutions are matrices, of as many columns as there are outputs. The engines `layerwise`
    and `graph` run it.

    Parameters
    ----------
    momentum : float
        In [0, 1): share of itself that the average of gradients keeps.
    nesterov : bool
        Whether to look ahead along the average.
    weight_decay : float
        A step multiplies all matrices by 1 - lr · weight_decay.
    ns_steps : int
        Of Newton and Schulz's iteration, which brings the singular values near 1: less than 100.
    adjust_lr_fn : str
        What the rate of a matrix is multiplied by: ``'match_rms_adamw'``, 0.2 · √max(outputs,
        inputs), so that rates are as AdamW's; ``'original'``, √max(1, outputs / inputs), with rates
        near 0.02; ``'none'``, 1.
    normalize : bool
        Whether each step first gives a matrix the norm √outputs, as batch norm after it allows.
    others : Optimizer, optional
        Over further parameters, which it updates by its own rule, settings and groups; the schedule
        of `lr` scales its rate, which must be a number. By default biases and the like are updated
        by AdamW with betas (0.9, 0.95), eps 1e-10, this weight decay and Muon's rate, or
        0.015 times that unless rates are as AdamW's. With it all of `parameters` must be matrices.
    parameters, lr, clip_norm
        All others as `Adam`'s.

    Raises
    ------
    ConfigError
        If there are no parameters, one is there twice, or an argument is not what is described
        here.

    References
    ----------
    Jordan, Jin, Boza, You, Cesista, Newhouse, Bernstein: Muon (2024),
    kellerjordan.github.io/posts/muon; torch.optim.Muon, whose formulas these are. Its default for
    `adjust_lr_fn` is ``'original'``, and it takes matrices only.

    Examples
    --------
    >>> opt = optim.Muon(model.parameters(), lr=1e-3)
    >>> [group.is_other for group in opt.spec.groups]
    [False, True]

    >>> matrices = [p for p in model.parameters() if p.ndim > 1]
    >>> biases = optim.SGD([p for p in model.parameters() if p.ndim == 1], 0.05, momentum=0.9)
    >>> opt = optim.Muon(matrices, lr=0.02, adjust_lr_fn="original", others=biases)
    """

    name: ClassVar[str] = "muon"
    suggested: ClassVar[Mapping[str, float]] = {"lr": 5e-3}

    def __init__(
        self,
        parameters: Parameters,
        lr: float | Schedule = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        ns_steps: int = 5,
        adjust_lr_fn: str = "match_rms_adamw",
        normalize: bool = False,
        clip_norm: float | None = None,
        *,
        others: Optimizer | None = None,
    ) -> None:
        spec = MuonSpec(
            as_schedule(lr),
            clip_norm,
            0.0,
            momentum,
            nesterov,
            weight_decay,
            ns_steps,
            adjust_lr_fn,
            normalize,
        )
        super().__init__(parameters, spec)
        own = [*self._own_parts()]
        parts = own if others is None else [*own, *self._parts_of(others, own)]
        rest = others.spec if others is not None else _adamw(weight_decay)
        self.parameters = [parameter for _, held in parts for parameter in held]
        if any(group.is_other for group, _ in parts):
            groups = tuple(group for group, _ in parts)
            self.spec = replace(spec, groups=groups, others=replace(rest, groups=()))

    def _own_parts(self) -> Iterator[tuple[ParameterGroup, list[Tensor]]]:
        """Yield the matrices of each group, and its other parameters as a group of AdamW's."""
        spec: Any = self.spec
        rate, decay = spec.lr.lr, spec.weight_decay
        groups = spec.groups or (ParameterGroup(len(self.parameters), rate, decay),)
        for group, held in _held(groups, self.parameters):
            for is_other in (False, True):
                some = [p for p in held if (p.ndim < 2) is is_other]
                share = SHARE_OF_ADAMW[spec.adjust_lr_fn] if is_other else 1.0
                if some:
                    yield (
                        replace(group, size=len(some), lr=group.lr * share, is_other=is_other),
                        some,
                    )

    def _parts_of(
        self, others: Optimizer, own: Sequence[tuple[ParameterGroup, list[Tensor]]]
    ) -> Iterator[tuple[ParameterGroup, list[Tensor]]]:
        """Yield the groups of the other optimizer, with their parameters."""
        spec = _checked(others)
        for group, held in own:
            if group.is_other:
                raise ConfigError(
                    "muon: expected parameters of at least two axes beside others, got one of "
                    f"shape {tuple(held[0].shape)}"
                )
        known = {id(parameter) for _, held in own for parameter in held}
        if any(id(parameter) in known for parameter in others.parameters):
            raise ConfigError("muon: expected others over further parameters, got one of its own")
        rate, decay = spec.lr.lr, getattr(spec, "weight_decay", None)
        groups = spec.groups or (ParameterGroup(len(others.parameters), rate, decay),)
        if not self.spec.lr.lr and any(group.lr for group in groups):
            raise ConfigError(
                "muon: expected an lr above 0, of which that of others is a multiple, got 0"
            )
        for group, held in _held(groups, others.parameters):
            yield replace(group, is_other=True), held


def _checked(others: Any) -> OptimizerSpec:
    """Return the settings of what shall step the other parameters."""
    if not isinstance(others, Optimizer) or isinstance(others.spec, MuonSpec):
        raise ConfigError(
            f"muon: expected others to be an optimizer, none of Muon's, got {kind_of(others)}"
        )
    spec = others.spec
    if not spec.follows_its_rule:
        raise ConfigError(
            f"muon: expected others to be one of the package's optimizers, got {kind_of(others)}"
        )
    if not isinstance(spec.lr, Constant):
        raise ConfigError(
            f"muon: expected a number as the rate of others, which the schedule of lr scales, got "
            f"{spec.lr!r}"
        )
    if spec.clip_norm is not None or spec.l2:
        raise ConfigError("muon: expected others without clip_norm and l2, which are the whole's")
    return spec


def _held(
    groups: Sequence[ParameterGroup], parameters: Sequence[Tensor]
) -> Iterator[tuple[ParameterGroup, list[Tensor]]]:
    """Yield each group with its parameters."""
    first = 0
    for group in groups:
        yield group, list(parameters[first : first + group.size])
        first += group.size
