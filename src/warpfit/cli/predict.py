"""``warpfit predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpfit.cli.console import AsJson, Device, Printer, percent, print_json
from warpfit.errors import ConfigError

if TYPE_CHECKING:
    from warpfit.training.images import ImagePrediction, Skipped
    from warpfit.training.tables import TablePredictions
    from warpfit.training.trained import TrainedModel

SHOWN_COLUMNS = 8


def predict(
    model: Annotated[str, typer.Argument(help="The model.safetensors of a run.", metavar="MODEL")],
    samples: Annotated[
        str,
        typer.Argument(
            help="A .csv or .npz file of rows, an image file, or a folder of images.",
            metavar="FILE_OR_FOLDER",
        ),
    ],
    invert: Annotated[
        bool,
        typer.Option(
            help="Turn black into white first. MNIST's digits are white on black: give this "
            "for dark ink on white paper."
        ),
    ] = False,
    top: Annotated[
        int, typer.Option(help="How many classes of an image to show.", metavar="N")
    ] = 3,
    out: Annotated[
        str | None,
        typer.Option(
            help="Where the predictions for a file of rows go (default: "
            "<its name>-predictions.csv, here).",
            metavar="FILE",
        ),
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Predict the rows of a table, into a .csv file; or say what is on an image, or on many."""
    from warpfit.training.storage import ESTIMATOR, kind_of
    from warpfit.training.tables import TABLE_SUFFIXES

    path, printer = Path(samples), Printer(quiet=as_json)
    is_table = path.suffix.lower() in TABLE_SUFFIXES
    if (is_table and invert) or (not is_table and out is not None):
        raise ConfigError("--invert is for images, --out for the predictions of a table")
    is_estimator = kind_of(model) == ESTIMATOR
    if is_table:
        predictions = _of_table(printer, model, path, device, is_estimator=is_estimator)
        file = out or f"{path.stem}-predictions.csv"
        _write_table(printer, predictions, model, file, as_json=as_json)
        return
    if is_estimator:
        raise ConfigError(f"expected a .csv or an .npz file of rows for {model}, got {samples}")
    from warpfit.training.images import predict_images

    trained = _loaded(printer, model, device)
    found, skipped = predict_images(trained, path, invert=invert, top=top)
    _print(printer, found, skipped)
    if as_json:
        print_json(_as_json(model, found, skipped))


def _loaded(printer: Printer, model: str, device: str) -> TrainedModel:
    from warpfit.training.trained import load_trained

    trained = load_trained(model, device=device)
    printer.fallback(device, trained.model.device)
    return trained


def _of_table(
    printer: Printer, model: str, path: Path, device: str, *, is_estimator: bool
) -> TablePredictions:
    """Return what a model, or an estimator of tables, says of a file of rows."""
    if is_estimator:
        from warpfit.tabular.jobs import load_table

        return load_table(model, device=device).predict_file(path)
    from warpfit.training.tables import predict_table

    return predict_table(_loaded(printer, model, device), path)


def _write_table(
    printer: Printer, predictions: TablePredictions, model: str, file: str, *, as_json: bool
) -> None:
    predictions.write(file)
    _print_table(printer, predictions, file)
    if as_json:
        rows = [dict(zip(predictions.header, row, strict=True)) for row in predictions.rows]
        print_json({"model": model, "file": file, "notes": predictions.notes, "predictions": rows})


def _print_table(printer: Printer, predictions: TablePredictions, file: str) -> None:
    printer.lines(predictions.notes)
    rows, header = predictions.rows, predictions.header[:SHOWN_COLUMNS]
    printer.table(
        header,
        [
            [f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row[:SHOWN_COLUMNS]]
            for row in rows[:5]
        ],
        right=header[1:],
    )
    printer.line(f"{len(rows):,} rows, {len(predictions.header)} columns: {file}")


def _print(printer: Printer, found: list[ImagePrediction], skipped: list[Skipped]) -> None:
    if found[0].classes:
        printer.table(
            ("image", "label", "probability", "then"),
            [(i.path.name, i.classes[0][0], percent(i.classes[0][1]), _rest(i)) for i in found],
            right=("probability",),
        )
    else:
        printer.table(
            ("image", "output"),
            [(i.path.name, ", ".join(f"{y:.6g}" for y in i.outputs)) for i in found],
        )
    for image in found:
        if image.resized_from:
            width, height = image.resized_from
            size = f"{width}×{height} pixels"
            printer.line(f"{image.path.name}: resized from {size} to the model's size")
    printer.lines(f"{file.path.name}: skipped, {file.reason}" for file in skipped)


def _rest(image: ImagePrediction) -> str:
    return ", ".join(f"{name} {percent(probability)}" for name, probability in image.classes[1:])


def _as_json(model: str, found: list[ImagePrediction], skipped: list[Skipped]) -> dict[str, Any]:
    predictions: list[dict[str, Any]] = []
    for image in found:
        entry: dict[str, Any] = {"image": str(image.path), "resized_from": image.resized_from}
        if image.classes:
            entry["label"], entry["probability"] = image.classes[0]
            entry["top"] = [{"label": name, "probability": p} for name, p in image.classes]
        else:
            entry["outputs"] = list(image.outputs)
        predictions.append(entry)
    return {
        "model": model,
        "predictions": predictions,
        "skipped": [{"file": str(file.path), "reason": file.reason} for file in skipped],
    }
