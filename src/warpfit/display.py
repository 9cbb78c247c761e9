"""What a notebook shows: a line that moves, tables and pictures, as IPython displays them."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from io import BytesIO
from time import monotonic
from typing import Any

SECONDS_BETWEEN_UPDATES = 0.1
DPI = 80


def is_notebook() -> bool:
    """Return whether this runs in the kernel of a notebook, which shows what IPython displays."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class LiveLine:
    """A bar and a line of text below a notebook's cell, which are replaced as time goes on."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._last_update = 0.0
        self._waiting: tuple[float, str] | None = None

    def show(self, share: float, text: str) -> None:
        """Show how much is done, in [0, 1], and what there is to say; now, or by the next time."""
        self._waiting = share, text
        if monotonic() - self._last_update >= SECONDS_BETWEEN_UPDATES:
            self.flush()

    def flush(self) -> None:
        """Show what the last `show` said."""
        if self._waiting is None:
            return
        (share, text), self._waiting = self._waiting, None
        self._last_update = monotonic()
        bundle = {
            "text/plain": text,
            "text/html": f'<progress value="{share:.4f}"></progress> {escape(text)}',
        }
        if self._handle is None:
            from IPython.display import display

            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def html_table(head: str, header: Sequence[str], rows: Iterable[Sequence[str]], foot: str) -> str:
    """Return a table in HTML below a line of text and above another, all of it escaped."""
    lines = [_row("th", header), *(_row("td", row) for row in rows)]
    return f"<p>{escape(head)}</p><table>{''.join(lines)}</table><p>{escape(foot)}</p>"


def _row(tag: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts) + "</tr>"


def png(figure: Any) -> bytes:
    """Return a matplotlib Figure as a small picture."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    return file.getvalue()


def html_picture(figure: Any, words: str) -> str:
    """Return a matplotlib Figure in HTML, and words for those who cannot see it."""
    data = b64encode(png(figure)).decode()
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{data}">'
