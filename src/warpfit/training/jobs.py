"""A training from its settings to its folder of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warpfit.backends import open_ahead
from warpfit.checks import brief
from warpfit.data import Dataset, dataset_names
from warpfit.data.dataset import is_frame, is_table, split_rows, taken
from warpfit.data.registry import DATASETS
from warpfit.errors import DataError
from warpfit.losses import DISTANCES, Loss
from warpfit.optim import Optimizer
from warpfit.random import manual_seed
from warpfit.training.callbacks import Callback, Checkpoint, EarlyStopping
from warpfit.training.fit import fit
from warpfit.training.history import History
from warpfit.training.place import place_of
from warpfit.training.plan import AUTO
from warpfit.training.profile import Profile
from warpfit.training.recipes import (
    make_loss,
    make_model,
    make_optimizer,
    mnist_or_digits,
    network_shape,
    open_data,
)
from warpfit.training.run_folder import RunFolder
from warpfit.training.settings import CHECKPOINT_NAME, TRACE_NAME, TrainSettings, checkpoint_file
from warpfit.training.trained import ModelCard, Score, TrainedModel

if TYPE_CHECKING:
    from warpfit.data import TablePreprocessor

Array = npt.NDArray[Any]
Rows = tuple[Array, Array]

VALIDATION_FRACTION = 0.1


@dataclass(frozen=True)
class Outcome:
    """The results of a training: its reports, its test (None without test rows or whole epochs),
    its files.

    `notes` say what was asked for and is not in the files.
    """

    history: History
    test: Score | None
    folder: RunFolder
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Job:
    """A training that is ready to run."""

    settings: TrainSettings  # resolved
    dataset: Dataset  # with the training rows, less those held out for validation
    # (x, y): the test set; or rows held out from the training set, where validation decides over
    # the run.
    validation: Rows | None
    trained: TrainedModel
    optimizer: Optimizer
    loss: Loss

    @property
    def title(self) -> str:
        """Data and model in a few words."""
        settings, shape = self.settings, self.trained.card.network_shape
        widths = "-".join(
            map(str, (*shape[:1], *(settings.hidden or ()), num_outputs(self.dataset, self.loss)))
        )
        return (
            f"{self.dataset.name}, {'mlp ' + widths if settings.model == 'mlp' else settings.model}"
        )

    @property
    def how(self) -> str:
        """Optimizer, loss and length of the run in a few words."""
        settings = self.settings
        return (
            f"{self.optimizer.spec.name}, lr {settings.lr:g} {settings.schedule}, "
            f"{self.loss.name}; epochs {settings.epochs}, batch size {settings.batch_size}, seed "
            f"{settings.seed}"
        )

    @property
    def validation_source(self) -> str:
        """Where the validation rows come from, in a few words."""
        if self.validation is None:
            return "none"
        part = "training" if self.settings.watches_validation else "test"
        return f"{len(self.validation[0]):,} rows of the {part} set"

    def run(
        self,
        folder: str | Path,
        callbacks: Sequence[Callback] = (),
        *,
        verbose: bool = True,
    ) -> Outcome:
        """Train, test, and write everything into a folder.

        The folder is made when `fit` has checked its arguments. If anything fails, what remains is
        the last checkpoint with its settings, or nothing. After Ctrl-C the results are those of the
        last whole epoch.

        Raises
        ------
        WarpfitError
            As `fit`; ConfigError if the folder cannot be written to.
        """
        run_folder = RunFolder(folder, self.settings)
        try:
            return self._run(run_folder, callbacks, verbose=verbose)
        finally:
            run_folder.end()

    def _run(
        self, run_folder: RunFolder, callbacks: Sequence[Callback], *, verbose: bool
    ) -> Outcome:
        settings = self.settings
        profile = Profile(run_folder.unfinished / TRACE_NAME) if settings.profile else None
        x, y = self.dataset.x_train, self.dataset.y_train
        history = fit(
            self.trained.model,
            self.trained.inputs(x),
            self.trained.card.targets(y),
            loss=self.loss,
            optimizer=self.optimizer,
            epochs=settings.epochs or 0,
            batch_size=settings.batch_size or 1,
            validation_data=self.validation,
            device=settings.devices,
            precision=settings.precision,
            engine=settings.engine,
            seed=settings.seed,
            callbacks=[
                run_folder,
                *([] if profile is None else [profile]),
                *self._callbacks(run_folder.path),
                *callbacks,
            ],
            resume_from=settings.resume,
            new_data=settings.new_data,
            verbose=verbose,
        )
        test = (
            self.trained.test_on(self.dataset)
            if len(history) and len(self.dataset.x_test)
            else None
        )
        if len(history):
            run_folder.write_results(self.title, self.trained, history, test)
        notes = [] if profile is None else profile.notes
        return Outcome(
            history, test, run_folder, [f"{TRACE_NAME} is without {note}" for note in notes]
        )

    def _callbacks(self, folder: Path) -> list[Callback]:
        settings = self.settings
        callbacks: list[Callback] = []
        if settings.early_stopping:
            callbacks.append(EarlyStopping(patience=settings.early_stopping))
        if settings.checkpoint_every:
            callbacks.append(Checkpoint(folder / CHECKPOINT_NAME, every=settings.checkpoint_every))
        return callbacks


def prepare(settings: TrainSettings) -> Job:
    """Return the job that settings describe: data loaded, model made, nothing written.

    Raises
    ------
    ConfigError, DataError, ShapeError
        If settings and data do not go together, or the data cannot be had.
    """
    settings = replace(settings, data=settings.data or mnist_or_digits(settings.data_dir))
    if _is_for_gpu(settings):
        open_ahead(settings.device)
    settings, dataset = opened(settings)
    check_targets(dataset)
    validation = (dataset.x_test, dataset.y_test) if len(dataset.x_test) else None
    if settings.watches_validation:
        dataset, validation = hold_out(dataset, settings.seed)
    settings = resolved_for(settings, dataset)
    manual_seed(settings.seed)
    card, loss = model_card(settings, dataset), make_loss(settings)
    model = make_model(settings, card.network_shape, num_outputs(dataset, loss))
    if validation is not None:
        validation = (card.inputs(validation[0]), card.targets(validation[1]))
    trained = TrainedModel(model, card)
    return Job(settings, dataset, validation, trained, make_optimizer(settings, model), loss)


def check_targets(dataset: Dataset) -> None:
    """Raise DataError unless targets to train on differ."""
    if dataset.num_classes == 1:
        raise DataError(
            f"{dataset.name}: expected at least two classes, got one, {dataset.class_names[0]!r}"
        )
    if (
        not dataset.num_classes
        and len(dataset.y_train) > 1
        and not np.ptp(dataset.y_train, axis=0).any()
    ):
        raise DataError(
            f"{dataset.name}: expected targets that differ, got {brief(dataset.y_train[0])} in "
            "every training row"
        )


def _is_for_gpu(settings: TrainSettings) -> bool:
    """Return whether a training wants a GPU, as far as that is known before its data is read."""
    if settings.device != AUTO:
        return True
    known = DATASETS.get(settings.data or "")
    if known is None or settings.model != "mlp":
        return known is not None
    num_rows = min(settings.limit or known.num_rows[0], known.num_rows[0])
    whole = settings.resolved(num_rows=num_rows, has_classes=True)
    place = place_of(
        AUTO,
        (prod(known.sample), *(whole.hidden or ()), len(known.class_names)),
        num_rows=num_rows,
        batch_size=whole.batch_size or 1,
        epochs=whole.epochs or 0,
        engine=whole.engine,
        precision=whole.precision,
    )
    return place.device != "cpu"


def opened(settings: TrainSettings) -> tuple[TrainSettings, Dataset]:
    """Return the data that settings name, with the training rows that they ask for, and the
    settings with full paths.

    Raises
    ------
    ConfigError, DataError
        If the data cannot be had.
    """
    source = settings.data or mnist_or_digits(settings.data_dir)
    settings = _with_full_paths(replace(settings, data=source))
    dataset = open_data(
        source,
        data_dir=settings.data_dir,
        label_column=settings.label_column,
        task=settings.task,
        image_size=settings.image_size,  # type: ignore[arg-type]
    )
    if settings.limit:
        dataset = with_training_rows(dataset, slice(settings.limit))
    return settings, dataset


def _with_full_paths(settings: TrainSettings) -> TrainSettings:
    """Return the settings with absolute paths."""
    paths = {"data_dir": settings.data_dir}
    if settings.data not in dataset_names():
        paths["data"] = settings.data
    full = {
        name: str(Path(path).expanduser().resolve())
        for name, path in paths.items()
        if path is not None
    }
    if settings.resume is not None:  # a link to a checkpoint is of the folder that it is in
        checkpoint = checkpoint_file(settings.resume)
        full["resume"] = str(checkpoint.parent.resolve() / checkpoint.name)
    return replace(settings, **full)  # type: ignore[arg-type]


def with_training_rows(dataset: Dataset, rows: slice | Array) -> Dataset:
    """Return the dataset with some of its training rows."""
    return replace(dataset, x_train=taken(dataset.x_train, rows), y_train=dataset.y_train[rows])


def hold_out(dataset: Dataset, seed: int) -> tuple[Dataset, Rows]:
    """Return the dataset without a tenth of its training rows, and these."""
    kept, held_out = split_rows(dataset.y_train, VALIDATION_FRACTION, seed)
    if not len(held_out):
        raise DataError(
            f"{dataset.name} has {len(kept)} training rows, too few to hold out a tenth for "
            "validation"
        )
    validation = (taken(dataset.x_train, held_out), dataset.y_train[held_out])
    return with_training_rows(dataset, kept), validation


def num_outputs(dataset: Dataset, loss: Loss) -> int:
    """Return how many outputs a network for the dataset has with a loss, or raise ConfigError."""
    classes = dataset.num_classes
    return loss.num_outputs(classes) if classes else prod(dataset.y_train.shape[1:])


def resolved_for(settings: TrainSettings, dataset: Dataset) -> TrainSettings:
    """Return the settings with nothing left open, for the dataset's training rows."""
    return settings.resolved(
        num_rows=len(dataset.x_train),
        has_classes=bool(dataset.class_names),
        is_table=settings.preprocess and is_table(dataset.x_train),
    )


def model_card(settings: TrainSettings, dataset: Dataset) -> ModelCard:
    """Return the card of a model's file, which describes its dataset, for resolved settings.

    Raises
    ------
    ConfigError, DataError, ShapeError
        If the model does not take such samples, or a table has nothing to learn from.
    """
    x, table = dataset.x_train, _preprocessor(settings, dataset)
    features = x.shape[1:]
    if table is not None and is_table(x):
        features = (table.num_features(features),)
    in_unit_interval = settings.data in DATASETS or (
        not is_frame(x) and x.size > 0 and x.min() >= 0 and x.max() <= 1
    )
    return ModelCard(
        data=settings.data or dataset.name,
        label_column=dataset.label_column,
        input_shape=x.shape[1:],
        network_shape=network_shape(settings.model, features),
        class_names=dataset.class_names,
        scale=255 if in_unit_interval else None,
        columns=tuple(x.columns) if is_frame(x) else (),
        table=None if table is None else table.to_dict(),
    )


def _preprocessor(settings: TrainSettings, dataset: Dataset) -> TablePreprocessor | None:
    """Return the preprocessor fitted on samples and targets to train on; None if there is none."""
    targets = None if dataset.class_names or settings.loss not in DISTANCES else dataset.y_train
    if not settings.preprocess or not (is_table(dataset.x_train) or targets is not None):
        return None
    from warpfit.data import TablePreprocessor

    return TablePreprocessor().fit(dataset.x_train, targets)
