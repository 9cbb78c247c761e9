"""How a plan is launched by the engine one_launch: by which kernel, in what memory; or what is in the way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from warpfit import backends
from warpfit.backends.base import HALF_DTYPES
from warpfit.engines.base import Plan, TrainingData
from warpfit.engines.launch_settings import check_loss, check_optimizer
from warpfit.engines.pace import LAUNCH_SECONDS
from warpfit.engines.scaling import DYNAMIC
from warpfit.engines.streaming import BUFFERS, Cut, cut_of
from warpfit.errors import ConfigError
from warpfit.losses import Loss, SoftmaxCrossEntropy
from warpfit.nn.dropout import DropoutSpec
from warpfit.nn.linear import LinearSpec
from warpfit.nn.network import NetworkSpec
from warpfit.optim.base import OptimizerSpec

__all__ = [
    "LaunchDescription",
    "Layer",
    "cut_of_plan",
    "describe",
    "epoch_bytes",
    "epochs_held",
    "gathered_bytes",
    "is_to_stream",
    "launch_of",
    "launch_with_more",
    "layers_of",
    "memory_left",
    "record_bytes",
    "shared_bytes_of_plan",
    "trained_network",
]

# What an epoch takes longer, on an H200, if it ends its launch and what comes after it is found apart; and the share of
# a step that a batch of validation data takes within a launch.
MICROSECONDS_BETWEEN_LAUNCHES, SHARE_OF_STEP = 1000.0, 0.4
# What share of the time that a cluster needs a whole card has to need to be taken for a network.
WORTH_A_CARD = 0.9
# The share of the memory that is left which data and batches may take: validation data and other things want some, too.
SHARE_OF_MEMORY = 0.9
# What the epochs of a launch may take together, but for one, which always may.
LAUNCH_BYTES = 1 << 29


def _require(condition: bool, expected: str, got: Any) -> None:
    if not condition:
        raise ConfigError(f"expected {expected}, got {got}")


class Layer(NamedTuple):
    """A linear layer with its activation, and the dropout that follows it."""

    name: str
    linear: LinearSpec
    dropout: DropoutSpec


def layers_of(plan: Plan) -> list[Layer]:
    """Return the plan's layers, or raise ConfigError."""
    network = plan.network
    _require(isinstance(network, NetworkSpec), "a Sequential of known layers", "another module")
    found: list[Layer] = []
    for name, spec in network.fused.layers:  # type: ignore[union-attr]
        if isinstance(spec, DropoutSpec):
            if spec.p:
                _require(bool(found) and not found[-1].dropout.p, "dropout once after a linear layer", name)
                found[-1] = found[-1]._replace(dropout=spec)
            continue
        if not isinstance(spec, LinearSpec):
            raise ConfigError(f"expected linear layers, activations and dropout, got {spec.kind}")
        _require(spec.bias, "layers with a bias", f"{name} without")
        found.append(Layer(name, spec, DropoutSpec(0.0)))
    _require(len(found) > 0, "a linear layer", "none")
    _require(len({layer.name for layer in found}) == len(found), "different layers", "one layer twice")
    last = found[-1]
    _require(
        last.linear.activation.name == "identity", "no activation at the end", last.linear.activation.name
    )
    _require(not last.dropout.p, "no dropout at the end", last.dropout)
    return found


def _rule_of(optimizer: OptimizerSpec) -> dict[str, Any]:
    """Return what a kernel must know of an optimizer, as `TrainedNetwork` has it, or raise ConfigError."""
    check_optimizer(optimizer)
    _require(not (optimizer.l2 and optimizer.clip_norm), "clip_norm or l2, not both", optimizer.clip_norm)
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
    """Return whether a loss smooths its labels, or raise ConfigError if no kernel knows it."""
    check_loss(loss)
    return isinstance(loss, SoftmaxCrossEntropy) and loss.label_smoothing > 0


def trained_network(plan: Plan, data: TrainingData) -> Any:
    """Return the kernel's settings for a plan, a `TrainedNetwork`; of an open precision, for float16.

    Raises
    ------
    ConfigError
        If the engine does not run such a network, loss, optimizer, precision or data.
    """
    _require(plan.device != "cpu", "a CUDA device", plan.device)
    precision = "float16" if plan.precision == "auto" else plan.precision
    known = precision in (*HALF_DTYPES, "float32")
    _require(known, "precision 'float16', 'bfloat16' or 'float32'", repr(precision))
    _require(plan.loss_scale != DYNAMIC, "a fixed loss_scale", plan.loss_scale)
    optimizer = plan.optimizer
    layers, rule, smoothed = layers_of(plan), _rule_of(optimizer), _is_smoothed(plan.loss)
    names = {f"{name}.{part}" for name, *_ in layers for part in ("weight", "bias")}
    _require(
        set(plan.trained) == names,
        "every parameter to be trained",
        f"{len(plan.trained)} of {len(names)} (engine='graph' trains some, and leaves others as they are)",
    )
    specs = [layer.linear for layer in layers]
    widths = (specs[0].in_features, *(spec.out_features for spec in specs))
    _require(min(widths) > 0, "layers of size 1 or more", "0")
    from warpfit.backends.cuda.trained_network import TrainedNetwork

    return TrainedNetwork(
        dtype="float16" if precision == "float32" else precision,
        terms=2 if precision == "float32" else 1,
        widths=widths,
        activations=tuple(spec.activation for spec in specs[:-1]),
        drops=tuple(layer.dropout.p > 0 for layer in layers[:-1]),
        batch=plan.batch_size,
        loss=plan.loss.name,
        smoothed=smoothed,
        weighted=data.sample_weight is not None,
        weighed_penalty=data.sample_weight is not None and optimizer.l2 > 0 and optimizer.l2_by_weight,
        class_weights=plan.loss.class_weights() is not None,
        is_cut=data.is_streamed,
        **rule,
    )


def launch_of(plan: Plan, data: TrainingData, card: Any = None, *, by_layers: bool = False) -> Any:
    """Return the `OneLaunch`, `LayersLaunch` or `CardLaunch` of a plan, or raise ConfigError with what is in the way.

    `card` is a `Card` in place of that of the plan's device, which then need not be there. `by_layers` asks for a
    `LayersLaunch`.
    """
    network = trained_network(plan, data)
    from warpfit.backends.cuda.cards import card_of
    from warpfit.backends.cuda.jit import generation

    card = card or card_of(_runtime(plan))
    _require(generation(card.arch) >= 75, "tensor cores, of sm_75 or later", card.arch)
    launch, most = _chosen(network, card, by_layers), card.memory_bytes
    if data.is_streamed:
        cut_of_plan(launch, plan, data, most)
        return launch
    needed = int(data.x.nbytes) + int(data.y.nbytes) + epoch_bytes(launch, len(data)) + launch.exchange_bytes
    _require(needed <= most, f"at most {most} bytes of data and batches of an epoch", needed)
    return launch


def launch_with_more(plan: Plan, data: TrainingData, num_validated: int) -> Any:
    """Return the `LayersLaunch` of a plan that validates or decides to stop within it, or None.

    The other kernels do not. What they run is only run layer by layer if that takes less time with all that comes
    between epochs.
    """
    if data.is_streamed:
        return None
    launch = launch_of(plan, data)
    if launch.kernel == "one_launch_layers":
        return launch
    try:
        by_layers = launch_of(plan, data, by_layers=True)
    except ConfigError:
        return None
    steps = plan.report_every * launch.network.batches(len(data))
    passes = steps + SHARE_OF_STEP * launch.network.batches(num_validated)
    apart = steps * launch.microseconds + MICROSECONDS_BETWEEN_LAUNCHES
    return by_layers if passes * by_layers.microseconds < apart else None


def _chosen(network: Any, card: Any, by_layers: bool) -> Any:
    """Return how to run a network: by the kernel for one hidden layer, if it can, or layer by layer.

    Or by all clusters of a card, if that is expected to take less time. `by_layers` leaves no choice.
    """
    from warpfit.backends.cuda.one_launch import choose, suits
    from warpfit.backends.cuda.one_launch_card import CardLaunch, choose_card
    from warpfit.backends.cuda.one_launch_layers import choose_layers

    limits = card.arch, card.max_shared_bytes, card.num_multiprocessors
    if by_layers:
        return choose_layers(network, *limits)
    launches: list[Any] = []
    obstacles: list[ConfigError] = []
    for kind in (*((choose,) if suits(network) else ()), choose_layers, choose_card):
        if kind is choose_layers and launches:
            continue
        try:
            launches.append(kind(network, *limits))
        except ConfigError as error:
            obstacles.append(error)
    if not launches:
        raise obstacles[0]
    return min(
        launches,
        key=lambda launch: launch.microseconds / (WORTH_A_CARD if isinstance(launch, CardLaunch) else 1),
    )


def _runtime(plan: Plan) -> Any:
    return cast(Any, backends.get(plan.device)).runtime


def memory_left(plan: Plan) -> int:
    """Return what data and batches may take of the memory that the plan's device has left."""
    return int(SHARE_OF_MEMORY * _runtime(plan).memory_left())


def shared_bytes_of_plan(plan: Plan) -> int:
    """Return the shared memory of a block on a plan's device."""
    return int(_runtime(plan).max_shared_bytes)


def is_to_stream(plan: Plan, data: TrainingData, card: Any = None) -> bool:
    """Return whether a device has room for data on the host piece by piece, but not for all of it.

    `card` is a `Card` in place of that of the plan's device as it is now.
    """
    if card is None:
        from warpfit.backends.cuda.cards import card_of

        card = replace(card_of(_runtime(plan)), memory_bytes=memory_left(plan))

    def takes(data: TrainingData) -> bool:
        try:
            launch_of(plan, data, card)
        except ConfigError:
            return False
        return True

    return not takes(data) and takes(replace(data, is_streamed=True))


def cut_of_plan(launch: Any, plan: Plan, data: TrainingData, most_bytes: int | None = None) -> Cut:
    """Return how the epochs of streamed data are cut into launches; `most_bytes` in place of the memory left."""
    most_bytes = memory_left(plan) if most_bytes is None else most_bytes
    return cut_of(
        data,
        plan.batch_size,
        launch.step_bytes,
        most_bytes - record_bytes(launch, len(data)) - launch.exchange_bytes,
        max(1, int(1e6 * LAUNCH_SECONDS / launch.microseconds)),
    )


def record_bytes(launch: Any, num_rows: int) -> int:
    """Return the bytes of the record of an epoch, or of its validation."""
    return 24 * int(launch.recorders * launch.network.batches(num_rows))


def epoch_bytes(launch: Any, num_rows: int, num_validated: int = 0) -> int:
    """Return the bytes that a launch takes for each of its epochs."""
    return int(launch.step_bytes * launch.network.batches(num_rows)) + record_bytes(launch, num_validated)


def gathered_bytes(launch: Any, num_rows: int) -> int:
    """Return the bytes of rows in batches, with their targets."""
    batches = launch.network.batches(num_rows)
    return int(batches * (launch.batch_bytes + 4 * launch.network.batch * launch.network.target_words))


def epochs_held(launch: Any, num_rows: int, num_validated: int = 0) -> int:
    """Return how many epochs a launch may hold."""
    return max(1, LAUNCH_BYTES // epoch_bytes(launch, num_rows, num_validated))


@dataclass(frozen=True)
class LaunchDescription:
    """How a plan would be launched.

    Attributes
    ----------
    layout : str
        In words.
    registers : tuple of (str, int)
        A thread's, and what of them a weight warp needs for weights.
    shared, device : tuple of (str, int)
        Bytes of the parts of a block's shared memory, and of what an epoch takes of the device's memory.
    source : str
        Of the kernel, with all that it includes.
    """

    layout: str
    registers: tuple[tuple[str, int], ...]
    shared: tuple[tuple[str, int], ...]
    device: tuple[tuple[str, int], ...]
    source: str


def describe(plan: Plan, data: TrainingData, card: Any) -> LaunchDescription:
    """Return how a plan would be launched on a card, which need not be there.

    Raises
    ------
    ConfigError
        If it cannot be; the message says what is in the way.
    """
    data = replace(data, is_streamed=is_to_stream(plan, data, card))
    launch = launch_of(plan, data, card)
    from warpfit.backends.cuda.jit import flattened

    most, held = launch.registers_of_thread
    defines = tuple((name, str(value)) for name, value in launch.defines.items())
    shared = tuple((name, size) for name, size in launch.shared_parts.items() if size)
    layout, exchanged = str(launch), ("exchanged, or far from the weights", int(launch.exchange_bytes))
    device: tuple[tuple[str, int], ...] = (
        ("x and targets", int(data.x.nbytes) + int(data.y.nbytes)),
        ("batches of an epoch, targets, settings and record", epoch_bytes(launch, len(data))),
        exchanged,
    )
    if data.is_streamed:
        cut = cut_of_plan(launch, plan, data, card.memory_bytes)
        layout, fetched = f"{layout}; {cut}", cut.bytes_of(data, 0)
        device = (
            (f"{BUFFERS} pieces of x and targets", fetched),
            ("batches of a piece, targets and settings", cut.bytes_of(data, launch.step_bytes) - fetched),
            ("record of an epoch", record_bytes(launch, len(data))),
            exchanged,
        )
    return LaunchDescription(
        layout,
        (("of a thread", most), ("for weights", held)),
        shared,
        device,
        flattened(launch.kernel, defines),
    )
