"""The playground: a local web page on which one draws a digit, changes a network and watches it train.

``warpfit playground`` starts it. `drawing` and `points` are its data, `messages` what the page may ask, `trainer` the
thread that trains, `session` a connection, `server` the pages, who may see them, and the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpfit.errors import ConfigError

if TYPE_CHECKING:
    from warpfit.apps.playground.server import Playground

__all__ = ["open_playground"]

PACKAGES = ("starlette", "uvicorn", "websockets")  # of the extra `playground`


def open_playground(*, port: int, device: str = "auto") -> Playground:
    """Return a playground that holds its port of 127.0.0.1 and has its data; `Playground.serve` runs it.

    Parameters
    ----------
    port : int
        In [0, 65535]; 0 is any that is free.
    device : str
        What networks are trained on.

    Raises
    ------
    ConfigError
        If what it needs is not installed, or the port is taken.
    DeviceError
        If the device is not there.
    """
    try:
        from warpfit.apps.playground.server import Playground
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in PACKAGES:
            raise
        raise ConfigError(f"the playground needs {package}: pip install 'warpfit[playground]'") from None
    return Playground(port=port, device=device)
