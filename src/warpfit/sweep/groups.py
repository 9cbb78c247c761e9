"""Networks of a sweep in groups: a group's differ in nothing that a kernel has as a constant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from warpfit.engines.base import Plan
from warpfit.engines.many_networks import without_rates
from warpfit.errors import Obstacle
from warpfit.nn.network import NetworkSpec
from warpfit.sweep.tasks import Task

if TYPE_CHECKING:
    from warpfit.backends.cuda.many_launch import ManyLaunch

UNPREPARED = Obstacle("nothing was prepared")


@dataclass(frozen=True)
class Group:
    """Networks of equal shapes, activations, kind of optimizer, batch size, loss and its scale,
    engine and precision.

    All of them have sample weights, or none.

    What may differ from network to network: initial values, seed, rate and schedule, momentum and
    the other numbers of the optimizer, dropout's probability, class weights, epochs, and the rows
    (`Task.fold`).
    """

    plan: Plan  # of the group's first network, as `fit` would have it
    tasks: tuple[Task, ...]
    # Which trains them at once on a GPU, or why `fit` does, one by one; found with the plan.
    launch: ManyLaunch | Obstacle = UNPREPARED
    # Of each task, by its number, what `fit` would begin a plan with.
    drafts: Mapping[int, Plan] = field(default_factory=dict, repr=False, compare=False)
    rows: Any = field(default=None, repr=False, compare=False)  # `GroupRows`, if they are known

    @property
    def title(self) -> str:
        """The group in a few words: ``784-64-10 relu, sgd, cross_entropy, batch 64``."""
        plan = self.plan
        return (
            f"{network_name(plan.network)}, {plan.optimizer.name}, {plan.loss.name}, batch "
            f"{plan.batch_size}"
        )


def kernel_key(plan: Plan) -> tuple[Any, ...]:
    """Return what the plans of networks that one kernel can train have in common."""
    optimizer, network = plan.optimizer, plan.network
    return (
        plan.engine,
        plan.precision,
        plan.device,
        without_rates(network.fused) if isinstance(network, NetworkSpec) else id(network),
        plan.loss,
        plan.trained,
        plan.batch_size,
        plan.shuffle,
        plan.report_every,
        str(plan.loss_scale),
        optimizer.kind,
        optimizer.slot_names,
        *(getattr(optimizer, name, False) for name in ("nesterov", "lr_in_velocity", "decoupled")),
        getattr(optimizer, "weight_decay", 0) == 0,
        optimizer.clip_norm is None,
        optimizer.l2 == 0,
    )


def grouped(planned: Iterable[tuple[Task, Plan]]) -> list[Group]:
    """Return the groups of tasks with their plans, in the order of each one's first network."""
    found: dict[Any, list[tuple[Task, Plan]]] = {}
    keys: dict[int, Any] = {}
    planned = list(planned)
    for task, plan in planned:
        if id(plan) not in keys:  # folds of a candidate have the same
            keys[id(plan)] = kernel_key(plan)
        has_weights = (
            task.data.sample_weight is not None,
            task.arguments.get("class_weight") is not None,
        )
        key = keys[id(plan)], *has_weights
        found.setdefault(key, []).append((task, plan))
    return [
        Group(
            members[0][1],
            tuple(task for task, _ in members),
            drafts={task.number: plan for task, plan in members},
        )
        for members in found.values()
    ]


def network_name(network: Any) -> str:
    """Return a network in a few words: the widths of linear layers and their activation, else how
    many layers.
    """
    if not isinstance(network, NetworkSpec):
        return "a module of one's own"
    if any(len(shape) != 1 for shape in network.shapes):
        return f"{len(network.layers)} layers on {'×'.join(map(str, network.input_shape))}"
    sizes = [network.shapes[0][0]]
    names: list[str] = []
    for (_, spec), (size, *_) in zip(network.fused.layers, network.fused.shapes[1:], strict=True):
        if spec.kind == "linear":
            sizes.append(size)
            activation = spec.activation.name  # type: ignore[attr-defined]
            names += [activation] if activation != "identity" and activation not in names else []
        elif spec.kind not in names:
            names.append(spec.kind)
    return " ".join(("-".join(map(str, sizes)), *names))
