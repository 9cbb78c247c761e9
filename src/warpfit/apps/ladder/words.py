"""Numbers of the ladder as people read them."""

from __future__ import annotations


def milliseconds(number: float | None) -> str:
    """Return milliseconds with three digits, in seconds from ten of them on; ``-`` for None."""
    if number is None:
        return "-"
    if number >= 10_000:
        return f"{number / 1e3:.3g} s" if number < 1e6 else f"{number / 1e3:,.0f} s"
    return f"{number:.3g} ms" if number < 1000 else f"{number:,.0f} ms"


def times(gain: float | None) -> str:
    """Return a gain with three digits at most; empty for None."""
    if gain is None:
        return ""
    return f"{gain:.2f}×" if gain < 10 else f"{gain:.1f}×" if gain < 100 else f"{gain:,.0f}×"
