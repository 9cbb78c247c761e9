"""DataLoader: the batches of an epoch, in the order that every backend and engine uses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from warpfit.checks import Array, as_array, check_count, check_flag
from warpfit.data.dataset import unit_floats
from warpfit.data.order import epoch_order
from warpfit.errors import ShapeError
from warpfit.random import check_seed


class DataLoader:
    """Batches ``(x[rows], y[rows])`` of the epoch's order; each `iter()` is the next epoch.

    Parameters
    ----------
    x : array_like (N, ...)
        Samples. uint8 comes out as float32 x/255; other dtypes are kept.
    y : array_like (N, ...)
        Labels or targets.
    batch_size : int
        Rows per batch; the last batch of an epoch has the rows that remain.
    shuffle : bool
        False keeps the order of the rows.
    seed : int
        The seed of the epoch order.
    drop_last : bool
        Leave out a last batch that is shorter than `batch_size`.

    Attributes
    ----------
    epoch : int
        The epoch, counted from 0, that the next `iter()` gives; may be set.

    Raises
    ------
    ShapeError
        If `x` and `y` have no rows dimension or differ in length.
    ConfigError
        If `batch_size` is not an integer of at least 1.

    Examples
    --------
    >>> loader = data.DataLoader(x, y, batch_size=64)
    >>> [len(rows) for rows, labels in loader]
    [64, 64, 64, 8]
    >>> history = wf.fit(model, loader, optimizer="adam", epochs=3, device="cpu", verbose=False)
    >>> history["num_rows"]
    [200, 200, 200]
    """

    def __init__(
        self,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        batch_size: int = 64,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.x, self.y = as_array(x, "x"), as_array(y, "y")
        if not self.x.ndim or not self.y.ndim or len(self.x) != len(self.y):
            raise ShapeError(
                f"x and y must have as many rows; got shapes {self.x.shape} and {self.y.shape}"
            )
        self.batch_size = check_count("batch_size", batch_size, 1)
        self.shuffle = check_flag("shuffle", shuffle)
        self.drop_last = check_flag("drop_last", drop_last)
        self.seed = check_seed(seed)
        self.epoch = 0

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        whole, rest = divmod(len(self.x), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        num_rows = len(self.x)
        rows = epoch_order(num_rows, self.seed, self.epoch) if self.shuffle else np.arange(num_rows)
        self.epoch += 1
        return self._batches(rows)

    def _batches(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[Array, Array]]:
        for index in range(len(self)):
            batch = rows[index * self.batch_size : (index + 1) * self.batch_size]
            x = self.x[batch]
            yield (unit_floats(x) if x.dtype == np.uint8 else x), self.y[batch]

    def __repr__(self) -> str:
        return f"DataLoader({len(self.x)} rows, batch_size={self.batch_size}, epoch={self.epoch})"
