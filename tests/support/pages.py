"""A playground that runs in a thread of the test's process, and a page that talks to it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from support.playground import small_data
from warpfit.apps.playground import server
from warpfit.apps.playground.session import Digits

__all__ = ["Page", "serving", "small_digits"]


def small_digits() -> Digits:
    """Return images of 8×8 pixels in three classes."""
    return Digits(small_data(), size=8, top=1)


@contextmanager
def serving(digits: Digits, *, port: int = 0) -> Iterator[server.Playground]:
    """Run a playground on a free port, or a given one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "load_digits", lambda: digits)
        playground = server.Playground(port=port, device="cpu")
    thread = threading.Thread(target=playground.serve, name="server")
    thread.start()
    try:
        yield playground
    finally:
        playground.stop()
        thread.join(20)
    assert not thread.is_alive()


class Page:
    """What a page does with its WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    @classmethod
    @contextmanager
    def of(cls, playground: server.Playground, **options: Any) -> Iterator[Page]:
        url = f"ws://127.0.0.1:{playground.port}/session"
        with connect(
            url, origin=playground.url.rstrip("/"), compression=None, proxy=None, **options
        ) as socket:
            yield cls(socket)

    def send(self, message: Any) -> None:
        self.socket.send(message if isinstance(message, (str, bytes)) else json.dumps(message))

    def hear(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.socket.recv(timeout=20))
        return message

    def until(self, wanted: Callable[[dict[str, Any]], object]) -> list[dict[str, Any]]:
        """Return the messages up to the first that is wanted."""
        heard, end = [], time.monotonic() + 20
        while time.monotonic() < end:
            heard.append(self.hear())
            if wanted(heard[-1]):
                return heard
        raise AssertionError(f"expected another message, heard {heard[-3:]}")

    def until_type(self, kind: str) -> list[dict[str, Any]]:
        return self.until(lambda message: message["type"] == kind)
