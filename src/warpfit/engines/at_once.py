"""What a backend may do at once: updates joined with products, or a step but for its update."""

from __future__ import annotations

from math import prod

from warpfit import backends
from warpfit.backends.base import HALF_DTYPES, IDENTITY, LossTerms
from warpfit.engines.base import Plan, TrainingData
from warpfit.engines.scaling import DYNAMIC
from warpfit.losses.base import FunctionLoss
from warpfit.losses.softmax_cross_entropy import SoftmaxCrossEntropy
from warpfit.nn.linear import LinearSpec
from warpfit.nn.network import NetworkSpec


def is_of_package(value: object) -> bool:
    """Whether an object's class is the package's own, so that what it does in a step is known; a
    function of the user's as a loss is not.
    """
    is_own = type(value).__module__.partition(".")[0] == "warpfit"
    return is_own and not isinstance(value, FunctionLoss)


def joins_updates(plan: Plan) -> bool:
    """Whether only the optimizer's update needs gradients of parameters, each one layer's."""
    network, optimizer = plan.network, plan.optimizer
    if not isinstance(network, NetworkSpec) or plan.precision not in HALF_DTYPES:
        return False
    if plan.loss_scale == DYNAMIC or optimizer.clip_norm is not None or optimizer.l2:
        return False
    if plan.num_ranks > 1:  # over which gradients are added up
        return False
    layers = network.fused.layers
    if not optimizer.follows_its_rule or not all(is_of_package(spec) for _, spec in layers):
        return False  # which may look at gradients
    names = [name for name, spec in layers if spec.parameters()]
    return len(set(names)) == len(names)


def updates_each_alone(plan: Plan) -> bool:
    """Whether a parameter's update needs no other one's gradient, so that they come one by one."""
    optimizer = plan.optimizer
    return optimizer.follows_its_rule and optimizer.clip_norm is None and not optimizer.groups


def finds_targets(plan: Plan, data: TrainingData) -> bool:
    """Whether a step's loss is one operation, which may find targets by the epoch's order."""
    if not plan.loss.has_terms or plan.optimizer.l2 or not isinstance(plan.network, NetworkSpec):
        return False
    if plan.num_ranks > 1 and (data.sample_weight is not None or leaves_out_ranks(plan, data)):
        return False  # ranks agree on the sum of weights between the loss and its gradient
    # With class weights every block reads all labels.
    return data.class_weight is None and prod(plan.network.fused.output_shape) > 0


def joins_last_layer(plan: Plan, data: TrainingData) -> bool:
    """Whether a device may compute the last layer of a step, its loss and the gradient of what
    comes before as one operation: logits of half precision that only cross-entropy reads, without
    weights.
    """
    network = plan.network.fused
    if not isinstance(network, NetworkSpec) or plan.precision not in HALF_DTYPES:
        return False
    if plan.device == "cpu" or plan.num_ranks > 1 or plan.optimizer.l2:
        return False
    if type(plan.loss) is not SoftmaxCrossEntropy or plan.loss_scale == DYNAMIC:
        return False
    if not (data.class_weight is None and data.sample_weight is None):
        return False
    last = network.layers[-1][1] if network.layers else None
    return type(last) is LinearSpec and last.activation == IDENTITY and last.out_features > 0


def leaves_out_ranks(plan: Plan, data: TrainingData) -> bool:
    """Whether an epoch's last batch has no rows for some ranks."""
    return 0 < len(data) % plan.batch_size < plan.num_ranks


def narrow_loss(plan: Plan, data: TrainingData) -> LossTerms | None:
    """Return the loss of a plan whose steps `Backend.narrow_step` may take; None for others."""
    if (
        not joins_updates(plan)
        or not isinstance(plan.network, NetworkSpec)
        or not plan.loss.has_terms
    ):
        return None
    network = plan.network.fused
    if not network.layers or not all(type(spec) is LinearSpec for _, spec in network.layers):
        return None
    if not (data.class_weight is None and data.sample_weight is None):
        return None
    (outputs,) = network.output_shape
    return plan.loss.terms(outputs) if outputs else None


def narrow_step(plan: Plan, data: TrainingData, num_rows: int) -> object | None:
    """Return how a device takes so many rows by that operation, printable; None if it does not."""
    loss = None if plan.device == "cpu" else narrow_loss(plan, data)
    if loss is None:
        return None
    from warpfit.backends.cuda.narrow_step import NarrowNetwork, choose_on

    layers = [spec for _, spec in plan.network.fused.layers if isinstance(spec, LinearSpec)]  # type: ignore[union-attr]
    widths = (layers[0].in_features, *(spec.out_features for spec in layers))
    network = NarrowNetwork.of(
        plan.precision, widths, tuple(spec.activation for spec in layers), loss
    )
    runtime = backends.get(plan.device).runtime  # type: ignore[attr-defined]
    return choose_on(runtime, network, num_rows, str(data.x.dtype))
