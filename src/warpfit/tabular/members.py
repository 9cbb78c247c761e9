"""What the methods for tables share: a network's rows and shape, a bag's training, and what comes
of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends.numpy.heap import keep_freed_memory
from warpfit.errors import ConfigError
from warpfit.losses import Loss
from warpfit.nn import Module
from warpfit.nn.onnx_graph import Graph
from warpfit.tabular.network import Columns
from warpfit.tabular.preprocessing import Preprocessor
from warpfit.tabular.targets import Classes, Targets
from warpfit.tabular.training import Outcome, Rows

Array = npt.NDArray[Any]

MOST_WEIGHTS = 1 << 30
AUTO = "auto"  # the precision that a method takes for None, by the device


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

    def shape(self, settings: Mapping[str, Any]) -> Shape:
        """Return what its network's size follows from; errors are those of `shape_of`."""
        return shape_of(self.preprocessor.columns, self.targets, settings)


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
    onnx : function
        From a `Graph`, a `Trained`, and the names of numbers and indicators (N, num_plain) float64,
        none of them scaled, and of codes (N, C) int64 to the name of outputs (N, K).
    trained_at_once : float
        Networks that a GPU trains in the time of one, where it trains several.
    likely_epochs : int, optional
        That a network is expected to take, where its training ends long before ``n_epochs``.
    """

    defaults: Callable[[bool], Mapping[str, Any]]
    preprocessor: type[Preprocessor]
    network: Callable[[Shape, int], Any]
    widths: Callable[[Shape], tuple[int, ...]]
    train: Callable[[Sequence[Member], Training], Iterator[Trained]]
    outputs: Callable[[Any, Any], Array]
    space: Callable[[bool], Mapping[str, Any]]
    onnx: Callable[[Graph, Trained, str, str], str]
    trained_at_once: float = 1.0
    likely_epochs: int | None = None


Begin = Callable[[Member, Training, Rows], Any]


def trained_in_turn(
    first: int,
    members: Sequence[Member],
    training: Training,
    begin: Begin,
    train: Callable[..., Outcome],
) -> Iterator[Trained]:
    """Train members one after the other, until no time is left.

    Parameters
    ----------
    first : int
        The first member's place in the bag.
    members : sequence of Member
    training : Training
    begin : function
        From a member, the training and the member's rows to a network with its initial values, on
        the host.
    train : function
        From that on the device, its rows, inputs to validate on and the function of its error to
        the outcome; with ``loss``, ``n_epochs``, ``batch_size``, ``seed`` and ``report``, which
        returns whether no time is left.
    """
    keep_freed_memory()
    for idx, member in enumerate(members, first):
        if idx and training.is_over():
            return
        yield _trained(idx, member, training, begin, train)


def _trained(
    idx: int, member: Member, training: Training, begin: Begin, train: Callable[..., Outcome]
) -> Trained:
    settings, rows, validation = training.settings, member.rows(), member.validation()
    network, ops = begin(member, training, rows), backends.get(training.device)

    def report(outcome: Outcome) -> bool:
        training.report(idx, outcome)
        return training.is_over()

    outcome = train(
        network.to(training.device),
        Rows(*(None if each is None else ops.asarray(each) for each in vars(rows).values())),
        ops.asarray(validation.x),
        lambda outputs: member.targets.error(outputs, validation.y, validation.weights),
        loss=training.loss,
        n_epochs=settings["n_epochs"],
        batch_size=settings["batch_size"],
        seed=member.seed,
        report=report,
    )
    return Trained.of(member, network, member.shape(settings), outcome)


def shape_of(columns: Columns, targets: Targets, settings: Mapping[str, Any]) -> Shape:
    """Return the shape of a network, or raise ConfigError if it is too large for one."""
    hidden = tuple(map(int, np.atleast_1d(settings["hidden_layer_sizes"])))
    num_outputs = targets.num_outputs
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
        isinstance(targets, Classes),
        settings.get("num_bins", 0),
    )
