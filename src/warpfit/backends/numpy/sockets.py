"""Ranks that are processes which a launcher such as torchrun has started: they find each other by a
file, and talk over TCP. Their arrays are NumPy's.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np

from warpfit.backends.contract.communicator import Communicator, in_words
from warpfit.backends.contract.terms import Array
from warpfit.errors import ConfigError, DeviceError

RANK, WORLD_SIZE, LOCAL_RANK, MEETING = (
    f"WARPFIT_{name}" for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MEETING")
)
SECONDS_TO_MEET = 60.0
# After a rank has ended, how long the main thread has until its process ends.
SECONDS_TO_HEAR = 5.0
# What a connection is for: calls, or news of ranks that end.
CALLS, NEWS = 0, 1
OVER = "over"

LOCALHOST = "127.0.0.1"


class Launched(NamedTuple):
    """What a launcher told this process."""

    rank: int
    size: int
    local_rank: int
    meeting: Path  # the file by which the processes find each other
    is_local: bool  # whether all are on this machine

    @staticmethod
    def of(environment: Mapping[str, str]) -> Launched | None:
        """Return what stands in the environment, or None if no launcher wrote there.

        Raises
        ------
        ConfigError
            If a variable is missing, or no number in its range.
        """
        if RANK in environment:
            names = (RANK, WORLD_SIZE, LOCAL_RANK)
        elif "TORCHELASTIC_RUN_ID" in environment:
            names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        else:
            return None
        size = _number(environment, names[1], 1)
        rank = _number(environment, names[0], 0, size)
        local = _number(environment, names[2], 0) if names[2] in environment else rank
        meeting = environment.get(MEETING)
        if meeting is None:
            words = [environment.get(name, "") for name in _OF_A_RUN]
            name = "-".join(["warpfit", str(os.getuid()), *words, str(size)])
            return Launched(rank, size, local, Path(tempfile.gettempdir()) / name, True)
        return Launched(rank, size, local, Path(meeting), False)


# What tells one start of torchrun from another.
_OF_A_RUN = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")


def _number(environment: Mapping[str, str], name: str, least: int, end: int | None = None) -> int:
    given = environment.get(name, "")
    value = int(given) if given.isdecimal() else -1
    if value < least or (end is not None and value >= end):
        upper = "" if end is None else f" and below {end}"
        raise ConfigError(f"expected {name} as a number of at least {least}{upper}, got {given!r}")
    return value


class SocketCommunicator(Communicator):
    """A process among several; rank 0 is connected with all others.

    Attributes
    ----------
    local_rank : int
        Its number among those of this machine.

    Raises
    ------
    DeviceError
        If the others have not come within a minute.
    """

    def __init__(self, launched: Launched) -> None:
        self.rank, self.size, self.local_rank = launched.rank, launched.size, launched.local_rank
        connections = _received(launched) if not self.rank else _sought(launched)
        self._calls = connections[CALLS]
        self._news = connections[NEWS]
        self._error: BaseException | None = None
        self._left: int | None = None  # a rank that ended as it should
        self._is_told = False  # whether the main thread knows of it
        self._has_heard, self._acts = Event(), list[Callable[[], None]]()
        atexit.register(self._leave)
        Thread(target=self._listen, daemon=True).start()

    # -- calls

    def exchange(self, value: Any) -> list[Any]:
        if self.rank:
            self._try(partial(self._calls[0].send, value))
            found: list[Any] = self._try(self._calls[0].recv)
            return found
        values = [value, *(self._try(other.recv) for other in self._calls.values())]
        for other in self._calls.values():
            self._try(partial(other.send, values))
        return values

    def share(self, value: Any) -> Any:
        if self.rank:
            return self._try(self._calls[0].recv)
        for other in self._calls.values():
            self._try(partial(other.send, value))
        return value

    def all_reduce(self, arrays: Sequence[Array]) -> None:
        for array in arrays:
            total = np.array(array, order="C")
            theirs = np.empty_like(total)
            for other in self._calls.values():
                if self.rank:
                    self._send(other, total)
                else:
                    self._receive(other, theirs)
                    total += theirs
            self._hand_out(array, total)

    def broadcast(self, arrays: Sequence[Array]) -> None:
        for array in arrays:
            self._hand_out(array, np.array(array, order="C"))

    def _hand_out(self, array: Array, value: Any) -> None:
        """Let all ranks have rank 0's value in place of an array."""
        for other in self._calls.values():
            if self.rank:
                self._receive(other, value)
            else:
                self._send(other, value)
        array[...] = value

    def _send(self, other: Connection, array: Any) -> None:
        self._try(lambda: other.send_bytes(array.reshape(-1).view(np.uint8)))

    def _receive(self, other: Connection, array: Any) -> None:
        self._try(lambda: other.recv_bytes_into(array.reshape(-1).view(np.uint8)))

    def join(self, but: int = 0) -> None:
        """Do nothing: sums are there when `all_reduce` returns."""

    def barrier(self) -> None:
        self.exchange(None)

    def _try(self, act: Callable[[], Any]) -> Any:
        if self._error is not None:  # the others wait for something else, or no longer
            self._is_told = True
            raise self._error
        try:
            return act()
        except (EOFError, OSError):
            self._is_told = self._has_heard.wait(SECONDS_TO_HEAR)  # the news says who
            lost = "one of them" if self._left is None else f"rank {self._left}"
            raise self._error or DeviceError(
                f"expected all {self.size} ranks until training ends, but {lost} has ended"
            ) from None

    # -- ends

    def abort(self, error: BaseException) -> BaseException:
        """Tell all others, whose calls raise an error that says this one."""
        self._is_told = True
        if self._error is not None:
            return self._error
        self._error = error
        self._has_heard.set()
        self._send_news(in_words(error), self.rank)
        self._act()
        return error

    def on_abort(self, act: Callable[[], None]) -> None:
        self._acts.append(act)

    def _act(self) -> None:
        for act in self._acts:  # one may wait for another
            Thread(target=act, daemon=True).start()

    def _send_news(self, text: str, rank: int) -> None:
        for other in self._news.values():
            with suppress(OSError):
                other.send((rank, text))

    def _leave(self) -> None:
        """Say that this process ends as it should."""
        self._send_news(OVER, self.rank)

    def _listen(self) -> None:
        """Wait until a rank ends before its time, and end this one with it."""
        open_ones: dict[Any, int] = {each: rank for rank, each in self._news.items()}
        while open_ones:
            connection: Any
            for connection in wait(list(open_ones)):
                try:
                    rank, text = connection.recv()
                except (EOFError, OSError):
                    rank, text = open_ones[connection], "its process has ended"
                del open_ones[connection]
                if text != OVER:
                    self._hear(rank, text)
                    return
                self._left = rank
                self._has_heard.set()

    def _hear(self, rank: int, text: str) -> None:
        if self._error is None:
            self._error = DeviceError(f"rank {rank} of {self.size}: {text}")
            if not self.rank:
                self._send_news(text, rank)
        self._has_heard.set()
        for call in self._calls.values():
            with suppress(OSError):
                socket.socket(fileno=os.dup(call.fileno())).shutdown(socket.SHUT_RDWR)
        self._act()
        sleep(SECONDS_TO_HEAR)
        if not self._is_told:  # the main thread waits for what will not come
            print(f"rank {self.rank} of {self.size}: {self._error}", file=sys.stderr, flush=True)
            os._exit(1)


# -- meeting

# For each purpose the connections with other ranks.
Connections = tuple[dict[int, Connection], dict[int, Connection]]


def _received(launched: Launched) -> Connections:
    """Return rank 0's connections with all others, which find it by the file."""
    host = LOCALHOST if launched.is_local else ""
    key = secrets.token_bytes(32)
    found: Connections = {}, {}
    deadline = monotonic() + SECONDS_TO_MEET
    with socket.create_server((host, 0), backlog=2 * launched.size) as server:
        port = server.getsockname()[1]
        own = LOCALHOST if launched.is_local else socket.gethostname()
        _write(launched.meeting, {"host": own, "port": port, "key": key.hex()})
        try:
            while sum(map(len, found)) < 2 * (launched.size - 1):
                server.settimeout(max(0.01, deadline - monotonic()))
                try:
                    one, _ = server.accept()
                except TimeoutError:
                    raise _alone(launched, 1 + len(found[NEWS])) from None
                with suppress(EOFError, OSError, AuthenticationError):
                    connection = _connection(one)
                    deliver_challenge(connection, key)
                    answer_challenge(connection, key)
                    rank, size, purpose = connection.recv()
                    is_expected = size == launched.size and rank not in found[purpose]
                    connection.send(is_expected)
                    if is_expected:
                        found[purpose][rank] = connection
        finally:
            launched.meeting.unlink(missing_ok=True)
    calls, news = (dict(sorted(each.items())) for each in found)
    return calls, news


def _sought(launched: Launched) -> Connections:
    """Return the connections with rank 0, which the file names once it is of this run."""
    deadline = monotonic() + SECONDS_TO_MEET
    found: Connections = {}, {}
    for purpose in (CALLS, NEWS):
        while 0 not in found[purpose]:
            with suppress(EOFError, OSError, ValueError, KeyError, AuthenticationError):
                place = _read(launched.meeting)
                key = bytes.fromhex(place["key"])
                connection = _connection(
                    socket.create_connection((place["host"], place["port"]), SECONDS_TO_MEET)
                )
                answer_challenge(connection, key)
                deliver_challenge(connection, key)
                connection.send((launched.rank, launched.size, purpose))
                if connection.recv():
                    found[purpose][0] = connection
                    break
            if monotonic() > deadline:
                raise _alone(launched, 0)
            sleep(0.02)
    return found


def _connection(one: socket.socket) -> Connection:
    one.settimeout(None)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return Connection(one.detach())


def _alone(launched: Launched, count: int) -> DeviceError:
    came = f"{count} of them" if count else "no rank 0"
    return DeviceError(
        f"expected {launched.size} processes to meet by {launched.meeting} within "
        f"{SECONDS_TO_MEET:.0f} s, got {came}"
    )


def _read(path: Path) -> Any:
    """Return what rank 0 wrote; from another user nothing is taken, as it says whom to trust."""
    with path.open(encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            raise DeviceError(f"expected {path} as a file of this user's, got another user's")
        return json.load(file)


def _write(path: Path, place: Mapping[str, Any]) -> None:
    """Write where rank 0 listens, for this user alone."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        draft.unlink()
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(place, file)
    draft.replace(path)
