"""What optimizers share: the settings as a value, and what steps a list of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from warpfit import backends
from warpfit.autograd import Tensor
from warpfit.backends import Array, Backend
from warpfit.backends.base import Number
from warpfit.backends.transfer import device_of, moved, to_host
from warpfit.backends.update_rules import NUMBERS_OF_STEP, UPDATE_RULES, UpdateNumbers
from warpfit.checks import (
    as_tuple,
    brief,
    check_count,
    check_fields,
    check_number,
    kind_of,
    ranged,
    register,
)
from warpfit.errors import ConfigError, ShapeError
from warpfit.on_demand import OnDemand
from warpfit.optim.groups import ParameterGroup, Parameters, are_several, read_groups
from warpfit.optim.schedules import Constant, Schedule


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer's settings, without its state: a frozen value that engines read.

    Parameters
    ----------
    lr : Schedule
    clip_norm : float, optional
        Largest joint norm of all gradients; larger ones are scaled down.
    l2 : float
        scikit-learn's alpha: l2 / (2 n) · Σ w² joins the loss, n the rows of the batch, biases left
        out.
    l2_by_weight : bool
        Whether n is the sum of the sample weights, as scikit-learn's is.
    groups : tuple of ParameterGroup
        Of the parameters in their order, if not all have one rate and one weight decay.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Examples
    --------
    >>> optim.SGD(model.parameters(), lr=0.1).spec.lr
    Constant(lr=0.1)
    """

    kind: ClassVar[str] = ""
    by_kind: ClassVar[dict[str, type[OptimizerSpec]]] = {}
    # The name of an update in ``UPDATE_RULES``; "" for one whose `apply` is its own.
    rule: ClassVar[str] = ""
    # Names of the arrays kept for each parameter.
    slots: ClassVar[tuple[str, ...]] = ()

    lr: Schedule
    clip_norm: float | None = None
    l2: float = ranged("of at least 0", 0.0)
    l2_by_weight: bool = field(default=False, kw_only=True)
    groups: tuple[ParameterGroup, ...] = field(default=(), kw_only=True)

    def __init_subclass__(cls) -> None:
        register(cls, "kind", OptimizerSpec.by_kind)

    @property
    def name(self) -> str:
        """The optimizer's name: several may be of a kind, as AdamW is of Adam's."""
        return self.kind

    def __post_init__(self) -> None:
        check_fields(self.name, self)
        self.require(
            self.clip_norm is None or self.clip_norm > 0,
            "clip_norm above 0 or None",
            self.clip_norm,
        )

    def require(self, condition: bool, what: str, came: Any) -> None:
        """Raise ConfigError unless `condition` holds.

        Parameters
        ----------
        condition : bool
        what : str
            What was expected.
        came : Any
            What came in its place.

        Raises
        ------
        ConfigError
            Which says both, and of which optimizer.
        """
        if not condition:
            raise ConfigError(f"{self.name}: expected {what}, got {came!r}")

    def checked_betas(self, came: Any) -> tuple[float, float]:
        """Return two shares of averages as floats, or raise ConfigError unless in [0, 1)."""
        betas = as_tuple(came, Real)
        if betas is None or len(betas) != 2:
            raise ConfigError(f"{self.name}: expected betas as two numbers, got {came!r}")
        self.require(all(0 <= beta < 1 for beta in betas), "betas in [0, 1)", came)
        return float(betas[0]), float(betas[1])

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Those of `slots` that these settings need."""
        return self.slots

    @property
    def follows_its_rule(self) -> bool:
        """Whether an update is the table's, and not that of a class derived from the package's."""
        is_own = "rule" in vars(type(self)) and type(self).apply is OptimizerSpec.apply
        return is_own and self.rule in UPDATE_RULES

    def update_numbers(self, step: Any, lr: Any) -> UpdateNumbers:
        """Return the rule's numbers in a step, from 1 on, at this rate; of arrays, in several."""
        raise NotImplementedError

    def numbers(self, step: int, lr: float) -> tuple[float, ...]:
        """Return what differs from step to step, as `apply` finds it on the device."""
        return tuple(self.update_numbers(step, lr)[:NUMBERS_OF_STEP]) if self.rule else (lr,)

    def numbers_of_groups(self, step: int, lr: float) -> tuple[float, ...]:
        """Return `numbers` of all groups, one by one, as `update` finds them on the device."""
        if not self.groups:
            return self.numbers(step, lr)
        return tuple(
            number for spec, factor in self._parts for number in spec.numbers(step, lr * factor)
        )

    @cached_property
    def _parts(self) -> tuple[tuple[OptimizerSpec, float], ...]:
        """For each group the settings of its update, and the factor of its learning rate."""
        return tuple((self._part(group), group.factor(self.lr.lr)) for group in self.groups)

    def _part(self, group: ParameterGroup) -> OptimizerSpec:
        own = group.weight_decay
        decay: dict[str, Any] = {} if own is None else {"weight_decay": own}
        return replace(self, groups=(), **decay)

    def of_some(self, is_used: Sequence[bool]) -> OptimizerSpec:
        """Return the settings for those of the parameters that are used, at least one."""
        if not self.groups or all(is_used):
            return self
        flags = iter(is_used)
        groups = [replace(group, size=sum(islice(flags, group.size))) for group in self.groups]
        return replace(self, groups=tuple(group for group in groups if group.size))

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
        """Update parameters and slots in place.

        Parameters
        ----------
        ops : Backend
            That all arrays belong to.
        parameters, gradients : sequence of array
            Gradients have their parameters' shapes.
        slots : mapping of str to sequence of array
            The optimizer state: for each of `slot_names` an array for every parameter.
        step : int
            From 1.
        lr : float
            The learning rate of this step.
        numbers : array (n,) float64, optional
            Those of `self.numbers`, on the device, in place of step and learning rate.

        Raises
        ------
        ShapeError, DTypeError
            If arrays that belong together differ.
        """
        if numbers is None:
            found = self.update_numbers(step, lr)
        else:
            of_all_steps = self.update_numbers(1, lr)[NUMBERS_OF_STEP:]
            found = UpdateNumbers(*(numbers[idx] for idx in range(NUMBERS_OF_STEP)), *of_all_steps)
        of_rule = [slots[name] for name in self.slot_names]
        ops.update_parameters(self.rule, parameters, gradients, of_rule, found)

    def add_penalty(
        self,
        ops: Backend,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        *,
        num_rows: Number,
    ) -> Array | None:
        """Add the penalty's gradient to the gradients, and return the penalty that joins the loss,
        if any.

        Parameters
        ----------
        ops : Backend
            That all arrays belong to.
        parameters, gradients : sequence of array
            Gradients have their parameters' shapes, and are added to in place.
        num_rows : int or array ()
            Rows of the batch; with `l2_by_weight` the sum of the sample weights, which stays on the
            device.

        Raises
        ------
        ShapeError, DTypeError
            If a gradient does not fit its parameter.
        """
        if not self.l2:
            return None
        pairs = [(w, g) for w, g in zip(parameters, gradients, strict=True) if w.ndim > 1]
        weights, their_gradients = [w for w, _ in pairs], [g for _, g in pairs]
        if isinstance(num_rows, int | float):
            return (
                ops.l2_penalty(weights, their_gradients, self.l2 / num_rows) if num_rows else None
            )
        exact = num_rows if num_rows.dtype == "float64" else ops.cast(num_rows, "float64")
        return ops.l2_penalty(weights, their_gradients, self.l2, exact)

    def update(
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
        """Clip the gradients to `clip_norm`, and apply them, group by group.

        Parameters
        ----------
        ops, parameters, gradients, slots, step, lr
            As `apply` takes them.
        numbers : array (n,) float64, optional
            Those of `self.numbers_of_groups`, on the device.

        Raises
        ------
        ShapeError, DTypeError
            As `apply` raises them.
        """
        if self.clip_norm is not None:
            ops.clip_by_norm(gradients, self.clip_norm)
        if not self.groups:
            self.apply(ops, parameters, gradients, slots, step=step, lr=lr, numbers=numbers)
            return
        first, count = 0, 0 if numbers is None else len(numbers) // len(self.groups)
        for idx, (spec, factor) in enumerate(self._parts):
            own = slice(first, first + self.groups[idx].size)
            spec.apply(
                ops,
                parameters[own],
                gradients[own],
                {name: arrays[own] for name, arrays in slots.items()},
                step=step,
                lr=lr * factor,
                numbers=None if numbers is None else numbers[idx * count : (idx + 1) * count],
            )
            first = own.stop

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description."""
        described = {"kind": self.kind, **asdict(self), "lr": self.lr.to_dict()}
        # As descriptions were before there were groups, and such of another optimizer.
        if not self.groups:
            del described["groups"]
        for group in described.get("groups", ()):
            if not group["is_other"]:
                del group["is_other"]
        return described


class Optimizer(OnDemand):
    """The parameters to train, an optimizer's settings, and its state: the slots.

    Parameters
    ----------
    parameters : sequence of Parameter, or of groups
        A group is a dict of ``"params"`` and, where it differs from the optimizer, ``"lr"`` and
        ``"weight_decay"``. Schedules, and the rate that `step` is given, scale the rates of all
        groups alike.
    spec : OptimizerSpec

    Raises
    ------
    ConfigError
        If there are no parameters or one is there twice, or a group is empty or has other settings.

    Attributes
    ----------
    spec : OptimizerSpec
    parameters : list of Parameter
    slots : dict of str to list of arrays
        One array for each parameter, in their order; made at the first step.
    step_count : int
        Steps done so far.

    Examples
    --------
    >>> opt.zero_grad()
    >>> losses.SoftmaxCrossEntropy()(model(wf.tensor(x)), y).backward()
    >>> opt.step()

    >>> body, head = nn.Linear(4, 8), nn.Linear(8, 2)
    >>> groups = [
    ...     {"params": body.parameters(), "lr": 1e-4},
    ...     {"params": [head.weight], "lr": 1e-2},
    ...     {"params": [head.bias], "weight_decay": 0.0},
    ... ]
    >>> for group in optim.AdamW(groups, lr=optim.Cosine(1e-3)).spec.groups:
    ...     print(group)
    ParameterGroup(size=2, lr=0.0001, weight_decay=0.01)
    ParameterGroup(size=1, lr=0.01, weight_decay=0.01)
    ParameterGroup(size=1, lr=0.001, weight_decay=0.0)
    """

    # Its name on the command line, in the playground and the demo, and what they set by default.
    name: ClassVar[str] = ""
    by_name: ClassVar[dict[str, type[Optimizer]]] = {}
    suggested: ClassVar[Mapping[str, float]] = {}

    def __init_subclass__(cls) -> None:
        register(cls, "name", Optimizer.by_name)

    def __init__(self, parameters: Parameters, spec: OptimizerSpec) -> None:
        if hasattr(parameters, "parameters"):
            raise ConfigError(
                f"{spec.name}: expected a sequence of parameters, got {kind_of(parameters)}; "
                "model.parameters() is one"
            )
        if not are_several(parameters):
            raise ConfigError(
                f"{spec.name}: expected a sequence of parameters, got {brief(parameters)}"
            )
        given: list[Any] = list(parameters)
        if given and isinstance(given[0], Mapping):
            own_decay = getattr(spec, "weight_decay", None)
            given, groups = read_groups(spec.name, given, spec.lr.lr, own_decay)
            spec = replace(spec, groups=groups)
        self.parameters: list[Tensor] = given
        if not self.parameters:
            raise ConfigError(f"{spec.name}: expected parameters to optimise, got none")
        for parameter in self.parameters:
            if not isinstance(parameter, Tensor):
                raise ConfigError(f"{spec.name}: expected parameters, got {kind_of(parameter)}")
        if len(set(map(id, self.parameters))) < len(self.parameters):
            raise ConfigError(f"{spec.name}: expected each parameter once, got one several times")
        self.spec = spec
        self.slots: dict[str, list[Array]] = {}
        self.step_count = 0

    def make_slots(self) -> dict[str, list[Array]]:
        """Return the slots, zeros before the first step, where and as the parameters are."""
        if not self.slots:
            self.slots = {
                name: [backends.of(p.data).zeros(p.shape, p.dtype) for p in self.parameters]
                for name in self.spec.slot_names
            }
        for arrays in self.slots.values():
            for idx, p in enumerate(self.parameters):
                if device_of(arrays[idx]) != p.device or arrays[idx].dtype != p.dtype:
                    arrays[idx] = moved(arrays[idx], backends.of(p.data), str(p.dtype))
        return self.slots

    def step(self, lr: float | None = None, *, num_rows: int | None = None) -> None:
        """Change every parameter that has a gradient, but for those with ``requires_grad=False``.

        Parameters
        ----------
        lr : float, optional
            Learning rate of this step, in proportion to which groups have theirs; must be given if
            the optimizer's is a schedule, which only a run of known length can follow.
        num_rows : int, optional
            Rows in the batch; must be given if ``l2`` is set.
        """
        if lr is None:
            if not isinstance(self.spec.lr, Constant):
                raise ConfigError(
                    f"step: expected lr= for the schedule {self.spec.lr!r} outside fit"
                )
            lr = self.spec.lr.lr
        check_number("step: lr", lr, 0)
        if num_rows is not None:
            check_count("step: num_rows", num_rows, 1)
        if self.spec.l2 and num_rows is None:
            raise ConfigError("step: expected num_rows= for an optimizer with l2, got None")
        slots = self.make_slots()
        used = [
            idx for idx, p in enumerate(self.parameters) if p.requires_grad and p.grad is not None
        ]
        if used:
            parameters = [self.parameters[idx].data for idx in used]
            gradients = [self.parameters[idx].grad for idx in used]
            used_slots = {name: [arrays[idx] for idx in used] for name, arrays in slots.items()}
            ops = backends.of(*parameters)
            spec = self.spec.of_some([idx in used for idx in range(len(self.parameters))])
            spec.add_penalty(ops, parameters, gradients, num_rows=num_rows or 1)
            spec.update(ops, parameters, gradients, used_slots, step=self.step_count + 1, lr=lr)
        self.step_count += 1

    def zero_grad(self) -> None:
        """Clear the gradients of all parameters."""
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the slots on the host, and the number of steps."""
        slots = {
            name: [np.array(to_host(array)) for array in arrays]
            for name, arrays in self.make_slots().items()
        }
        return {"step_count": self.step_count, "slots": slots}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy slots and step count from `state`; nothing changes if names or shapes differ.

        Raises
        ------
        ConfigError
            If the state or its slots have other names.
        ShapeError
            If the arrays have other shapes.
        """
        if not isinstance(state, Mapping) or state.keys() != {"step_count", "slots"}:
            raise ConfigError(f"expected a state with step_count and slots, got {_names_of(state)}")
        step_count, slots = check_count("step_count", state["step_count"], 0), self.make_slots()
        if not isinstance(state["slots"], Mapping) or state["slots"].keys() != slots.keys():
            raise ConfigError(
                f"expected the slots {sorted(slots)}, got {_names_of(state['slots'])}"
            )
        for name, arrays in state["slots"].items():
            if not isinstance(arrays, list | tuple):
                raise ConfigError(f"slot {name}: expected a list of arrays, got {brief(arrays)}")
        values = {
            name: [to_host(value) for value in arrays] for name, arrays in state["slots"].items()
        }
        for name, arrays in slots.items():
            shapes, came = [tuple(a.shape) for a in arrays], [value.shape for value in values[name]]
            if shapes != came:
                raise ShapeError(f"slot {name}: expected shapes {shapes}, got {came}")
        converted = [
            (array, backends.of(array).asarray(value, str(array.dtype)))
            for name, arrays in slots.items()
            for array, value in zip(arrays, values[name], strict=True)
        ]
        for array, value in converted:
            backends.of(array).assign(array, value)
        self.step_count = step_count

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.parameters)} parameters, {self.spec!r})"


def _names_of(state: Any) -> Any:
    return sorted(map(str, state)) if isinstance(state, Mapping) else brief(state)
