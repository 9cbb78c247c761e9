"""Tensor maps of arrays, by which kernels for Hopper copy boxes of them; each is encoded once."""

from __future__ import annotations

from typing import Any

from warpfit.backends.base import Pair
from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.cuda.columns import ColumnOps
from warpfit.backends.cuda.matmul_wgmma_config import Box

# How many a backend caches.
MOST_MAPS = 4096


class MapOps(ColumnOps):
    """The maps of a backend's arrays."""

    def __init__(self, runtime: Any, reuse: bool = False, **settings: Any) -> None:
        super().__init__(runtime, reuse, **settings)
        self._maps: dict[Any, bytes] = {}

    def tensor_map_of(
        self, array: DeviceArray, ld: int, box: Box, dtype: str | None = None
    ) -> bytes:
        """Return the map by which tensor copies move boxes of a matrix whose rows are `ld` elements
        apart.

        `dtype` is what `Runtime.tensor_map` takes, by default the array's.
        """
        key = (array.pointer, dtype or array.dtype, array.shape, ld, box)
        found = self._maps.get(key)
        if found is None:
            settings = (array.pointer, dtype or array.dtype.name, *array.shape, ld, *box)
            found = self._kept(key, self.runtime.tensor_map(*settings))
        return found

    def image_map_of(
        self, images: DeviceArray, box: tuple[int, int, int], steps: Pair = (1, 1)
    ) -> bytes:
        """Return the map for copies of boxes of contiguous images, see `Runtime.image_map`."""
        key = (images.pointer, images.dtype, images.shape, box, steps)
        found = self._maps.get(key)
        if found is None:
            settings = (images.pointer, images.dtype.name, images.shape, box, steps)
            found = self._kept(key, self.runtime.image_map(*settings))
        return found

    def _kept(self, key: Any, found: bytes) -> bytes:
        if len(self._maps) >= MOST_MAPS:
            self._maps.clear()
        self._maps[key] = found
        return found
