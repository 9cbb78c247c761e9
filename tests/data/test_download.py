"""Downloads, from a server on this machine."""

from __future__ import annotations

import functools
import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from warpfit.data import download
from warpfit.errors import ConfigError, DataError

CONTENT = bytes(range(256)) * 1000
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


class FileHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


class EndlessHandler(BaseHTTPRequestHandler):
    """Sends the whole content, and does not say how much that is."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *args: object) -> None:
        pass


class CuttingHandler(BaseHTTPRequestHandler):
    """Promises the whole content and sends the first 1000 bytes."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:1000])

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on a free port of this machine and give the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{httpd.server_port}/"
        finally:
            httpd.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serve a folder with a right and a wrong file, and return the server's URL."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "good.gz").write_bytes(CONTENT)
    (folder / "bad.gz").write_bytes(b"something else")
    with serving(functools.partial(FileHandler, directory=str(folder))) as url:
        yield url


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "mnist" / "good.gz"


def verify(content: bytes, where: str) -> None:
    if content != CONTENT:
        raise DataError(f"{where} is not the published file")


def test_first_mirror(server: str, target: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        download.fetch([server + "good.gz", "http://127.0.0.1:9/unused"], target, verify) == target
    )
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]
    assert capfd.readouterr() == ("", "")


def test_second_mirror_after_a_missing_or_a_wrong_file(server: str, target: Path) -> None:
    for first in ("missing.gz", "bad.gz"):
        download.fetch([server + first, server + "good.gz"], target, verify)
        assert target.read_bytes() == CONTENT
        target.unlink()


def test_no_mirror_works(server: str, target: Path) -> None:
    urls = [server + "missing.gz", server + "bad.gz", "http://127.0.0.1:9/good.gz"]
    with pytest.raises(DataError) as error:
        download.fetch(urls, target, verify)
    assert str(error.value) == (
        f"{urls[0]}: the server answered 404 File not found; {urls[1]} is not the published file; "
        f"{urls[2]}: no connection"
    )
    assert list(target.parent.iterdir()) == []


def test_a_download_that_fails_leaves_the_file_before_it(server: str, target: Path) -> None:
    download.fetch([server + "good.gz"], target, verify)
    with pytest.raises(DataError):
        download.fetch([server + "bad.gz"], target, verify)
    assert target.read_bytes() == CONTENT


def failing_with(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (requests.ReadTimeout("read timed out"), "no answer in time"),
        (requests.TooManyRedirects(), "TooManyRedirects"),
    ],
)
def test_reasons(
    target: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, reason: str
) -> None:
    monkeypatch.setattr(requests, "get", failing_with(error))
    with pytest.raises(DataError, match=f"^http://a/b: {reason}$"):
        download.fetch(["http://a/b"], target, verify)


def test_a_full_disk_is_not_the_mirrors_fault(
    server: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "requests.Response.iter_content", failing_with(OSError(28, "No space left on device"))
    )
    with pytest.raises(ConfigError, match=f"^cannot write {target}: No space left on device$"):
        download.fetch([server + "good.gz", server + "bad.gz"], target, verify)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot make the folder"):
        download.fetch(["http://a/b"], tmp_path / "file" / "mnist" / "b", verify)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_progress_bar(
    server: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    download.fetch([server + "good.gz"], target, verify)
    assert "good.gz" in sys.stderr.getvalue()
    assert "256.0/256.0 kB" in sys.stderr.getvalue()


def test_the_bar_ends_with_a_failure(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(DataError, match="no connection"):
        download.fetch(["http://127.0.0.1:9/b"], target, verify)
    assert sys.stderr.getvalue().count(HIDE_CURSOR) == sys.stderr.getvalue().count(SHOW_CURSOR) == 1


def test_a_file_of_unknown_size(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with serving(EndlessHandler) as url:
        download.fetch([url + "b"], target, verify)
    assert target.read_bytes() == CONTENT


def test_a_body_that_is_cut_short(target: Path) -> None:
    with serving(CuttingHandler) as url, pytest.raises(DataError, match=url):
        download.fetch([url + "b"], target, verify)
    assert list(target.parent.iterdir()) == []
