"""TabM's training: every member on batches of its own, until the epochs bring nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array, Backend
from warpfit.blas import one_blas_thread
from warpfit.cores import num_cores
from warpfit.data.order import epoch_order
from warpfit.losses import Loss
from warpfit.tabular import tabm_graphs
from warpfit.tabular.tabm_graphs import GraphEpochs
from warpfit.tabular.tabm_network import TabM, is_shared_weight
from warpfit.tabular.tabm_steps import Batch, Part, Settings, Steps
from warpfit.tabular.training import Error, Outcome, Rows

PATIENCE = 16
# Members that a thread of the CPU takes together; it decides how sums are split, and so the bits.
MEMBERS_OF_A_THREAD = 8
# Rows whose predictions a thread of the CPU makes at once.
ROWS_OF_A_THREAD = 128


class Epochs(Protocol):
    """What trains one epoch after the other."""

    def train(self, epoch: int) -> float:
        """Train an epoch, counted from 0, and return the mean of its steps' losses."""

    def outputs(self, x: Any) -> npt.NDArray[Any]:
        """Return what members say together of rows x (N, columns), (N, K), on the host."""


class _Group(NamedTuple):
    """Members whose steps are computed together, and the backend with their buffers."""

    members: slice
    ops: Backend


class ThreadEpochs:
    """Epochs on the CPU: members are computed in groups, each by a thread.

    Parameters
    ----------
    steps : Steps
    data : Rows
    batch_size : int
    seed : int
        Of orders.
    threads : Executor
    """

    def __init__(
        self, steps: Steps, data: Rows, batch_size: int, seed: int, threads: ThreadPoolExecutor
    ) -> None:
        self.steps, self.data, self.batch_size, self.seed = steps, data, batch_size, seed
        self.threads, self.num_done = threads, 0
        count = steps.network.num_members
        self.groups = [
            _Group(slice(first, min(first + MEMBERS_OF_A_THREAD, count)), backends.create("cpu"))
            for first in range(0, count, MEMBERS_OF_A_THREAD)
        ]

    def train(self, epoch: int) -> float:
        num_rows, num_members = len(self.data.x), self.steps.network.num_members
        order = np.stack(
            [
                epoch_order(num_rows, self.seed, epoch * num_members + member)
                for member in range(num_members)
            ]
        )
        losses = [
            self.step(order[:, start : start + self.batch_size])
            for start in range(0, num_rows, self.batch_size)
        ]
        return float(np.mean(losses))

    def step(self, rows: npt.NDArray[np.int64]) -> float:
        """Train on some rows (E, M) of each member, and return the loss before the update."""
        numbers, shares = self.steps.numbers(self.num_done, 0), self._shares(rows)
        self.num_done += 1
        parts = list(
            self.threads.map(
                lambda group, share: self._part(group, rows[group.members], numbers.step, share),
                self.groups,
                shares,
            )
        )
        self.steps.update(self.steps.network.backend, _joined(parts), numbers)
        return float(np.dot(shares, [float(part.loss) for part in parts]))

    def outputs(self, x: Any) -> npt.NDArray[Any]:
        """Return what members say together of rows x (N, columns), (N, K)."""
        return _outputs_by(self.threads, self.steps.network, x)

    def _shares(self, rows: npt.NDArray[np.int64]) -> list[float]:
        """Return the share that each group's loss has in the mean of all."""
        weights = np.ones(len(rows))
        if self.data.weights is not None:
            weights = self.data.weights[rows].sum(axis=1, dtype=np.float64)
        of_groups = [float(weights[group.members].sum()) for group in self.groups]
        return [each / (weights.sum() or 1.0) for each in of_groups]

    def _part(self, group: _Group, rows: npt.NDArray[np.int64], step: Any, share: float) -> Part:
        ops, places = group.ops, rows.ravel()
        ops.begin_step()
        x, y, *weights = (
            ops.gather_rows(each, places, str(each.dtype))
            for each in (self.data.x, self.data.y, self.data.weights)
            if each is not None
        )
        batch = Batch(ops.reshape(x, (*rows.shape, x.shape[1])), y, weights[0] if weights else None)
        return self.steps.part(ops, batch, step, group.members, share)


def _joined(parts: Sequence[Part]) -> dict[str, Array]:
    """Return the gradients of all parameters: sums of those that members share, and all members'
    own.
    """
    if len(parts) == 1:
        return parts[0].gradients
    found = {}
    for name, total in parts[0].gradients.items():
        others = [part.gradients[name] for part in parts[1:]]
        if _is_shared(name):
            for each in others:
                total += each
            found[name] = total
        else:
            found[name] = np.concatenate([total, *others])
    return found


def _is_shared(name: str) -> bool:
    return is_shared_weight(name) or name.startswith("embedding.")


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """Yield threads, as many as there are cores, each with one of BLAS. What overflows in them is
    found by the validation errors.
    """
    with (
        one_blas_thread(),
        ThreadPoolExecutor(
            num_cores(), initializer=lambda: np.seterr(over="ignore", invalid="ignore")
        ) as threads,
    ):
        yield threads


def train(
    network: TabM,
    data: Rows,
    validation: Any,
    error: Error,
    *,
    loss: Loss,
    settings: Settings,
    n_epochs: int,
    batch_size: int,
    patience: int,
    seed: int,
    report: Callable[[Outcome], object],
    precision: str | None = None,
) -> Outcome:
    """Train a network; afterwards it has the weights of the epoch with the least validation error,
    the first of equal ones.

    In each epoch every member has an order of its own; the last batch may be shorter.

    Parameters
    ----------
    network : TabM
        With its initial values, on the device to train on.
    data : Rows
        To train on, on that device.
    validation : array (n, columns)
        Inputs to validate on, there too.
    error : function
        From what members say together of the validation rows to its error.
    loss : Loss
    settings : Settings
    n_epochs : int
        At most.
    batch_size : int
    patience : int
        Training ends with the epoch in which the error has not become less for more epochs than
        these.
    seed : int
        Of orders and dropout.
    report : function
        Called with what there is after each epoch; training ends there if it returns true.
    precision : {'float32', 'bfloat16'} or None
        Of products on a GPU, None as `GraphEpochs` takes it; those of the CPU are in float32.

    Raises
    ------
    DivergedError
        If no epoch's error is finite.
    """
    ops, outcome = network.backend, Outcome(takes_latest=False)
    best: list[Array] = []
    steps = Steps(network, loss, settings, seed)
    with _threads() as threads:
        epochs: Epochs
        if ops.synchronous:
            epochs = ThreadEpochs(steps, data, batch_size, seed, threads)
        else:
            epochs = GraphEpochs(steps, data, batch_size, seed, precision=precision)
        for epoch in range(n_epochs):
            if outcome.add(epochs.train(epoch), error(epochs.outputs(validation))):
                best = [ops.copy(parameter.data) for parameter in network.parameters()]
            if report(outcome) or epoch + 1 - outcome.best_epoch > patience:
                break
    outcome.check(settings.lr)
    for parameter, values in zip(network.parameters(), best, strict=True):
        ops.assign(parameter.data, values)
    return outcome


def outputs_of(network: TabM, x: Any) -> npt.NDArray[Any]:
    """Return what members say together of rows x (N, columns), (N, K), on the host."""
    if not network.backend.synchronous:
        return tabm_graphs.outputs_of(network, x, network.backend)
    with _threads() as threads:
        return _outputs_by(threads, network, x)


def _outputs_by(threads: ThreadPoolExecutor, network: TabM, x: Any) -> npt.NDArray[Any]:
    starts = range(0, max(1, x.shape[0]), ROWS_OF_A_THREAD)
    return np.concatenate(
        list(threads.map(lambda start: network(x[start : start + ROWS_OF_A_THREAD]), starts))
    )
