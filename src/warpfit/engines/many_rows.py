"""The rows of a sweep as kernels that train many networks take them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from warpfit import backends
from warpfit.backends import Array
from warpfit.engines.base import TrainingData
from warpfit.engines.many_members import Member, Rows

if TYPE_CHECKING:
    from warpfit.backends.cuda.many_launch import ManyLaunch


class DeviceRows:
    """All rows of a sweep as the kernel takes them, on the device from one launch to the next.

    Parameters
    ----------
    launch : ManyLaunch
        How the networks are trained.
    device : str
    data : TrainingData
        All rows, on the host or the device.

    Attributes
    ----------
    x, targets
        Device arrays, of a row for each of the data's.
    weights : array (N,) float32 or None
        Of rows, on the device.
    """

    def __init__(self, launch: ManyLaunch, device: str, data: TrainingData) -> None:
        self.ops, self.launch = cast(Any, backends.get(device)), launch
        self.x = self._columns(data)
        is_label = launch.network.is_cross_entropy
        self.targets = self.ops.asarray(data.y, launch.label_dtype if is_label else "float32")
        self.data, self.weights = data, None
        if data.sample_weight is not None:
            self.weights = self.ops.asarray(np.asarray(data.sample_weight, np.float32))
            self.targets = self._weighed_targets()
        self._numbers: dict[int, tuple[Rows, Array]] = {}
        self._weighed: dict[Hashable, tuple[Rows | None, npt.NDArray[np.float64]]] = {}

    def _columns(self, data: TrainingData) -> Array:
        ops, launch = self.ops, self.launch
        x = ops.gather_rows(
            ops.asarray(data.x), ops.asarray(np.arange(len(data))), launch.network.dtype
        )
        x = ops.reshape(x, (len(data), -1))
        if not launch.pads_rows:
            return x
        filled = ops.zeros((1 + len(data), launch.x_width), x.dtype.name)
        ops.assign(filled[1:, : x.shape[1]], x)
        if launch.has_ones:
            ones = ops.asarray(np.ones((len(data), 1), np.float32), x.dtype.name)
            ops.assign(filled[1:, x.shape[1] : x.shape[1] + 1], ones)
        return filled[1:]

    def _weighed_targets(self) -> Array:
        """Return the targets as kernels take them where rows have weights: in clusters."""
        if not self.launch.weighs_targets:
            return self.targets
        words = self.ops.to_numpy(self.targets).view(np.float32)
        words = words.reshape(len(words), -1)
        return self.ops.asarray(
            np.column_stack([words, np.asarray(self.data.sample_weight, np.float32)])
        )

    def weight_of(self, member: Member) -> tuple[float, float]:
        """Return the sample weights a member is trained with, and, by classes, validated with."""
        weights = member.plan.loss.class_weights()
        of_classes = np.ones(self.launch.network.outputs) if weights is None else np.array(weights)
        trained = self._of_classes(member.rows, member.plan.num_rows, self.data.sample_weight)
        validated = self._of_classes(member.validation_rows, 0, None)
        return float(trained @ of_classes), float(validated @ of_classes)

    def _of_classes(
        self, numbers: Rows | None, count: int, weights: Any
    ) -> npt.NDArray[np.float64]:
        """Return what rows of each class weigh, or, without such weights, all; found once."""
        key = id(numbers), count, weights is None
        if key not in self._weighed:
            own: Any = slice(count) if numbers is None else numbers
            network, num_rows = self.launch.network, len(self.data)
            labels = (
                np.asarray(self.data.y) if network.class_weights else np.zeros(num_rows, np.int64)
            )
            weights = np.ones(num_rows) if weights is None else np.asarray(weights, np.float64)
            found = np.bincount(labels[own], weights[own], network.outputs).astype(np.float64)
            self._weighed[key] = numbers, found
        return self._weighed[key][1]

    def pointer_of(self, numbers: Rows | None) -> int:
        """Return where numbers of rows lie on the device, once for an array; 0 for none."""
        if numbers is None:
            return 0
        if id(numbers) not in self._numbers:
            # The array is kept as well: its id is nobody else's then.
            self._numbers[id(numbers)] = numbers, self.ops.asarray(np.asarray(numbers, np.int32))
        return int(self._numbers[id(numbers)][1].pointer)
