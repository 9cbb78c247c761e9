"""``warpfit predict``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpfit.cli.console import DEVICE_HELP, Printer, percent, print_json

if TYPE_CHECKING:
    from warpfit.training.images import ImagePrediction, Skipped

__all__ = ["predict"]


def predict(
    model: Annotated[str, typer.Argument(help="The model.safetensors of a run.", metavar="MODEL")],
    images: Annotated[
        str, typer.Argument(help="An image file, or a folder of them.", metavar="IMAGE_OR_FOLDER")
    ],
    invert: Annotated[
        bool,
        typer.Option(
            help="Turn black into white first. MNIST's digits are white on black: give this for dark ink on "
            "white paper."
        ),
    ] = False,
    top: Annotated[int, typer.Option(help="How many classes to show.", metavar="N")] = 3,
    device: Annotated[str, typer.Option(help=DEVICE_HELP, metavar="NAME")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is on an image, or on every image in a folder."""
    from warpfit.training.images import predict_images
    from warpfit.training.trained import load_trained

    trained = load_trained(model, device=device)
    found, skipped = predict_images(trained, images, invert=invert, top=top)
    if as_json:
        print_json(_as_json(model, found, skipped))
        return
    printer = Printer()
    printer.fallback(device, trained.model.device)
    _print(printer, found, skipped)


def _print(printer: Printer, found: list[ImagePrediction], skipped: list[Skipped]) -> None:
    if found[0].classes:
        printer.table(
            ("image", "label", "probability", "then"),
            [(i.path.name, i.classes[0][0], percent(i.classes[0][1]), _rest(i)) for i in found],
            right=("probability",),
        )
    else:
        printer.table(
            ("image", "output"), [(i.path.name, ", ".join(f"{y:.6g}" for y in i.outputs)) for i in found]
        )
    for image in found:
        if image.resized_from:
            width, height = image.resized_from
            printer.line(f"{image.path.name}: resized from {width}×{height} pixels to the model's size")
    for file in skipped:
        printer.line(f"{file.path.name}: skipped, {file.reason}")


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
