"""The ladder in a terminal: a table that grows, lines for a log, and bars."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import Any

from warpfit.apps.ladder.results import Record, Result, Step

BAR_WIDTH = 40
# A gain below this calls for an explanation.
LITTLE = 1.1
# A device that works for a smaller share of the time than this waits for the host.
HOST_BOUND = 0.7


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


def table(records: Sequence[Record], running: Step | None = None) -> Any:
    """Return a rich table of what has run, with a spinner for what is running."""
    from rich import box
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=False)
    shown.add_column("rung", no_wrap=True)
    shown.add_column("what it changes, and why", ratio=1)
    for column in ("an epoch", "device", "gain", "in all", "loss", "accuracy"):
        shown.add_column(column, justify="right", no_wrap=True)
    peers_begin = next((idx for idx, record in enumerate(records) if record.is_peer), None)
    for idx, record in enumerate(records):
        if idx == peers_begin and idx:
            shown.add_section()
        about = Text(record.changes)
        if record.ran:
            about.append(f"; to save {record.saves}", "dim")
            shown.add_row(Text(record.title, "bold"), about, *map(Text, _numbers(record)))
        else:
            shown.add_row(
                Text(record.title, "dim"), Text(record.changes, "dim"), Text("not run", "yellow")
            )
    if running is not None:
        about = Text(running.changes).append(f"; to save {running.saves}", "dim")
        shown.add_row(Spinner("dots", Text(running.title, "bold")), about, *["…"] * 6)
    return shown


def _numbers(record: Record) -> tuple[str, ...]:
    return (
        milliseconds(record.ms_per_epoch) + ("*" if record.is_scaled else ""),
        "" if record.device_ms is None else milliseconds(record.device_ms),
        times(record.gain),
        times(record.gain_over_first),
        "" if record.loss is None else f"{record.loss:.4f}",
        "" if record.accuracy is None else f"{record.accuracy:.2%}",
    )


def line_before(step: Step) -> str:
    """Return what there is to say of a rung that is going to run, in one line."""
    return f"{step.title}: {step.changes}; to save {step.saves}"


def line_after(record: Record) -> str:
    """Return what a rung did, in one line."""
    if not record.ran:
        return f"  not run: {record.reason}"
    epoch, on_device, gain, in_all, loss, accuracy = _numbers(record)
    parts = [f"{epoch} an epoch"]
    parts += [f"the device at work for {on_device} of it"] if on_device else []
    parts += [f"{gain} as quick as the rung before"] if gain else []
    parts += [f"{in_all} as quick as the first"] if in_all else []
    parts += [f"loss {loss}, accuracy {accuracy} after {record.epochs} epochs"] if loss else []
    parts += [f"set up in {record.first_call:.2f} s"] if record.first_call is not None else []
    return "  " + ", ".join(parts)


def notes(result: Result) -> list[str]:
    """Return what is to be said below the table, a line each."""
    ran = [record for record in result if record.ran]
    found = [
        f"not run: {'; '.join(titles)}: {reason}" for reason, titles in _not_run(result).items()
    ]
    if any(record.is_scaled for record in ran):
        found.append(f"* on fewer than the {result.steps} steps of an epoch, and scaled to as many")
    fewer = [f"{record.title} {record.epochs}" for record in ran if record.epochs < result.epochs]
    if fewer:
        found.append(f"fewer than {result.epochs} epochs: {'; '.join(fewer)}")
    if any(record.device_ms is not None for record in ran):
        found.append(
            "device: how long it works on the kernels of an epoch, without waiting for the host"
        )
    found += [
        f"{record.title} gains little ({times(record.gain)}): {_why_little(record)}"
        for record in ran
        if record.gain is not None and record.gain < LITTLE
    ]
    return found


def _why_little(record: Record) -> str:
    """Return what limits the gain: as measured, or else as it may be."""
    whole, on_device = record.ms_per_epoch or 0.0, record.device_ms
    if on_device is not None and on_device < HOST_BOUND * whole:
        return (
            f"the device works for {milliseconds(on_device)} of {milliseconds(whole)}, and "
            "waits for the host"
        )
    return f"that is so where {record.if_little}"


def _not_run(result: Result) -> dict[str, list[str]]:
    """Return the titles of what did not run, by the reason."""
    found: dict[str, list[str]] = {}
    for record in result:
        if not record.ran:
            found.setdefault(record.reason, []).append(record.title)
    return found


def bars(result: Result) -> Any:
    """Return the times as a rich table of bars, on a logarithmic scale."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    ran = [record for record in result if record.ran]
    found = [record.ms_per_epoch or 0.0 for record in ran]
    if not ran:
        return shown
    least, most = log10(min(found)) - 0.3, log10(max(found))
    for record, number in zip(ran, found, strict=True):
        width = BAR_WIDTH * (log10(number) - least) / max(most - least, 1e-9)
        bar = Text(_blocks(width), "bright_black" if record.is_peer else "blue")
        mark = "*" if record.is_scaled else ""
        shown.add_row(record.title, bar, milliseconds(number) + mark, times(record.gain_over_first))
    return shown


def _blocks(width: float) -> str:
    """Return a bar, to an eighth of a character."""
    whole, rest = divmod(max(1, round(8 * width)), 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[rest].strip()
