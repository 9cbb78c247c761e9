"""Trains many small networks of one shape in one launch, each with rows, orders, rates."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array
from warpfit.backends.launch_structs import NETWORK_FIELDS, STANDING_FIELDS, STOPPING_FIELDS
from warpfit.backends.update_rules import UPDATE_RULES
from warpfit.data.order import domain_bits, round_keys_of_runs
from warpfit.engines.base import Plan, Stopping, TrainingData
from warpfit.engines.launch_network import has_convolutions, layers_of, trained_network
from warpfit.engines.launch_settings import (
    loss_settings,
    network_dropout_settings,
    rule_settings,
    step_settings,
    stopping_settings,
)
from warpfit.engines.many_members import Member, Outcome, Records
from warpfit.engines.many_parameters import PackedParameters
from warpfit.engines.many_rows import DeviceRows
from warpfit.engines.reports import Reports
from warpfit.engines.rungs import DeviceQueue, Rungs, halved_of
from warpfit.errors import Obstacle
from warpfit.nn.dropout import DropoutSpec
from warpfit.nn.network import NetworkSpec
from warpfit.optim.schedules import Constant

if TYPE_CHECKING:
    from warpfit.backends.cuda.many_launch import ManyLaunch
    from warpfit.backends.cuda.trained_network import TrainedNetwork

__all__ = [
    "DeviceRows",
    "Launch",
    "Member",
    "Outcome",
    "Rungs",
    "kernel_of_many",
    "prepare_many",
    "start_many",
    "without_rates",
]


def start_many(members: Sequence[Member], rows: DeviceRows, rungs: Rungs | None = None) -> Launch:
    """Train all members in a launch, from where they stand, beside other launches; its `outcomes`
    leave where they came to in their states.

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
    launch = Launch(members, rows, rungs)
    launch.start()
    return launch


def prepare_many(plan: Plan, data: TrainingData) -> ManyLaunch | Obstacle:
    """Return how many networks of a plan are trained at once, or what is in the way."""
    own = cast(NetworkSpec, plan.network)
    if has_convolutions(own):
        return Obstacle("expected linear layers, activations and dropout, got convolutions")
    network = trained_network(replace(plan, network=without_rates(own)), data)
    if isinstance(network, Obstacle):
        return network
    return launch_of_many(network, cast(Any, backends.get(plan.device)).runtime)


def kernel_of_many(
    launch: ManyLaunch, *, keeps_best: bool, halves: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return the kernel of a launch, by name and defines."""
    config = replace(launch.config, keeps_best=keeps_best, halves=halves)
    return launch.kernel, config.settings()


def without_rates(network: NetworkSpec) -> NetworkSpec:
    """Return a network whose dropouts are all 0 or not: kernels take probabilities as arguments."""
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
        self.kept: list[Array] = []

    def _num_rows(self, member: Member) -> int:
        return member.plan.num_rows if member.rows is None else len(member.rows)

    def start(self) -> None:
        """Start it, beside others that were started since the outcomes of any were asked for."""
        self.began = perf_counter()
        ops, launch, count = self.ops, self.launch, len(self.members)
        most_epochs = max(len(member.epochs) for member in self.members)
        self.record = ops.empty((count, most_epochs, 4), "float64")
        self.standings = ops.empty((count, STANDING_FIELDS.itemsize), "uint8")
        self.rules = ops.asarray(self._rules())
        self.keeps_best = keeps_best = any(
            member.stopping and member.stopping.keeps_best for member in self.members
        )
        self.networks = ops.asarray(
            self._networks(self.record, self.standings, self.rules).view(np.uint8)
        )
        self.more = {} if launch.is_for_plain_networks else self._more_arrays()
        # What other launches leave no room for comes last: uploads would wait behind it.
        self.parameters = PackedParameters(ops, launch, self.members)
        for array in (self.record, self.standings):
            ops.runtime.fill(array.pointer, array.nbytes)
        self.queue = DeviceQueue(ops, count, self.rungs)
        self.best = ops.zeros((count if keeps_best else 1, launch.num_parameters), "float32")
        name, settings = kernel_of_many(
            launch, keeps_best=keeps_best, halves=self.rungs is not None
        )
        kernel = ops.kernel(name, **settings)
        with ops.runtime.beside():
            kernel(
                launch.blocks_of(min(count, launch.groups(ops.runtime.num_multiprocessors))),
                launch.threads,
                launch.arguments(
                    x=self.rows.x,
                    targets=self.rows.targets,
                    networks=self.networks,
                    parameters=self.parameters.array,
                    best=self.best,
                    queue=self.queue.array,
                    num_networks=count,
                    loss=loss_settings(self.members[0].plan.loss, launch.network.outputs),
                    **self.more,
                ),
                shared_bytes=launch.shared_bytes,
                cluster=launch.cluster,
            )

    def outcomes(self, *, fetches: bool = True) -> list[Outcome]:
        """Wait for all launches that are under way, and return what came of this one's members.

        Unless `fetches`, the numbers of states on demand stay on the device until they are asked
        for, or nobody can ask.
        """
        ops, count = self.ops, len(self.members)
        ops.runtime.join()
        if fetches:
            self.parameters.fetch()
        self.parameters.hand_back(self.members)
        records, found = (
            ops.to_numpy(self.record),
            ops.to_numpy(self.standings).view(STANDING_FIELDS)[:, 0],
        )
        are_over = self._take_best()
        done = found["epochs_done"].tolist()
        halved = found["halved_after"].tolist()
        seconds = (perf_counter() - self.began) / max(1, sum(done))
        return [
            self._outcome(
                i, records[i], done[i], found[i] if halved[i] else None, are_over[i], seconds
            )
            for i in range(count)
        ]

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
        """Return what kernels take for dropout and sample weights; None for what is not there."""
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

    def _take_best(self) -> list[bool]:
        """Leave with the rules what the kernel kept; return which runs a rule has ended."""
        are_over = [False] * len(self.members)
        ruled = [i for i, member in enumerate(self.members) if member.stopping is not None]
        if not ruled:
            return are_over
        rules = self.ops.to_numpy(self.rules).view(STOPPING_FIELDS)[:: self.launch.cluster]
        best = self.ops.to_numpy(self.best) if self.keeps_best else None
        for i, rule in zip(ruled, rules, strict=True):
            are_over[i] = bool(rule["epochs_done"] > 0)
            if best is not None and rule["keeps_best"] and rule["has_improved"]:
                stopping = cast(Stopping, self.members[i].stopping)
                own = self.parameters.by_name(best[i], self.members[i])
                stopping.best_arrays = {name: array.copy() for name, array in own.items()}
        return are_over

    def _networks(self, record: Array, standings: Array, rules: Array) -> npt.NDArray[Any]:
        """Return ``Network`` of each member."""
        count = len(self.members)
        found = np.zeros(count, NETWORK_FIELDS)
        found["steps"], found["step_stride"] = self._steps()
        found["keys"] = self._keys()
        found["record"] = record.pointer + np.arange(count) * record[0].nbytes
        found["standing"] = standings.pointer + np.arange(count) * STANDING_FIELDS.itemsize
        ruled = np.array([member.stopping is not None for member in self.members])
        own = (
            rules.pointer + (np.cumsum(ruled) - 1) * STOPPING_FIELDS.itemsize * self.launch.cluster
        )
        found["stopping"] = np.where(ruled, own, 0)
        rows = self.rows
        for name, values in (
            ("rows", [rows.pointer_of(member.rows) for member in self.members]),
            ("validation_rows", [rows.pointer_of(m.validation_rows) for m in self.members]),
            ("num_validated", [member.num_validated or 0 for member in self.members]),
            ("scale", [member.plan.loss_scale for member in self.members]),
            ("num_rows", [reports.num_rows for reports in self.reports]),
            ("bits", [domain_bits(reports.num_rows) for reports in self.reports]),
            ("num_epochs", [len(member.epochs) for member in self.members]),
            ("rule", [rule_settings(member.plan.optimizer) for member in self.members]),
        ):
            found[name] = values
        return found

    def _places_of(self, pieces: Pieces) -> npt.NDArray[np.int64]:
        """Return where each member's array lies on the device, all in a row; 0 for none."""
        if not pieces.arrays:
            return np.zeros(len(self.members), np.int64)
        sizes = [array.nbytes for array in pieces.arrays]
        self.kept.append(self.ops.asarray(np.concatenate(pieces.arrays)))
        starts = self.kept[-1].pointer + np.cumsum([0, *sizes])
        return np.array([0 if idx is None else starts[idx] for idx in pieces.of_members], np.int64)

    def _steps(self) -> tuple[npt.NDArray[np.int64], list[bool]]:
        """Return where the settings of each member's steps lie, and whether they have some each:
        where all steps are the same, they are those of the first.
        """
        pieces, are_uneven = Pieces(), []
        for member, reports in zip(self.members, self.reports, strict=True):
            plan, state = member.plan, member.state
            is_linear = UPDATE_RULES[plan.optimizer.rule].is_linear
            is_even = is_linear and isinstance(plan.optimizer.lr, Constant)
            are_uneven.append(not is_even)
            key = (
                plan.optimizer,
                None if is_even else (plan.epochs, member.epochs, reports.num_rows),
                state.step,
                state.plateau.scale,
            )
            pieces.add(key, partial(_settings_of_steps, member, reports, is_even))
        return self._places_of(pieces), are_uneven

    def _keys(self) -> npt.NDArray[np.int64]:
        """Return where the keys of each member's orders lie; 0 for one that does not shuffle."""
        runs = {
            (member.state.seed, member.epochs): None
            for member in self.members
            if member.plan.shuffle
        }
        made = round_keys_of_runs([seed for seed, _ in runs], [epochs for _, epochs in runs])
        own: dict[Any, Any] = dict(zip(runs, made, strict=True))
        pieces = Pieces()
        for member in self.members:
            key = (member.state.seed, member.epochs) if member.plan.shuffle else None
            pieces.add(key, partial(own.__getitem__, key))
        return self._places_of(pieces)

    def _outcome(
        self,
        idx: int,
        record: npt.NDArray[np.float64],
        done: int,
        halved_standing: Any,
        is_over: bool,
        seconds: float,
    ) -> Outcome:
        """Return what came of a member; an epoch of its run took so many seconds."""
        member, reports = self.members[idx], self.reports[idx]
        steps, epochs = reports.steps_per_epoch, member.epochs
        records = Records(
            plan=member.plan,
            num_rows=reports.num_rows,
            num_validated=member.num_validated,
            sums=record,
            first_epoch=epochs.start,
            rate_scale=member.state.plateau.scale,
            seconds=seconds,
        )
        reported = member.plan.reported(epochs[:done])
        member.state.step += done * steps
        member.state.epoch += done
        halved = None if halved_standing is None else halved_of(halved_standing)
        if is_over or halved is not None or done == len(epochs):
            return Outcome(reported, records, None, halved)
        if done:
            reports.last_finite_loss = float(record[done - 1, 0])
        return Outcome(reported, records, reports.diverged(member.state.epoch * steps))


@dataclass
class Pieces:
    """Arrays that members may share: each once, and which of them a member has."""

    arrays: list[npt.NDArray[Any]] = field(default_factory=list)
    of_members: list[int | None] = field(default_factory=list)
    _known: dict[Hashable, int] = field(default_factory=dict)

    def add(self, key: Hashable, make: Callable[[], npt.NDArray[Any]]) -> None:
        """Take up the next member's array, which a key stands for; None for none."""
        if key is None:
            self.of_members.append(None)
            return
        if key not in self._known:
            self._known[key] = len(self.arrays)
            self.arrays.append(make())
        self.of_members.append(self._known[key])


def _settings_of_steps(member: Member, reports: Reports, is_even: bool) -> npt.NDArray[np.float32]:
    """Return the settings of a member's steps, or, as all are the same, of the first."""
    rates = reports.rates(member.state.epoch, 1 if is_even else len(member.epochs))
    if is_even:
        rates = rates[:1]
    scale = member.state.plateau.scale
    return step_settings(member.plan.optimizer, scale * rates, member.state.step)


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
