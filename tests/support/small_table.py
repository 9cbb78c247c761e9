"""A table of every kind of column, and RealMLP's first steps on it, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from warpfit import losses
from warpfit.losses import Loss
from warpfit.tabular.network import RealMLP, set_initial_values
from warpfit.tabular.preprocessing import Preprocessor
from warpfit.tabular.training import Steps

Array = npt.NDArray[Any]

NUM_TRAINED, NUM_ROWS, BATCH, NUM_STEPS = 512, 640, 64, 200
SEED = 7
SIZES = (2, 6, 20, 13)  # of categories: one column, some, and two that are embedded


@dataclass(frozen=True)
class Task:
    """What is learned: ``y`` is labels (N,) or numbers (N, 1), ``targets`` as training has it."""

    activation: str
    num_outputs: int
    lr: float
    loss: Loss
    y: Array
    targets: Array


def numbers_and_codes() -> tuple[Array, Array]:
    """Return numbers (N, 5) of unlike scales, one mostly 0, and codes (N, 4), 0 where they
    are missing."""
    random = np.random.default_rng(0)
    numbers = random.normal(size=(NUM_ROWS, 5)) * [1, 10, 0.1, 3, 1]
    numbers[:, 4] = random.random(NUM_ROWS) < 0.1
    codes = np.column_stack([random.integers(1, size + 1, NUM_ROWS) for size in SIZES])
    codes[random.random(codes.shape) < 0.03] = 0
    codes[: max(SIZES)] = np.minimum(np.arange(max(SIZES))[:, None] + 1, SIZES)
    return numbers, codes


def frame_of(numbers: Array, codes: Array) -> Any:
    """Return both as a frame, codes as text, 0 as a missing cell."""
    cells = {f"x{idx}": column for idx, column in enumerate(numbers.T)}
    for idx, column in enumerate(codes.T):
        cells[f"c{idx}"] = [f"{code:02d}" if code else None for code in column]
    return pd.DataFrame(cells)


def task_of(kind: str) -> Task:
    """Return the task ``'classes'`` or ``'numbers'``."""
    numbers, codes = numbers_and_codes()
    signal = np.sin(numbers[:, 0]) + 10 * numbers[:, 2] + codes[:, 2] % 3
    signal += (codes[:, 0] == 1) * numbers[:, 3]
    if kind == "classes":
        labels = np.digitize(signal, [0, 2])
        loss = losses.SoftmaxCrossEntropy(label_smoothing=0.1)
        return Task("selu", 3, 0.04, loss, labels, labels)
    trained = signal[:NUM_TRAINED]
    standard = ((signal - trained.mean()) / trained.std())[:, None]
    return Task("mish", 1, 0.2, losses.MeanSquaredError(), signal[:, None], standard)


def rows_and_network(task: Task) -> tuple[Array, RealMLP]:
    """Return the table as a network's rows, and the network with its initial values."""
    frame = frame_of(*numbers_and_codes())
    table = Preprocessor(frame, np.arange(NUM_TRAINED))
    x = table.transform(frame)
    network = RealMLP(table.columns, task.num_outputs, task.activation, seed=SEED, dtype="float64")
    set_initial_values(network, x[:NUM_TRAINED], SEED)
    return x, network


def batches() -> list[Array]:
    """Return the rows of each step."""
    random = np.random.default_rng(1)
    return [random.permutation(NUM_TRAINED)[:BATCH] for _ in range(NUM_STEPS)]


def losses_of_steps(task: Task) -> list[float]:
    """Return the loss of each step."""
    x, network = rows_and_network(task)
    steps = Steps(network.train(), task.loss, task.lr, NUM_STEPS)
    return [float(steps.step(x[rows], task.targets[rows])) for rows in batches()]
