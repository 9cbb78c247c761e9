"""ModuleList: modules in an order, for a module that calls them by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from warpfit.checks import brief
from warpfit.errors import ConfigError
from warpfit.nn.module import Module


class ModuleList(Module):
    """Modules by number, whose parameters belong to the module that holds the list.

    It has no ``forward``: its owner says what calls what. Names of parameters have the numbers in
    them, ``blocks.0.weight``.

    Parameters
    ----------
    modules : iterable of Module

    Raises
    ------
    ConfigError
        If one of them is no module.

    Examples
    --------
    >>> class Stack(nn.Module):
    ...     def __init__(self):
    ...         self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    ...     def forward(self, x):
    ...         for block in self.blocks:
    ...             x = x + block(x)
    ...         return x
    >>> len(Stack().parameters())
    6
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self._modules: list[Module] = []
        self.extend(modules)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        return iter([(str(idx), module) for idx, module in enumerate(self._modules)])

    def append(self, module: Module) -> ModuleList:
        """Add a module at the end."""
        return self.extend([module])

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Add modules at the end, all or none of them."""
        if not isinstance(modules, Iterable):
            raise ConfigError(f"ModuleList: expected several modules, got {brief(modules)}")
        found = list(modules)
        for module in found:
            if not isinstance(module, Module):
                raise ConfigError(f"ModuleList: expected modules, got {brief(module)}")
        self._modules += found
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules)

    def __getitem__(self, idx: int) -> Module:
        return self._modules[idx]
