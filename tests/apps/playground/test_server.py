"""Who may see the pages, what they carry, and how the server ends."""

from __future__ import annotations

import http.client
import socket
import threading

import pytest
from websockets.exceptions import ConnectionClosed

from support.pages import Page, serving, small_digits
from support.playground import TRAIN_DIGITS
from warpfit.apps.playground import open_playground, server
from warpfit.apps.playground.server import MAX_SESSIONS, Playground
from warpfit.data import load_dataset
from warpfit.errors import ConfigError, DataError, DeviceError

FILES = {
    "/": "text/html",
    "/main.js": "text/javascript",
    "/charts.js": "text/javascript",
    "/pad.js": "text/javascript",
    "/connection.js": "text/javascript",
    "/style.css": "text/css",
    "/icon.svg": "image/svg+xml",
}
SOCKET_HEADERS = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def get(
    playground: Playground, path: str, method: str = "GET", **headers: str
) -> http.client.HTTPResponse:
    """Return the answer to a request with exactly these headers, and a right Host unless one is
    given.
    """
    connection = http.client.HTTPConnection("127.0.0.1", playground.port, timeout=10)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": f"127.0.0.1:{playground.port}", **headers}.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        answer.body = answer.read().decode()  # type: ignore[attr-defined]
        return answer
    finally:
        connection.close()


@pytest.mark.parametrize("path", FILES)
def test_pages_and_their_headers(playground: Playground, path: str) -> None:
    answer = get(playground, path)
    assert answer.status == 200
    assert (answer.getheader("content-type") or "").startswith(FILES[path])
    policy = answer.getheader("content-security-policy") or ""
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert "*" not in policy
    assert answer.getheader("x-content-type-options") == "nosniff"
    assert answer.getheader("cross-origin-resource-policy") == "same-origin"
    assert answer.getheader("referrer-policy") == "no-referrer"
    assert answer.getheader("server") is None
    assert answer.getheader("access-control-allow-origin") is None


@pytest.mark.parametrize("path", FILES)
def test_pages_ask_nobody_else(playground: Playground, path: str) -> None:
    text = get(playground, path).body.replace("http://www.w3.org/2000/svg", "")  # type: ignore[attr-defined]
    assert "http:" not in text
    assert "https:" not in text
    assert "//cdn" not in text
    assert "style=" not in text  # would need 'unsafe-inline'


@pytest.mark.parametrize(
    "path", ["/nothing", "/../server.py", "/%2e%2e/server.py", "/..%2fserver.py", "//etc/passwd"]
)
def test_nothing_else_is_served(playground: Playground, path: str) -> None:
    assert get(playground, path).status == 404


def test_only_reading_is_allowed(playground: Playground) -> None:
    assert get(playground, "/", method="POST").status == 405


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1",
        "localhost",
        "127.0.0.1.evil.example:{port}",
        "0.0.0.0:{port}",
        "",
        "127.0.0.1:1",
    ],
)
def test_other_hosts_are_refused(playground: Playground, host: str) -> None:
    host = host.format(port=playground.port)
    for headers in ({}, SOCKET_HEADERS):
        answer = get(playground, "/session" if headers else "/", **{**headers, "Host": host})
        assert answer.status == 403, host
    assert get(playground, "/", Host=host).body.startswith("expected host 127.0.0.1:")  # type: ignore[attr-defined]


def test_the_machine_has_two_names(playground: Playground) -> None:
    host = f"LocalHost:{playground.port}"
    assert get(playground, "/", Host=host, Origin=f"http://{host}").status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://127.0.0.1",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1:{port}.evil.example",
        "http://127.0.0.1:{port}/",
    ],
)
def test_foreign_origins_are_refused(playground: Playground, origin: str) -> None:
    origin = origin.format(port=playground.port)
    assert get(playground, "/", Origin=origin).status == 403
    assert get(playground, "/session", **{**SOCKET_HEADERS, "Origin": origin}).status == 403


def test_a_websocket_must_name_its_origin(playground: Playground) -> None:
    assert get(playground, "/session", **SOCKET_HEADERS).status == 403
    right = f"http://localhost:{playground.port}"
    assert get(playground, "/session", **{**SOCKET_HEADERS, "Origin": right}).status == 101


def test_only_this_machine_is_listened_to(playground: Playground) -> None:
    assert playground.url == f"http://127.0.0.1:{playground.port}/"
    assert playground._socket.getsockname()[0] == "127.0.0.1"


def test_pages_are_bounded_in_number() -> None:
    with serving(small_digits()) as playground:
        open_pages = [Page.of(playground) for _ in range(MAX_SESSIONS)]
        pages = [page.__enter__() for page in open_pages]
        assert all(page.hear()["type"] == "hello" for page in pages)
        with Page.of(playground) as one_more:
            error = one_more.hear()
            assert error["is_final"] is True
            assert error["message"].startswith(
                f"expected at most {MAX_SESSIONS} open pages, got another"
            )
            with pytest.raises(ConnectionClosed, match="1013"):
                one_more.hear()
        open_pages[0].__exit__(None, None, None)
        while True:  # its training ends first
            with Page.of(playground) as again:
                if again.hear()["type"] == "hello":
                    break
        for page in open_pages[1:]:
            page.__exit__(None, None, None)


def test_the_server_ends_while_pages_train() -> None:
    with serving(small_digits()) as playground, Page.of(playground) as page:
        settings = {**TRAIN_DIGITS["settings"], "epochs": 1000}  # type: ignore[dict-item]
        page.send({**TRAIN_DIGITS, "settings": settings})
        page.until_type("progress")
        playground.stop()
        with pytest.raises(ConnectionClosed, match="1012"):
            page.until_type("never")
    assert [
        each.name for each in threading.enumerate() if each.name.startswith("warpfit-playground")
    ] == []


def test_a_restart_takes_the_same_port() -> None:
    with serving(small_digits()) as playground, Page.of(playground) as page:
        page.hear()
        port = playground.port
    with serving(small_digits(), port=port) as again, Page.of(again) as page:
        assert page.hear()["type"] == "hello"


def test_a_port_that_is_taken(playground: Playground) -> None:
    with pytest.raises(
        ConfigError,
        match=f"port {playground.port} is taken; expected a free one, or --port 0 for any",
    ):
        open_playground(port=playground.port, device="cpu")
    for port in (-1, 65536):
        with pytest.raises(ConfigError, match="expected a port from 0 to 65535"):
            open_playground(port=port, device="cpu")


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(device: str) -> str:
        raise DeviceError("no such device")

    monkeypatch.setattr("warpfit.backends.resolve_device", missing)
    with pytest.raises(DeviceError, match="no such device"):
        open_playground(port=0, device="cuda")


def test_mnist_is_taken_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str, **options: object) -> object:
        asked.append((name, options.get("download", True)))
        if name == "mnist":
            raise DataError("not here")
        return load_dataset(name, flat=True)

    monkeypatch.setattr(server, "load_dataset", load)
    digits = server.load_digits()
    assert asked == [("mnist", False), ("digits", True)]
    assert (digits.data.name, digits.size, digits.data.x_train.shape[1]) == ("digits", 8, 64)
    assert 0 < digits.data.x_train.max() <= digits.top


def test_data_that_cannot_be_read_frees_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise DataError("damaged")

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setattr(server, "load_digits", broken)
    with pytest.raises(DataError, match="damaged"):
        Playground(port=port, device="cpu")
    monkeypatch.undo()
    with serving(small_digits(), port=port):
        pass


def test_the_browser_is_opened_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, done = [], threading.Event()

    def note(url: str) -> None:
        opened.append((url, threading.current_thread() is threading.main_thread()))
        done.set()

    monkeypatch.setattr("webbrowser.open", note)
    monkeypatch.setattr("sys.platform", "linux")
    server.open_browser("http://127.0.0.1:1/")
    assert not done.wait(0.05)
    monkeypatch.setenv("DISPLAY", ":0")
    server.open_browser("http://127.0.0.1:1/")
    assert done.wait(10)
    assert opened == [("http://127.0.0.1:1/", False)]


# -- requests that never come
# --------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_half_open_connections_make_room(
    playground: Playground, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
    address = ("127.0.0.1", playground.port)
    half_open = [
        socket.create_connection(address, timeout=10) for _ in range(server.MAX_CONNECTIONS + 6)
    ]
    try:
        for connection in half_open:
            connection.sendall(begun)
        for connection in half_open:  # those beyond the limit were told so; all come to an end
            while connection.recv(4096):
                pass
        assert get(playground, "/").status == 200
    finally:
        for connection in half_open:
            connection.close()


def test_a_request_that_is_not_followed_up_makes_room(
    playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
    # What comes behind an answer has uvicorn's time.
    monkeypatch.setattr(playground._server.config, "timeout_keep_alive", 0.2)
    with socket.create_connection(("127.0.0.1", playground.port), timeout=10) as connection:
        connection.sendall(
            b"GET /icon.svg HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\nGET /" % playground.port
        )
        received = b""
        while part := connection.recv(4096):
            received += part
    assert received.startswith(b"HTTP/1.1 200 OK")


def test_an_open_page_outlasts_the_time_for_a_request(
    playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.05)
    with Page.of(playground) as page:
        page.hear()
        threading.Event().wait(0.3)
        page.send(TRAIN_DIGITS)
        page.until_type("ended")
