"""A kernel's settings: constants that the host declares in place of ``#include <config>``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

from warpfit.errors import CompileError

Number = Annotated[int, "int"]
Flag = Annotated[bool, "bool"]
Ints = Annotated[tuple[int, ...], "int[]"]
Flags = Annotated[tuple[bool, ...], "bool[]"]
Real = Annotated[float, "float"]
Floats = Annotated[tuple[float, ...], "float[]"]
ActivationName = Annotated[str, "Activation"]
ActivationNames = Annotated[tuple[str, ...], "Activation[]"]
# Of a class, and of a class template that kernels complete.
TypeName = Annotated[str, "using"]
Rule = Annotated[str, "rule"]

_TEXTS: dict[str, Callable[[Any], str]] = {
    "int": str,
    "bool": lambda value: str(bool(value)).lower(),
    "float": lambda value: f"{float(value)}f",
    "Activation": lambda name: f"Activation::{name}",
    "using": str,
    "rule": str,
}
# What such texts say; names stay texts.
_VALUES: dict[str, Callable[[str], Any]] = {
    "int": int,
    "bool": "true".__eq__,
    "float": lambda text: float(text.removesuffix("f")),
    "Activation": lambda text: text.removeprefix("Activation::"),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a kernel is compiled for: a subclass's fields are ``namespace config``, in order.

    Each field is `Annotated` with its type of C++. Its name there is in upper case.
    """

    @classmethod
    @cache
    def kinds(cls) -> dict[str, str]:
        """Return the type of C++ of each constant, by its name."""
        hints = get_type_hints(cls, include_extras=True)
        return {field.name.upper(): get_args(hints[field.name])[1] for field in fields(cls)}

    def settings(self) -> dict[str, str]:
        """Return the text of each constant's value, by its name."""
        found = {}
        for name, kind in self.kinds().items():
            value, text = getattr(self, name.lower()), _TEXTS[kind.removesuffix("[]")]
            is_list = kind.endswith("[]")
            found[name] = f"{{{', '.join(map(text, value))}}}" if is_list else text(value)
        return found

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Config:
        """Return what has these settings, as `settings` returns them."""

        def value(kind: str, text: str) -> Any:
            if kind.endswith("[]"):
                parts = text.strip("{}").split(", ")
                return tuple(value(kind.removesuffix("[]"), part) for part in parts)
            return _VALUES.get(kind, str)(text)

        return cls(
            **{name.lower(): value(kind, settings[name]) for name, kind in cls.kinds().items()}
        )

    @classmethod
    def declaration(cls, settings: Mapping[str, str]) -> str:
        """Return the constants in C++.

        Parameters
        ----------
        settings : mapping of str to str
            As `settings` returns them.

        Raises
        ------
        CompileError
            If constants are missing, or there are others.
        """
        kinds = cls.kinds()
        if settings.keys() != kinds.keys():
            wrong = sorted(settings.keys() ^ kinds.keys())
            raise CompileError(
                f"expected the settings of {cls.__name__}, got too many or too few: "
                f"{', '.join(wrong)}"
            )
        return "\n".join(_constant(name, kind, settings[name]) for name, kind in kinds.items())


def _constant(name: str, kind: str, text: str) -> str:
    """Return the line that declares a constant."""
    if kind == "using":
        return f"using {name} = {text};"
    if kind == "rule":
        return f"template <class Options> using {name} = {text}<Options>;"
    if kind.endswith("[]"):
        return f"[[maybe_unused]] constexpr {kind.removesuffix('[]')} {name}[] = {text};"
    return f"constexpr {kind} {name} = {text};"
