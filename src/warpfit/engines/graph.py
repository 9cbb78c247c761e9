"""The graph engine: a step has the operations of `layerwise`, and many steps together are one CUDA
graph.

What the host would do between two operations is done once, when the graph is captured. So nothing
of a graph may depend on which steps it runs: their numbers and rows are copied to places of the
device that its operations read, or found by an order that lies there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import gcd, isqrt
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array
from warpfit.backends.contract.communicator import Communicator
from warpfit.engines import pace
from warpfit.engines.at_once import finds_targets, is_of_package, narrow_step
from warpfit.engines.base import (
    BorderTest,
    Engine,
    EpochReport,
    Plan,
    Prepared,
    StepListener,
    Stopping,
    TrainingData,
    TrainState,
    every_epoch,
)
from warpfit.engines.composed import needs_host
from warpfit.engines.half_precision import suitable
from warpfit.engines.kept_runs import networks_to_come, run_of
from warpfit.engines.parts import part_of
from warpfit.engines.replicas import team_of
from warpfit.engines.reports import Reports
from warpfit.engines.scaling import AUTO, DYNAMIC
from warpfit.engines.steps import Run, StepNumbers, row_sources
from warpfit.errors import CaptureError, Obstacle
from warpfit.nn.network import NetworkSpec

# Operations that a graph should not have more of: it is made within milliseconds, and the launch of
# so many is hidden by the graph before.
MOST_OPERATIONS = 512
# A step has no more operations than about these: of each layer, forward and backward, and the
# others.
OPERATIONS_OF_LAYER, OTHER_OPERATIONS = 5, 8
# What the host takes to start an operation once and to capture it, in launches of a graph.
LAUNCHES_OF_OPERATION = 4
# Bytes that kernels load at once where addresses allow it; as in backends/cuda/next_batch.py.
ALIGNMENT = 16

# The place of y among a step's sources.
TARGETS = 1

# The first columns of a table of numbers: the step of the run, and the row of the record. The
# optimizer's follow.
STEP, ROW, OF_UPDATE = 0, 1, 2

# The batches of a graph, by their rows.
Sizes = tuple[int, ...]


def steps_of_graph(
    num_layers: int, steps_per_epoch: int, period: int = 1, epochs: int | None = None
) -> int:
    """Return how many steps a graph has: the graphs of an epoch have about as many each, and few
    operations.

    After `period` steps, a power of two, rows lie at the same alignment again: if graphs can have
    so many, it is a multiple, so that they are alike. A short run's graphs are short: longer ones
    would be launched less often, but take the host longer to make.
    """
    operations = num_layers * OPERATIONS_OF_LAYER + OTHER_OPERATIONS
    most = max(1, MOST_OPERATIONS // operations)
    if epochs is not None:
        total = epochs * steps_per_epoch
        most = min(most, max(1, isqrt(int(total / (LAUNCHES_OF_OPERATION * operations)))))
    period = period if period <= most else 1
    num_graphs = max(1, -(-steps_per_epoch // (most // period * period)))
    return min(steps_per_epoch, -(-steps_per_epoch // (num_graphs * period)) * period)


def period_of(bytes_of_batches: list[int]) -> int:
    """Return after how many batches of these sizes the next begin at a multiple of 16 bytes, as the
    first do.
    """
    return max(ALIGNMENT // gcd(ALIGNMENT, size) for size in bytes_of_batches)


def sizes_of_graphs(num_rows: int, batch_size: int, steps: int) -> list[Sizes]:
    """Return the rows of an epoch's batches, `steps` for each graph; the last may have fewer."""
    rows = [min(batch_size, num_rows - first) for first in range(0, num_rows, batch_size)]
    return [tuple(rows[first : first + steps]) for first in range(0, len(rows), steps)]


@dataclass(frozen=True, kw_only=True)
class PreparedGraph(Prepared):
    """How the engine graph runs a plan."""

    steps: int  # of a graph, but for an epoch's last


class GraphEngine(Engine):
    """Runs steps of `layerwise` as graphs, with the same bits."""

    name = "graph"
    needs_gpu = True
    has_ranks = True

    def prepare(
        self,
        draft: Plan,
        data: TrainingData,
        validation: TrainingData | None = None,
        stopping: Stopping | None = None,
    ) -> PreparedGraph | Obstacle:
        for sentence in _in_the_way(draft, data):
            return Obstacle(sentence)
        rows = data.on(draft.device)
        precision, why = draft.precision, ""
        if precision == AUTO:
            precision, why = _own_precision(draft, rows)
        plan = replace(draft, precision=precision)
        steps, narrow = _steps_of_graph(plan, data), _narrow_step(plan, data)
        steps_per_epoch = -(-len(data) // plan.batch_size)
        how = f"graphs of {steps} of the {steps_per_epoch} steps of an epoch"
        how += "" if narrow is None else f", each through all layers at once ({narrow})"
        return PreparedGraph(
            precision=precision,
            reason=f"{why}; {how}" if why else how,
            copied_bytes=_copied_bytes(plan, data),
            steps=steps,
        )

    def run(
        self,
        plan: Plan,
        state: TrainState,
        data: TrainingData,
        epochs: int,
        on_step: StepListener | None = None,
        is_border: BorderTest = every_epoch,
        validation: TrainingData | None = None,
        stopping: Stopping | None = None,
    ) -> Iterator[EpochReport]:
        last_epoch, most = state.epoch + epochs, 1
        with team_of(plan, state, data, partial(run_of, _Run, on_step=on_step)) as team:
            while state.epoch < last_epoch:
                count = pace.epochs_to_border(
                    is_border, state.epoch, min(most, last_epoch - state.epoch)
                )
                reports = team.epochs(count)
                if team.run.is_captured:  # until then an epoch takes longer than those to come
                    most = pace.epochs_next_time(count, reports[0].seconds)
                yield from reports


def _in_the_way(plan: Plan, data: TrainingData) -> Iterator[str]:
    """Yield what of a step needs the host, or may need it; only the first counts."""
    if plan.device == "cpu":
        yield "expected a CUDA device, got 'cpu'"
    if not isinstance(plan.network, NetworkSpec):
        yield "expected a Sequential of the package's layers, got a module of its own"
        return
    for _, spec in plan.network.layers:
        if not is_of_package(spec):
            yield (
                f"expected layers of the package, got {type(spec).__name__}, which may need "
                "the host in a step"
            )
        if spec.num_indices is not None:
            yield (
                f"expected layers that do not need the host in a step, got {spec.kind}, which "
                "'layerwise' runs"
            )
    if plan.loss_scale == DYNAMIC:
        yield "expected a fixed loss_scale, got 'dynamic', which the host finds after each step"
    for kind, value in (("a loss", plan.loss), ("an optimizer", plan.optimizer)):
        why = None if is_of_package(value) else needs_host(plan, data, value)
        if why is not None:
            yield (
                f"expected {kind} of the backend's operations alone, got "
                f"{type(value).__name__}: {why}"
            )


def _own_precision(draft: Plan, data: TrainingData) -> tuple[str, str]:
    """Return float16, or bfloat16 for data with too large numbers, if tensor cores multiply it."""
    from warpfit.backends.cuda.matmul_mma_config import supports

    if draft.dtype == "float64":
        return "float64", ""
    precision, why = suitable(draft.loss, data)
    arch = backends.get(draft.device).runtime.arch  # type: ignore[attr-defined]
    if supports(arch, precision):
        return precision, why
    return draft.dtype, f"tensor cores of {arch} do not multiply {precision}"


def _copied_bytes(plan: Plan, data: TrainingData) -> int:
    """Return the bytes of a batch."""
    num_rows = max(1, len(data))
    sources, in_place = row_sources(plan, data), _in_place(plan, data)
    of_rows = (
        sum(source.nbytes for i, source in enumerate(sources) if i not in in_place) // num_rows
    )
    return of_rows * plan.most_of_rank(min(plan.batch_size, num_rows))


def _narrow_step(plan: Plan, data: TrainingData) -> object | None:
    return narrow_step(plan, data, min(plan.batch_size, len(data)))


def _steps_of_graph(plan: Plan, data: TrainingData) -> int:
    period = period_of([size * plan.batch_size for size in _bytes_between_rows(plan, data)])
    num_layers = len(cast(NetworkSpec, plan.network.fused).layers)
    epochs = plan.epochs * networks_to_come()
    return steps_of_graph(num_layers, -(-len(data) // plan.batch_size), period, epochs)


def _in_place(plan: Plan, data: TrainingData) -> tuple[int, ...]:
    """Return the sources whose rows steps read where they lie: targets, if the loss finds them."""
    return (TARGETS,) if finds_targets(plan, data) else ()


def _bytes_between_rows(plan: Plan, data: TrainingData) -> list[int]:
    """Return how far apart rows of each source lie where `layerwise` takes them; 0 where batches
    begin anew, or stay.

    Some sums go by where they begin, past a multiple of 16 bytes, and so have the bits that they
    have there.
    """
    sources, num_rows = row_sources(plan, data), max(1, len(data))
    in_place = _in_place(plan, data)
    return [
        source.nbytes // num_rows if source.is_ordered and i not in in_place else 0
        for i, source in enumerate(sources)
    ]


class _Run(Run):
    """A run whose operations are captured.

    Graphs of batches of the same sizes, whose rows lie at the same alignments, are one graph, which
    all epochs use. They are captured the first time if other runs have loaded all kernels.
    Otherwise operations are then started one by one, and captured the second time.
    """

    # A device's; the contract knows no graphs.
    ops: Any

    def __init__(
        self,
        plan: Plan,
        state: TrainState,
        data: TrainingData,
        ranks: Communicator,
        on_step: StepListener | None = None,
    ) -> None:
        super().__init__(plan, state, data, on_step, float(plan.loss_scale), ranks)
        steps = self.reports.steps_per_epoch
        self.sizes = sizes_of_graphs(
            len(data), plan.batch_size, cast(PreparedGraph, plan.prepared).steps
        )
        self.graphs: dict[tuple[Sizes, tuple[int, ...]], Any] = {}
        self.record = self.ops.zeros((steps, 3), "float64")
        num_columns = OF_UPDATE + len(plan.optimizer.numbers_of_groups(1, 0.0))
        self.table = self.ops.zeros((steps, num_columns), "float64")
        self.source: Any = None  # made when there first is an order
        self.order: Array | None = None  # where steps find it
        # Ranks capture and launch alike, wherever the rows of each begin.
        self.shifts = [
            size * plan.batch_size if ranks.size == 1 else 0
            for size in _bytes_between_rows(plan, data)
        ]
        self.foreseen: tuple[Any, npt.NDArray[np.float64]] | None = None

    def serve(self, plan: Plan, seed: int, on_step: StepListener | None) -> None:
        """Be another network's run, whose plan is as `run_of` demands."""
        self.plan, self.on_step, self.foreseen = plan, on_step, None
        self.state.seed = seed
        self.reports = Reports(plan, self.state, len(self.data))

    @property
    def is_captured(self) -> bool:
        """Whether all operations of an epoch are."""
        return None not in self.graphs.values()

    def train_epoch(self, rates: list[float], order: Array) -> Array:
        self._put_rows(order)
        # No operation of the epoch before is under way, and those that come wait for these.
        self.ops.assign(self.table, self.ops.asarray(self._numbers(self.state.epoch, rates)))
        done = 0
        for sizes in self.sizes:
            self.source.begin(done)
            self._start(sizes, done)
            self.state.step += len(sizes)
            for _ in sizes:
                done += 1
                if self.on_step is not None:
                    self.on_step(done, len(rates))
        self._foresee()
        # What follows may use the step's buffers; it would ask for more where no step was started
        # one by one.
        self.ops.begin_step()
        return self.record

    def _put_rows(self, order: Array) -> None:
        """Let steps find the rows of this epoch."""
        if self.order is None:
            from warpfit.backends.cuda.next_batch import StepSource

            self.order = self.ops.copy(order)
            self.source = StepSource(
                self.ops,
                self.sources,
                self.order,
                self.batch_rows,
                self.table,
                _in_place(self.plan, self.data),
            )
        else:
            self.ops.assign(self.order, order)

    def _phase(self, step: int) -> tuple[int, ...]:
        """Return how far past 16 bytes the rows of a step of the epoch begin, in each source."""
        return tuple(step * shift % ALIGNMENT for shift in self.shifts)

    def _start(self, sizes: Sizes, first: int) -> None:
        """Start the operations of steps from `first` on, whose batches have so many rows."""
        key = sizes, self._phase(first)
        if key not in self.graphs:
            # Of several ranks one might come to what another does not, and they meet in between.
            alone = self.ranks.size == 1
            self.graphs[key] = self._captured_unseen(sizes, first) if alone else None
            if self.graphs[key] is None:
                self._start_each(sizes, first)
                return
        if self.graphs[key] is None:
            self.graphs[key] = self._captured(sizes, first)
        self.graphs[key].launch()

    def _captured(self, sizes: Sizes, first: int, *, allocates: bool = False) -> Any:
        with self.ops.runtime.capture(allocates=allocates) as graph:
            self._start_each(sizes, first)
        # Buffers may yet be replaced by larger ones, for other batches.
        graph.holds += self.ops.step_memory()
        return graph

    def _captured_unseen(self, sizes: Sizes, first: int) -> Any:
        """Return a graph of operations that this run has not started one by one; None if that takes
        more than the memory that is free, such as a kernel that nobody has loaded yet.
        """
        with suppress(CaptureError):
            return self._captured(sizes, first, allocates=True)
        return None

    def _start_each(self, sizes: Sizes, first: int) -> None:
        """Start operations that do not depend on `first`, but for the alignment of its rows."""
        numbers = self.source.numbers
        for offset, num_rows in enumerate(sizes):
            part = part_of(num_rows, self.ranks)
            own = StepNumbers(numbers[STEP], numbers[ROW], part, of_update=numbers[OF_UPDATE:])
            self.ops.begin_step()
            if self._starts_at_once(offset, part.rows, own):
                continue
            x, y, *weights = self.source.take(offset, part.rows, self._phase(first + offset))
            self.step((x, y, weights[0] if weights else None), own, self.record)

    def _starts_at_once(self, offset: int, num_rows: int, own: StepNumbers) -> bool:
        """Start a step that takes its rows from where they are, and return whether there is one."""
        if narrow_step(self.plan, self.data, num_rows) is None:
            return False
        rows = self.source.take_numbers(offset, num_rows)
        x, y = rows.sources
        return self.step_at_once(x, y, own, self.record, rows)

    # -- numbers

    def _numbers(self, epoch: int, rates: list[float]) -> npt.NDArray[np.float64]:
        """Return the table (steps, columns) of an epoch, for the optimizer's next steps."""
        key = epoch, self.state.step, rates
        if self.foreseen is None or self.foreseen[0] != key:
            self.foreseen = key, self._found_numbers(*key)
        return self.foreseen[1]

    def _found_numbers(
        self, epoch: int, first_update: int, rates: list[float]
    ) -> npt.NDArray[np.float64]:
        find, first_step = self.plan.optimizer.numbers_of_groups, epoch * len(rates)
        return np.array(
            [
                (first_step + row, row, *find(first_update + row + 1, lr))
                for row, lr in enumerate(rates)
            ],
            np.float64,
        )

    def _foresee(self) -> None:
        """Find the next epoch's numbers while the device works; again if they change."""
        epoch = self.state.epoch + 1
        if epoch < self.plan.epochs:
            self._numbers(epoch, self.rates(epoch))
