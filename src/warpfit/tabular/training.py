"""RealMLP's training, a loop of its own over the contract's operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.autograd import Tensor
from warpfit.backends import Array
from warpfit.data.order import epoch_order
from warpfit.errors import DivergedError
from warpfit.losses import Loss
from warpfit.nn import Parameter
from warpfit.tabular.layers import Factors, TabularLayer
from warpfit.tabular.network import RealMLP
from warpfit.tabular.schedules import ADAM, DROPOUT, WEIGHT_DECAY, coslog4, flat_cos

PREDICTED_ROWS = 4096

# From outputs (M, K) on the host to what training makes small.
Error = Callable[[npt.NDArray[Any]], float]


@dataclass(frozen=True)
class Rows:
    """Inputs (N, columns), targets, labels (N,) int64 or numbers (N, outputs), and the weight of
    each row (N,), if they have weights.
    """

    x: Any
    y: Any
    weights: Any = None


@dataclass
class Outcome:
    """What a training came to.

    Attributes
    ----------
    losses, errors : list of float
        Of each epoch: the mean over its steps, and the validation error.
    best_epoch : int
        From 1, whose weights the network has.
    takes_latest : bool
        Whether the latest of equally good epochs is the best, or the first.
    """

    losses: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    best_epoch: int = 0
    takes_latest: bool = True

    def add(self, loss: float, error: float) -> bool:
        """Take an epoch up, and return whether it is the best so far; its error is then finite."""
        self.losses.append(loss)
        self.errors.append(error)
        least = self.errors[self.best_epoch - 1] if self.best_epoch else inf
        is_best = error <= least if self.takes_latest else error < least
        if not (is_best and isfinite(error)):
            return False
        self.best_epoch = len(self.errors)
        return True

    def check(self, lr: float) -> None:
        """Raise DivergedError if no error is finite."""
        if not self.best_epoch:
            raise DivergedError(
                epoch=1, step=1, lr=lr, last_finite_loss=None, remedies="a lower learning rate"
            )


class Steps:
    """The steps of one training: forward, backward, Adam with rates and decays of their own.

    Parameters
    ----------
    network : RealMLP
        Where its parameters live, steps are computed.
    loss : Loss
    lr : float
        The largest learning rate.
    num_steps : int
        Of the whole training, over which the schedules run.
    dropout, weight_decay : float
        The largest ones.
    """

    def __init__(
        self,
        network: RealMLP,
        loss: Loss,
        lr: float,
        num_steps: int,
        *,
        dropout: float = DROPOUT,
        weight_decay: float = WEIGHT_DECAY,
    ) -> None:
        self.network, self.loss, self.lr, self.num_steps = network, loss, lr, num_steps
        self.dropout, self.weight_decay = dropout, weight_decay
        self.ops = network.backend
        self.num_done = 0
        self.groups = _groups(network)
        self.moments = [
            [[self.ops.zeros(each.shape, each.dtype) for each in group] for _ in range(2)]
            for _, group in self.groups
        ]

    def step(self, x: Array, y: Array, weights: Array | None = None) -> Array:
        """Train on a batch x (M, columns) and y, and return its loss, (), before the update."""
        t = self.num_done / self.num_steps
        share = float(flat_cos(t))
        self.network.p, self.network.step = self.dropout * share, self.num_done
        outputs = self.network(Tensor(x))
        loss, _, gradient = self.loss.vjp(self.ops, outputs.data, y, sample_weight=weights)
        self.network.zero_grad()
        outputs.backward(gradient())
        self._update(self.lr * float(coslog4(t)), self.weight_decay * share)
        return loss

    def _update(self, lr: float, decay: float) -> None:
        self.num_done += 1
        for (factors, parameters), moments in zip(self.groups, self.moments, strict=True):
            rate = lr * factors.rate
            # Decay is decoupled, and takes both factors twice.
            kept = 1 - rate * factors.rate * decay * factors.decay**2
            self.ops.update_parameters(
                ADAM.rule,
                [each.data for each in parameters],
                [each.grad for each in parameters],
                moments,
                ADAM.update_numbers(self.num_done, rate)._replace(kept=kept),
            )


def _groups(network: RealMLP) -> list[tuple[Factors, list[Parameter]]]:
    """Return the parameters that learn alike, with what multiplies their rate and decay."""
    groups: dict[Factors, list[Parameter]] = {}
    for _, layer in network.named_modules():
        if isinstance(layer, TabularLayer):
            for name, factors in layer.factors.items():
                parameter = getattr(layer, name)
                if parameter.size:
                    groups.setdefault(factors, []).append(parameter)
    return list(groups.items())


def train(
    network: RealMLP,
    rows: Rows,
    validation: Any,
    error: Error,
    *,
    loss: Loss,
    lr: float,
    n_epochs: int,
    batch_size: int,
    seed: int,
    report: Callable[[Outcome], object],
    dropout: float = DROPOUT,
    weight_decay: float = WEIGHT_DECAY,
) -> Outcome:
    """Train a network; afterwards it has the weights of the epoch with the least validation error,
    the latest of equal ones.

    Each epoch has an order of its own; a last batch that is shorter is left out. The loop is the
    reference of the kernel that `launched` starts.

    Parameters
    ----------
    network : RealMLP
        With its initial values, on the device to train on.
    rows : Rows
        To train on, on that device.
    validation : array (n, columns)
        Inputs to validate on, there too.
    error : function
        From the outputs for the validation rows to their error.
    loss : Loss
    lr : float
        The largest learning rate.
    n_epochs, batch_size : int
    seed : int
        Of the orders.
    report : function
        Called with what there is after each epoch; training ends there if it returns true.
    dropout, weight_decay : float
        The largest ones.

    Raises
    ------
    DivergedError
        If no epoch's error is finite.
    """
    ops, num_rows = network.backend, rows.x.shape[0]
    batch_size = min(batch_size, num_rows)
    num_batches = num_rows // batch_size
    steps = Steps(
        network,
        loss,
        lr,
        n_epochs * num_batches,
        dropout=dropout,
        weight_decay=weight_decay,
    )
    outcome, best = Outcome(), []
    for epoch in range(n_epochs):
        order = epoch_order(num_rows, seed, epoch)[: num_batches * batch_size]
        network.train()
        losses = [steps.step(*batch) for batch in _batches(ops, rows, order, batch_size)]
        mean = float(np.mean([ops.to_numpy(each) for each in losses]))
        if outcome.add(mean, error(outputs_of(network, validation))):
            best = [ops.copy(parameter.data) for parameter in network.parameters()]
        if report(outcome):
            break
    outcome.check(lr)
    for parameter, values in zip(network.parameters(), best, strict=True):
        ops.assign(parameter.data, values)
    network.eval()
    return outcome


def _batches(
    ops: backends.Backend, rows: Rows, order: npt.NDArray[np.int64], size: int
) -> Iterator[list[Array]]:
    parts = [each for each in (rows.x, rows.y, rows.weights) if each is not None]
    in_order = [ops.take(each, order) for each in parts]
    for start in range(0, len(order), size):
        yield [ops.take(each, slice(start, start + size)) for each in in_order]


def outputs_of(network: RealMLP, x: Any) -> npt.NDArray[Any]:
    """Return the network's outputs (N, K) for rows x (N, columns), on the host, without dropout."""
    network.eval()
    ops = network.backend
    parts = [
        ops.to_numpy(network(x[start : start + PREDICTED_ROWS]))
        for start in range(0, max(1, x.shape[0]), PREDICTED_ROWS)
    ]
    return np.concatenate(parts)
