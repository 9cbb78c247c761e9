"""A playground that runs in a thread of the test's process, and a page that talks to it."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import ClientConnection, connect

from warpfit.data import Dataset
from warpfit.playground import server
from warpfit.playground.messages import DRAWING_SIZE
from warpfit.playground.session import Digits

__all__ = ["SETTINGS", "TRAIN_DIGITS", "TRAIN_POINTS", "Page", "a_drawing", "serving", "small_digits"]

SETTINGS = {
    "width": 8,
    "depth": 1,
    "activation": "relu",
    "optimizer": "sgd",
    "lr": 0.05,
    "batch_size": 16,
    "epochs": 2,
}
TRAIN_DIGITS = {"type": "train", "task": "digits", "settings": SETTINGS, "afresh": True}
TRAIN_POINTS = {**TRAIN_DIGITS, "task": "points", "points": {"name": "moons", "noise": 0.1}}


def small_digits(num_rows: int = 60) -> Digits:
    """Return images of 8×8 pixels in three classes: bright above, in the middle or below."""
    labels = np.arange(num_rows) % 3
    images = np.random.default_rng(0).uniform(0, 0.2, size=(num_rows, 8, 8))
    for label in range(3):
        images[labels == label, 3 * label : 3 * label + 2] += 0.8
    x = images.reshape(num_rows, 64).astype(np.float32)
    return Digits(Dataset("small", x, labels, x, labels, ("above", "middle", "below")), size=8, top=1)


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


def a_drawing() -> str:
    """Return a vertical line as the page sends it."""
    pixels = np.zeros((DRAWING_SIZE, DRAWING_SIZE), np.uint8)
    pixels[20:90, 50:60] = 255
    return base64.b64encode(pixels.tobytes()).decode()
