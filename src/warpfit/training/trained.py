"""A model as ``warpfit train`` stores it: a card says what its inputs and outputs mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import nan, prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warpfit.checks import check_choice, some
from warpfit.data import Dataset
from warpfit.data.dataset import is_frame, joined
from warpfit.data.targets import CLASSIFICATION, REGRESSION
from warpfit.errors import DataError, FileFormatError, ShapeError, WarpfitError
from warpfit.files import PathLike
from warpfit.losses import Loss, SoftmaxCrossEntropy
from warpfit.nn.sequential import Sequential
from warpfit.training.evaluate import Evaluation, evaluate_rows, loss_of, network_of, predict_rows
from warpfit.training.inputs import as_rows
from warpfit.training.storage import MODEL, metadata_of, model_of, read_file, save

if TYPE_CHECKING:
    from warpfit.data import TablePreprocessor

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ModelCard:
    """Describes the data that a model was trained on, in the model's file."""

    data: str  # name of the dataset, or path of the user's data
    label_column: str | None  # the column of a table that the labels came from
    input_shape: tuple[int, ...]  # shape of one sample as the data have it
    network_shape: tuple[int, ...]  # the shape that it takes for the network
    class_names: tuple[str, ...]  # empty for regression
    # The pixel value that became 1: 255 if the samples lie in [0, 1], else unknown.
    scale: int | None
    columns: tuple[str, ...] = ()  # names of a frame's columns; empty for arrays
    # How samples become the network's inputs, and targets its outputs: see
    # `TablePreprocessor.to_dict`.
    table: dict[str, Any] | None = None

    @classmethod
    def from_metadata(cls, metadata: dict[str, Any]) -> ModelCard:
        """Return the card in a model file's metadata, or raise FileFormatError."""
        try:
            tuples = {name: tuple(metadata[name]) for name in _TUPLES if name in metadata}
            card = cls(**{**metadata, **tuples})
        except (KeyError, TypeError):
            card = None
        if card is None or not card._is_sound():
            raise FileFormatError(
                "expected a model that `warpfit train` wrote, found one without its card; of such "
                "a one `warpfit evaluate --data` says how good it is"
            )
        return card

    @staticmethod
    def is_in(metadata: dict[str, Any]) -> bool:
        """Return whether a model file's metadata have a card, sound or not."""
        return {"input_shape", "network_shape"} <= metadata.keys()

    @classmethod
    def of_dataset(cls, data: str, dataset: Dataset, network_shape: tuple[int, ...]) -> ModelCard:
        """Return a card that says that a network takes the samples of a dataset as they are."""
        x = dataset.x_train
        columns = tuple(x.columns) if is_frame(x) else ()
        names = dataset.class_names
        return cls(data, dataset.label_column, x.shape[1:], network_shape, names, None, columns)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of samples that may be images."""
        return (
            (self.input_shape[0], self.input_shape[1]) if len(self.input_shape) in (2, 3) else None
        )

    @cached_property
    def preprocessor(self) -> TablePreprocessor | None:
        """What `table` describes; FileFormatError if that is nothing."""
        if self.table is None:
            return None
        from warpfit.data import TablePreprocessor

        return TablePreprocessor.from_dict(self.table)

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """The categories of each column that has some."""
        return self.preprocessor.categories if self.preprocessor else {}

    def unfamiliar(self, x: Any) -> list[str]:
        """Return a line for each column of x with what training rows lacked."""
        return self.preprocessor.unfamiliar(x) if self.preprocessor else []

    def inputs(self, x: Any, dtype: str = "float64") -> Array:
        """Return samples x (N, *input_shape), or a frame of `columns`, as the network takes them in
        `dtype`.

        Raises
        ------
        ShapeError, DTypeError, DataError
            If they are not such samples.
        """
        if is_frame(x):
            missing = [repr(name) for name in self.columns if name not in x.columns]
            if missing or not self.columns:
                raise DataError(
                    "expected the columns that the model was trained on, "
                    f"{', '.join(self.columns) or 'of an array'}; "
                    f"missing are {', '.join(missing) or 'all'}"
                )
            x = x[list(self.columns)]
        if x.shape[1:] != self.input_shape:
            raise ShapeError(
                f"expected samples of shape {self.input_shape}, as the model was trained on, got "
                f"{x.shape[1:]}"
            )
        if self.preprocessor is not None:
            x = self.preprocessor.transform(x)
        return as_rows("x", x, min_rows=0, dtype=dtype).reshape(len(x), *self.network_shape)

    def targets(self, y: Array) -> Array:
        """Return targets as the network learns them."""
        return y if self.preprocessor is None else self.preprocessor.transform_targets(y)

    def values(self, outputs: Array) -> Array:
        """Return what a network predicts in the units of the targets."""
        return outputs if self.preprocessor is None else self.preprocessor.inverse_targets(outputs)

    def notes(self, dataset: Dataset) -> tuple[str, ...]:
        """Return what was decided on reading a dataset, and what is done with its columns."""
        return (*dataset.notes, *(self.preprocessor.describe() if self.preprocessor else ()))

    def _num_inputs(self) -> int:
        """Return how many numbers a sample gives the network."""
        table = self.preprocessor
        return prod(self.input_shape) if table is None else table.num_features(self.input_shape)

    def _is_sound(self) -> bool:
        sizes = (*self.input_shape, *self.network_shape)
        return (
            isinstance(self.data, str)
            and isinstance(self.label_column, str | None)
            and all(isinstance(size, int) and size >= 0 for size in sizes)
            and prod(self.network_shape) == self._num_inputs()
            and all(isinstance(name, str) for name in self.columns)
            and all(isinstance(name, str) for name in self.class_names)
            and self.scale in (None, 255)
        )


SPLITS = ("test", "train", "all")

_TUPLES = ("input_shape", "network_shape", "class_names", "columns")


@dataclass(frozen=True)
class RegressionScore:
    """Scores of predictions: explained variance (R²), mean absolute and root mean square error.

    Errors are in the units of the targets; `r2` is None for fewer than two rows. Of several targets
    these are means.
    """

    r2: float | None
    mae: float
    rmse: float

    @classmethod
    def of(cls, targets: Array, predicted: Array) -> RegressionScore:
        """Return the score for targets, (N,) or (N, ...); NaN if a prediction is not finite."""
        if not np.isfinite(predicted).all():
            return cls(nan if len(targets) > 1 else None, nan, nan)
        from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

        pair = targets.reshape(len(targets), -1), predicted.reshape(len(targets), -1)
        r2 = float(r2_score(*pair)) if len(targets) > 1 else None
        return cls(r2, float(mean_absolute_error(*pair)), float(root_mean_squared_error(*pair)))


@dataclass(frozen=True)
class Score:
    """A model's score on rows with known targets."""

    # Its loss is of what the network learns: of standardised targets, where the model's card has
    # such.
    evaluation: Evaluation
    # labels and predicted (N,) int64, or None for regression.
    labels: Array | None
    predicted: Array | None
    regression: RegressionScore | None = None
    loss_unit: str = ""  # what the loss is of, where that is not the targets as they are


@dataclass(frozen=True)
class ClassScore:
    """Scores of one class: its rows, recall, and precision.

    `precision` is None for a class that no row was taken for, `recall` for one without rows.
    """

    name: str
    num_rows: int
    recall: float | None
    precision: float | None


@dataclass(frozen=True)
class TrainedModel:
    """A model and its card.

    Examples
    --------
    >>> trained = wf.load_trained("digits.safetensors")  # of `warpfit train --data digits`
    >>> len(trained.card.class_names), trained.model.num_parameters
    (10, 1210)
    """

    model: Sequential
    card: ModelCard

    def save(self, path: PathLike) -> None:
        """Write both to a file; see `warpfit.save`."""
        save(self.model, path, metadata=asdict(self.card))

    def inputs(self, x: Any) -> Array:
        """Return samples as the network takes them; see `ModelCard.inputs`."""
        return self.card.inputs(x, self.model.dtype)

    def predictions(self, x: Array) -> Array:
        """Return the predictions for x: probabilities of classes, (N, C), or (N, ...) values."""
        loss = _loss_for_classes(self.model)
        kind = "probabilities" if loss.counts_correct else "values"
        found = predict_rows(self.model, self.inputs(x), kind=kind)
        if not self.card.class_names:
            return self.card.values(found)
        return np.hstack([1 - found, found]) if found.shape[1:] == (1,) else found

    def labels(self, y: Array, class_names: Sequence[str]) -> Array:
        """Return targets whose classes are numbered as the model's; see `renumbered`."""
        return renumbered(y, class_names, self.card.class_names)

    def test(self, x: Any, y: Array) -> Score:
        """Return how the model does on samples x (N, *input_shape) with targets y."""
        rows = self.inputs(x)
        evaluation = evaluate_rows(self.model, rows, self.card.targets(y))
        if self.card.class_names:
            return Score(evaluation, y, predict_rows(self.model, rows, kind="labels"))
        predicted = self.predictions(x).reshape(y.shape)
        table = self.card.preprocessor
        unit = "standardised targets" if table is not None and table.targets_ is not None else ""
        return Score(evaluation, None, None, RegressionScore.of(y, predicted), unit)

    def test_on(self, dataset: Dataset, split: str = "test") -> Score:
        """Return how the model does on a part of a dataset: ``'test'``, ``'train'`` or ``'all'``.

        Raises
        ------
        ConfigError
            If there is no such part.
        DataError, ShapeError
            If it has no rows, or they are not what the model was trained on.
        """
        x, y = rows_of(dataset, split)
        return self.test(x, self.labels(y, dataset.class_names))


def renumbered(y: Array, class_names: Sequence[str], ours: Sequence[str]) -> Array:
    """Return targets whose classes are numbered as a model's, by their names.

    Raises
    ------
    DataError
        If a class is none of the model's, or one has classes and the other has not.
    """
    if bool(ours) != bool(class_names):
        kinds = ("labels of classes", "float targets")
        raise DataError(
            f"expected {kinds[not ours]}, as the model was trained on, got {kinds[not class_names]}"
        )
    foreign = [name for name in class_names if name not in ours]
    if foreign:
        raise DataError(f"expected classes of the model ({some(ours)}), got {some(foreign)}")
    return np.array([ours.index(name) for name in class_names])[y] if class_names else y


def rows_of(dataset: Dataset, split: str) -> tuple[Any, Array]:
    """Return rows of a part of a dataset with their targets; errors as `TrainedModel.test_on`."""
    check_choice("split", split, SPLITS)
    if split == "all":
        x = joined(dataset.x_train, dataset.x_test)
        y = np.concatenate([dataset.y_train, dataset.y_test])
    else:
        x, y = getattr(dataset, f"x_{split}"), getattr(dataset, f"y_{split}")
    if not len(x):
        raise DataError(f"{dataset.name} has no {split} rows")
    return x, y


def class_scores(result: Score, class_names: Sequence[str]) -> list[ClassScore]:
    """Return the scores of every class, none for regression."""
    if result.labels is None or result.predicted is None:
        return []
    from sklearn.metrics import precision_recall_fscore_support

    precision, recall, _, rows = precision_recall_fscore_support(
        result.labels, result.predicted, labels=range(len(class_names)), zero_division=np.nan
    )
    return [
        ClassScore(name, *scores)
        for name, *scores in zip(
            class_names, rows.astype(int).tolist(), _known(recall), _known(precision), strict=True
        )
    ]


def _known(shares: Array) -> list[float | None]:
    return [None if np.isnan(share) else float(share) for share in shares]


def load_trained(path: PathLike, *, device: str = "cpu") -> TrainedModel:
    """Return the model in a file that ``warpfit train`` wrote, with the description of its data.

    `TrainedModel.predictions` takes rows as they are in the data, and gives probabilities of
    classes, or values in the units of the targets.

    Parameters
    ----------
    path : path of the file
    device : str
        As `fit` takes it.

    Returns
    -------
    TrainedModel

    Raises
    ------
    FileFormatError
        If it is no whole model file, or has no card that fits the model.
    DeviceError, ConfigError
        If there is no such device.

    Examples
    --------
    >>> trained = wf.load_trained("digits.safetensors")  # of `warpfit train --data digits`
    >>> trained.predictions(x[:2]).shape
    (2, 10)
    """
    header, arrays = read_file(path, MODEL)
    model, metadata = model_of(path, header, arrays), metadata_of(path, header)
    try:
        card = ModelCard.from_metadata(metadata)
        _check_outputs(model, card)
    except WarpfitError as error:
        raise FileFormatError(f"{path}: {error}") from error
    return TrainedModel(model.to(device), card)


def trained_for(model: Sequential, data: str, dataset: Dataset) -> TrainedModel:
    """Return a model whose file has no card, with one of the dataset that it is to be tested on.

    Raises
    ------
    ShapeError
        If the model does not take the samples, or has not the outputs that the classes need.
    """
    sample = dataset.x_train.shape[1:]
    for shape in (sample, (prod(sample),), (*sample, 1)):
        try:
            network_of(model, shape)
        except ShapeError:
            continue
        card = ModelCard.of_dataset(data, dataset, shape)
        _check_outputs(model, card)
        return TrainedModel(model, card)
    raise ShapeError(
        f"expected samples that the model takes, but those of {dataset.name} have shape {sample}"
    )


def task_of(model: Sequential) -> str:
    """Return whether a model classifies or is a regression, by its loss; ``'auto'`` without one."""
    loss = loss_of(model)
    if loss is None:
        return "auto"
    return CLASSIFICATION if loss.counts_correct else REGRESSION


def _loss_for_classes(model: Sequential) -> Loss:
    """Return a model's loss; cross-entropy where none is known."""
    return loss_of(model) or SoftmaxCrossEntropy()


def _check_outputs(model: Sequential, card: ModelCard) -> None:
    """Raise ShapeError unless a model takes the card's samples, and has its classes' outputs."""
    outputs = network_of(model, card.network_shape).output_shape
    loss, names = _loss_for_classes(model), card.class_names
    expected = (loss.num_outputs(len(names)),) if names else outputs
    if outputs != expected:
        raise ShapeError(
            f"expected {expected[0]} outputs for {len(names)} classes, found {outputs}"
        )
