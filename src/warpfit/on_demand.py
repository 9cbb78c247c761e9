"""Attributes of objects, and of packages, that are made when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from threading import RLock
from types import ModuleType
from typing import Any

from warpfit.other_packages import WithHints, refuse_attribute

# Held while a promise is kept: makers ask for what was promised by others.
_KEEPING = RLock()
# Returns attributes by their names.
Maker = Callable[[], Mapping[str, Any]]


class OnDemand(WithHints):
    """An object some of whose attributes may be promised; asking for one keeps its promise.

    Setting an attribute voids its promise. What is pickled or copied has all attributes.
    """

    def promise(self, maker: Maker, *names: str) -> None:
        """Let a function give these attributes by name, once one of them is asked for."""
        own = vars(self)
        for name in names:
            own.pop(name, None)
        own["_promises"] = {**own.get("_promises", {}), **dict.fromkeys(names, maker)}

    def promised(self, name: str) -> Maker | None:
        """Return what will make an attribute, None if it is there, or none was promised."""
        own = vars(self)
        return None if name in own else own.get("_promises", {}).get(name)

    def __getattr__(self, name: str) -> Any:
        # Only called for what is not there.
        own = vars(self)
        with _KEEPING:
            if name in own:  # another thread was quicker
                return own[name]
            maker = own.get("_promises", {}).get(name)
            if maker is not None:
                for each, value in maker().items():
                    own.setdefault(each, value)
                self._forget_kept()
                return own[name]
        return super().__getattr__(name)  # type: ignore[misc]

    def void_promises(self) -> None:
        """Forget the promises of attributes that are there, and what would have made them."""
        with _KEEPING:
            if "_promises" in vars(self):
                self._forget_kept()

    def _forget_kept(self) -> None:
        own = vars(self)
        left = {name: make for name, make in own["_promises"].items() if name not in own}
        if left:
            own["_promises"] = left
        else:
            del own["_promises"]

    def __getstate__(self) -> dict[str, Any]:
        own = vars(self)
        for name in list(own.get("_promises", ())):
            getattr(self, name)
        return {name: value for name, value in vars(self).items() if name != "_promises"}


def imports_on_demand(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that imports what is public when it is
    first asked for.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    homes : mapping of str to sequence of str
        The package's modules, which are attributes too, and the names that each is the home of.
    """
    home_of = {name: home for home, names in homes.items() for name in (home, *names)}

    def get_attribute(name: str) -> Any:
        if name not in home_of:
            refuse_attribute(package, name)
        home = import_module(f"{package}.{home_of[name]}")
        if name == home_of[name]:
            return home
        value = getattr(home, name)
        setattr(sys.modules[package], name, value)
        return value

    return get_attribute, lambda: list(sys.modules[package].__all__)


class _Later(ModuleType):
    """Stands for a module that is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        self.step_aside()
        return getattr(import_module(self.__name__), name)

    def step_aside(self) -> None:
        """Let the next import of the module be one."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


@contextmanager
def imported_later(name: str) -> Iterator[None]:
    """Let a module that is imported in this block wait until something of it is asked for.

    It is for what others import and few of those who use them need. Their package must find it when
    they ask for it as an attribute, as SciPy finds its own. After the block all is as if nobody had
    imported it yet. A module that is there already stays.

    Parameters
    ----------
    name : str
        Of a module of a package.
    """
    if name in sys.modules:
        yield
        return
    later = sys.modules[name] = _Later(name)
    try:
        yield
    finally:
        later.step_aside()
