"""TabM's epochs on a device: many steps as one CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.data.order import round_keys_of
from warpfit.engines.graph import sizes_of_graphs
from warpfit.tabular.tabm_network import TabM, is_shared_weight
from warpfit.tabular.tabm_steps import Batch, StepNumbers, Steps
from warpfit.tabular.training import Rows

# Rows whose predictions are made at once; where kernels take all layers at once, these need no
# memory between layers.
ROWS_AT_ONCE, ROWS_OF_ALL_LAYERS = 1024, 8192
STEPS_OF_A_GRAPH = 16


class GraphEpochs:
    """Epochs of steps that are captured, as those of the engine ``graph``.

    The first time the operations of a graph are started one by one, the second time they are
    captured. Orders, and the numbers of steps, lie on the device.

    Parameters
    ----------
    steps : Steps
    data : Rows
        On the device.
    batch_size : int
    seed : int
        Of orders.
    precision : {'float32', 'bfloat16'} or None
        In bfloat16 members' layers compute with copies of parameters. None is that, if tensor cores
        multiply it.
    """

    # A device's; the contract knows no graphs.
    ops: Any

    def __init__(
        self,
        steps: Steps,
        data: Rows,
        batch_size: int,
        seed: int,
        precision: str | None = None,
    ) -> None:
        from warpfit.backends.cuda.next_batch import StepSource

        self.steps, self.seed = steps, seed
        self.num_rows, self.num_members = len(data.x), steps.network.num_members
        self.batch_size = min(batch_size, self.num_rows)
        self.sizes = sizes_of_graphs(self.num_rows, self.batch_size, STEPS_OF_A_GRAPH)
        self.steps_per_epoch = sum(map(len, self.sizes))
        precision = precision or _precision_of(steps.network.device)
        self.ops = backends.create(steps.network.device, precision=precision)
        self.order = self.ops.zeros((self.num_members * self.num_rows,), "int64")
        self.table = self.ops.zeros((self.steps_per_epoch, len(StepNumbers._fields)), "float64")
        self.record = self.ops.zeros((self.steps_per_epoch, 3), "float64")
        arrays = [each for each in (data.x, data.y, data.weights) if each is not None]
        self.source = StepSource(
            self.ops,
            [(each, each.dtype.name) for each in arrays],
            self.order,
            self.num_members * self.batch_size,
            self.table,
        )
        self.graphs: dict[tuple[int, ...], Any] = {}
        self.own = steps.network.values()
        self.copies, self.is_at_once = self._copies(precision)
        self._copy_parameters()

    def _copies(self, precision: str) -> tuple[dict[str, Any], bool]:
        """Return copies of what layers compute with, by name, and whether they do so at once: then
        only of the weights that members share.
        """
        if precision != "bfloat16":
            return {}, False
        copies = {
            name: self.ops.zeros(each.shape, precision)
            for name, each in self.own.items()
            if not name.startswith("embedding.")
        }
        shared = {name: each for name, each in copies.items() if is_shared_weight(name)}
        is_at_once = self.steps.network.is_at_once(self.ops, shared)
        return (shared if is_at_once else copies), is_at_once

    def train(self, epoch: int) -> float:
        """Train an epoch, counted from 0, and return the mean of its steps' losses."""
        self._put_order(epoch)
        first = epoch * self.steps_per_epoch
        numbers = [self.steps.numbers(first + row, row) for row in range(self.steps_per_epoch)]
        self.ops.assign(self.table, self.ops.asarray(np.array(numbers, np.float64)))
        done = 0
        for sizes in self.sizes:
            self.source.begin(done)
            self._start(sizes)
            done += len(sizes)
        return float(self.ops.to_numpy(self.record)[:, 0].mean())

    def outputs(self, x: Any) -> npt.NDArray[Any]:
        """Return what members say together of rows x (N, columns), (N, K), on the host."""
        return outputs_of(self.steps.network, x, self.ops, self.copies)

    def _put_order(self, epoch: int) -> None:
        """Let steps find the rows of this epoch: of each step all members' one after the other."""
        members = self.num_members
        keys = round_keys_of(self.seed, range(epoch * members, (epoch + 1) * members))
        self.ops.member_orders(self.order, self.ops.asarray(keys), self.batch_size)

    def _start(self, sizes: tuple[int, ...]) -> None:
        """Start the operations of steps whose members have so many rows each."""
        if sizes not in self.graphs:
            self.graphs[sizes] = None
            self._start_each(sizes)
            return
        if self.graphs[sizes] is None:
            with self.ops.runtime.capture() as graph:
                self._start_each(sizes)
            # Buffers may yet be replaced by larger ones, for other batches.
            graph.holds += self.ops.step_memory()
            self.graphs[sizes] = graph
        self.graphs[sizes].launch()

    def _start_each(self, sizes: tuple[int, ...]) -> None:
        ops = self.ops
        numbers = StepNumbers(
            *(self.source.numbers[idx] for idx in range(len(StepNumbers._fields)))
        )
        for offset, size in enumerate(sizes):
            ops.begin_step()
            taken = self.source.take(offset, self.num_members * size, (0, 0, 0))
            x, y, *weights = taken
            batch = Batch(
                ops.reshape(x, (self.num_members, size, x.shape[1])),
                y,
                weights[0] if weights else None,
            )
            update = self.steps.member_update(self.copies, numbers) if self.is_at_once else None
            gradients = self.steps.recorded(ops, batch, numbers, self.record, self.copies, update)
            if update is None:
                self.steps.update(ops, gradients, numbers)
                self._copy_parameters()

    def _copy_parameters(self) -> None:
        if self.copies:
            self.ops.cast_into(list(self.copies.values()), [self.own[name] for name in self.copies])


def _precision_of(device: str) -> str:
    from warpfit.backends.cuda.matmul_mma_config import supports

    arch = backends.get(device).runtime.arch  # type: ignore[attr-defined]
    return "bfloat16" if supports(arch, "bfloat16") else "float32"


def outputs_of(
    network: TabM, x: Any, ops: Any, values: Mapping[str, Any] | None = None
) -> npt.NDArray[Any]:
    """Return what members say together of rows x (N, columns) on a device, (N, K), on the host;
    `values` are those of `TabM.vjp`.
    """
    parts, is_at_once = [], bool(values) and network.is_at_once(ops, values or {})
    size = ROWS_OF_ALL_LAYERS if is_at_once else ROWS_AT_ONCE
    for start in range(0, max(1, x.shape[0]), size):
        ops.begin_step()
        rows = ops.take(x, slice(start, start + size))
        parts.append(ops.to_numpy(network.together(ops, rows, values)))
    return np.concatenate(parts)
