"""``warpfit playground``: how it starts, how it ends, and what it says of a mistake."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from support.commands import ENVIRONMENT, Invoke, run_python
from support.devices import no_gpu
from support.playground import SETTINGS, TRAIN_DIGITS
from support.strict import STRICT


def test_a_port_that_is_taken(misuse: Invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = misuse("playground", "--no-browser", "--device", "cpu", "--port", port)
    assert (
        outcome.err == f"warpfit: port {port} is taken; expected a free one, or --port 0 for any\n"
    )


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_no_port(misuse: Invoke, port: str) -> None:
    assert "--port" in misuse("playground", "--no-browser", "--port", port).err


def test_a_device_that_is_not_there(misuse: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    no_gpu(monkeypatch)
    outcome = misuse("playground", "--no-browser", "--device", "cuda", "--port", "0")
    assert "expected a CUDA device for 'cuda:0', but" in outcome.err


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("package", ["starlette", "uvicorn", "websockets"])
def test_the_extra_that_is_missing(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None; from warpfit.cli import main; "
        "main(['playground'])"
    )
    outcome = run_python("-c", code)
    assert (outcome.code, outcome.out) == (2, "")
    assert (
        outcome.err
        == f"warpfit: the playground needs {package}: pip install 'warpfit[playground]'\n"
    )


def test_it_serves_until_ctrl_c() -> None:
    connect = pytest.importorskip("websockets.sync.client").connect
    command = [
        sys.executable,
        *STRICT,
        "-m",
        "warpfit",
        "playground",
        "--port",
        "0",
        "--no-browser",
    ]
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("http://127.0.0.1:"), line
            assert "(CPU, digits; Ctrl-C ends it)" in line
            with urllib.request.urlopen(line.split()[0], timeout=10) as page:
                assert b"<title>warpfit playground</title>" in page.read()
            origin = line.split()[0].rstrip("/")
            with connect(
                origin.replace("http", "ws") + "/session", origin=origin, proxy=None
            ) as socket:
                socket.send(json.dumps({**TRAIN_DIGITS, "settings": {**SETTINGS, "epochs": 1000}}))
                while json.loads(socket.recv(timeout=20))["type"] != "progress":
                    pass
                process.send_signal(signal.SIGINT)  # in the middle of a training
                out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, "ended\n", "")
