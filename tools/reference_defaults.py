"""A griffe extension: parameters that share an entry of a docstring keep their own defaults."""

from __future__ import annotations

from typing import Any

import griffe


class OwnDefaults(griffe.Extension):
    """Gives each name of ``epochs, batch_size : int`` its own default; griffe gives all the first
    one's.
    """

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Go over all functions and classes of a package."""
        _mend(pkg)


def _mend(thing: Any) -> None:
    for member in thing.members.values():
        if member.is_alias:
            continue
        # Signatures of dataclasses are not known yet.
        if member.docstring and (member.is_function or "__init__" in member.members):
            _mend_docstring(member)
        if not member.is_attribute:
            _mend(member)


def _mend_docstring(member: Any) -> None:
    parameters = {each.name: each for each in member.parameters}
    for section in member.docstring.parsed:
        if section.kind is not griffe.DocstringSectionKind.parameters:
            continue
        for documented in section.value:
            own = parameters.get(documented.name)
            if own is not None:
                documented.value = None if own.default is None else str(own.default)
