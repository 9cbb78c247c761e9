"""TabM's training: every member on batches of its own, until the epochs bring nothing more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array, Backend
from warpfit.blas import one_blas_thread
from warpfit.data.order import round_keys
from warpfit.errors import DivergedError
from warpfit.losses import Loss
from warpfit.optim.adam import AdamSpec
from warpfit.optim.schedules import as_schedule
from warpfit.tabular.tabm_network import Draw, TabM
from warpfit.tabular.training import Error, Outcome, Rows

__all__ = ["PATIENCE", "Settings", "Steps", "outputs_of", "train"]

ADAM = AdamSpec(as_schedule(1.0))
PATIENCE = 16
# Members that a thread of the CPU takes together; it decides how sums are split, and so the bits.
MEMBERS_OF_A_THREAD = 8
# Rows whose predictions are made at once, by a thread of the CPU or by a device.
ROWS_OF_A_THREAD, ROWS_OF_A_DEVICE = 128, 1024


@dataclass(frozen=True)
class Settings:
    """How TabM learns.

    Attributes
    ----------
    lr : float
    weight_decay : float
        Decoupled, of all but biases and the lines of embeddings.
    dropout : float
    max_norm : float or None
        Largest joint norm of a step's gradients.
    """

    lr: float = 2e-3
    weight_decay: float = 3e-4
    dropout: float = 0.1
    max_norm: float | None = None


class _Group(NamedTuple):
    """Members whose steps are computed together, and the backend with their buffers."""

    members: slice
    ops: Backend


class _Part(NamedTuple):
    """What a group has of a step: its mean loss, its weight, and its gradients by name."""

    loss: Array
    weight: Array
    gradients: dict[str, Array]


class Steps:
    """The steps of one training: forward, backward and AdamW.

    On the CPU members are computed in groups, each by a thread; on a device all at once. What
    differs from step to step may lie on the device: rows, the record's row, the step's numbers.

    Parameters
    ----------
    network : TabM
        Where its parameters live, steps are computed.
    data : Rows
        There, too.
    loss : Loss
    settings : Settings
    seed : int
        Of dropout.
    threads : Executor
        That groups are given to.
    """

    def __init__(
        self,
        network: TabM,
        data: Rows,
        loss: Loss,
        settings: Settings,
        seed: int,
        threads: ThreadPoolExecutor,
    ) -> None:
        self.network, self.data, self.loss, self.settings = network, data, loss, settings
        self.seed, self.threads, self.num_done = seed, threads, 0
        self.ops = network.backend
        self.groups = list(_groups(network))
        self.decays = {
            name: decays
            for decays in (True, False)
            for name, each in network.named_parameters()
            if each.size and _decays(name) == decays
        }
        parameters = dict(network.named_parameters())
        self.parameters = {name: parameters[name].data for name in self.decays}
        self.moments = {
            name: [self.ops.zeros(each.shape, each.dtype) for _ in range(2)]
            for name, each in self.parameters.items()
        }

    def step(self, rows: Array, record: Array, row: Any) -> None:
        """Train on some rows (E, M) of each member, and write the loss before the update to a row
        of the record (steps, 3), as `Backend.record_step` does.
        """
        draw = Draw(self.settings.dropout, self.seed, self.num_done)
        self.num_done += 1
        shares = self._shares(rows)
        parts = list(
            self.threads.map(
                lambda group, share: self._part(group, rows, draw, share), self.groups, shares
            )
        )
        loss = parts[0].loss
        if len(parts) > 1:
            loss = np.dot(shares, [float(part.loss) for part in parts])
        self.ops.record_step(record, row, loss, parts[0].weight, None, None)
        self._update(_joined(self.ops, parts))

    def _shares(self, rows: Array) -> list[float]:
        """Return the share that each group's loss has in the mean of all."""
        if len(self.groups) == 1:
            return [1.0]
        counts = np.array([group.members.stop - group.members.start for group in self.groups])
        if self.data.weights is not None:
            of_members = self.data.weights[rows].sum(axis=1, dtype=np.float64)
            counts = np.array([of_members[group.members].sum() for group in self.groups])
        return list(counts / (counts.sum() or 1.0))

    def _part(self, group: _Group, rows: Array, draw: Draw, share: float) -> _Part:
        """Compute a group's loss, and its share of the gradients."""
        ops, own = group.ops, group.members
        ops.begin_step()
        rows = ops.take(rows, own)
        count, size = rows.shape
        places = ops.reshape(rows, (count * size,))
        x, y, weights = (
            None if each is None else ops.gather_rows(each, places, str(each.dtype))
            for each in (self.data.x, self.data.y, self.data.weights)
        )
        x = ops.reshape(x, (count, size, x.shape[1]))
        outputs, pullback = self.network.vjp(ops, x, draw, own)
        flat = ops.reshape(outputs, (count * size, outputs.shape[2]))
        loss, weight, gradient = self.loss.vjp(ops, flat, y, sample_weight=weights)
        dy = gradient()
        if share != 1:
            dy = ops.binary("mul", dy, share)
        return _Part(loss, weight, pullback(ops.reshape(dy, outputs.shape)))

    def _update(self, gradients: dict[str, Array]) -> None:
        if self.settings.max_norm is not None:
            self.ops.clip_by_norm(list(gradients.values()), self.settings.max_norm)
        lr = self.settings.lr
        numbers = ADAM.update_numbers(self.num_done, lr)
        for decays in (True, False):
            names = [name for name, each in self.decays.items() if each == decays]
            self.ops.update_parameters(
                ADAM.rule,
                [self.parameters[name] for name in names],
                [gradients[name] for name in names],
                [[self.moments[name][slot] for name in names] for slot in range(2)],
                numbers._replace(kept=1 - lr * self.settings.weight_decay * decays),
            )


def _groups(network: TabM) -> Iterator[_Group]:
    count = network.num_members
    size = min(MEMBERS_OF_A_THREAD, count) if network.backend.synchronous else count
    for first in range(0, count, size):
        own = slice(first, min(first + size, count))
        yield _Group(own, backends.create(network.device))


def _decays(name: str) -> bool:
    return not name.endswith("bias") and name != "embedding.weight"


def _joined(ops: Backend, parts: Sequence[_Part]) -> dict[str, Array]:
    """Return the gradients of all parameters: sums of those that members share, and all members'
    own.
    """
    if len(parts) == 1:
        return parts[0].gradients
    found = {}
    for name in parts[0].gradients:
        all_own = [part.gradients[name] for part in parts]
        if name.startswith("embedding.") or (name.endswith("weight") and name != "head.weight"):
            total = all_own[0]
            for each in all_own[1:]:
                total += each
            found[name] = total
        else:
            found[name] = ops.concatenate(all_own, axis=0)
    return found


@contextmanager
def _threads_of(network: TabM) -> Iterator[ThreadPoolExecutor]:
    """Yield threads, as many as there are cores, each with one of BLAS; for a device one."""
    num_threads = _num_cores() if network.backend.synchronous else 1
    with one_blas_thread(), ThreadPoolExecutor(num_threads) as threads:
        yield threads


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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

    Raises
    ------
    DivergedError
        If no epoch's error is finite.
    """
    ops, outcome, best_error = network.backend, Outcome(), inf
    best: list[Array] = []
    with _threads_of(network) as threads:
        steps = Steps(network, data, loss, settings, seed, threads)
        for epoch in range(n_epochs):
            outcome.losses.append(_train_epoch(steps, epoch, batch_size, seed))
            outcome.errors.append(error(_outputs_of(network, validation, threads)))
            if isfinite(outcome.errors[-1]) and outcome.errors[-1] < best_error:
                best_error, outcome.best_epoch = outcome.errors[-1], epoch + 1
                best = [ops.copy(parameter.data) for parameter in network.parameters()]
            if report(outcome) or epoch + 1 - outcome.best_epoch > patience:
                break
    if not best:
        raise DivergedError(
            epoch=1,
            step=1,
            lr=settings.lr,
            last_finite_loss=None,
            remedies="a lower learning rate",
        )
    for parameter, values in zip(network.parameters(), best, strict=True):
        ops.assign(parameter.data, values)
    return outcome


def _train_epoch(steps: Steps, epoch: int, batch_size: int, seed: int) -> float:
    """Train one epoch, and return the mean of its steps' losses."""
    ops, num_rows, num_members = steps.ops, len(steps.data.x), steps.network.num_members
    orders = ops.zeros((num_members, num_rows), "int64")
    for member in range(num_members):
        keys = round_keys(seed, epoch * num_members + member)
        ops.assign(ops.take(orders, member), ops.epoch_order(num_rows, keys))
    starts = range(0, num_rows, batch_size)
    record = ops.zeros((len(starts), 3), "float64")
    for row, start in enumerate(starts):
        rows = ops.take(orders, (slice(None), slice(start, start + batch_size)))
        steps.step(ops.copy(rows), record, row)
    return float(ops.to_numpy(record)[:, 0].mean())


def outputs_of(network: TabM, x: Any) -> npt.NDArray[Any]:
    """Return what members say together of rows x (N, columns), (N, K), on the host."""
    with _threads_of(network) as threads:
        return _outputs_of(network, x, threads)


def _outputs_of(network: TabM, x: Any, threads: ThreadPoolExecutor) -> npt.NDArray[Any]:
    ops = network.backend
    size = ROWS_OF_A_THREAD if ops.synchronous else ROWS_OF_A_DEVICE
    starts = range(0, max(1, x.shape[0]), size)
    parts = threads.map(lambda start: ops.to_numpy(network(x[start : start + size])), starts)
    return np.concatenate(list(parts))
