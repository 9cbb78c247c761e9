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
    """Return a playground that holds its port of 127.0.0.1 and has its data; `serve` runs it.

    The port 0 is any that is free; networks are trained on the device.

    Raises
    ------
    ConfigError, DeviceError
        If what it needs is not installed, the port is taken, or the device is not there.
    """
    with needs("playground", "the playground needs"):
        from warpfit.apps.playground.server import Playground
    return Playground(port=port, device=device)
