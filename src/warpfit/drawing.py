"""Pictures drawn by a process of their own, which gets ready for them while others train.

Importing matplotlib takes longer than many a training. The process imports it meanwhile; what it is
to draw comes at the end, over its standard input.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpfit.plots import has_matplotlib, save_figure

__all__ = ["Artist", "Picture"]


@dataclass(frozen=True)
class Picture:
    """A figure and its file: what `plot` returns for the arguments goes to `path`."""

    plot: Callable[..., Any]
    arguments: tuple[Any, ...]
    path: Path

    def draw(self) -> None:
        """Write the picture.

        Raises
        ------
        ConfigError
            If the file cannot be written.
        """
        save_figure(self.plot(*self.arguments), self.path)


class Artist:
    """A process that draws, from the beginning of a `with` block to its end at most."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Artist:
        if has_matplotlib() and sys.executable:
            with suppress(OSError):
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "warpfit.drawing"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def draw(self, pictures: list[Picture]) -> None:
        """Write pictures: by the process, or here if it cannot.

        Raises
        ------
        ConfigError
            If a file cannot be written.
        """
        if not self._is_done_by_process(pickle.dumps(pictures)):
            for picture in pictures:
                picture.draw()

    def _is_done_by_process(self, pictures: bytes) -> bool:
        process, self._process = self._process, None
        if process is None:
            return False
        process.communicate(pictures)
        return process.returncode == 0


def main() -> None:
    """Get ready, and draw what comes."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401

    for picture in pickle.load(sys.stdin.buffer):
        picture.draw()


if __name__ == "__main__":
    main()
