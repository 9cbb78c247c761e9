"""Modules of one's own in files: a class by its import path, and the arguments that make it again.

A file never says what is imported: who reads it hands over the classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from typing import Any, cast

from warpfit.backends.base import FLOAT_DTYPES
from warpfit.checks import brief
from warpfit.errors import ConfigError, FileFormatError, ShapeError
from warpfit.nn.layer import Layer
from warpfit.nn.module import Module
from warpfit.nn.sequential import Residual, Sequential, computes_its_spec
from warpfit.nn.spec import LayerSpec


class UnknownClassError(ConfigError):
    """A file names a class that its reader was not given."""


def import_path(kind: type) -> str:
    """Return a class's module and qualified name."""
    return f"{kind.__module__}.{kind.__qualname__}"


# -- to a description


def described(module: Module) -> dict[str, Any]:
    """Return what makes a module again, JSON-ready if its arguments are, or raise ConfigError."""
    if computes_its_spec(module):
        raise ConfigError(
            "save: expected a Sequential or a module of one's own, got a single layer, "
            f"{type(module).__name__}"
        )
    arrays = module.named_arrays()
    dtypes = {str(holder.data.dtype) for holder in arrays.values()}
    if len(dtypes) > 1 or dtypes - set(FLOAT_DTYPES):
        raise ConfigError(
            "save: expected all arrays of a module in one dtype, float32 or float64, got "
            f"{', '.join(sorted(dtypes))}"
        )
    return _described(module, "", arrays.keys(), set())


def _described(
    module: Module, prefix: str, names: Collection[str], seen: set[int]
) -> dict[str, Any]:
    if type(module) is Sequential:
        children = module.named_children()
        return {
            "layers": [
                _described(child, f"{prefix}{name}.", names, seen) for name, child in children
            ]
        }
    if type(module) is Residual:
        chains = [_described(c, f"{prefix}{name}.", names, seen) for name, c in module.branches]
        return {"residual": chains}
    is_known = id(module) in seen
    seen.add(id(module))
    if computes_its_spec(module):
        if any(f"{prefix}{own}" not in names for own in module.array_names()):
            raise _shared(module)
        return module.spec.to_dict()
    if is_known:
        raise _shared(module)
    return {"class": import_path(type(module)), "arguments": _arguments_of(module)}


def _shared(module: Module) -> ConfigError:
    return ConfigError(
        "save: expected modules that share no array beside modules of one's own, got "
        f"{type(module).__name__}, which does"
    )


def _arguments_of(module: Module) -> dict[str, Any]:
    """Return what the module's class takes to make it again, or raise ConfigError."""
    kind = type(module)
    config, taken = getattr(kind, "config", None), inspect.signature(kind)
    if not inspect.isfunction(config):
        if taken.parameters:
            raise ConfigError(
                "save: expected a class that takes no arguments, or whose config() returns them "
                f"by name, got {kind.__name__}{taken}"
            )
        return {}
    arguments = config(module)
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise ConfigError(
            f"save: expected arguments by name from {kind.__name__}.config(), got "
            f"{brief(arguments)}"
        )
    try:
        taken.bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"save: expected arguments of {kind.__name__} from its config(): {error}"
        ) from None
    return dict(arguments)


# -- and back


def check_classes(modules: Any) -> tuple[type[Module], ...]:
    """Return classes of modules as a tuple, or raise ConfigError."""
    given = tuple(modules) if isinstance(modules, Iterable) else (modules,)
    for kind in given:
        if not isinstance(kind, type) or not issubclass(kind, Module):
            raise ConfigError(f"load: expected modules as classes of Module, got {brief(kind)}")
    return given


def made(
    description: Any, classes: Sequence[type[Module]], *, dtype: str, num_numbers: int
) -> Module:
    """Return the module of a description, with initial values.

    Parameters
    ----------
    description : dict
        See `described`.
    classes : sequence of type
        All that may be made besides the package's own layers.
    dtype : str
        float32 or float64.
    num_numbers : int
        How many numbers the file holds: larger layers are not made.

    Raises
    ------
    UnknownClassError
        If a class is not among `classes`.
    FileFormatError, ShapeError
        If nothing can be made of the description.
    """
    found = _num_numbers(description)
    if found > num_numbers:
        raise ShapeError(f"expected layers of at most {num_numbers} numbers, found {found}")
    return _made(description, classes, dtype)


def _num_numbers(description: Any) -> int:
    """Return how many numbers all layers of the package take, or raise FileFormatError."""
    if not isinstance(description, dict):
        raise FileFormatError(f"expected a module as a JSON object, found {brief(description)}")
    if isinstance(layers := description.get("layers"), list):
        return sum(map(_num_numbers, layers))
    if isinstance(chains := description.get("residual"), list):
        return sum(map(_num_numbers, chains))
    if "class" in description:
        return 0
    spec = LayerSpec.from_dict(description)
    return sum(prod(part.shape) for part in (spec.parameters() | spec.buffers()).values())


def _made(description: dict[str, Any], classes: Sequence[type[Module]], dtype: str) -> Module:
    if isinstance(layers := description.get("layers"), list):
        return Sequential(*(_made(layer, classes, dtype) for layer in layers))
    if isinstance(chains := description.get("residual"), list):
        return _residual([_made(chain, classes, dtype) for chain in chains])
    if "class" in description:
        return _made_by_class(description, classes).to(dtype=dtype)
    return Layer.from_spec(LayerSpec.from_dict(description), dtype=dtype, seed=0)


def _residual(chains: list[Module]) -> Module:
    if not 1 <= len(chains) <= 2 or not all(isinstance(chain, Sequential) for chain in chains):
        raise FileFormatError("expected one or two chains of a residual block, found others")
    layers, shortcut = (*chains, None)[:2]
    return Residual(*cast(Sequential, layers).layers, shortcut=shortcut)


def _made_by_class(description: dict[str, Any], classes: Sequence[type[Module]]) -> Module:
    name, arguments = description["class"], description.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise FileFormatError(
            f"expected a module by its class and arguments, found {brief(description)}"
        )
    # What a script saved of its own, others import from the script's module.
    kind = next(
        (k for k in classes if name in (import_path(k), f"__main__.{k.__qualname__}")), None
    )
    if kind is None:
        given = ", ".join(map(import_path, classes)) or "none"
        raise UnknownClassError(
            f"expected the class {brief(name)} in wf.load(path, modules=[...]), as no class is "
            f"imported for a file, got {given}"
        )
    try:
        return kind(**arguments)
    except Exception as error:
        told = " ".join(str(error).split())
        raise FileFormatError(
            f"expected arguments that make a {kind.__name__}, found {brief(arguments)}: {told}"
        ) from error
