"""Initial values of many networks of one shape, drawn on the device with the bits of NumPy."""

from __future__ import annotations

from typing import Any

from warpfit.backends import Array
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.arrays import blocks_for

THREADS = 256
# A random counter decides so many numbers.
NUMBERS = 4
MOST_GRID_ROWS = 65535


def draw_initial_values(
    ops: Any,
    out: DeviceArray,
    first: int,
    size: int,
    keys: Array,
    bounds: Array,
    tensor_idx: int,
) -> None:
    """Draw one parameter of each network, uniform within the network's bound.

    Parameters
    ----------
    ops : CudaBackend
    out : DeviceArray (networks, ...) float32
        Contiguous; of each network's numbers `size` from the one at `first` on are written.
    first, size : int
    keys : array (networks, 2) uint32
        Of the stream ``INIT`` of the layers' seeds.
    bounds : array (networks,) float64
    tensor_idx : int
        The parameter's place in its layer.
    """
    count, stride = out.shape[0], out.size // out.shape[0]
    own = DeviceArray(ops.runtime, out.memory, out.pointer + 4 * first, out.shape, out.dtype)
    blocks = blocks_for(-(-size // NUMBERS), THREADS, max(1, ops.most_blocks // count))
    ops.kernel("initial_values")(
        (blocks, min(count, MOST_GRID_ROWS)),
        THREADS,
        ops.asarray(keys),
        ops.asarray(bounds),
        own,
        stride,
        size,
        tensor_idx,
        count,
    )
