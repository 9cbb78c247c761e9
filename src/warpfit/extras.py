"""Packages that an extra installs: who needs a missing one is told how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from warpfit.errors import ConfigError

_DISTRIBUTIONS = {"PIL": "Pillow"}  # where a package is called otherwise than what is installed


@contextmanager
def needs(extra: str, purpose: str) -> Iterator[None]:
    """Put around imports of packages that come with an extra.

    Parameters
    ----------
    extra : str
        One of ``pyproject.toml``.
    purpose : str
        What needs them, with the verb: ``'pictures need'``.

    Raises
    ------
    ConfigError
        In place of the ModuleNotFoundError: what is missing, and what installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "warpfit":
            raise
        name = _DISTRIBUTIONS.get(package, package)
        raise ConfigError(f"{purpose} {name}: pip install 'warpfit[{extra}]'") from None
