"""Parameters and optimizer state of a launch's networks: how they get to the device, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from warpfit.backends import Array
from warpfit.engines.launch_network import parameter_names
from warpfit.engines.many_members import Member
from warpfit.engines.state_on_demand import OnDevice, StateOnDemand
from warpfit.random import INIT, stream_keys

if TYPE_CHECKING:
    from warpfit.backends.cuda.many_launch import ManyLaunch

Packed = npt.NDArray[np.float32]

ALIGNMENT = 16  # bytes, which kernels move at once


class PackedParameters:
    """Of each network a row: its parameters, then each slot of the optimizer.

    Attributes
    ----------
    array : DeviceArray (networks, 1 + slots, num_parameters) float32
        As the kernel takes it; let go when all of it is on the host.
    """

    def __init__(self, ops: Any, launch: ManyLaunch, members: Sequence[Member]) -> None:
        self.ops, self.launch, self._parts = ops, launch, launch.places
        self._names: dict[int, list[str]] = {}
        self._host: Packed | None = None
        self.array: Any = self._made(members)

    def names_of(self, member: Member) -> list[str]:
        """Return the names of a network's parameters, in the order of the launch's places."""
        key = id(member.plan.network)
        if key not in self._names:
            self._names[key] = parameter_names(member.plan)
        return self._names[key]

    def _shape(self, count: int) -> tuple[int, int, int]:
        return count, 1 + self.launch.network.slots, self.launch.num_parameters

    def _made(self, members: Sequence[Member]) -> Array:
        """Return what all networks begin with; most is drawn where it is trained, if possible."""
        drawn = [idx for idx, member in enumerate(members) if _can_be_drawn(member)]
        if 2 * len(drawn) < len(members):
            return self._given(members)
        array = self._drawn(members, drawn)
        others = sorted({*range(len(members))} - {*drawn})
        rows = self._packed([members[idx] for idx in others])
        for idx, row in zip(others, rows, strict=True):
            self.ops.assign(array[idx], self.ops.asarray(row))
        return array

    def _given(self, members: Sequence[Member]) -> Array:
        """Return all rows; one that several networks begin with comes to the device once."""
        places: dict[tuple[int, ...], int] = {}
        of_members = [places.setdefault(_begin_of(member), len(places)) for member in members]
        if 2 * len(places) > len(members):
            return self.ops.asarray(self._packed(members))
        firsts = [members[of_members.index(place)] for place in range(len(places))]
        rows = self.ops.asarray(self._packed(firsts))
        array = self.ops.empty(self._shape(len(members)), "float32")
        for idx, place in enumerate(of_members):
            self.ops.assign(array[idx], rows[place])
        return array

    def _drawn(self, members: Sequence[Member], drawn: Sequence[int]) -> Array:
        """Return rows of which some are drawn, and the others are zeros."""
        from warpfit.backends.cuda.initial_values import draw_initial_values

        given = []
        for idx in range(len(self._parts)):
            starts = [members[number].starts[idx] for number in drawn]
            keys = np.zeros((len(members), 2), np.uint32)
            keys[drawn] = np.stack(stream_keys([start.seed for start in starts], INIT), axis=-1)
            bounds = np.zeros(len(members))
            bounds[drawn] = [start.drawn_within for start in starts]
            given.append((*map(self.ops.asarray, (keys, bounds)), starts[0].tensor_idx))
        array = self.ops.zeros(self._shape(len(members)), "float32")
        for (first, shape), (keys, bounds, place) in zip(self._parts, given, strict=True):
            draw_initial_values(self.ops, array, first, prod(shape), keys, bounds, place)
        return array

    def _packed(self, members: Sequence[Member]) -> Packed:
        found = np.zeros(self._shape(len(members)), np.float32)
        for own, member in zip(found, members, strict=True):
            for row, first, arrays, name in self._places(member):
                own[row, first : first + arrays[name].size] = arrays[name].ravel()
        return found

    def _places(self, member: Member) -> Iterator[tuple[int, int, dict[str, Array], str]]:
        """Yield for each parameter, and its optimizer state, in which row it lies, and where."""
        slots = [member.state.slots[name] for name in member.plan.optimizer.slot_names]
        for row, arrays in enumerate([member.state.parameters, *slots]):
            for name, (first, _) in zip(self.names_of(member), self._parts, strict=True):
                yield row, first, arrays, name

    def hand_back(self, members: Sequence[Member]) -> None:
        """Leave in the members' states what training made of them, perhaps once it is asked for."""
        for idx, member in enumerate(members):
            if isinstance(member.state, StateOnDemand):
                names, slots = self.names_of(member), member.plan.optimizer.slot_names
                made = partial(self._arrays_of, idx, names, slots)
                member.state.take_from(made, self._on_device(idx, names))
                continue
            self.fetch()
            for row, first, arrays, name in self._places(member):
                array = arrays[name]
                own = cast(Packed, self._host)[idx, row, first : first + array.size]
                array[...] = own.reshape(array.shape)

    def fetch(self) -> None:
        """Bring all rows to the host, and let the device's memory go."""
        if self._host is None:
            self._host, self.array = self.ops.to_numpy(self.array), None

    def _arrays_of(
        self, idx: int, names: Sequence[str], slots: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        own = self.ops.to_numpy(self.array[idx]) if self._host is None else self._host[idx].copy()
        rows = [self._named(row, names) for row in own]
        return {
            "parameters": rows[0],
            "buffers": {},
            "slots": dict(zip(slots, rows[1:], strict=True)),
        }

    def _on_device(self, idx: int, names: Sequence[str]) -> OnDevice | None:
        return None if self.array is None else _Row(self, idx, names)

    @cached_property
    def are_finite(self) -> npt.NDArray[np.bool_]:
        """Whether the sum of each network's parameters is finite, (networks,), on the device."""
        return np.isfinite(self.ops.to_numpy(self.ops.reduce("sum", self.array[:, 0], 1)))

    def views_of(self, idx: int, names: Sequence[str]) -> dict[str, Array]:
        """Return a network's parameters on the device; those that are not aligned as arrays of
        their own are copies, which the same kernels take.
        """
        row = self.array[idx, 0]
        found = {}
        for name, (first, shape) in zip(names, self._parts, strict=True):
            part = self.ops.reshape(row[first : first + prod(shape)], shape)
            found[name] = self.ops.copy(part) if part.pointer % ALIGNMENT else part
        return found

    def by_name(self, row: Packed, member: Member) -> dict[str, Packed]:
        """Return the parameters in a row (num_parameters,) of this layout, by a network's names."""
        return self._named(row, self.names_of(member))

    def _named(self, row: Packed, names: Sequence[str]) -> dict[str, Packed]:
        places = zip(names, self._parts, strict=True)
        return {
            name: row[first : first + int(np.prod(shape))].reshape(shape)
            for name, (first, shape) in places
        }


class _Row(OnDevice):
    """A network's among the parameters of its launch."""

    def __init__(self, packed: PackedParameters, idx: int, names: Sequence[str]) -> None:
        self.packed, self.idx, self.names = packed, idx, names

    @property
    def are_finite(self) -> bool:
        return bool(self.packed.are_finite[self.idx])

    def arrays(self) -> dict[str, Array]:
        return self.packed.views_of(self.idx, self.names)


def _begin_of(member: Member) -> tuple[int, ...]:
    """Return by which arrays, but those of zeros, a network's row differs from others."""
    slots = [array for arrays in member.state.slots.values() for array in arrays.values()]
    begun = [array for array in slots if array.any()]
    return tuple(id(array) for array in (*member.state.parameters.values(), *begun))


def _can_be_drawn(member: Member) -> bool:
    """Return whether a kernel can draw the initial values of a network."""
    bounds = [start.drawn_within for start in member.starts]
    return bool(bounds) and None not in bounds
