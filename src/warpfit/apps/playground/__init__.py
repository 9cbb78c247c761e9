"""The playground: a local web page on which one draws a digit, changes a network and watches it
train.

``warpfit playground`` starts it. `drawing` and `points` are its data, `messages` what the page may
ask, `trainer` the thread that trains, `session` a connection, `server` the pages, who may see them,
and the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpfit.extras import needs

if TYPE_CHECKING:
    from warpfit.apps.playground.server import Playground

__all__ = ["open_playground"]


def open_playground(*, port: int, device: str = "auto") -> Playground:
    """Return a playground that holds its port of 127.0.0.1 and has its data; `Playground.serve`
    runs it.

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
    with needs("playground", "the playground needs"):
        from warpfit.apps.playground.server import Playground
    return Playground(port=port, device=device)
