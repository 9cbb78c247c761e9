"""A connection: the page's requests, and the answers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import secrets
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

import warpfit
from warpfit.apps.playground.drawing import as_digit
from warpfit.apps.playground.messages import (
    DIGITS,
    POINTS,
    Predict,
    Request,
    Sample,
    Stop,
    Train,
    contents,
    parse,
)
from warpfit.apps.playground.points import GRID, LIMIT, grid_points
from warpfit.apps.playground.trainer import Ended, Event, Network, Reported, Started, Trainer, Turns
from warpfit.data import Dataset
from warpfit.engines.base import EpochReport
from warpfit.errors import ConfigError

FRAMES_PER_SECOND = 25
MOST_WAITING = 32  # messages, from which on no more requests are read


@dataclass(frozen=True, eq=False)
class Digits:
    """The data set of digits, with flat samples to train on, and what images of them are."""

    data: Dataset
    size: int  # pixels of a side
    top: int  # what the brightest pixel of a sample counts


@dataclass
class _Progress:
    """Epochs that the page has not heard of, and the network after the last."""

    number: int
    task: str
    network: Network
    reports: list[EpochReport] = field(default_factory=list)


class Outbox:
    """Messages to the page, in order. Epochs that wait are sent as one: images may be missed."""

    def __init__(self) -> None:
        self._waiting: deque[dict[str, Any] | _Progress] = deque()
        self._open: _Progress | None = None  # takes further epochs
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def put(self, message: dict[str, Any]) -> None:
        self._open = None
        self._append(message)

    def put_progress(
        self, number: int, task: str, network: Network, report: EpochReport | None
    ) -> None:
        if self._open is None or self._open.number != number:
            self._open = _Progress(number, task, network)
            self._append(self._open)
        self._open.network = network
        if report is not None:
            self._open.reports.append(report)

    def _append(self, item: dict[str, Any] | _Progress) -> None:
        self._waiting.append(item)
        self._changed.set()
        if len(self._waiting) >= MOST_WAITING:
            self._has_room.clear()

    async def first(self) -> dict[str, Any] | _Progress:
        """Return what is next, when there is something; it stays, and progress goes on growing."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        return self._waiting[0]

    def take(self) -> dict[str, Any] | _Progress:
        """Remove what is next."""
        item = self._waiting.popleft()
        if item is self._open:
            self._open = None
        if len(self._waiting) < MOST_WAITING:
            self._has_room.set()
        return item

    async def room(self) -> None:
        """Wait until the page has read enough for another answer."""
        await self._has_room.wait()


class Session:
    """One page's connection, with networks of its own, and turns that all sessions share."""

    def __init__(
        self, socket: WebSocket, digits: Digits, device: str, device_label: str, turns: Turns
    ) -> None:
        self.socket, self.digits = socket, digits
        self.device, self.device_label = device, device_label
        self.outbox = Outbox()
        self.networks: dict[str, Network] = {}
        self.loop = asyncio.get_running_loop()
        self.trainer = Trainer(digits.data, device, turns, self._tell)

    async def run(self) -> None:
        """Talk until the page leaves."""
        self.outbox.put(self._hello())
        sender = asyncio.create_task(self._send())
        try:
            await self._receive()
        finally:
            sender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sender
            await asyncio.to_thread(self.trainer.close)

    def _hello(self) -> dict[str, Any]:
        data = self.digits.data
        return {
            "type": "hello",
            "version": warpfit.__version__,
            "device": self.device,
            "device_label": self.device_label,
            "digits": {
                "name": data.name,
                "classes": data.class_names,
                "size": self.digits.size,
                "train": len(data.x_train),
                "test": len(data.x_test),
            },
            "grid": GRID,
            "limit": LIMIT,
            **contents(len(data.x_train)),
        }

    async def _receive(self) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                await self.outbox.room()
                message = await self.socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                try:
                    if message.get("text") is None:
                        raise ConfigError("expected a message of text, got bytes")
                    await self._answer(parse(message["text"]))
                except ConfigError as error:
                    self.outbox.put({"type": "error", "message": str(error)})

    async def _answer(self, request: Request) -> None:
        if isinstance(request, Train):
            self.trainer.train(request)
        elif isinstance(request, Stop):
            self.trainer.stop()
        elif isinstance(request, Sample):
            self.outbox.put(self._sample())
        elif isinstance(request, Predict):
            asked = request, self.networks.get(DIGITS), self.digits.size
            self.outbox.put(await asyncio.to_thread(_prediction, *asked))

    def _sample(self) -> dict[str, Any]:
        data = self.digits.data
        row = secrets.randbelow(len(data.x_test))
        image = data.x_test[row] * (255 / self.digits.top)
        label = data.class_names[data.y_test[row]]
        return {"type": "sample", "label": label, "pixels": _base64(image)}

    def _tell(self, event: Event) -> None:
        """Hear of an event in the trainer's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to notify
            self.loop.call_soon_threadsafe(self._note, event)

    def _note(self, event: Event) -> None:
        task = event.request.task
        if isinstance(event, Started):
            self.networks[task] = event.network
            self.outbox.put(_as_started(event))
            self.outbox.put_progress(event.number, task, event.network, None)
        elif isinstance(event, Reported):
            self.networks[task] = event.network
            self.outbox.put_progress(event.number, task, event.network, event.report)
        elif isinstance(event, Ended):
            ended = {"type": "ended", "run": event.number, "task": task}
            self.outbox.put({**ended, "how": event.how, "reason": event.reason})

    async def _send(self) -> None:
        last = 0.0
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
            while self.socket.client_state is WebSocketState.CONNECTED:
                if isinstance(await self.outbox.first(), _Progress):
                    await asyncio.sleep(last + 1 / FRAMES_PER_SECOND - time.monotonic())
                    last = time.monotonic()
                item = self.outbox.take()
                if isinstance(item, _Progress):
                    item = await asyncio.to_thread(_as_progress, item)
                await self.socket.send_text(json.dumps(item, allow_nan=False))


def _as_started(event: Started) -> dict[str, Any]:
    plan = event.plan
    message = {
        "type": "started",
        "run": event.number,
        "task": event.request.task,
        "goes_on": event.goes_on,
        "epoch": event.network.epoch,
        "last_epoch": event.network.epoch + plan.epochs,
        "engine": plan.engine,
        "precision": plan.precision,
        "reason": plan.reason,
        "data": event.data.name,
        "rows": len(event.data.x_train),
        "num_parameters": event.num_parameters,
    }
    if event.request.task == POINTS:
        data = event.data
        message["points"] = {
            "classes": data.class_names,
            "train": _as_points(data.x_train, data.y_train),
            "test": _as_points(data.x_test, data.y_test),
        }
    return message


def _as_points(x: npt.NDArray[Any], labels: npt.NDArray[Any]) -> list[list[float]]:
    return [
        [round(float(a), 3), round(float(b), 3), int(label)]
        for (a, b), label in zip(x, labels, strict=True)
    ]


def _as_progress(progress: _Progress) -> dict[str, Any]:
    message = {
        "type": "progress",
        "run": progress.number,
        "task": progress.task,
        "epoch": progress.network.epoch,
        "reports": [_as_report(report) for report in progress.reports],
    }
    if progress.task == POINTS:
        planes = progress.network.probabilities(grid_points()).T
        message["image"] = _base64(planes * 255)
    return message


def _as_report(report: EpochReport) -> dict[str, Any]:
    names = ("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "seconds")
    values = {name: getattr(report, name) for name in names}
    # JSON has no infinity, which the loss of a network that diverges on the test set can be.
    return {
        name: value if value is None or math.isfinite(value) else None
        for name, value in values.items()
    }


def _prediction(request: Predict, network: Network | None, size: int) -> dict[str, Any]:
    """Return the answer to a drawing, without probabilities if there is no ink or no network."""
    digit = as_digit(request.pixels, size)
    seen = None if digit is None else _base64(digit * 255)
    probabilities = None
    if digit is not None and network is not None:
        row = network.probabilities(digit.reshape(1, -1))[0]
        probabilities = [round(float(share), 5) for share in np.nan_to_num(row)]
    return {
        "type": "prediction",
        "id": request.id,
        "seen": seen,
        "probabilities": probabilities,
        "epoch": None if network is None else network.epoch,
    }


def _base64(pixels: npt.NDArray[Any]) -> str:
    """Return numbers from 0 to 255 as bytes in base64."""
    finite = np.nan_to_num(pixels, posinf=255.0)
    return base64.b64encode(np.clip(np.rint(finite), 0, 255).astype(np.uint8).tobytes()).decode(
        "ascii"
    )
