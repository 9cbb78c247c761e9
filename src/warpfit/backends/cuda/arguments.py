"""A kernel's one parameter: a struct that the host declares and packs, and the compiler checks."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

from warpfit.backends.cuda.array import DeviceArray
from warpfit.backends.launch_structs import STRUCTS
from warpfit.errors import CompileError

# How `struct` packs each type of C but pointers: some structs as numbers, others as bytes.
FORMATS = {
    "int": "i",
    "unsigned": "I",
    "int64": "q",
    "uint64": "Q",
    "float": "f",
    "double": "d",
    "LayerArrays": "6P",
    "Layout": "0q136s",
    "LossNumbers": "3d",
    "LossSettings": "3f",
    "MemberGradients": "0q880s",
    "MemberNetwork": "0q2304s",
    "NarrowNetwork": "0q128s",
    "NarrowParts": "0q840s",
    "ProductList": "0q3592s",
    "RoundKeys": "0q160s",
    "RuleSettings": "4f",
    "Scalar": "0qPd",
    "TensorList": "0q3848s",
    "TensorMap": "0q128s",
    "UpdateList": "0q3904s",
    "WeightList": "0q1664s",
    "Windows": "0q72s",
}

# NVRTC has offsetof for constants from a release after 13.0 on; what its macro stood for before
# only NVRTC knows.
OFFSET_OF = """\
#ifdef __CUDACC_RTC__
#define OFFSET_OF(type, member) __INTADDR__(&((type*)0)->member)
#else
#define OFFSET_OF(type, member) __builtin_offsetof(type, member)
#endif"""

# An array's address, or one; none is a null pointer.
Place = DeviceArray | int | None
Int = Annotated[int, "int"]
Unsigned = Annotated[int, "unsigned"]
Float = Annotated[float, "float"]


def format_of(kind: str) -> str:
    """Return how `struct` packs a type of C."""
    if kind.endswith("*"):
        return "P"
    if kind not in FORMATS:
        raise CompileError(
            f"expected a type of C among {', '.join(FORMATS)} and pointers, got {kind}"
        )
    return FORMATS[kind]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What a kernel is handed over by value: a subclass's fields are ``struct Arguments``, in
    order.

    Each field is `Annotated` with its type of C; several numbers in a tuple are a struct of theirs.
    """

    @classmethod
    @cache
    def members(cls) -> dict[str, str]:
        """Return the type of C of each field, by its name."""
        hints = get_type_hints(cls, include_extras=True)
        return {field.name: get_args(hints[field.name])[1] for field in fields(cls)}

    @classmethod
    @cache
    def layout(cls) -> struct.Struct:
        """Return how the struct is packed, its padding included."""
        formats = [format_of(kind) for kind in cls.members().values()]
        return struct.Struct("@" + "".join(formats) + "0q")

    @classmethod
    def declaration(cls) -> str:
        """Return the struct in C++, with what the compiler checks of the host's layout."""
        formats, checks = "@", []
        for name, kind in cls.members().items():
            own = format_of(kind)
            formats += own
            offset = struct.calcsize(formats) - struct.calcsize("@" + own)
            checks.append((f"OFFSET_OF(Arguments, {name}) == {offset}", f"{name} is elsewhere"))
        checks.append((f"sizeof(Arguments) == {cls.layout().size}", "another size"))
        members = [f"    {kind} {name};" for name, kind in cls.members().items()]
        tests = [
            f'static_assert({test}, "for the host: {what}");'
            for test, what in [*checks, *cls._of_structs()]
        ]
        return "\n".join([OFFSET_OF, "struct Arguments {", *members, "};", *tests])

    @classmethod
    def _of_structs(cls) -> Iterator[tuple[str, str]]:
        """Yield each check of a struct whose address is handed over, and what a failure means."""
        for kind in cls.members().values():
            for name, fields_of in STRUCTS.get(
                kind.removeprefix("const ").removesuffix("*"), {}
            ).items():
                yield f"sizeof({name}) == {fields_of.itemsize}", f"another size of {name}"
                for member, (_, offset, *_) in (fields_of.fields or {}).items():
                    yield (
                        f"OFFSET_OF({name}, {member}) == {offset}",
                        f"{member} of {name} is elsewhere",
                    )

    def values(self) -> list[Any]:
        """Return the numbers that `layout` packs."""
        found: list[Any] = []
        for field in fields(self):
            value = getattr(self, field.name)
            found += value if isinstance(value, (tuple, list)) else [value]
        return [v.pointer if type(v) is DeviceArray else 0 if v is None else v for v in found]
