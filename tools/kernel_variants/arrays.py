"""Kernels of arrays, batches and updates, whose defines are dtypes and names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from warpfit.backends.base import UNARY
from warpfit.backends.cuda.dtypes import DEVICE_FLOATS, acc_dtype
from warpfit.backends.cuda.elementwise import BINARY_KERNELS
from warpfit.backends.cuda.joined_updates import rule_defines
from warpfit.backends.update_rules import UPDATE_RULES

Kernels = Iterator[tuple[str, dict[str, Any]]]

# Every rule with each number of slots that it may have.
UPDATES = [(name, slots) for name, rule in UPDATE_RULES.items() for slots in rule.slots]


def in_each_dtype(*names: str, dtypes: tuple[str, ...] = DEVICE_FLOATS) -> Kernels:
    """Yield kernels whose only define is a dtype."""
    return ((name, {"DTYPE": dtype}) for name, dtype in product(names, dtypes))


def of_arrays() -> Kernels:
    yield "epoch_order", {}
    yield from in_each_dtype("record_step", "all_finite", dtypes=("float32", "float64"))
    for source in (*DEVICE_FLOATS, "uint8", "int64", "bool"):
        for to in (*DEVICE_FLOATS, "int64"):
            if to == source or to in DEVICE_FLOATS:
                yield "gather_rows", {"SOURCE": source, "DTYPE": to}
                yield "copy_strided", {"SOURCE": source, "DTYPE": to}
    for source, to in product(DEVICE_FLOATS, repeat=2):
        if source != to:
            yield "cast", {"SOURCE": source, "DTYPE": to}
            yield "cast_into", {"SOURCE": source, "DTYPE": to}


def of_columns() -> Kernels:
    for dtype in DEVICE_FLOATS:
        for out in dict.fromkeys((dtype, acc_dtype(dtype).name)):
            yield "sum_columns", {"DTYPE": dtype, "OUT": out}


def of_indexing() -> Kernels:
    yield from in_each_dtype("take", dtypes=("uint8", "uint16", "uint32", "uint64"))
    yield from in_each_dtype("add_at")


def of_reduction() -> Kernels:
    for op, dtype in product(("Sum", "Max", "Min"), DEVICE_FLOATS):
        yield "reduce", {"OP": op, "DTYPE": dtype}


def of_elementwise() -> Kernels:
    yield from in_each_dtype("where")
    for kernel, names in (("unary", UNARY), ("binary", BINARY_KERNELS)):
        for dtype, name in product(DEVICE_FLOATS, names):
            yield kernel, {"FUNCTION": name, "DTYPE": dtype}


def of_next_batch() -> Kernels:
    """Yield kernels that training asks for; of next_batch there are many more."""
    pairs = (("uint8", "float16"), ("int64", "int64"), ("float32", "float32"))
    defines = {f"SOURCE{i}": source for i, (source, _) in enumerate(pairs)}
    yield "next_batch", defines | {f"TARGET{i}": target for i, (_, target) in enumerate(pairs)}
    yield "write_number", {}


def of_initial_values() -> Kernels:
    yield "initial_values", {}


def of_image_windows() -> Kernels:
    yield from in_each_dtype("take_windows", "take_windows_backward")


def of_optim() -> Kernels:
    yield from in_each_dtype("sum_squares", "clip_by_norm", "l2_penalty")
    for (rule, slots), dtype in product(UPDATES, DEVICE_FLOATS):
        yield "update_parameters", rule_defines(rule, slots, dtype)


def of_matrices() -> Kernels:
    for dtype, rounds in (("float32", False), ("float64", False), ("float32", True)):
        direction = "bfloat16" if rounds else dtype
        yield "matrix_directions", {"DTYPE": dtype, "DIRECTION": direction}
        for updates in (False, True):
            own = {"DTYPE": dtype, "UPDATES": updates, "TENSOR_CORES": rounds}
            yield "matrix_products", own
