"""The pages, access to them, and the process that serves them.

A page of another site can send requests to 127.0.0.1 from its visitor's browser, and a name that
resolves to 127.0.0.1 makes such requests look as if they came from the same site. Hence every
request must name this machine as its host, and only this page may open the WebSocket, or be named
as the origin.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import uvicorn
import websockets  # noqa: F401  uvicorn's, without which it refuses WebSockets
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket
from uvicorn.protocols.http.h11_impl import H11Protocol

from warpfit import backends
from warpfit.apps.playground.messages import MAX_BYTES
from warpfit.apps.playground.session import Digits, Session
from warpfit.apps.playground.trainer import Turns
from warpfit.data import load_dataset
from warpfit.errors import ConfigError, DataError

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
MAX_SESSIONS = 8
MAX_CONNECTIONS = 64  # of all kinds
FRAME_BYTES = 4 * MAX_BYTES  # a longer message ends the connection; up to here it is answered
TRY_AGAIN_LATER = 1013
SHUTDOWN_SECONDS = 5
REQUEST_SECONDS = 5.0  # in which the headers of a request have to be there

# {sockets} are the addresses of the WebSocket: not every browser takes them for the page's own.
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self' "
    "{sockets}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class TimedRequests(H11Protocol):
    """uvicorn's HTTP, but a connection without a whole request in time is closed."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._time()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _time(self) -> None:
        """Let the time run while a request is to come, and stop it while one is answered."""
        if not self._is_waiting():
            self._stop()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def _is_waiting(self) -> bool:
        if self.transport.get_protocol() is not self:  # a WebSocket has taken over
            return False
        return self.cycle is None or self.cycle.response_complete

    def _give_up(self) -> None:
        self._deadline = None
        if self._is_waiting():
            self.transport.close()

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Guard:
    """Refuses, with status 403, requests to other hosts than the page's, with its port, and from
    other origins; adds the headers above to answers.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set())
        self.origins = {f"http://{host}" for host in self.hosts}
        sockets = " ".join(sorted(f"ws://{host}" for host in self.hosts))
        self.headers = {
            **HEADERS,
            "Content-Security-Policy": CONTENT_POLICY.format(sockets=sockets),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        fault = self._fault(scope)
        if fault is None:
            await self.app(scope, receive, self._with_headers(send))
        elif scope["type"] == "http":
            await PlainTextResponse(fault, status_code=403)(
                scope, receive, self._with_headers(send)
            )
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: 403

    def _fault(self, scope: Scope) -> str | None:
        """Return what is wrong with a request's headers, in a sentence, or None."""
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return f"expected host {' or '.join(sorted(self.hosts))}\n"
        is_from_here = len(origins) == 1 and origins[0].lower() in self.origins
        if not is_from_here and (origins or scope["type"] == "websocket"):
            return f"expected origin {' or '.join(sorted(self.origins))}\n"
        return None

    def _with_headers(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.headers)
            await send(message)

        return sending


def make_app(digits: Digits, *, port: int, device: str, device_label: str) -> ASGIApp:
    """Return the application that is served on a port of 127.0.0.1."""
    turns = Turns()
    running: set[asyncio.Task[Any]] = set()

    async def talk(socket: WebSocket) -> None:
        await socket.accept()
        if len(running) >= MAX_SESSIONS:
            message = (
                f"expected at most {MAX_SESSIONS} open pages, got another; close one and "
                "reload this one"
            )
            await socket.send_json({"type": "error", "message": message, "is_final": True})
            await socket.close(TRY_AGAIN_LATER, "too many open pages")
            return
        task = asyncio.current_task()
        assert task is not None  # a coroutine is run by one
        running.add(task)
        try:
            await Session(socket, digits, device, device_label, turns).run()
        finally:
            running.discard(task)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        if running:  # their trainings end with them
            await asyncio.wait(running, timeout=SHUTDOWN_SECONDS)

    folder = str(files("warpfit.apps.playground") / "static")
    routes = [
        WebSocketRoute("/session", talk),
        Mount("/", StaticFiles(directory=folder, html=True)),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), port)


class Playground:
    """A playground that holds its port and has its data; `open_playground` makes it."""

    def __init__(self, *, port: int, device: str) -> None:
        self.device = backends.resolve_device(device)
        self.device_label = _label(self.device)
        self._socket = _listen(port)
        try:
            self.digits = load_digits()
        except BaseException:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}/"
        self._server = uvicorn.Server(self._config())

    def _config(self) -> uvicorn.Config:
        app = make_app(
            self.digits, port=self.port, device=self.device, device_label=self.device_label
        )
        return uvicorn.Config(
            app,
            http=TimedRequests,
            ws="websockets-sansio",
            ws_max_size=FRAME_BYTES,
            ws_per_message_deflate=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            proxy_headers=False,
            server_header=False,
            log_config=None,
            access_log=False,
            lifespan="on",
        )

    def serve(self, *, browser: bool = False) -> None:
        """Serve until Ctrl-C or `stop`; if asked for, open the page in the user's browser."""
        if browser:
            open_browser(self.url)
        try:
            self._server.run(sockets=[self._socket])
        except KeyboardInterrupt:  # uvicorn raises it again when all is shut down
            pass
        finally:
            self._socket.close()

    def stop(self) -> None:
        """End `serve`, which runs in another thread."""
        self._server.should_exit = True


def _listen(port: int) -> socket.socket:
    """Return a socket that listens on a port of this machine alone."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"expected a port from 0 to 65535, got {port}")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Of a server that has just ended: a port in use is refused all the same.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} is taken; expected a free one, or --port 0 for any"
            ) from None
        raise ConfigError(f"cannot use port {port}: {error.strerror or error}") from None
    return listener


def load_digits() -> Digits:
    """Return MNIST where it is on this machine, else scikit-learn's digits."""
    try:
        return Digits(load_dataset("mnist", flat=True, raw=True, download=False), size=28, top=255)
    except DataError:
        return Digits(load_dataset("digits", flat=True), size=8, top=1)


def _label(device: str) -> str:
    if device == "cpu":
        return "CPU"
    from warpfit.backends.cuda.runtime import devices

    return next((each.model for each in devices() if each.name == device), device)


def open_browser(url: str) -> None:
    """Open a page in the user's browser, in a thread: some only come back when they are closed.

    Without a screen nothing is opened: that would be a browser in this very terminal.
    """
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
