"""Which device ``'auto'`` is for the networks of a table.

What is compared are the prices of perceptrons of the same widths (`warpfit.training.place`). On the
CPU a network of a table takes longer than such a one, for its embeddings, its activations and its
dropout: `CPU_FACTOR` times, the median over seven sizes from 200 to 8,000 rows, 64 to 512 units and
batches of 32 to 256, which were between 6.6 and 10.1 times (2026-11-26, one thread of an Intel
Xeon).
"""

from __future__ import annotations

from collections.abc import Sequence

from warpfit.training.place import ChosenDevice, place_of, predicting_place

CPU_FACTOR = 8.6


def trained_on(
    device: str,
    widths: Sequence[int],
    *,
    num_rows: int,
    num_validated: int,
    batch_size: int,
    epochs: int,
) -> ChosenDevice:
    """Return where networks are trained: on the CPU, if that takes less time than a GPU, its
    compilation included.

    Parameters
    ----------
    device : str
        Any but ``'auto'`` stays.
    widths : sequence of int
        Of a perceptron with as much to multiply.
    num_rows, num_validated, batch_size : int
        Of each network.
    epochs : int
        Of all networks together.
    """
    return place_of(
        device,
        widths,
        num_rows=num_rows,
        batch_size=min(batch_size, num_rows),
        epochs=epochs,
        num_validated=num_validated,
        cpu_factor=CPU_FACTOR,
    )


def predicted_on(device: str, widths: Sequence[int], num_rows: int) -> str:
    """Return where networks predict so many rows in all."""
    return predicting_place(device, widths, num_rows, cpu_factor=CPU_FACTOR)
