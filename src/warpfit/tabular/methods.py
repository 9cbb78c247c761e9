"""The methods that an estimator may be asked for: how a network is made, trained and evaluated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.errors import ConfigError, Obstacle, required
from warpfit.losses import Loss
from warpfit.nn import Module
from warpfit.nn.onnx_graph import Graph
from warpfit.tabular import tabm_network, tabm_training
from warpfit.tabular.network import FREQUENCY_SCALE, HIDDEN, Columns, RealMLP, set_initial_values
from warpfit.tabular.onnx_network import realmlp_onnx
from warpfit.tabular.preprocessing import Preprocessor
from warpfit.tabular.quantiles import QuantilePreprocessor
from warpfit.tabular.schedules import DROPOUT, WEIGHT_DECAY
from warpfit.tabular.tabm_network import TabM
from warpfit.tabular.targets import Classes, Numbers, Targets
from warpfit.tabular.training import Outcome, Rows, outputs_of, train

if TYPE_CHECKING:
    from warpfit.backends.cuda.table_networks import TableLaunch
    from warpfit.tabular.launched import Task

__all__ = ["METHODS", "Member", "Method", "Shape", "Trained", "Training", "shape_of"]

Array = npt.NDArray[Any]

AUTO = "auto"
MOST_WEIGHTS = 1 << 30


@dataclass(frozen=True)
class Shape:
    """What a network's size and form follow from; a file of an estimator holds it.

    Attributes
    ----------
    columns : Columns
    num_outputs : int
    hidden : tuple of int
    activation : str
    are_classes : bool
        Whether outputs are logits.
    num_bins : int
        Of the embeddings of numbers, at most; 0 without such.
    """

    columns: Columns
    num_outputs: int
    hidden: tuple[int, ...]
    activation: str
    are_classes: bool = True
    num_bins: int = 0


@dataclass(frozen=True, eq=False)
class Member:
    """One network to train: its rows, its seed, and what its outputs mean.

    Attributes
    ----------
    preprocessor : Preprocessor
        With the scales of its rows.
    targets : Classes or Numbers
        So, too.
    rows, validation : function
        Return `Rows` on the host when they are needed.
    seed : int
        Of initial values, orders and dropout.
    """

    preprocessor: Preprocessor
    targets: Targets
    rows: Callable[[], Rows]
    validation: Callable[[], Rows]
    seed: int


@dataclass(frozen=True, eq=False)
class Training:
    """What all members of a bag have in common.

    Attributes
    ----------
    settings : mapping
        By the names of the estimator's parameters: ``n_epochs``, ``batch_size``, ``lr``, ...
    loss : Loss
    device : str
    report : function
        Called with a member's place and outcome after each of its epochs.
    is_over : function
        Whether no time is left: members that have not begun then do not, and others end with
        the epoch.
    """

    settings: Mapping[str, Any]
    loss: Loss
    device: str
    report: Callable[[int, Outcome], object]
    is_over: Callable[[], bool]


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained network, on the CPU, with what makes its inputs and reads its outputs.

    Attributes
    ----------
    network : Module
    shape : Shape
    preprocessor : Preprocessor
    targets : Classes or Numbers
    losses, errors : list of float
        Of each epoch: the mean training loss, and the validation error.
    best_epoch : int
        From 1, whose weights the network has.
    seed : int
    """

    network: Any
    shape: Shape
    preprocessor: Preprocessor
    targets: Targets
    losses: list[float]
    errors: list[float]
    best_epoch: int
    seed: int

    @classmethod
    def of(cls, member: Member, network: Module, shape: Shape, outcome: Outcome) -> Trained:
        return cls(
            network.to("cpu"),
            shape,
            member.preprocessor,
            member.targets,
            outcome.losses,
            outcome.errors,
            outcome.best_epoch,
            member.seed,
        )


@dataclass(frozen=True)
class Method:
    """A method as a value.

    Attributes
    ----------
    defaults : function
        From whether targets are classes to what parameters that are None stand for, by name.
        Parameters that are not among them are none of this method's.
    preprocessor : type of Preprocessor
    network : function
        From a `Shape` and a seed to a network whose parameters have no values yet.
    widths : function
        From a `Shape` to the widths of a perceptron with as much to multiply, for the place.
    train : function
        From all members of a bag and a `Training` to the `Trained` of those that time was left
        for, in the members' order.
    outputs : function
        From a network and rows (N, columns) on its device to outputs (N, K) on the host.
    space : function
        From whether targets are classes to what a search draws parameters from, by name.
    onnx : function, optional
        From a `Graph`, a `Trained`, and the names of numbers and indicators (N, num_plain) float64,
        none of them scaled, and of codes (N, C) int64 to the name of outputs (N, K). Without it
        there are no ONNX files.
    """

    defaults: Callable[[bool], Mapping[str, Any]]
    preprocessor: type[Preprocessor]
    network: Callable[[Shape, int], Any]
    widths: Callable[[Shape], tuple[int, ...]]
    train: Callable[[Sequence[Member], Training], Iterator[Trained]]
    outputs: Callable[[Any, Any], Array]
    space: Callable[[bool], Mapping[str, Any]]
    onnx: Callable[[Graph, Trained, str, str], str] | None = None


def _realmlp_defaults(are_classes: bool) -> Mapping[str, Any]:
    return {
        "n_epochs": 256,
        "batch_size": 256,
        "lr": 0.04 if are_classes else 0.2,
        "hidden_layer_sizes": HIDDEN,
        "activation": "selu" if are_classes else "mish",
        "dropout": DROPOUT,
        "weight_decay": WEIGHT_DECAY,
        "frequency_scale": FREQUENCY_SCALE,
        "label_smoothing": 0.1,
        "precision": AUTO,
    }


def _realmlp_space(are_classes: bool) -> Mapping[str, Any]:
    """Return the authors' space, without those of other embeddings and of no scale."""
    from scipy.stats import loguniform

    space = {
        "lr": loguniform(0.02, 0.3),
        "dropout": [0.0] * 3 + [0.15] * 5 + [0.3] * 2,
        "weight_decay": [0.0, 0.02],
        "frequency_scale": loguniform(0.05, 0.5),
        "activation": ["relu", "selu", "mish"],
        "hidden_layer_sizes": [(256, 256, 256)] * 3 + [(64, 64, 64, 64, 64), (512,)],
    }
    return space | {"label_smoothing": [0.0] * 3 + [0.1] * 7} if are_classes else space


def _realmlp(shape: Shape, seed: int) -> RealMLP:
    return RealMLP(
        shape.columns, shape.num_outputs, shape.activation, seed=seed, hidden=shape.hidden
    )


def _realmlp_widths(shape: Shape) -> tuple[int, ...]:
    return (shape.columns.num_embedded, *shape.hidden, shape.num_outputs)


def train_realmlp(members: Sequence[Member], training: Training) -> Iterator[Trained]:
    """Train all members as one kernel, where there is one; else one after the other."""
    is_on_cpu = backends.resolve_device(training.device) == "cpu"
    precision = training.settings["precision"]
    if precision == "float32" or (precision == AUTO and is_on_cpu):
        yield from _trained_in_turn(0, members, training)
        return
    begun = 0
    with_rows = [(member, member.rows()) for member in members]
    for (batch_size, _), group in groupby(with_rows, lambda each: _batches_of(each[1], training)):
        together = list(group)
        if begun and training.is_over():
            return
        launch = _launch_of(*together[0], training, batch_size, len(together))
        if launch is None:
            yield from _trained_in_turn(begun, [member for member, _ in together], training)
        else:
            yield from _trained_together(begun, together, training, launch)
        begun += len(together)


def _batches_of(rows: Rows, training: Training) -> tuple[int, int]:
    """Return the rows of a batch, and how many batches an epoch has."""
    num_rows = len(rows.y)
    batch_size = min(num_rows, training.settings["batch_size"])
    return batch_size, num_rows // batch_size


def _launch_of(
    member: Member, rows: Rows, training: Training, batch_size: int, num_networks: int
) -> TableLaunch | None:
    """Return how a kernel trains some networks like a member's, or None if none does."""
    from warpfit.tabular.launched import launch_of

    precision = training.settings["precision"]
    launch = launch_of(
        training.device,
        _realmlp(shape_of(member, training.settings), 0),
        training.loss,
        batch_size,
        num_networks,
        dtype="float16" if precision == AUTO else precision,
        is_weighted=rows.weights is not None or member.validation().weights is not None,
    )
    if precision == AUTO:
        return None if isinstance(launch, Obstacle) else launch
    return required(launch)


def _trained_together(
    first: int,
    with_rows: Sequence[tuple[Member, Rows]],
    training: Training,
    launch: TableLaunch,
) -> Iterator[Trained]:
    from warpfit.tabular.launched import Launched

    members, settings = [member for member, _ in with_rows], training.settings
    shape = shape_of(members[0], settings)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        tasks = list(threads.map(lambda each: _task_of(each[0], each[1], training), with_rows))
    run = Launched(
        training.device,
        tasks,
        launch,
        lr=settings["lr"],
        n_epochs=settings["n_epochs"],
        dropout=settings["dropout"],
        weight_decay=settings["weight_decay"],
    )
    outcomes = [Outcome() for _ in members]
    for losses, errors in run.epochs():
        for epoch in zip(losses.T.tolist(), errors.T.tolist(), strict=True):
            for idx, (outcome, loss, error) in enumerate(zip(outcomes, *epoch, strict=True)):
                outcome.add(loss, error)
                training.report(first + idx, outcome)
        if training.is_over():
            break
    run.hand_over()
    for member, task, outcome in zip(members, tasks, outcomes, strict=True):
        outcome.check(settings["lr"])
        yield Trained.of(member, task.network, shape, outcome)


def _task_of(member: Member, rows: Rows, training: Training) -> Task:
    """Return a member as a kernel trains it, with its initial values; all of it on the host."""
    from warpfit.tabular.launched import Task

    targets = member.targets
    bounds = np.stack([targets.low, targets.high]) if isinstance(targets, Numbers) else None
    network = _begun(member, training, rows)
    return Task(network.eval(), rows, member.validation(), bounds, member.seed)


def _trained_in_turn(
    first: int, members: Sequence[Member], training: Training
) -> Iterator[Trained]:
    for idx, member in enumerate(members, first):
        if idx and training.is_over():
            return
        yield _trained(idx, member, training)


def _begun(member: Member, training: Training, rows: Rows) -> RealMLP:
    """Return a member's network with its initial values, on the host."""
    network = _realmlp(shape_of(member, training.settings), member.seed)
    set_initial_values(network, rows.x, member.seed, training.settings["frequency_scale"])
    return network


def _trained(idx: int, member: Member, training: Training) -> Trained:
    settings, rows, validation = training.settings, member.rows(), member.validation()
    network, ops = _begun(member, training, rows), backends.get(training.device)

    def report(outcome: Outcome) -> bool:
        training.report(idx, outcome)
        return training.is_over()

    outcome = train(
        network.to(training.device),
        Rows(*(None if each is None else ops.asarray(each) for each in vars(rows).values())),
        ops.asarray(validation.x),
        lambda outputs: member.targets.error(outputs, validation.y, validation.weights),
        loss=training.loss,
        lr=settings["lr"],
        n_epochs=settings["n_epochs"],
        batch_size=settings["batch_size"],
        seed=member.seed,
        report=report,
        dropout=settings["dropout"],
        weight_decay=settings["weight_decay"],
    )
    return Trained.of(member, network, shape_of(member, settings), outcome)


def shape_of(member: Member, settings: Mapping[str, Any]) -> Shape:
    """Return the shape of a member's network, or raise ConfigError if it is too large for one."""
    hidden = tuple(map(int, np.atleast_1d(settings["hidden_layer_sizes"])))
    columns, num_outputs = member.preprocessor.columns, member.targets.num_outputs
    widths = (max(columns.num_embedded, sum(columns.num_codes)), *hidden, num_outputs)
    most = max(fan_in * fan_out for fan_in, fan_out in pairwise(widths))
    if most > MOST_WEIGHTS:
        raise ConfigError(
            f"expected hidden_layer_sizes with at most {MOST_WEIGHTS} weights of a layer, got "
            f"{most} with {hidden}"
        )
    return Shape(
        columns,
        num_outputs,
        hidden,
        settings.get("activation", "relu"),
        isinstance(member.targets, Classes),
        settings.get("num_bins", 0),
    )


# -- TabM: as pytabkit has it; and with embeddings of numbers and limited gradients, as TabArena

NUM_BINS, LARGEST_NORM = 48, 1.0


def _tabm_defaults(are_classes: bool) -> Mapping[str, Any]:
    return {
        "n_epochs": 10_000,
        "batch_size": 256,
        "lr": 2e-3,
        "hidden_layer_sizes": (512, 512, 512),
        "dropout": 0.1,
        "weight_decay": 3e-4,
        "label_smoothing": 0.0,
        "num_bins": 0,
    }


def _tabm_ple_defaults(are_classes: bool) -> Mapping[str, Any]:
    others = {"hidden_layer_sizes": (512, 512), "num_bins": NUM_BINS}
    return {**_tabm_defaults(are_classes), **others}


def _tabm_space(are_classes: bool) -> Mapping[str, Any]:
    """Return the authors' space, without those of other embeddings."""
    from scipy.stats import loguniform, uniform

    return {
        "lr": loguniform(1e-4, 3e-3),
        "weight_decay": [0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1],
        "dropout": uniform(0, 0.5),
        "hidden_layer_sizes": [
            (width,) * depth for depth in (2, 3, 4, 5) for width in range(128, 1025, 128)
        ],
    }


def _tabm(shape: Shape, seed: int) -> TabM:
    return TabM(
        shape.columns,
        shape.num_outputs,
        are_classes=shape.are_classes,
        num_bins=shape.num_bins,
        hidden=shape.hidden,
    )


def _tabm_widths(shape: Shape) -> tuple[int, ...]:
    # A layer of all members multiplies as much as one of so many times the units on both sides.
    times = sqrt(tabm_network.NUM_MEMBERS)
    hidden = tuple(int(size * times) for size in shape.hidden)
    of_number = tabm_network.PiecewiseLinear.SIZE if shape.num_bins else 1
    inputs = of_number * shape.columns.num_numbers + sum(shape.columns.num_codes)
    return (inputs, *hidden, shape.num_outputs)


def train_tabm(members: Sequence[Member], training: Training) -> Iterator[Trained]:
    """Train one member after the other."""
    for idx, member in enumerate(members):
        if idx and training.is_over():
            return
        yield _trained_tabm(idx, member, training)


def _trained_tabm(idx: int, member: Member, training: Training) -> Trained:
    settings, rows, validation = training.settings, member.rows(), member.validation()
    shape = shape_of(member, settings)
    network = _tabm(shape, member.seed)
    tabm_network.set_initial_values(network, rows.x, member.seed)
    ops = backends.get(training.device)

    def report(outcome: Outcome) -> bool:
        training.report(idx, outcome)
        return training.is_over()

    outcome = tabm_training.train(
        network.to(training.device),
        Rows(*(None if each is None else ops.asarray(each) for each in vars(rows).values())),
        ops.asarray(validation.x),
        lambda outputs: member.targets.error(outputs, validation.y, validation.weights),
        loss=training.loss,
        settings=tabm_training.Settings(
            settings["lr"],
            settings["weight_decay"],
            settings["dropout"],
            LARGEST_NORM if shape.num_bins else None,
        ),
        n_epochs=settings["n_epochs"],
        batch_size=settings["batch_size"],
        patience=tabm_training.PATIENCE,
        seed=member.seed,
        report=report,
    )
    return Trained.of(member, network, shape, outcome)


METHODS: Mapping[str, Method] = {
    "realmlp": Method(
        defaults=_realmlp_defaults,
        preprocessor=Preprocessor,
        network=_realmlp,
        widths=_realmlp_widths,
        train=train_realmlp,
        outputs=outputs_of,
        space=_realmlp_space,
        onnx=realmlp_onnx,
    ),
    **{
        name: Method(
            defaults=defaults,
            preprocessor=QuantilePreprocessor,
            network=_tabm,
            train=train_tabm,
            outputs=tabm_training.outputs_of,
            space=_tabm_space,
            widths=_tabm_widths,
        )
        for name, defaults in (("tabm", _tabm_defaults), ("tabm_ple", _tabm_ple_defaults))
    },
}
