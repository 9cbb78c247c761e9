"""What a kernel of the engine one_launch trains of a plan, or what in it no kernel knows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from warpfit.backends.base import HALF_DTYPES
from warpfit.engines.base import Plan, TrainingData
from warpfit.engines.launch_settings import unknown_loss, unknown_optimizer
from warpfit.engines.scaling import AUTO, DYNAMIC
from warpfit.errors import Obstacle
from warpfit.losses import Loss, SoftmaxCrossEntropy
from warpfit.nn.activations import ActivationSpec
from warpfit.nn.conv import Conv2dSpec
from warpfit.nn.dropout import DropoutSpec
from warpfit.nn.flatten import FlattenSpec
from warpfit.nn.linear import LinearSpec
from warpfit.nn.network import NetworkSpec
from warpfit.nn.pooling import MaxPool2dSpec
from warpfit.nn.spec import LayerSpec, Shape
from warpfit.optim.base import OptimizerSpec

if TYPE_CHECKING:
    from warpfit.backends.cuda.trained_network import TrainedNetwork

UNPOOLED = MaxPool2dSpec((1, 1), (1, 1))


class Layer(NamedTuple):
    """A linear layer with its activation, and the dropout that follows it."""

    name: str
    linear: LinearSpec
    dropout: DropoutSpec


def layers_of(plan: Plan) -> list[Layer]:
    """Return the linear layers of a plan that `trained_network` takes."""
    found: list[Layer] = []
    for name, spec in cast(NetworkSpec, plan.network).fused.layers:
        if isinstance(spec, LinearSpec):
            found.append(Layer(name, spec, DropoutSpec(0.0)))
        elif isinstance(spec, DropoutSpec) and spec.p:
            found[-1] = found[-1]._replace(dropout=spec)
    return found


class Convolved(NamedTuple):
    """A convolution with its activation, and the max pooling that follows it."""

    name: str
    spec: Conv2dSpec
    pool: MaxPool2dSpec


def convolutions_of(plan: Plan) -> list[Convolved]:
    """Return the convolutions of a plan that `trained_network` takes."""
    found: list[Convolved] = []
    for name, spec in cast(NetworkSpec, plan.network).fused.layers:
        if type(spec) is Conv2dSpec:
            found.append(Convolved(name, spec, UNPOOLED))
        elif isinstance(spec, MaxPool2dSpec):
            found[-1] = found[-1]._replace(pool=spec)
    return found


def has_convolutions(network: NetworkSpec) -> bool:
    """Return whether a network has convolutions of images; those of sequences are other layers."""
    return any(type(spec) is Conv2dSpec for _, spec in network.layers)


def parameter_names(plan: Plan) -> list[str]:
    """Return the names of a plan's parameters, layer by layer weight and bias."""
    layers = chain(convolutions_of(plan), layers_of(plan))
    return [f"{name}.{part}" for name, *_ in layers for part in ("weight", "bias")]


def trained_network(plan: Plan, data: TrainingData) -> TrainedNetwork | Obstacle:
    """Return what kernels are told of a plan, as float16 if open, or what none of them knows."""
    for expected, got in _in_the_way(plan):
        return Obstacle(f"expected {expected}, got {got}")
    from warpfit.backends.cuda.image_shapes import Convolution
    from warpfit.backends.cuda.trained_network import TrainedNetwork

    convolutions = tuple(
        Convolution(
            spec.kernel_size, spec.padding, spec.out_channels, spec.activation, pool.kernel_size[0]
        )
        for _, spec, pool in convolutions_of(plan)
    )
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
        convolutions=convolutions,
        image=plan.network.input_shape if convolutions else (),
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
    names = parameter_names(plan)
    if set(plan.trained) != set(names):
        count = f"{len(plan.trained)} of {len(names)}"
        yield (
            "every parameter to be trained",
            f"{count} (engine='graph' trains some, and leaves others as they are)",
        )
    if any(0 in shape for shape in cast(NetworkSpec, plan.network).shapes):
        yield "layers of size 1 or more", 0


def _in_the_way_of_layers(plan: Plan) -> Iterator[tuple[str, object]]:
    if not isinstance(plan.network, NetworkSpec):
        yield "a Sequential of known layers", "another module"
        return
    network = plan.network.fused
    if has_convolutions(network):
        yield from _in_the_way_of_images(network)
    else:
        yield from _in_the_way_of_rows(network)
    names = [name for name, *_ in chain(convolutions_of(plan), layers_of(plan))]
    if len(set(names)) < len(names):
        yield "different layers", "one layer twice"
    last = layers_of(plan)[-1]
    if last.linear.activation.name != "identity":
        yield "no activation at the end", last.linear.activation.name
    if last.dropout.p:
        yield "no dropout at the end", last.dropout


def _in_the_way_of_rows(network: NetworkSpec) -> Iterator[tuple[str, object]]:
    """Yield what is in the way of a network without convolutions."""
    may_drop = False
    for name, spec in network.layers:
        if isinstance(spec, DropoutSpec):
            if spec.p and not may_drop:
                yield "dropout once after a linear layer", name
            may_drop = may_drop and not spec.p
        elif not isinstance(spec, LinearSpec):
            yield "linear layers, activations and dropout", spec.kind
        elif not spec.bias:
            yield "layers with a bias", f"layer {name} without one"
        else:
            may_drop = True
    if not any(isinstance(spec, LinearSpec) for _, spec in network.layers):
        yield "a linear layer", "none"


def _in_the_way_of_images(network: NetworkSpec) -> Iterator[tuple[str, object]]:
    """Yield what is in the way of a network with convolutions."""
    before: LayerSpec | None = None  # dropout of 0 aside
    is_flat = False
    for (name, spec), shape in zip(network.layers, network.shapes, strict=False):
        if isinstance(spec, DropoutSpec):
            if spec.p:
                yield "no dropout beside convolutions", f"layer {name} with p={spec.p}"
            continue
        if type(spec) is Conv2dSpec:
            yield from _in_the_way_of_convolution(name, spec)
        elif isinstance(spec, MaxPool2dSpec):
            yield from _in_the_way_of_pooling(name, spec, before, shape)
        elif isinstance(spec, LinearSpec):
            if not spec.bias:
                yield "layers with a bias", f"layer {name} without one"
        elif isinstance(spec, ActivationSpec):  # that `fused` has not joined to a layer
            expected = "one activation at most, right after a convolution or a linear layer"
            yield expected, f"layer {name}, {spec.activation.name}"
        elif not isinstance(spec, FlattenSpec) or is_flat or before is None:
            expected = "convolutions, max pooling, then Flatten and linear layers"
            yield expected, f"layer {name}, {spec.kind}"
        is_flat = is_flat or isinstance(spec, FlattenSpec)
        before = spec
    if not isinstance(before, LinearSpec):
        yield "a linear layer at the end", _kind_of(before)


def _in_the_way_of_convolution(name: str, spec: Conv2dSpec) -> Iterator[tuple[str, object]]:
    for setting, value in (("stride", spec.stride), ("dilation", spec.dilation)):
        if value != (1, 1):
            yield f"convolutions of {setting} 1", f"{value} of layer {name}"
    if spec.groups != 1:
        yield "convolutions of one group", f"{spec.groups} groups of layer {name}"
    if not spec.bias:
        yield "layers with a bias", f"layer {name} without one"


def _in_the_way_of_pooling(
    name: str, spec: MaxPool2dSpec, before: LayerSpec | None, shape: Shape
) -> Iterator[tuple[str, object]]:
    """Yield what is in the way of pooling of images of a shape, after another layer."""
    if not isinstance(before, Conv2dSpec):
        yield "max pooling after a convolution", f"layer {name} after {_kind_of(before)}"
    windows = f"{spec.kernel_size} by {spec.stride} of {shape[:2]} in layer {name}"
    size = spec.kernel_size[0]
    is_partition = spec.kernel_size == spec.stride == (size, size) and spec.padding == (0, 0)
    if not is_partition or shape[0] % size or shape[1] % size:
        yield "square windows of max pooling that partition images", windows


def _kind_of(spec: LayerSpec | None) -> str:
    return "none" if spec is None else spec.kind


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
