"""Files from the web, from several mirrors in turn, checked before they take their name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from warpfit.data.idx import read_bytes
from warpfit.errors import DataError
from warpfit.extras import needs
from warpfit.files import atomic_path, make_folder

if TYPE_CHECKING:
    from requests import RequestException

TIMEOUT = (5, 30)  # seconds to connect, and between two packets


def fetch(urls: Sequence[str], target: Path, verify: Callable[[bytes, str], object]) -> Path:
    """Download a file from the first mirror that has it whole.

    Parameters
    ----------
    urls : sequence of str
        Where to try, in this order.
    target : Path
        Where the file shall lie; its folder is made. It appears whole or not at all.
    verify : callable
        Gets the file's bytes and the URL; raises DataError if they are not what they should be.

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


class ProgressBar:
    """A rich progress bar on stderr behind the interface that pooch's downloaders expect."""

    def __init__(self, description: str) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(description, total=None)
        self._progress.start()

    @property
    def total(self) -> float | None:
        """Bytes to come; None if the server did not say."""
        return self._progress.tasks[0].total

    @total.setter
    def total(self, num_bytes: int) -> None:
        self._progress.update(self._task, total=num_bytes or None)

    def update(self, num_bytes: int) -> None:
        """Count `num_bytes` more."""
        self._progress.advance(self._task, num_bytes)

    def reset(self) -> None:
        """Count from zero again."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Take the bar off the screen; a second call does nothing."""
        self._progress.stop()


@contextmanager
def _progress_bar(description: str) -> Iterator[ProgressBar | bool]:
    if not sys.stderr.isatty():
        yield False
        return
    bar = ProgressBar(description)
    try:
        yield bar
    finally:
        bar.close()


def _download(url: str, path: Path) -> None:
    with needs("data", "downloads need"):
        from pooch import HTTPDownloader
        from requests import RequestException

    with _progress_bar(url.rsplit("/", 1)[-1]) as bar:
        try:
            HTTPDownloader(progressbar=bar, timeout=TIMEOUT)(url, path, None)
        except RequestException as error:
            raise DataError(f"{url}: {_reason(error)}") from error


def _reason(error: RequestException) -> str:
    """Say in a few words why a request failed; requests' own messages have several lines."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return type(error).__name__
