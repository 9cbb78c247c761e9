"""Attributes that are made when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Maker", "OnDemand"]

# Returns attributes by their names.
Maker = Callable[[], Mapping[str, Any]]


class OnDemand:
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
        maker = own.get("_promises", {}).get(name)
        if maker is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        for each, value in maker().items():
            own.setdefault(each, value)
        self._forget_kept()
        return own[name]

    def void_promises(self) -> None:
        """Forget the promises of attributes that are there, and what would have made them."""
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
