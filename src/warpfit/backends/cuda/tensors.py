"""Lists of tensors for kernels that serve many in one launch: their ``TensorList`` struct."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple
from weakref import ref

from warpfit.backends.checks import check_float, check_update
from warpfit.backends.cuda.array import DeviceArray

# As in kernels/base/tensors.cuh.
MAX_LISTS, MAX_TENSORS, TENSOR_THREADS = 4, 80, 256
VECTOR_BYTES = 16
# So many blocks that the last of them, running alone, cost little; fewer for small tensors.
BLOCKS_PER_MULTIPROCESSOR = 64
PLANS_REMEMBERED = 64

_HEAD, _ENTRY = struct.Struct("=ii"), struct.Struct(f"={MAX_LISTS}Qqq")

Groups = Sequence[Sequence[DeviceArray]]


class Launch(NamedTuple):
    """One launch over up to 80 tensors of every list."""

    dtypes: tuple[str, ...]  # one for each list
    tensors: bytes  # the `TensorList`
    # num_blocks and first_block: its blocks, and how many the plan's earlier launches have.
    num_blocks: int
    first_block: int
    blocks: tuple[int, ...]  # those of each tensor


class TensorPlan(NamedTuple):
    """The launches that cover lists of tensors."""

    launches: list[Launch]  # empty if all tensors are
    num_blocks: int  # of all launches together
    # Number of the list, tensor, and the contiguous copy that stands in for it.
    copies: list[tuple[int, DeviceArray, DeviceArray]]
    # Weak references to the tensors: the plan is forgotten when the first of them goes.
    watched: list[Any]


# A plan is found by the identity of its tensors, which never change their place, shape or dtype.
_plans: dict[Any, TensorPlan] = {}


def plan_of(backend: Any, op: str, groups: Groups, *, same_dtype: bool = True) -> TensorPlan:
    """Return the launches for lists of tensors; one for the same tensors as before is cached.

    Parameters
    ----------
    backend : ArrayOps
    op : str
        Name for error messages.
    groups : up to four sequences of DeviceArray
        The first tensors of all lists go together, the second ones, ...
    same_dtype : bool
        Whether tensors that go together must have one dtype.

    Raises
    ------
    ShapeError, DTypeError
        As `check_update`; for a single list as `check_float`.
    """
    key = (same_dtype, *[tuple(map(id, arrays)) for arrays in groups])
    plan = _plans.get(key)
    if plan is not None:
        return plan
    if len(groups) == 1:
        check_float(op, *groups[0])
    else:
        check_update(op, *groups, same_dtype=same_dtype)
    plan = _new_plan(backend, groups)
    if not plan.copies:
        _remember(key, plan, groups)
    return plan


def _remember(key: Any, plan: TensorPlan, groups: Groups) -> None:
    """Keep a plan until one of its tensors goes, or 64 others came after it."""
    for old in list(islice(_plans, max(0, len(_plans) - PLANS_REMEMBERED + 1))):
        _plans.pop(old, None)

    def forget(_: Any) -> None:
        _plans.pop(key, None)

    plan.watched.extend(ref(array, forget) for arrays in groups for array in arrays)
    _plans[key] = plan


def _new_plan(backend: Any, groups: Groups) -> TensorPlan:
    copies = []
    dense: list[list[DeviceArray]] = []
    for number, arrays in enumerate(groups):
        dense.append([backend.contiguous(array) for array in arrays])
        copies += [
            (number, own, copy)
            for own, copy in zip(arrays, dense[-1], strict=True)
            if own is not copy
        ]
    launches: list[Launch] = []
    first_block = 0
    for tensors in _alike(zip(*dense, strict=True)):
        launch = _launch(
            tensors, first_block, backend.runtime.num_multiprocessors * BLOCKS_PER_MULTIPROCESSOR
        )
        launches.append(launch)
        first_block += launch.num_blocks
    return TensorPlan(launches, first_block, copies, [])


def _alike(tensors: Iterable[tuple[DeviceArray, ...]]) -> Iterable[list[tuple[DeviceArray, ...]]]:
    """Yield up to 80 tensors at a time, in each list all of one dtype, without empty ones."""
    by_dtypes: dict[tuple[str, ...], list[tuple[DeviceArray, ...]]] = {}
    for arrays in tensors:
        if arrays[0].size:
            by_dtypes.setdefault(_dtypes(arrays), []).append(arrays)
    for same in by_dtypes.values():
        for start in range(0, len(same), MAX_TENSORS):
            yield same[start : start + MAX_TENSORS]


def _dtypes(arrays: tuple[DeviceArray, ...]) -> tuple[str, ...]:
    return tuple(array.dtype.name for array in arrays)


def _tile(itemsize: int) -> int:
    """Return how many elements a block takes at a time: two vectors a thread, of halves one."""
    return TENSOR_THREADS * (VECTOR_BYTES // itemsize) * (1 if itemsize == 2 else 2)


def _launch(tensors: list[tuple[DeviceArray, ...]], first_block: int, most_blocks: int) -> Launch:
    """Return the launch over up to 80 tensors of every list, `most_blocks` for each at most."""
    tile = _tile(tensors[0][0].itemsize)
    num_tiles = [-(-arrays[0].size // tile) for arrays in tensors]
    tiles_per_block = max(1, -(-sum(num_tiles) // most_blocks))
    blocks = tuple(-(-tiles // tiles_per_block) for tiles in num_tiles)
    parts = [_HEAD.pack(len(tensors), tiles_per_block)]
    for idx, arrays in enumerate(tensors):
        pointers = [array.pointer for array in arrays] + [0] * (MAX_LISTS - len(arrays))
        parts.append(_ENTRY.pack(*pointers, arrays[0].size, sum(blocks[:idx])))
    return Launch(_dtypes(tensors[0]), b"".join(parts), sum(blocks), first_block, blocks)
