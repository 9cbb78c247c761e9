"""What a kernel of the engine one_launch trains of a plan, or what in it no kernel knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from warpfit.backends.base import HALF_DTYPES
from warpfit.engines.base import Plan, TrainingData
from warpfit.engines.launch_settings import unknown_loss, unknown_optimizer
from warpfit.engines.scaling import AUTO, DYNAMIC
from warpfit.errors import Obstacle
from warpfit.losses import Loss, SoftmaxCrossEntropy
from warpfit.nn.dropout import DropoutSpec
from warpfit.nn.linear import LinearSpec
from warpfit.nn.network import NetworkSpec
from warpfit.optim.base import OptimizerSpec

if TYPE_CHECKING:
    from warpfit.backends.cuda.trained_network import TrainedNetwork


class Layer(NamedTuple):
    """A linear layer with its activation, and the dropout that follows it."""

    name: str
    linear: LinearSpec
    dropout: DropoutSpec


def layers_of(plan: Plan) -> list[Layer]:
    """Return the layers of a plan that `trained_network` takes."""
    found: list[Layer] = []
    for name, spec in cast(NetworkSpec, plan.network).fused.layers:
        if isinstance(spec, LinearSpec):
            found.append(Layer(name, spec, DropoutSpec(0.0)))
        elif isinstance(spec, DropoutSpec) and spec.p:
            found[-1] = found[-1]._replace(dropout=spec)
    return found


def parameter_names(plan: Plan) -> list[str]:
    """Return the names of a plan's parameters, layer by layer weight and bias."""
    return [f"{layer.name}.{part}" for layer in layers_of(plan) for part in ("weight", "bias")]


def trained_network(plan: Plan, data: TrainingData) -> TrainedNetwork | Obstacle:
    """Return what kernels are told of a plan, as float16 if open, or what none of them knows."""
    for expected, got in _in_the_way(plan):
        return Obstacle(f"expected {expected}, got {got}")
    from warpfit.backends.cuda.trained_network import TrainedNetwork

    precision, optimizer, layers = _precision(plan), plan.optimizer, layers_of(plan)
    specs = [layer.linear for layer in layers]
    is_weighted = data.sample_weight is not None
    return TrainedNetwork(
        dtype="float16" if precision == "float32" else precision,
        terms=2 if precision == "float32" else 1,
        widths=(specs[0].in_features, *(spec.out_features for spec in specs)),
        activations=tuple(spec.activation for spec in specs[:-1]),
        drops=tuple(layer.dropout.p > 0 for layer in layers[:-1]),
        batch=plan.batch_size,
        cards=plan.num_ranks,
        loss=plan.loss.name,
        smoothed=_is_smoothed(plan.loss),
        weighted=is_weighted,
        weighed_penalty=is_weighted and optimizer.l2 > 0 and optimizer.l2_by_weight,
        class_weights=plan.loss.class_weights() is not None,
        **_rule_of(optimizer),
    )


def _precision(plan: Plan) -> str:
    return "float16" if plan.precision == AUTO else plan.precision


def _in_the_way(plan: Plan) -> Iterator[tuple[str, object]]:
    """Yield what a kernel expects that a plan has otherwise, and what it has; the first counts."""
    if plan.device == "cpu":
        yield "a CUDA device", plan.device
    if plan.has_processes:
        yield "devices of one process", "processes"
    if (precision := _precision(plan)) not in (*HALF_DTYPES, "float32"):
        yield "precision 'float16', 'bfloat16' or 'float32'", repr(precision)
    if plan.loss_scale == DYNAMIC:
        yield "a fixed loss_scale", plan.loss_scale
    yield from _in_the_way_of_layers(plan)
    optimizer = plan.optimizer
    if (unknown := unknown_optimizer(optimizer)) is not None:
        yield unknown
    if optimizer.l2 and optimizer.clip_norm:
        yield "clip_norm or l2, not both", optimizer.clip_norm
    if (unknown := unknown_loss(plan.loss)) is not None:
        yield unknown
    names = {f"{name}.{part}" for name, *_ in layers_of(plan) for part in ("weight", "bias")}
    if set(plan.trained) != names:
        count = f"{len(plan.trained)} of {len(names)}"
        yield (
            "every parameter to be trained",
            f"{count} (engine='graph' trains some, and leaves others as they are)",
        )
    if any(0 in (layer.linear.in_features, layer.linear.out_features) for layer in layers_of(plan)):
        yield "layers of size 1 or more", 0


def _in_the_way_of_layers(plan: Plan) -> Iterator[tuple[str, object]]:
    if not isinstance(plan.network, NetworkSpec):
        yield "a Sequential of known layers", "another module"
        return
    names: list[str] = []
    may_drop = False
    for name, spec in plan.network.fused.layers:
        if isinstance(spec, DropoutSpec):
            if spec.p and not may_drop:
                yield "dropout once after a linear layer", name
            may_drop = may_drop and not spec.p
            continue
        if not isinstance(spec, LinearSpec):
            yield "linear layers, activations and dropout", spec.kind
            return
        if not spec.bias:
            yield "layers with a bias", f"{name} without"
        may_drop = True
        names.append(name)
    if not names:
        yield "a linear layer", "none"
        return
    if len(set(names)) < len(names):
        yield "different layers", "one layer twice"
    last = layers_of(plan)[-1]
    if last.linear.activation.name != "identity":
        yield "no activation at the end", last.linear.activation.name
    if last.dropout.p:
        yield "no dropout at the end", last.dropout


def _rule_of(optimizer: OptimizerSpec) -> dict[str, Any]:
    """Return what a kernel must know of an optimizer, as `TrainedNetwork` has it."""
    numbers = optimizer.update_numbers(1, 0.0)
    return {
        "optimizer": optimizer.rule,
        "slots": len(optimizer.slot_names),
        "momentum": numbers.momentum > 0,
        "nesterov": numbers.nesterov,
        "clips": optimizer.clip_norm is not None,
        "decays": numbers.decay > 0 or optimizer.l2 > 0,
        "penalized": optimizer.l2 > 0,
        "rate_in_velocity": numbers.rate_in_velocity,
    }


def _is_smoothed(loss: Loss) -> bool:
    return isinstance(loss, SoftmaxCrossEntropy) and loss.label_smoothing > 0
