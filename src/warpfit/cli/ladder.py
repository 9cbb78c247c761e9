"""``warpfit ladder``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warpfit.cli.console import DEVICE_HELP, Printer
from warpfit.cli.options import DATA, NETWORK, OF_TRAINING, RUN, option, taking

if TYPE_CHECKING:
    from warpfit.apps.ladder.results import Record, Step


OPTIONS = {
    "network": option(
        NETWORK,
        "NAME",
        "softmax-regression (784-10), mlp (784-256-10) or deep (784-h-h-h-10).",
        "mlp",
    ),
    "hidden": option(NETWORK, "N", "The width h of deep.", "128"),
    "lr": option(NETWORK, "X", "Learning rate.", "0.01 for mlp, else 0.1"),
    "epochs": option(RUN, "N", "Passes over the data.", "10, or 4 without a GPU"),
    "precision": option(
        RUN, "NAME", "float16 or bfloat16, from the rung tensor-cores on.", "float16"
    ),
    "device": option(RUN, "NAME", DEVICE_HELP, "auto"),
    "rungs": option(
        RUN,
        "NAME,NAME,...",
        "Only these rungs; first..last is all between two.",
        "all rungs",
    ),
    "data": option(DATA, "NAME|PATH", "What to train on.", "mnist; digits without it and network"),
    "data_dir": OF_TRAINING["data_dir"],
    "limit": option(
        DATA, "N", "Train on the first N rows only; 0 for all.", "all, or 12,000 without a GPU"
    ),
    "out": OF_TRAINING["out"],
}


@taking(OPTIONS)
def ladder(**flags: Any) -> None:
    """Train one network once per rung, from NumPy to one launch, and show what each gains."""
    from warpfit.apps.ladder import bars, climb, parse_names
    from warpfit.apps.ladder.table import notes, table
    from warpfit.plots import NO_PICTURES, has_matplotlib
    from warpfit.training.settings import own_folder

    given = {name: value for name, value in flags.items() if value is not None}
    given["rows"] = given.pop("limit", None)
    if "rungs" in given:
        given["rungs"] = parse_names(given["rungs"])
    printer = Printer()
    with own_folder(given.pop("out", None)) as folder, _Screen(printer) as screen:
        result = climb(**given, out=folder, on_start=screen.start, on_rung=screen.show)
    printer.stand_in(given.get("data"), result.data)
    printer.fallback(given.get("device", "auto"), result.device)
    if screen.live is not None:
        printer.console.print(table(result))
    printer.line()
    printer.line(result.title, style="bold")
    printer.console.print(bars(result))
    printer.lines(notes(result))
    printer.line(f"{result.seconds:.1f} s in all")
    printer.lines(map(str, result.files))
    if not has_matplotlib():
        printer.line(NO_PICTURES)


class _Screen:
    """Shows rungs as they come: a live table on a terminal, lines elsewhere."""

    def __init__(self, printer: Printer) -> None:
        self.printer = printer
        self.records: list[Record] = []
        self.live: Any = None

    def __enter__(self) -> _Screen:
        if self.printer.console.is_terminal:
            from rich.live import Live

            self.live = Live(console=self.printer.console, transient=True, refresh_per_second=8)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def start(self, step: Step) -> None:
        from warpfit.apps.ladder.table import line_before, table

        if self.live is None:
            self.printer.line(line_before(step))
        else:
            self.live.update(table(self._last(), step))

    def show(self, record: Record) -> None:
        from warpfit.apps.ladder.table import line_after, table

        self.records.append(record)
        if self.live is None:
            self.printer.line(line_after(record))
        else:
            self.live.update(table(self._last()))

    def _last(self) -> list[Record]:
        """Return the records that the screen has room for, at two lines each."""
        return self.records[-max(1, self.printer.console.height // 2 - 4) :]
