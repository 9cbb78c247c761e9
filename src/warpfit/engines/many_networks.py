"""Trains many small networks of one shape in one launch, each on rows, in orders and at rates of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array
from warpfit.backends.launch_structs import NETWORK_FIELDS, STANDING_FIELDS, STOPPING_FIELDS
from warpfit.backends.update_rules import UPDATE_RULES
from warpfit.data.order import domain_bits, round_keys_of
from warpfit.engines.base import EpochReport, Plan, TrainingData
from warpfit.engines.launch_network import layers_of, trained_network
from warpfit.engines.launch_settings import (
    loss_settings,
    network_dropout_settings,
    rule_settings,
    step_settings,
    stopping_settings,
)
from warpfit.engines.many_rows import DeviceRows, Member
from warpfit.engines.reports import Reports
from warpfit.engines.rungs import DeviceQueue, Halved, Rungs, halved_of
from warpfit.errors import DivergedError, Obstacle
from warpfit.nn.dropout import DropoutSpec
from warpfit.nn.network import NetworkSpec
from warpfit.optim.schedules import Constant

if TYPE_CHECKING:
    from warpfit.backends.cuda.many_launch import ManyLaunch
    from warpfit.backends.cuda.trained_network import TrainedNetwork

__all__ = [
    "Launch",
    "Outcome",
    "Rungs",
    "prepare_many",
    "start_many",
    "train_many",
    "without_rates",
]

Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Outcome:
    """What came out of a member's run.

    Attributes
    ----------
    reports : list of EpochReport
        Of its epochs; they have no losses of single steps.
    error : DivergedError or None
        If its loss was no number in the epoch after these.
    halved : Halved or None
        If it was left behind after these.
    """

    reports: list[EpochReport]
    error: DivergedError | None
    halved: Halved | None = None


def train_many(
    members: Sequence[Member], rows: DeviceRows, rungs: Rungs | None = None
) -> list[Outcome]:
    """Train all members in a launch, from where they stand, and leave where they came to in their
    states.

    Parameters
    ----------
    members : sequence of Member
        Whose plans are of one device, one precision and networks of one shape, optimizers of one
        kind, one loss and one batch size: those of the launch that the rows were made for.
    rows : DeviceRows
    rungs : Rungs, optional
        Where the members, none of which has begun and all of which report every epoch, are
        compared, so that only the better go on.
    """
    return start_many(members, rows, rungs).outcomes()


def start_many(members: Sequence[Member], rows: DeviceRows, rungs: Rungs | None = None) -> Launch:
    """Start what `train_many` does, beside other launches that are started before the outcomes of
    any are asked for.
    """
    launch = Launch(members, rows, rungs)
    launch.start()
    return launch


def prepare_many(plan: Plan, data: TrainingData) -> ManyLaunch | Obstacle:
    """Return how many networks of a plan are trained at once, or what is in the way."""
    network = trained_network(
        replace(plan, network=without_rates(cast(NetworkSpec, plan.network))), data
    )
    if isinstance(network, Obstacle):
        return network
    return launch_of_many(network, cast(Any, backends.get(plan.device)).runtime)


def without_rates(network: NetworkSpec) -> NetworkSpec:
    """Return a network with one probability for all dropouts, 0 or not: a kernel takes theirs as
    arguments.
    """
    layers = tuple(
        (name, replace(spec, p=0.5) if isinstance(spec, DropoutSpec) else spec)
        for name, spec in network.layers
    )
    return NetworkSpec(layers, network.input_shape)


class Launch:
    """A launch that trains networks."""

    def __init__(self, members: Sequence[Member], rows: DeviceRows, rungs: Rungs | None) -> None:
        self.members, self.rows, self.rungs = members, rows, rungs
        self.ops, self.launch = rows.ops, rows.launch
        self.reports = [
            Reports(member.plan, member.state, self._num_rows(member)) for member in members
        ]
        self.kept: dict[Hashable, Array] = {}

    def _num_rows(self, member: Member) -> int:
        return member.plan.num_rows if member.rows is None else len(member.rows)

    def start(self) -> None:
        """Start it, beside others that were started since the outcomes of any were asked for."""
        self.began = perf_counter()
        ops, launch, count = self.ops, self.launch, len(self.members)
        most_epochs = max(len(member.epochs) for member in self.members)
        self.parameters = ops.asarray(self._packed())
        self.record = ops.zeros((count, most_epochs, 4), "float64")
        self.standings = ops.zeros((count, STANDING_FIELDS.itemsize), "uint8")
        self.queue = DeviceQueue(ops, count, self.rungs)
        self.rules = ops.asarray(self._rules())
        keeps_best = any(member.stopping and member.stopping.keeps_best for member in self.members)
        self.best = ops.zeros((count if keeps_best else 1, launch.num_parameters), "float32")
        self.networks = ops.asarray(
            self._networks(self.record, self.standings, self.rules).view(np.uint8)
        )
        self.more = {} if launch.is_for_plain_networks else self._more_arrays()
        config = replace(launch.config, keeps_best=keeps_best, halves=self.rungs is not None)
        kernel = ops.kernel(launch.kernel, **config.settings())
        with ops.runtime.beside():
            kernel(
                launch.blocks_of(min(count, launch.groups(ops.runtime.num_multiprocessors))),
                launch.threads,
                launch.arguments(
                    x=self.rows.x,
                    targets=self.rows.targets,
                    networks=self.networks,
                    parameters=self.parameters,
                    best=self.best,
                    queue=self.queue.array,
                    num_networks=count,
                    loss=loss_settings(self.members[0].plan.loss, launch.network.outputs),
                    **self.more,
                ),
                shared_bytes=launch.shared_bytes,
                cluster=launch.cluster,
            )

    def outcomes(self) -> list[Outcome]:
        """Wait for all launches that are under way, and return what came of this one's members."""
        ops, count = self.ops, len(self.members)
        ops.runtime.join()
        self._unpack(ops.to_numpy(self.parameters))
        records, found = (
            ops.to_numpy(self.record),
            ops.to_numpy(self.standings).view(STANDING_FIELDS)[:, 0],
        )
        are_over = self._take_best(ops.to_numpy(self.rules), ops.to_numpy(self.best))
        seconds = (perf_counter() - self.began) / max(1, int(found["epochs_done"].sum()))
        return [self._outcome(i, records[i], found[i], are_over[i], seconds) for i in range(count)]

    def _rules(self) -> npt.NDArray[np.uint8]:
        """Return ``Stopping`` of each member that has one, for each block of its cluster."""
        rules = [
            stopping_settings(member.stopping)
            for member in self.members
            if member.stopping is not None
            for _ in range(self.launch.cluster)
        ]
        return np.concatenate([np.zeros(0, np.uint8), *(rule.view(np.uint8) for rule in rules)])

    def _more_arrays(self) -> dict[str, Array | None]:
        """Return what kernels take for dropout and sample weights; None for what networks do
        without.
        """
        network = self.launch.network
        found = {
            "weights": self.rows.weights,
            "dropouts": None,
            "total_weights": None,
            "class_weights": None,
        }
        if any(network.drops):
            found["dropouts"] = self.ops.asarray(self._dropouts())
        if network.weighted or network.class_weights:
            weights = [self.rows.weight_of(member) for member in self.members]
            found["total_weights"] = self.ops.asarray(np.array(weights))
        if network.class_weights:
            of_classes = np.array([member.plan.loss.class_weights() for member in self.members])
            with_means = np.column_stack([of_classes, of_classes.mean(axis=1)])
            found["class_weights"] = self.ops.asarray(with_means.astype(np.float32))
        return found

    def _dropouts(self) -> npt.NDArray[np.uint8]:
        """Return ``NetworkDropout`` of each member's hidden layers."""
        of_members = [
            network_dropout_settings(
                [layer.dropout for layer in layers_of(member.plan)[:-1]],
                member.state.seed,
                member.state.epoch * reports.steps_per_epoch,
            )
            for member, reports in zip(self.members, self.reports, strict=True)
        ]
        return np.concatenate(of_members).view(np.uint8)

    def _take_best(self, rules: npt.NDArray[np.uint8], best: npt.NDArray[np.float32]) -> list[bool]:
        """Leave with the rules what the kernel kept; return which of the members' runs a rule has
        ended.
        """
        found = iter(rules.view(STOPPING_FIELDS)[:: self.launch.cluster])
        are_over = []
        for i, member in enumerate(self.members):
            rule = None if member.stopping is None else next(found)
            are_over.append(rule is not None and bool(rule["epochs_done"] > 0))
            if (
                member.stopping is None
                or rule is None
                or not rule["keeps_best"]
                or not rule["has_improved"]
            ):
                continue
            arrays = member.state.parameters
            names_places = zip(self._names(member), self.launch.places, strict=True)
            member.stopping.best_arrays = {
                name: best[i, first : first + arrays[name].size].reshape(arrays[name].shape).copy()
                for name, (first, _) in names_places
            }
        return are_over

    def _networks(self, record: Array, standings: Array, rules: Array) -> npt.NDArray[Any]:
        """Return ``Network`` of each member."""
        found = np.zeros(len(self.members), NETWORK_FIELDS)
        rule = rules.pointer
        for i, (member, reports) in enumerate(zip(self.members, self.reports, strict=True)):
            plan, state, own = member.plan, member.state, found[i]
            num_rows, epochs = reports.num_rows, member.epochs
            is_linear = UPDATE_RULES[plan.optimizer.rule].is_linear
            is_even = is_linear and isinstance(plan.optimizer.lr, Constant)
            own["steps"] = self._once(
                (
                    "steps",
                    plan.optimizer,
                    plan.epochs,
                    epochs,
                    num_rows,
                    state.step,
                    state.plateau.scale,
                ),
                partial(self._steps, i, is_even),
            )
            own["step_stride"] = not is_even
            if plan.shuffle:
                own["keys"] = self._once(
                    ("keys", state.seed, epochs), partial(round_keys_of, state.seed, epochs)
                )
            for field, rows in (("rows", member.rows), ("validation_rows", member.validation_rows)):
                if rows is not None:
                    own[field] = self.rows.pointer_of(rows)
            own["num_validated"] = (
                0 if member.validation_rows is None else len(member.validation_rows)
            )
            own["record"] = record.pointer + i * record[0].nbytes
            own["standing"] = standings.pointer + i * STANDING_FIELDS.itemsize
            if member.stopping is not None:
                own["stopping"], rule = rule, rule + STOPPING_FIELDS.itemsize * self.launch.cluster
            own["scale"] = plan.loss_scale
            own["num_rows"], own["bits"], own["num_epochs"] = (
                num_rows,
                domain_bits(num_rows),
                len(epochs),
            )
            own["rule"] = rule_settings(plan.optimizer)
        return found

    def _once(self, key: Hashable, make: Callable[[], Any]) -> int:
        """Return where an array lies on the device that members may share."""
        if key not in self.kept:
            self.kept[key] = self.ops.asarray(make())
        return int(self.kept[key].pointer)

    def _steps(self, idx: int, is_even: bool) -> npt.NDArray[np.float32]:
        """Return the settings of a member's steps, or, as all are the same, of the first."""
        member = self.members[idx]
        rates = self.reports[idx].rates(member.state.epoch, 1 if is_even else len(member.epochs))
        if is_even:
            rates = rates[:1]
        scale = member.state.plateau.scale
        return step_settings(member.plan.optimizer, scale * rates, member.state.step)

    def _places(self, member: Member) -> Iterator[tuple[int, int, dict[str, Array], str]]:
        """Yield of each parameter, and of its optimizer state: in which row it lies, from where
        on.
        """
        slots = [member.state.slots[name] for name in member.plan.optimizer.slot_names]
        for row, arrays in enumerate([member.state.parameters, *slots]):
            for name, (first, _) in zip(self._names(member), self.launch.places, strict=True):
                yield row, first, arrays, name

    @staticmethod
    def _names(member: Member) -> list[str]:
        return [
            f"{name}.{part}" for name, *_ in layers_of(member.plan) for part in ("weight", "bias")
        ]

    def _packed(self) -> npt.NDArray[np.float32]:
        """Return all members' parameters and slots, as the kernel takes them."""
        sizes = 1 + self.launch.network.slots, self.launch.num_parameters
        found = np.zeros((len(self.members), *sizes), np.float32)
        for own, member in zip(found, self.members, strict=True):
            for row, first, arrays, name in self._places(member):
                own[row, first : first + arrays[name].size] = arrays[name].ravel()
        return found

    def _unpack(self, packed: npt.NDArray[np.float32]) -> None:
        for own, member in zip(packed, self.members, strict=True):
            for row, first, arrays, name in self._places(member):
                array = arrays[name]
                array[...] = own[row, first : first + array.size].reshape(array.shape)

    def _outcome(
        self,
        idx: int,
        record: npt.NDArray[np.float64],
        standing: Any,
        is_over: bool,
        seconds: float,
    ) -> Outcome:
        """Return what came of a member; an epoch of its run took so many seconds."""
        member, reports = self.members[idx], self.reports[idx]
        steps, epochs, done = reports.steps_per_epoch, member.epochs, int(standing["epochs_done"])
        found = [
            self._report(
                member,
                reports.num_rows,
                epoch,
                record[epoch - epochs.start],
                reports.lr((epoch + 1) * steps - 1),
                seconds,
            )
            for epoch in member.plan.reported(epochs[:done])
        ]
        member.state.step += done * steps
        member.state.epoch += done
        halved = halved_of(standing)
        if is_over or halved is not None or done == len(epochs):
            return Outcome(found, None, halved)
        if done:
            reports.last_finite_loss = float(record[done - 1, 0])
        return Outcome(found, reports.diverged(member.state.epoch * steps))

    def _report(
        self, member: Member, num_rows: int, epoch: int, record: Any, rate: float, seconds: float
    ) -> EpochReport:
        loss, correct, val_loss, val_correct = map(float, record)
        counts, validated = member.plan.loss.counts_correct, member.validation_rows
        return EpochReport(
            epoch=epoch + 1,
            loss=loss,
            accuracy=correct / num_rows if counts else None,
            lr=rate,
            seconds=seconds,
            num_rows=num_rows,
            step_losses=np.empty(0),
            val_loss=None if validated is None else val_loss,
            val_accuracy=val_correct / len(validated) if counts and validated is not None else None,
        )


def launch_of_many(network: TrainedNetwork, runtime: Any) -> ManyLaunch | Obstacle:
    """Return the first of `ManySmallNetworks`, `ManyNetworks` and `ManyClusters` that takes a
    network.

    If none does, what is in the way of the second.
    """
    from warpfit.backends.cuda.many_networks import choose
    from warpfit.backends.cuda.many_networks_sm90 import choose_clusters
    from warpfit.backends.cuda.many_small_networks_sm90 import choose_small

    limits = runtime.arch, runtime.max_shared_bytes
    kinds: tuple[Callable[..., ManyLaunch | Obstacle], ...] = choose, choose_small, choose_clusters
    in_block, *others = (kind(network, *limits) for kind in kinds)
    fitting = [
        found for found in (others[0], in_block, others[1]) if not isinstance(found, Obstacle)
    ]
    return fitting[0] if fitting else in_block
