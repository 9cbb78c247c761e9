"""``warpfit ladder``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpfit.cli.console import DEVICE_HELP, Printer

if TYPE_CHECKING:
    from warpfit.apps.ladder.results import Record
    from warpfit.apps.ladder.steps import Step


def ladder(
    network: Annotated[
        str,
        typer.Option(help="softmax-regression (784-10), mlp (784-256-10) or deep (784-h-h-h-10)."),
    ] = "mlp",
    hidden: Annotated[int, typer.Option(help="The width h of deep.")] = 128,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data.  [default: 10, or 4 without a GPU]")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Train on the first rows only; 0 for all.  [default: all, or 12,000 without a GPU]"
        ),
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate.  [default: 0.01 for mlp, else 0.1]")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="float16 or bfloat16, from the rung tensor-cores on.")
    ] = "float16",
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    rungs: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,...",
            help=(
                "Only these rungs and peers; first..last is all rungs between two.  "
                "[default: all rungs]"
            ),
        ),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers/--no-peers",
            help="Run other programs beside: PyTorch, JAX, ...; in a checkout only.",
        ),
    ] = True,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|PATH",
            help="What to train on.  [default: mnist; digits without it and network]",
        ),
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder to look for known datasets in first.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder for the results.  [default: runs/<time>]"),
    ] = None,
) -> None:
    """Train one network once per rung, from NumPy to one launch, and show what each gains."""
    from warpfit.apps.ladder import bars, climb, parse_names
    from warpfit.apps.ladder.table import notes, table
    from warpfit.plots import NO_PICTURES, has_matplotlib
    from warpfit.training.settings import default_folder

    names = None if rungs is None else parse_names(rungs)
    printer = Printer()
    with _Screen(printer) as screen:
        result = climb(
            network,
            device=device,
            epochs=epochs,
            rows=limit,
            hidden=hidden,
            lr=lr,
            precision=precision,
            data=data,
            data_dir=data_dir,
            rungs=names,
            peers=peers,
            out=out or default_folder(),
            on_start=screen.start,
            on_rung=screen.show,
        )
    printer.fallback(device, result.device)
    if screen.live is not None:
        printer.console.print(table(result))
    printer.line()
    printer.line(result.title, style="bold")
    printer.console.print(bars(result))
    for note in notes(result):
        printer.line(note)
    printer.line(f"{result.seconds:.1f} s in all")
    for path in result.files:
        printer.line(str(path))
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
