"""How one_launch runs a plan: by which kernel, in what memory; or what is in the way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from warpfit import backends
from warpfit.engines.base import Plan, Prepared, Stopping, TrainingData, has_room
from warpfit.engines.half_precision import LARGEST, suitable
from warpfit.engines.launch_network import trained_network
from warpfit.engines.launch_scales import ROOM, too_far_apart
from warpfit.engines.pace import LAUNCH_SECONDS
from warpfit.engines.scaling import AUTO
from warpfit.engines.streaming import BUFFERS, Cut, cut_of
from warpfit.errors import Obstacle

if TYPE_CHECKING:
    from warpfit.backends.cuda.cards import Card
    from warpfit.backends.cuda.resident_launch import ResidentLaunch
    from warpfit.backends.cuda.trained_network import TrainedNetwork

# What an epoch takes longer, on an H200, if it ends its launch and what comes after it is found
# apart; and the share of a step that a batch of validation data takes within a launch.
MICROSECONDS_BETWEEN_LAUNCHES, SHARE_OF_STEP = 1000.0, 0.4
# What share of the time that a cluster needs a whole card has to need to be taken for a network.
WORTH_A_CARD = 0.9
# The share of the memory that is left which data and batches may take: validation data and other
# things want some, too.
SHARE_OF_MEMORY = 0.9
# What the epochs of a launch may take together, but for one, which always may.
LAUNCH_BYTES = 1 << 29


@dataclass(frozen=True, kw_only=True)
class PreparedLaunch(Prepared):
    """How the engine one_launch runs a plan."""

    launch: ResidentLaunch  # the kernel, and how blocks and warps share the network
    cut: Cut | None = None  # how the epochs of data that stays on the host are cut into launches

    @property
    def is_streamed(self) -> bool:
        return self.cut is not None


class _Site(NamedTuple):
    """A card, the bytes that data and batches may take of its memory, and whether it is there."""

    card: Card
    bytes_left: int
    is_there: bool

    def chosen(
        self, network: TrainedNetwork, *, by_layers: bool = False
    ) -> ResidentLaunch | Obstacle:
        return _chosen(network, self.card, by_layers)


def prepare_launch(
    draft: Plan,
    data: TrainingData,
    validation: TrainingData | None = None,
    stopping: Stopping | None = None,
    card: Card | None = None,
) -> PreparedLaunch | Obstacle:
    """Return how a draft is launched, or what is in the way, as `Engine.prepare` does.

    `card` is one in place of that of the draft's device, which then need not be there, and to which
    no data comes.
    """
    network = trained_network(draft, data)
    if isinstance(network, Obstacle):
        return network
    site = _site(draft, card)
    if site.is_there and not _suit_each_other(draft):
        return Obstacle(
            "expected GPUs of one kind that write to each other's memory, got "
            f"{', '.join(draft.devices)}"
        )
    found = _laid_out(network, draft, data, site)
    if isinstance(found, Obstacle):
        return found
    launch, cut = found
    rows = data if cut is not None or not site.is_there else data.on(draft.device)
    precision, why = draft.precision, ""
    if precision == AUTO:
        precision, why = suitable(draft.loss, rows)
        if precision != network.dtype:
            other = site.chosen(replace(launch.network, dtype=precision))
            if isinstance(other, Obstacle):
                return other
            launch = other
    elif precision == "float32" and (obstacle := too_far_apart(rows)) is not None:
        return obstacle
    prepared = PreparedLaunch(precision=precision, launch=launch, cut=cut)
    prepared = replace(prepared, copied_bytes=_copied_bytes(prepared, draft, data))
    if cut is None and site.is_there:
        prepared = _with_more(prepared, draft, rows, validation, stopping)
    return replace(
        prepared, microseconds=prepared.launch.microseconds, reason=_words(prepared, why)
    )


def launches_on(
    card: Card, prepared: PreparedLaunch, draft: Plan, data: TrainingData, num_validated: int
) -> list[ResidentLaunch]:
    """Return what runs a draft on a card that need not be there: what was prepared for it, and what
    validates within its launch as well, if anything does.
    """
    site = _Site(card, card.memory_bytes, False)
    more = _that_does_more(prepared.launch, draft, site, data, num_validated)
    validates = None if more is None else more.that_validates()
    return [prepared.launch, *([] if validates is None else [validates])]


def _words(prepared: PreparedLaunch, why: str) -> str:
    launch, cut = prepared.launch, prepared.cut
    how = f"{launch}; about {launch.microseconds:.1f} µs a step on an H200"
    return "; ".join(filter(None, (why, how, "" if cut is None else str(cut))))


def _site(draft: Plan, card: Card | None) -> _Site:
    from warpfit.backends.cuda.cards import card_of

    if card is not None:
        return _Site(card, card.memory_bytes, False)
    runtime = _runtime(draft)
    return _Site(card_of(runtime), memory_left(draft), True)


def _suit_each_other(draft: Plan) -> bool:
    """Return whether the GPUs have room for the same launch, and reach each other's memory."""
    runtimes = [cast(Any, backends.get(device)).runtime for device in draft.devices]
    kinds = {(each.arch, each.num_multiprocessors, each.max_shared_bytes) for each in runtimes}
    return len(runtimes) < 2 or (
        len(kinds) == 1 and all(runtime.reaches(runtimes) for runtime in runtimes)
    )


def _runtime(plan: Plan) -> Any:
    return cast(Any, backends.get(plan.device)).runtime


def memory_left(plan: Plan) -> int:
    """Return what data and batches may take of the memory that the plan's device has left."""
    devices = plan.devices or (plan.device,)
    left = [cast(Any, backends.get(device)).runtime.memory_left() for device in devices]
    return int(SHARE_OF_MEMORY * min(left))


def _laid_out(
    network: TrainedNetwork, draft: Plan, data: TrainingData, site: _Site
) -> tuple[ResidentLaunch, Cut | None] | Obstacle:
    """Return a network's launch, and how data on the host is cut that has no room on the device."""
    from warpfit.backends.cuda.jit import generation

    card = site.card
    if generation(card.arch) < 75:
        return Obstacle(f"expected tensor cores, of sm_75 or later, got {card.arch}")
    launch = site.chosen(network)
    if isinstance(launch, Obstacle):
        return launch
    needed = _needed_bytes(launch, data)
    if network.cards > 1 and needed > site.bytes_left:
        return Obstacle(
            "expected data and batches of an epoch in what each GPU has left, "
            f"{site.bytes_left} bytes, got {needed}"
        )
    if network.cards == 1 and _is_to_stream(data, needed, site):
        in_pieces = site.chosen(replace(network, is_cut=True))
        if not isinstance(in_pieces, Obstacle):
            cut = cut_for(in_pieces, draft, data, site.bytes_left)
            if not isinstance(cut, Obstacle):
                return in_pieces, cut
    if site.is_there:
        data.on(draft.device)  # says what has no room, if it has none
    if needed > card.memory_bytes:
        most = card.memory_bytes
        return Obstacle(
            f"expected at most {most} bytes of data and batches of an epoch, got {needed}"
        )
    return launch, None


def _is_to_stream(data: TrainingData, needed: int, site: _Site) -> bool:
    return needed > site.bytes_left and not backends.is_device_array(data.x)


def _needed_bytes(launch: ResidentLaunch, data: TrainingData) -> int:
    return (
        int(data.x.nbytes)
        + int(data.y.nbytes)
        + launch.epoch_bytes(len(data))
        + launch.exchange_bytes
    )


def cut_for(
    launch: ResidentLaunch, plan: Plan, data: TrainingData, most_bytes: int
) -> Cut | Obstacle:
    """Return how epochs of data on the host are cut into launches of so many bytes at most."""
    return cut_of(
        data,
        plan.batch_size,
        launch.step_bytes,
        most_bytes - launch.record_bytes(len(data)) - launch.exchange_bytes,
        max(1, int(1e6 * LAUNCH_SECONDS / launch.microseconds)),
    )


def _chosen(network: TrainedNetwork, card: Card, by_layers: bool) -> ResidentLaunch | Obstacle:
    """Return how to run a network: by the kernel for one hidden layer, if it can, or layer by
    layer.

    Or by that for small networks, or by all clusters of a card, if that is expected to take less
    time; by one of its own if it has convolutions. `by_layers` leaves no choice. The obstacle is
    that of the kernel that came nearest.
    """
    from warpfit.backends.cuda.one_launch import choose, suits
    from warpfit.backends.cuda.one_launch_card import choose_card, excess_of_settings
    from warpfit.backends.cuda.one_launch_images import choose_images
    from warpfit.backends.cuda.one_launch_layers import choose_layers
    from warpfit.backends.cuda.one_launch_small_sm90 import choose_small

    limits = card.arch, card.max_shared_bytes, card.num_multiprocessors
    if network.convolutions:
        return (
            Obstacle("expected linear layers alone, got convolutions")
            if by_layers
            else choose_images(network, *limits)
        )
    if by_layers or network.cards > 1:
        return choose_layers(network, *limits)
    found: list[ResidentLaunch | Obstacle] = [choose(network, *limits)] if suits(network) else []
    if not found or isinstance(found[0], Obstacle):
        found.append(choose_layers(network, *limits))
    found += [choose_small(network, *limits), choose_card(network, *limits)]
    launches = [launch for launch in found if not isinstance(launch, Obstacle)]
    if not launches:
        *others, last = (obstacle for obstacle in found if isinstance(obstacle, Obstacle))
        excess = min(last.excess, excess_of_settings(network, *limits))
        return min(*others, replace(last, excess=excess), key=lambda obstacle: obstacle.excess)
    return min(
        launches, key=lambda own: own.microseconds / (WORTH_A_CARD if own.takes_a_card else 1)
    )


def _with_more(
    prepared: PreparedLaunch,
    draft: Plan,
    data: TrainingData,
    validation: TrainingData | None,
    stopping: Stopping | None,
) -> PreparedLaunch:
    """Return what is prepared with validation and stopping in it, by another kernel if it pays."""
    launch: ResidentLaunch | None = None
    validates = stops = False
    site = _site(draft, None)
    if validation is not None:
        more = _that_does_more(prepared.launch, draft, site, data, len(validation))
        if more is not None and _can_validate(more, prepared, draft, data, validation):
            launch, validates = more.that_validates(), True
    if stopping is not None and _can_stop(stopping, draft, validates):
        num_validated = len(validation) if validation is not None and validates else 0
        more = launch or _that_does_more(prepared.launch, draft, site, data, num_validated)
        that_stops = None if more is None else more.that_stops(site.card.max_shared_bytes)
        if that_stops is not None:
            launch, stops = that_stops, True
    if launch is None:
        return prepared
    found = replace(prepared, launch=launch, validates=validates, stops=stops)
    return replace(
        found, copied_bytes=_copied_bytes(found, draft, data, validation if validates else None)
    )


def _that_does_more(
    launch: ResidentLaunch, draft: Plan, site: _Site, data: TrainingData, num_validated: int
) -> ResidentLaunch | None:
    """Return a launch that validates or decides to stop within it, or None.

    What runs by a kernel that cannot is only run layer by layer if that takes less time with all
    that comes between epochs.
    """
    if launch.that_validates() is not None:
        return launch
    by_layers = site.chosen(launch.network, by_layers=True)
    if isinstance(by_layers, Obstacle) or _needed_bytes(by_layers, data) > site.card.memory_bytes:
        return None
    steps = draft.report_every * launch.network.batches(len(data))
    passes = steps + SHARE_OF_STEP * launch.network.batches(num_validated)
    apart = steps * launch.microseconds + MICROSECONDS_BETWEEN_LAUNCHES
    return by_layers if passes * by_layers.microseconds < apart else None


def _can_validate(
    launch: ResidentLaunch,
    prepared: PreparedLaunch,
    draft: Plan,
    data: TrainingData,
    validation: TrainingData,
) -> bool:
    """Return whether validation data has room within a launch, and numbers that it takes."""
    if not has_room(draft, validation, prepared.copied_bytes):
        return False
    rows = validation.on(draft.device)
    # Of float32 the data itself says how large numbers may be: see `launch_scales`.
    most = {"float16": LARGEST, "float32": ROOM * (data.largest_x or 1.0)}
    if rows.largest_x > most.get(prepared.precision, inf):
        return False
    copies = launch.gathered_bytes(len(rows)) + launch.epoch_bytes(len(data), len(rows))
    return copies + launch.exchange_bytes <= memory_left(draft)


def _can_stop(stopping: Stopping, draft: Plan, validates: bool) -> bool:
    """Return whether a kernel finds the number that a rule watches, and the rule has borders only
    if it follows.
    """
    if stopping.any_gain_is_best:
        return False  # it knows of the epochs that it cannot end, which are trained at once anyway
    if stopping.monitor.startswith("val") and not validates:
        return False
    return draft.loss.counts_correct or not stopping.monitor.endswith("accuracy")


def _copied_bytes(
    prepared: PreparedLaunch,
    draft: Plan,
    data: TrainingData,
    validation: TrainingData | None = None,
) -> int:
    """Return the bytes of one launch's epochs in batches, with all that it needs for them."""
    launch, cut = prepared.launch, prepared.cut
    if cut is not None:
        pieces = cut.bytes_of(data, launch.step_bytes)
        return pieces + launch.record_bytes(len(data)) + launch.exchange_bytes
    num_validated = 0 if validation is None else len(validation)
    epochs = min(draft.epochs, epochs_held(launch, len(data), num_validated))
    of_epochs = launch.epoch_bytes(len(data), num_validated) * epochs
    return of_epochs + launch.gathered_bytes(num_validated) + launch.exchange_bytes


def epochs_held(launch: ResidentLaunch, num_rows: int, num_validated: int = 0) -> int:
    """Return how many epochs a launch may hold."""
    return max(1, LAUNCH_BYTES // launch.epoch_bytes(num_rows, num_validated))


@dataclass(frozen=True)
class LaunchDescription:
    """How a plan would be launched, in numbers."""

    # A thread's, and what of them a weight warp needs for weights.
    registers: tuple[tuple[str, int], ...]
    # shared and device: bytes of the parts of a block's shared memory, and of what an epoch takes
    # of the device's memory.
    shared: tuple[tuple[str, int], ...]
    device: tuple[tuple[str, int], ...]
    source: str  # of the kernel, with all that it includes


def describe(prepared: PreparedLaunch, data: TrainingData) -> LaunchDescription:
    """Return what was prepared in numbers."""
    from warpfit.backends.cuda.jit import flattened

    launch = prepared.launch
    most, held = launch.registers_of_thread
    return LaunchDescription(
        registers=(("of a thread", most), ("for weights", held)),
        shared=tuple((name, size) for name, size in launch.shared_parts.items() if size),
        device=(
            *_device_parts(prepared, data),
            ("exchanged, or far from the weights", launch.exchange_bytes),
        ),
        source=flattened(launch.kernel, tuple(launch.config.settings().items())),
    )


def _device_parts(prepared: PreparedLaunch, data: TrainingData) -> tuple[tuple[str, int], ...]:
    launch, cut = prepared.launch, prepared.cut
    if cut is None:
        return (
            ("x and targets", int(data.x.nbytes) + int(data.y.nbytes)),
            ("batches of an epoch, targets, settings and record", launch.epoch_bytes(len(data))),
        )
    fetched = cut.bytes_of(data, 0)
    return (
        (f"{BUFFERS} pieces of x and targets", fetched),
        (
            "batches of a piece, targets and settings",
            cut.bytes_of(data, launch.step_bytes) - fetched,
        ),
        ("record of an epoch", launch.record_bytes(len(data))),
    )
