"""RealMLP-TD as a method: a bag's networks by one kernel on a GPU, else one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import groupby
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from warpfit import backends
from warpfit.cores import num_cores
from warpfit.errors import ConfigError, Obstacle
from warpfit.tabular.layers import Embedding
from warpfit.tabular.members import (
    AUTO,
    Member,
    Method,
    Shape,
    Trained,
    Training,
    trained_in_turn,
)
from warpfit.tabular.network import FREQUENCY_SCALE, HIDDEN, Columns, RealMLP, set_initial_values
from warpfit.tabular.onnx_network import realmlp_onnx
from warpfit.tabular.place import predicted_on
from warpfit.tabular.preprocessing import Preprocessor
from warpfit.tabular.schedules import DROPOUT, WEIGHT_DECAY
from warpfit.tabular.targets import Numbers
from warpfit.tabular.training import PREDICTED_ROWS, Outcome, Rows, outputs_of, train

if TYPE_CHECKING:
    from warpfit.backends.cuda.table_networks import TableLaunch
    from warpfit.tabular.launched import Task


# A bag of 8 on magic takes 0.83 s, a network 0.272 s (docs/tables.md).
TRAINED_AT_ONCE = 2.6


def _defaults(are_classes: bool) -> Mapping[str, Any]:
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


def _space(are_classes: bool) -> Mapping[str, Any]:
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


def _network(shape: Shape, seed: int) -> RealMLP:
    return RealMLP(
        shape.columns, shape.num_outputs, shape.activation, seed=seed, hidden=shape.hidden
    )


def _widths(shape: Shape) -> tuple[int, ...]:
    return (shape.columns.num_embedded, *shape.hidden, shape.num_outputs)


def _train(members: Sequence[Member], training: Training) -> Iterator[Trained]:
    """Train all members as one kernel, where there is one; else one after the other."""
    is_on_cpu = backends.target_of(training.device) is None
    precision = training.settings["precision"]
    if precision == "float32" or (precision == AUTO and is_on_cpu):
        yield from _trained_in_turn(0, members, training)
        return
    begun = 0
    with_rows = [(member, member.rows(), member.validation()) for member in members]
    for (batch_size, dtype, *_), group in groupby(with_rows, lambda each: _alike(training, *each)):
        together = list(group)
        if begun and training.is_over():
            return
        launch = _launch_of(*together[0], training, dtype, batch_size, len(together))
        if launch is None:
            yield from _trained_in_turn(begun, [member for member, *_ in together], training)
        else:
            yield from _trained_together(begun, together, training, launch)
        begun += len(together)


def _alike(
    training: Training, member: Member, rows: Rows, validation: Rows
) -> tuple[int, str, int, Shape]:
    """Return what is equal of networks of a launch: the rows of a batch, the dtype, how many
    batches an epoch has, and the shape.
    """
    num_rows = len(rows.y)
    batch_size = min(num_rows, training.settings["batch_size"])
    dtype = _dtype_of(training, rows)
    return batch_size, dtype, num_rows // batch_size, member.shape(training.settings)


def _dtype_of(training: Training, rows: Rows) -> str:
    """Return the dtype in which a kernel trains on some rows: by default float16, whose range holds
    the gradients of targets that are not too far away.
    """
    precision: str = training.settings["precision"]
    if precision != AUTO:
        return precision
    if rows.y.dtype.kind != "f":
        return "float16"
    from warpfit.backends.cuda.table_networks import GRADIENT_SCALE

    # Of a squared error they are twice the distance, and a prediction may be as far away.
    largest = 4 * GRADIENT_SCALE * np.abs(rows.y).max() / rows.y.shape[1]
    return "bfloat16" if largest > np.finfo(np.float16).max else "float16"


def _launch_of(
    member: Member,
    rows: Rows,
    validation: Rows,
    training: Training,
    dtype: str,
    batch_size: int,
    num_networks: int,
) -> TableLaunch | None:
    """Return how a kernel trains some networks like a member's, or None if none does."""
    from warpfit.tabular.launched import launch_of

    precision = training.settings["precision"]
    launch = launch_of(
        training.device,
        _network(member.shape(training.settings), 0),
        training.loss,
        batch_size,
        num_networks,
        dtype=dtype,
        is_weighted=rows.weights is not None or validation.weights is not None,
    )
    if not isinstance(launch, Obstacle):
        return launch
    if precision == AUTO:
        return None
    raise ConfigError(f"precision {precision!r}: {launch}")


def _trained_together(
    first: int,
    with_rows: Sequence[tuple[Member, Rows, Rows]],
    training: Training,
    launch: TableLaunch,
) -> Iterator[Trained]:
    from warpfit.tabular.launched import Launched

    members, settings = [member for member, *_ in with_rows], training.settings
    shape = members[0].shape(settings)
    sizes = len(with_rows[0][2].x), len(members)
    compiling = Thread(target=_compile_outputs, args=(shape, training.device, *sizes))
    compiling.start()  # beside the kernel that trains, for which `Launched` waits
    with ThreadPoolExecutor(num_cores()) as threads:
        tasks = list(threads.map(partial(_task_of, training), *zip(*with_rows, strict=True)))
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
    compiling.join()
    run.hand_over()
    for member, task, outcome in zip(members, tasks, outcomes, strict=True):
        outcome.check(settings["lr"])
        yield Trained.of(member, task.network, shape, outcome)


def _compile_outputs(shape: Shape, device: str, num_rows: int, num_networks: int) -> None:
    """Begin to compile what predicts about so many rows, if a GPU does."""
    if predicted_on(device, _widths(shape), num_rows * num_networks) == "cpu":
        return
    rows, columns = min(_rows_of_batches(num_rows), PREDICTED_ROWS), shape.columns
    # Codes would be read on the host: what they become is as wide as so many indicators.
    as_wide = columns.num_indicators + Embedding.SIZE * len(columns.num_codes)
    columns = Columns(columns.num_numbers, as_wide)

    def predict(ops: Any) -> None:
        network = _network(replace(shape, columns=columns), 0).to(device)
        network.eval()(ops.empty((rows, columns.num_plain), "float32"))

    backends.get(device).rehearse(("outputs", shape, rows), predict)


def _task_of(training: Training, member: Member, rows: Rows, validation: Rows) -> Task:
    """Return a member as a kernel trains it, with its initial values; all of it on the host."""
    from warpfit.tabular.launched import Task

    targets = member.targets
    bounds = np.stack([targets.low, targets.high]) if isinstance(targets, Numbers) else None
    network = _begun(member, training, rows)
    return Task(network.eval(), rows, validation, bounds, member.seed)


def _trained_in_turn(
    first: int, members: Sequence[Member], training: Training
) -> Iterator[Trained]:
    names = ("lr", "dropout", "weight_decay")
    own = partial(train, **{name: training.settings[name] for name in names})
    return trained_in_turn(first, members, training, _begun, own)


def _begun(member: Member, training: Training, rows: Rows) -> RealMLP:
    """Return a member's network with its initial values, on the host."""
    network = _network(member.shape(training.settings), member.seed)
    set_initial_values(network, rows.x, member.seed, training.settings["frequency_scale"])
    return network


def _outputs(network: RealMLP, x: Any) -> Any:
    """Return `outputs_of`, on a GPU in batches of few sizes, whose kernels are there."""
    ops, (num_rows, num_columns) = network.backend, x.shape
    if ops.name == "numpy":
        return outputs_of(network, x)
    padded = ops.zeros((_rows_of_batches(num_rows), num_columns), "float32")
    ops.assign(padded[:num_rows], x)
    return outputs_of(network, padded)[:num_rows]


def _rows_of_batches(num_rows: int) -> int:
    """Return how many rows the batches of so many have: whole ones, or one of a power of two."""
    if num_rows > PREDICTED_ROWS:
        return -(-num_rows // PREDICTED_ROWS) * PREDICTED_ROWS
    return int(1 << (max(1, num_rows) - 1).bit_length())


REALMLP = Method(
    defaults=_defaults,
    preprocessor=Preprocessor,
    network=_network,
    widths=_widths,
    train=_train,
    outputs=_outputs,
    space=_space,
    onnx=realmlp_onnx,
    trained_at_once=TRAINED_AT_ONCE,
)
