"""``warpfit evaluate``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpfit.cli.console import AsJson, Device, Printer, percent, print_json, score_rows
from warpfit.cli.options import OF_TRAINING, taking
from warpfit.data.targets import CLASSIFICATION, REGRESSION
from warpfit.errors import ConfigError

if TYPE_CHECKING:
    from warpfit.data import Dataset
    from warpfit.tabular.jobs import StoredTable
    from warpfit.training.trained import TrainedModel


@taking({name: OF_TRAINING[name] for name in ("data_dir", "label_column")})
def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            help="The model.safetensors of a run, or what `warpfit.save` wrote.", metavar="MODEL"
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Known dataset or path; by default what the model was trained on.",
            metavar="NAME|PATH",
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(help="Which rows: test, train or all.", metavar="NAME")
    ] = "test",
    device: Device = "auto",
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Say how good a model is: accuracy, recall and precision of classes, or R²; and the loss."""
    from warpfit.training.storage import ESTIMATOR, kind_of
    from warpfit.training.trained import class_scores, rows_of

    if kind_of(model) == ESTIMATOR:
        stored, data, dataset = _opened_table(model, data, device, **flags)
        x, y = rows_of(dataset, split)
        result, notes = stored.score(x, y, dataset.class_names), stored.unfamiliar(x)
        class_names, used = stored.class_names, device
    else:
        trained, data, dataset = _opened(model, data, device, **flags)
        x, y = rows_of(dataset, split)
        result = trained.test(x, trained.labels(y, dataset.class_names))
        notes, class_names = trained.card.unfamiliar(x), trained.card.class_names
        used = trained.model.device
    scores = class_scores(result, class_names)
    if as_json:
        numbers = asdict(result.evaluation)
        numbers |= asdict(result.regression) if result.regression else {}
        told = {"model": model, "data": data, "split": split, "notes": notes, **numbers}
        print_json({**told, "classes": [asdict(score) for score in scores]})
        return
    printer = Printer()
    printer.fallback(device, used)
    rows = ("rows", f"{result.evaluation.num_rows:,} ({split} rows of {dataset.name})")
    printer.pairs([rows, *score_rows(result)])
    printer.lines(notes)
    if scores:
        printer.line()
        printer.table(
            ("class", "rows", "recall", "precision"),
            [(s.name, f"{s.num_rows:,}", percent(s.recall), percent(s.precision)) for s in scores],
            right=("rows", "recall", "precision"),
        )


def _opened_table(
    path: str, data: str | None, device: str, *, data_dir: str | None, label_column: str | None
) -> tuple[StoredTable, str, Dataset]:
    """Return an estimator of tables, the name of what it is tested on, and that."""
    from warpfit.tabular.jobs import load_table
    from warpfit.training.recipes import open_data

    stored = load_table(path, device=device)
    data = stored.data if data is None else data
    if not data:
        raise ConfigError(f"expected --data, for {path} does not say what it was trained on")
    if label_column is None and data.lower().endswith(".csv"):
        label_column = stored.label_column
    task = CLASSIFICATION if stored.class_names else REGRESSION
    dataset = open_data(
        data,
        data_dir=data_dir,
        label_column=label_column,
        task=task,
        categories=stored.categories,
    )
    return stored, data, dataset


def _opened(
    path: str, data: str | None, device: str, *, data_dir: str | None, label_column: str | None
) -> tuple[TrainedModel, str, Dataset]:
    """Return a model, its test data's name, and these; without a card, they tell its inputs."""
    from warpfit.training.recipes import open_data
    from warpfit.training.storage import load, load_metadata
    from warpfit.training.trained import ModelCard, load_trained, task_of, trained_for

    if data is not None and not ModelCard.is_in(load_metadata(path)):
        model = load(path).to(device)
        dataset = open_data(data, data_dir=data_dir, label_column=label_column, task=task_of(model))
        return trained_for(model, data, dataset), data, dataset
    trained = load_trained(path, device=device)
    card = trained.card
    data = card.data if data is None else data
    if label_column is None and data.lower().endswith(".csv"):
        label_column = card.label_column
    dataset = open_data(
        data,
        data_dir=data_dir,
        label_column=label_column,
        task=CLASSIFICATION if card.class_names else REGRESSION,
        image_size=card.image_size if Path(data).expanduser().is_dir() else None,
        categories=card.categories,
    )
    return trained, data, dataset
