"""Files from the web, from several mirrors in turn, checked before they take their name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from warpfit.data.idx import read_bytes
from warpfit.errors import DataError
from warpfit.extras import needs
from warpfit.files import atomic_path, make_folder

if TYPE_CHECKING:
    from requests import RequestException

TIMEOUT = (5, 30)  # seconds to connect, and between two packets
PART_BYTES = 1 << 16


def fetch(urls: Sequence[str], target: Path, verify: Callable[[bytes, str], object]) -> Path:
    """Download a file from the first mirror that has it whole; the target's folder is made.

    It appears whole or not at all. `verify` gets the file's bytes and the URL, and raises DataError
    if they are not what they should be.

    Raises
    ------
    DataError
        If no mirror gave the file; the message has each URL and its reason.
    ConfigError
        If the folder cannot be made or written to.
    """
    make_folder(target.parent)
    failures = []
    for url in urls:
        try:
            with atomic_path(target) as temporary:
                _download(url, temporary)
                verify(read_bytes(temporary), url)
        except DataError as error:
            failures.append(str(error))
        else:
            return target
    raise DataError("; ".join(failures))


def _download(url: str, path: Path) -> None:
    with needs("data", "downloads need"):
        import requests
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console, is_quiet = Console(stderr=True), not sys.stderr.isatty()
    bar = Progress(*columns, console=console, transient=True, disable=is_quiet)
    try:
        with bar, requests.get(url, stream=True, timeout=TIMEOUT) as reply, path.open("wb") as file:
            reply.raise_for_status()
            length = reply.headers.get("content-length", "")
            total = int(length) if length.isdecimal() else None
            task = bar.add_task(url.rsplit("/", 1)[-1], total=total)
            for part in reply.iter_content(PART_BYTES):
                file.write(part)
                bar.advance(task, len(part))
    except requests.RequestException as error:
        raise DataError(f"{url}: {_reason(error)}") from error


def _reason(error: RequestException) -> str:
    """Say in a few words why a request failed; requests' own messages run over several lines."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return type(error).__name__
