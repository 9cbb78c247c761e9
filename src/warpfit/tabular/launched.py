"""RealMLP networks trained by one kernel on a GPU, whole trainings at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array
from warpfit.backends.cuda.resident_arguments import TableArguments
from warpfit.backends.cuda.table_networks import (
    TILE,
    TableLaunch,
    TableShape,
    choose_table,
    tiles_of,
)
from warpfit.backends.launch_structs import TABLE_NETWORK_FIELDS, TABLE_STEP_FIELDS
from warpfit.data.order import domain_bits, round_keys_of
from warpfit.errors import Obstacle
from warpfit.losses import Loss, MeanSquaredError, SoftmaxCrossEntropy
from warpfit.random import DROPOUT as MASKS
from warpfit.random import stream_key
from warpfit.tabular.network import RealMLP
from warpfit.tabular.schedules import ADAM, DROPOUT, WEIGHT_DECAY, coslog4, flat_cos
from warpfit.tabular.training import Rows

# Of a launch, with one network: it takes a fifth of a second.
STEPS_AT_ONCE = 8192
# Slots of an array of parameters: their values, two moments, and the best.
SLOTS, VALUES, BEST = 4, 0, 3
TURNS_BYTES = 16


@dataclass(frozen=True, eq=False)
class Task:
    """A network that is trained beside others, and its data; all of it may be on the host.

    Attributes
    ----------
    network : RealMLP
        With its initial values.
    rows, validation : Rows
        Without weights.
    bounds : ndarray (2, outputs), optional
        What outputs that are numbers are clipped to before their validation error.
    seed : int
        Of the orders.
    """

    network: RealMLP
    rows: Rows
    validation: Rows
    bounds: npt.NDArray[Any] | None
    seed: int


def launch_of(
    device: str,
    network: RealMLP,
    loss: Loss,
    batch_size: int,
    num_networks: int = 1,
    *,
    dtype: str = "float16",
    is_weighted: bool = False,
) -> TableLaunch | Obstacle:
    """Return how a device trains networks as one kernel, which it begins to compile, or what is in
    the way.

    Parameters
    ----------
    device : str
    network : RealMLP
        One that is as all of them are.
    loss : Loss
    batch_size, num_networks : int
    dtype : {'float16', 'bfloat16'}
        Of products.
    is_weighted : bool
        Whether rows have weights.
    """
    target = backends.target_of(device)
    if target is None:
        return Obstacle("expected a CUDA device, got 'cpu'")
    if type(loss) not in (SoftmaxCrossEntropy, MeanSquaredError):
        return Obstacle(f"expected cross-entropy or the mean squared error, got {loss!r}")
    if is_weighted:
        return Obstacle("expected no sample weights, got some")
    *widths, _ = _widths(network)
    if len(set(widths)) != 1:
        return Obstacle(f"expected hidden layers of the same width, got {widths}")
    launch = choose_table(
        _shape_of(network, loss, batch_size, num_networks),
        target.arch,
        target.max_shared_bytes,
        target.num_multiprocessors,
    )
    if isinstance(launch, Obstacle):
        return launch
    launch = replace(launch, dtype=dtype)
    target.compile_ahead([(launch.kernel, tuple(launch.config.settings().items()))])
    return launch


def _widths(network: RealMLP) -> list[int]:
    """Return the units of each layer."""
    linears: list[Any] = list(network.linears)
    return [linear.weight.shape[1] for linear in linears]


def _shape_of(network: RealMLP, loss: Loss, batch_size: int, num_networks: int) -> TableShape:
    columns, widths = network.columns, _widths(network)
    activation: Any = network.activations[0]
    return TableShape(
        columns.num_numbers,
        columns.num_indicators,
        columns.num_codes,
        widths[0],
        len(widths) - 1,
        widths[-1],
        activation.activation,
        loss.label_smoothing if isinstance(loss, SoftmaxCrossEntropy) else None,
        batch_size,
        num_networks,
    )


class Launched:
    """Networks' training, whose epochs are launched many at a time.

    Parameters
    ----------
    device : str
    tasks : sequence of Task
        Whose epochs have the same number of whole batches.
    launch : TableLaunch
        As `launch_of` returns it.
    lr, dropout, weight_decay : float
        The largest ones.
    n_epochs : int
    """

    def __init__(
        self,
        device: str,
        tasks: Sequence[Task],
        launch: TableLaunch,
        *,
        lr: float,
        n_epochs: int,
        dropout: float = DROPOUT,
        weight_decay: float = WEIGHT_DECAY,
    ) -> None:
        self.tasks, self.launch, self.n_epochs = tasks, launch, n_epochs
        ops: Any = backends.create(backends.resolve_device(device))
        self.ops = ops
        self.steps_per_epoch = len(tasks[0].rows.x) // launch.shape.batch
        num_steps = n_epochs * self.steps_per_epoch
        self.kernel = self.ops.kernel(launch.kernel, **launch.config.settings())
        self.steps = self._bytes(_steps(num_steps, lr, dropout, weight_decay))
        self.memory = self.ops.zeros((len(tasks), launch.memory_bytes), "uint8")
        self.turns = self.ops.zeros((TURNS_BYTES,), "uint8")
        self.losses = self.ops.zeros((len(tasks), num_steps, launch.row_blocks), "float32")
        start = np.zeros((len(tasks), 1 + n_epochs))
        start[:, 0] = np.inf
        self.errors = self.ops.copy(self.ops.asarray(start))
        self.places = _places_of(tasks[0].network)
        self.parameters = self._parameters()
        self.held: list[Array] = []
        fields = np.concatenate([self._fields(idx) for idx in range(len(tasks))])
        self.networks = self._bytes(fields)

    def _bytes(self, host: npt.NDArray[Any]) -> Array:
        return self.ops.copy(self.ops.asarray(host.view(np.uint8).ravel()))

    def _parameters(self) -> Array:
        """Return the parameters of each network, and room for what else there is of them."""
        shape = (len(self.tasks), SLOTS, self.launch.shape.num_parameters)
        parameters = self.ops.zeros(shape, "float32")
        for own, task in zip(parameters, self.tasks, strict=True):
            host = np.zeros(shape[2], np.float32)
            for parameter, places in zip(_in_order(task.network), self.places, strict=True):
                host[places] = parameter.numpy()
            values = self.ops.asarray(host)
            for slot in (VALUES, BEST):
                self.ops.assign(own[slot], values)
        return parameters

    def _held(self, array: Any, dtype: str = "float32") -> Array:
        """Return an array as the kernel takes it, which stays as long as the run."""
        if isinstance(array, np.ndarray):  # lest a kernel is compiled that converts it
            array = np.asarray(array, dtype)
        found = self.ops.contiguous(self.ops.asarray(array, dtype))
        self.held.append(found)
        return found

    def _fields(self, idx: int) -> npt.NDArray[Any]:
        """Return the struct of a network."""
        task, rows = self.tasks[idx], self.launch.rows
        fields = np.zeros(1, TABLE_NETWORK_FIELDS)
        num_rows, num_validated = len(task.rows.x), len(task.validation.x)
        targets = "float32" if self.launch.shape.smoothing is None else "int64"
        arrays = {
            "x": self._held(task.rows.x),
            "targets": self._held(task.rows.y, targets),
            "validation_x": self._held(task.validation.x),
            "validation_targets": self._held(task.validation.y, targets),
            "parameters": self.parameters[idx],
            "keys": self._bytes(round_keys_of(task.seed, range(self.n_epochs))),
            "losses": self.losses[idx],
            "error_sums": self.ops.zeros((-(-num_validated // rows),), "float32"),
            "errors": self.errors[idx],
        }
        if task.bounds is not None:
            arrays["bounds"] = self._held(task.bounds)
        self.held += arrays.values()
        for name, array in arrays.items():
            fields[name] = array.pointer
        fields["key"] = stream_key(task.network.seed, MASKS)
        fields["num_rows"], fields["bits"] = num_rows, domain_bits(num_rows)
        fields["num_validated"] = num_validated
        return fields

    def epochs(self) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Train; of some epochs at a time yield the mean losses and the validation errors, each
        (networks, epochs).
        """
        most = max(1, STEPS_AT_ONCE // (self.steps_per_epoch * len(self.tasks)))
        for first in range(0, self.n_epochs, most):
            count = min(most, self.n_epochs - first)
            self._start(first, count)
            losses = self.losses_of_steps(first, count)
            of_epochs = losses.reshape(len(losses), count, self.steps_per_epoch).mean(axis=2)
            yield of_epochs, self.ops.to_numpy(self.errors)[:, 1 + first :][:, :count]

    def losses_of_steps(self, first: int, count: int) -> npt.NDArray[Any]:
        """Return the loss of each step (networks, steps) of some epochs that are done."""
        steps = slice(first * self.steps_per_epoch, (first + count) * self.steps_per_epoch)
        of_blocks = [self.ops.to_numpy(own[steps]) for own in self.losses]
        sums = np.sum(of_blocks, axis=2, dtype=np.float64)
        return np.asarray(sums / self.launch.shape.batch)

    def _start(self, first: int, count: int) -> None:
        """Start the kernel for some epochs from one on."""
        launch, runtime = self.launch, self.ops.runtime
        runtime.fill(self.turns.pointer, TURNS_BYTES)
        longest = max(len(task.validation.x) for task in self.tasks)
        self.kernel(
            launch.blocks,
            launch.threads,
            TableArguments(
                networks=self.networks,
                memory=self.memory,
                steps=self.steps,
                turns=self.turns,
                first_epoch=first,
                num_epochs=count,
                steps_per_epoch=self.steps_per_epoch,
                validation_blocks=-(-longest // launch.rows),
            ),
            shared_bytes=launch.shared_bytes,
            is_cooperative=True,
        )

    def hand_over(self) -> None:
        """Give the networks the parameters of the epoch with the least error, the latest of equal
        ones; those that they had, if none is finite.
        """
        for task, own in zip(self.tasks, self.parameters, strict=True):
            values, ops = self.ops.to_numpy(own[BEST]), task.network.backend
            for parameter, places in zip(_in_order(task.network), self.places, strict=True):
                ops.assign(parameter.data, ops.asarray(values[places]))


def _in_order(network: RealMLP) -> list[Any]:
    """Return the parameters in the kernel's order, which ``table_shapes.cuh`` says."""
    numbers = network.numbers
    linears: list[Any] = list(network.linears)
    activations: list[Any] = list(network.activations)
    return [
        *(linear.weight for linear in linears),
        *(numbers.frequency, numbers.phase, numbers.weight, numbers.bias),
        *(activation.weight for activation in activations),
        *(linear.bias for linear in linears),
        network.scale.weight,
        network.codes.weight,
    ]


def _places_of(network: RealMLP) -> list[npt.NDArray[np.int64]]:
    """Return where in the kernel's array the numbers of each parameter lie."""
    places, first = [], 0
    for idx, parameter in enumerate(_in_order(network)):
        shape, count = parameter.shape, parameter.size
        if idx < len(network.linears):
            own, count = _places_in_tiles(*shape), TILE**2 * prod(map(tiles_of, shape))
        else:
            own = np.arange(count).reshape(shape)
        places.append(first + own)
        first += count
    return places


def _places_in_tiles(inputs: int, units: int) -> npt.NDArray[np.int64]:
    """Return where a layer's weights lie: by tiles, in each by halves of its units, by lanes, each
    of which has two by two.
    """
    rows, columns = tiles_of(inputs), tiles_of(units)
    places = np.arange(rows * columns * TILE**2).reshape(rows, columns, 2, 8, 4, 2, 2)
    in_order = places.transpose(0, 5, 3, 1, 2, 4, 6).reshape(TILE * rows, TILE * columns)
    return in_order[:inputs, :units]


def _steps(num_steps: int, lr: float, dropout: float, weight_decay: float) -> npt.NDArray[Any]:
    """Return the numbers of all steps of a run."""
    times = np.arange(num_steps) / num_steps
    rates, shares = lr * coslog4(times), flat_cos(times)
    numbers = ADAM.update_numbers(np.arange(1.0, num_steps + 1), rates)
    dropped = dropout * shares
    steps = np.zeros(num_steps, TABLE_STEP_FIELDS)
    steps["rate"], steps["eps"] = numbers.rate, numbers.eps
    steps["decay"] = rates * weight_decay * shares
    steps["kept_scale"] = 1 / (1 - dropped)
    steps["dropped_below"] = np.rint(dropped * 2.0**32)
    return steps
