"""The settings of a training by their names, as ``warpfit train`` and its TOML files give them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from inspect import signature
from itertools import count
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from warpfit.backends import PROCESSES
from warpfit.backends.base import ACTIVATIONS
from warpfit.checks import check_choice, check_count
from warpfit.data.targets import TASKS
from warpfit.errors import ConfigError
from warpfit.files import PathLike, lacking_folders, make_folder, remove_empty
from warpfit.losses import Loss
from warpfit.optim.base import Optimizer
from warpfit.optim.schedules import Cosine, ReduceOnPlateau, Schedule
from warpfit.random import check_seed

MODELS = ("mlp", "cnn")
RECIPES = ("airbench",)
SCHEDULES = tuple(Schedule.by_name)
LOSSES = ("auto", *Loss.by_name)

# What None stands for, by optimizer or by model.
OPTIMIZERS = tuple(Optimizer.by_name)
TABLE_WEIGHT_DECAY, MOST_WEIGHT_DECAY = 10.0, 0.03
DEFAULT_HIDDEN = {"mlp": (256,), "cnn": (128,)}
DEFAULT_DROPOUT = {"mlp": 0.0, "cnn": 0.5}
DEFAULT_BATCH = 64
LEAST_EPOCHS = {"mlp": 5, "cnn": 10}
MOST_EPOCHS, ENOUGH_STEPS = 100, 1000

CONFIG_NAME = "config.toml"
CHECKPOINT_NAME = "checkpoint.safetensors"
TRACE_NAME = "trace.json"

_NOT_RECORDED = {"recorded": False}
# What a recipe decides itself.
OF_RECIPES = (
    *("preprocess", "model", "hidden", "activation", "dropout", "optimizer", "lr", "momentum"),
    *("nesterov", "weight_decay", "clip_norm", "schedule", "warmup_epochs", "loss"),
    *("label_smoothing", "early_stopping"),
)
# Options of `warpfit sweep` that take several values, separated by commas.
SWEPT = (
    *("hidden", "activation", "dropout", "optimizer", "lr", "momentum", "weight_decay"),
    *("clip_norm", "schedule", "epochs", "batch_size"),
)


def optimizers_with(setting: str) -> tuple[str, ...]:
    """Return the names of the optimizers that take a setting."""
    return tuple(
        name for name, kind in Optimizer.by_name.items() if setting in signature(kind).parameters
    )


@dataclass(frozen=True)
class TrainSettings:
    """All settings of ``warpfit train``; a frozen value, checked when it is created.

    None means that the value follows from the others, see `resolved`; 0 switches off `clip_norm`,
    `limit`, `early_stopping` and `checkpoint_every`.

    Raises
    ------
    ConfigError
        If a value is unknown, out of range, or has no effect together with the others.
    """

    # A known dataset's name or a path; None is MNIST, or digits where MNIST cannot be had.
    data: str | None = None
    data_dir: str | None = None  # folder to look for known datasets in first
    label_column: str | None = None  # of a `.csv` file
    # {'auto', 'classification', 'regression'}: what labels of the user's own data are, see
    # `warpfit.data.load_user_data`.
    task: str = "auto"
    # Height and width that the images of a folder are resized to.
    image_size: tuple[int, ...] | None = None
    # Whether columns of tables and targets of regressions are prepared, see
    # `warpfit.data.TablePreprocessor`.
    preprocess: bool = True
    limit: int = 0  # train on the first rows of the training set only
    # {'airbench'}: a published network and its optimizer, in place of a model.
    recipe: str | None = None
    model: str = "mlp"  # {'mlp', 'cnn'}
    # Widths of the dense hidden layers: (256,) for an mlp, (128,) for a cnn.
    hidden: tuple[int, ...] | None = None
    activation: str = "relu"
    dropout: float | None = None  # share of hidden units dropped: none for an mlp, 0.5 for a cnn
    optimizer: str = "sgd"  # a name of `warpfit.optim.Optimizer.by_name`
    # lr, momentum and weight_decay: by default what the optimizer's class suggests. Where it
    # suggests no weight decay it is 0, but for tables 10 over the number of rows, at most 0.03.
    lr: float | None = None
    momentum: float | None = None
    nesterov: bool = False
    weight_decay: float | None = None
    clip_norm: float = 0.0  # largest joint norm of the gradients
    schedule: str = "cosine"  # of the learning rate, see `warpfit.optim.schedules`
    warmup_epochs: float = 0.0  # for 'cosine'
    # By default 5, 10 for a cnn, and more (up to 100) for small data: as many as make 1,000 steps.
    epochs: int | None = None
    batch_size: int | None = None  # by default 64, and a recipe's own
    loss: str = "auto"  # 'auto' is cross_entropy for classes and mse for float targets
    label_smoothing: float = 0.0  # for cross_entropy
    # precision, device and engine: as `warpfit.fit` takes them; commas separate several devices.
    precision: str = "auto"
    device: str = "auto"
    engine: str = "auto"
    seed: int = 0  # of initial values, epoch order and dropout
    early_stopping: int = 0  # epochs without a better validation loss before the run ends
    checkpoint_every: int = 0  # epochs between two checkpoints
    resume: str | None = None  # a checkpoint to go on from, or the folder that holds it
    # Whether the checkpoint to go on from may be of other data. Not recorded in the run's own
    # settings file.
    new_data: bool = field(default=False, metadata=_NOT_RECORDED)
    # Folder for the results; None is `runs/<time>`. Not recorded either.
    out: str | None = field(default=None, metadata=_NOT_RECORDED)
    # Write a trace of the run beside its results. Not recorded either.
    profile: bool = field(default=False, metadata=_NOT_RECORDED)
    # Print nothing but errors. Not recorded either.
    quiet: bool = field(default=False, metadata=_NOT_RECORDED)

    def __post_init__(self) -> None:
        for name, choices in (
            ("task", TASKS),
            ("model", MODELS),
            ("activation", ACTIVATIONS),
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
            ("loss", LOSSES),
        ):
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"expected {name} among {', '.join(choices)}, got {getattr(self, name)!r}"
                )
        for name in ("limit", "early_stopping", "checkpoint_every"):
            check_count(name, getattr(self, name), 0)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size, 1)
        for width in self.hidden or ():
            check_count("every hidden width", width, 1)
        if self.image_size is not None:
            for side in _check_sides(self.image_size):
                check_count("every side of image_size", side, 1)
        if self.epochs is not None:
            check_count("epochs", self.epochs, 1)
        check_seed(self.seed)
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"expected dropout in [0, 1), got {self.dropout!r}")
        if not self.clip_norm >= 0:
            raise ConfigError(f"expected clip_norm of at least 0, got {self.clip_norm!r}")
        if self.device == PROCESSES:  # each process would write the same files
            raise ConfigError(
                f"expected a device, or 'cuda:all' for every GPU, got {self.device!r}, which is "
                "for calls of `fit`"
            )
        self._check_effects()

    def _check_effects(self) -> None:
        """Raise ConfigError for a setting that the others leave without effect."""
        if self.recipe is not None:
            self._check_recipe()
        for name, works_with, allowed in (
            ("momentum", "optimizer", optimizers_with("momentum")),
            ("nesterov", "optimizer", optimizers_with("nesterov")),
            ("warmup_epochs", "schedule", (Cosine.name,)),
            ("label_smoothing", "loss", ("auto", "cross_entropy")),
        ):
            if getattr(self, name) and getattr(self, works_with) not in allowed:
                raise ConfigError(
                    f"{name} works with {works_with} {' or '.join(allowed)}, not with "
                    f"{getattr(self, works_with)}"
                )

    def _check_recipe(self) -> None:
        check_choice("a recipe", self.recipe, RECIPES)
        for each in fields(self):
            if getattr(self, each.name) != each.default:
                self._check_left_to_recipe(each.name)

    def _check_left_to_recipe(self, name: str) -> None:
        if name in OF_RECIPES:
            raise ConfigError(
                f"expected {name} to be left to the recipe {self.recipe}, got "
                f"{getattr(self, name)!r}"
            )

    @property
    def devices(self) -> str | list[str]:
        """The device, or several that commas separate, as `warpfit.fit` takes them."""
        names = self.device.split(",")
        return names if len(names) > 1 else self.device

    @property
    def watches_validation(self) -> bool:
        """Whether the validation loss decides, and so must not come from the test set."""
        return self.early_stopping > 0 or self.schedule == ReduceOnPlateau.name

    def resolved(
        self, *, num_rows: int, has_classes: bool, is_table: bool = False
    ) -> TrainSettings:
        """Return the same settings with nothing left open but precision, device and engine.

        Parameters
        ----------
        num_rows : int
            Training rows.
        has_classes : bool
            Whether the targets are labels of classes.
        is_table : bool
            Whether the samples are a table that is prepared.

        Raises
        ------
        ConfigError
            If the loss does not go with such targets.
        """
        loss = self.loss
        if loss == "auto":
            loss = "cross_entropy" if has_classes else "mse"
        elif not (Loss.by_name[loss].counts_correct if has_classes else loss != "cross_entropy"):
            targets = "labels of classes" if has_classes else "float targets"
            raise ConfigError(f"expected a loss for {targets}, got {loss!r}")
        suggested = Optimizer.by_name[self.optimizer].suggested
        batch_size = _given(self.batch_size, DEFAULT_BATCH)
        steps = -(-num_rows // batch_size)
        enough = min(MOST_EPOCHS, max(LEAST_EPOCHS[self.model], -(-ENOUGH_STEPS // steps)))
        return replace(
            self,
            hidden=_given(self.hidden, DEFAULT_HIDDEN[self.model]),
            dropout=_given(self.dropout, DEFAULT_DROPOUT[self.model]),
            lr=_given(self.lr, suggested["lr"]),
            momentum=_given(self.momentum, suggested.get("momentum")),
            weight_decay=_given(self.weight_decay, self._default_weight_decay(num_rows, is_table)),
            epochs=_given(self.epochs, enough),
            batch_size=batch_size,
            loss=loss,
        )

    def _default_weight_decay(self, num_rows: int, is_table: bool) -> float:
        """Return the optimizer's own; for a table as if 10 of all rows spoke for small weights."""
        suggested = Optimizer.by_name[self.optimizer].suggested.get("weight_decay")
        if suggested is not None or not is_table:
            return suggested or 0.0
        return min(TABLE_WEIGHT_DECAY / num_rows, MOST_WEIGHT_DECAY)

    def to_toml(self) -> str:
        """Return the settings as the text of a TOML file, which `read_settings` reads back."""
        recorded = [each.name for each in fields(self) if each.metadata.get("recorded", True)]
        values = {name: getattr(self, name) for name in recorded}
        lines = [f"{name} = {_toml(value)}" for name, value in values.items() if value is not None]
        return "# warpfit train --config <this file> repeats the run.\n" + "\n".join(lines) + "\n"


def _given(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def _toml(value: Any) -> str:
    # JSON's strings, integers, booleans and lists are TOML's; repr gives floats that read back
    # exactly.
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def parse_hidden(text: str, between: str = ",") -> tuple[int, ...]:
    """Return widths from text: ``'256'``, ``'256,128'``, or ``'none'`` for no hidden layer."""
    if text.strip().lower() == "none":
        return ()
    try:
        return tuple(int(width) for width in text.split(between))
    except ValueError:
        raise ConfigError(
            f"expected hidden widths like 256 or 256{between}128, or none, got {text!r}"
        ) from None


def parse_image_size(text: str) -> tuple[int, ...]:
    """Return height and width from text: ``'32,48'``, or ``'32'`` for both."""
    try:
        sides = tuple(int(side) for side in text.split(","))
    except ValueError:
        sides = ()
    return _check_sides(sides * 2 if len(sides) == 1 else sides, text)


def _check_sides(sides: tuple[int, ...], given: Any = None) -> tuple[int, ...]:
    if len(sides) != 2:
        raise ConfigError(
            "expected image_size as height and width like 32,48, or 32 for both, got "
            f"{given or sides!r}"
        )
    return sides


# Settings of several integers, and how they are read from text.
PARSERS = {"hidden": parse_hidden, "image_size": parse_image_size}


def read_settings(path: PathLike) -> dict[str, Any]:
    """Return the settings in a TOML file, by the names of `TrainSettings`; ``-`` may stand for
    ``_``.

    Raises
    ------
    ConfigError
        If the file cannot be read, is no TOML, or has an unknown key or a value of the wrong type.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no readable TOML file: {error}") from error
    types = get_type_hints(TrainSettings)
    settings = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in types:
            raise ConfigError(
                f"{path}: unknown setting {key!r}; expected one of {', '.join(types)}"
            )
        if name == "device" and isinstance(value, list):
            value = ",".join(map(str, value))
        settings[name] = _integers(value, PARSERS[name]) if name in PARSERS else value
        if not _fits(settings[name], types[name]):
            raise ConfigError(
                f"{path}: expected {key} to be {_in_words(types[name])}, got {value!r}"
            )
    return settings


def _integers(value: Any, parse: Callable[[str], tuple[int, ...]]) -> Any:
    """Return integers given as text, as one or as a list; what is none of these, as it is."""
    if isinstance(value, list):
        return tuple(value)
    try:
        return parse(value) if isinstance(value, str) else parse(str(value))
    except ConfigError:
        return value


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(hint, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if hint == tuple[int, ...]:
        return isinstance(value, tuple) and all(_fits(item, int) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is hint


def _in_words(hint: Any) -> str:
    words = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
    plain = next(
        each
        for each in (get_args(hint) if isinstance(hint, UnionType) else (hint,))
        if each != NoneType
    )
    return words.get(plain, "a list of integers")


def merged_settings(flags: Mapping[str, Any], config: PathLike | None = None) -> TrainSettings:
    """Return settings from flags, what they leave open from a TOML file, and the rest from the
    defaults.

    Parameters
    ----------
    flags : mapping
        By the names of `TrainSettings`; None means not given, and `hidden` and `image_size` may be
        text.
    config : path, optional
        If None and the flags have `resume`, the settings that lie beside that checkpoint.

    Raises
    ------
    ConfigError
        If a flag names what a recipe decides, or settings are none of `TrainSettings`.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    for name, parse in PARSERS.items():
        if isinstance(given.get(name), str):
            given[name] = parse(given[name])
    if "resume" in given:
        beside = checkpoint_file(given["resume"]).with_name(CONFIG_NAME)
        config = beside if config is None and beside.is_file() else config
    settings = TrainSettings(**{**(read_settings(config) if config is not None else {}), **given})
    if settings.recipe is not None:
        for name in given:  # a default, too
            settings._check_left_to_recipe(name)
    return settings


def checkpoint_file(path: PathLike) -> Path:
    """Return the checkpoint's path, given itself or as the folder of its run."""
    path = Path(path).expanduser()
    return path / CHECKPOINT_NAME if path.is_dir() else path


def default_folder() -> Path:
    """Return a new folder's path below ``runs``, named by the time, for a run that starts now."""
    time = datetime.now().strftime("%Y%m%d-%H%M%S")
    names = (time if number == 1 else f"{time}-{number}" for number in count(1))
    return next(folder for folder in (Path("runs") / name for name in names) if not folder.exists())


@contextmanager
def own_folder(out: str | None) -> Iterator[str | Path]:
    """Yield the folder that was asked for; or else one below ``runs`` that is made for this run
    alone, and taken away if it stays empty.

    Raises
    ------
    ConfigError
        If it cannot be made.
    """
    if out is not None:
        yield out
        return
    folder, made = _made_folder()
    try:
        yield folder
    finally:
        remove_empty(made)


def _made_folder() -> tuple[Path, list[Path]]:
    """Return a new folder below ``runs``, and those that were made for it."""
    while True:
        folder = default_folder()
        made = lacking_folders(folder)
        make_folder(folder.parent)
        try:
            folder.mkdir()
        except FileExistsError:  # a run that starts at the same time was quicker
            continue
        except OSError as error:
            raise ConfigError(
                f"cannot make the folder {folder}: {error.strerror or error}"
            ) from error
        return folder, made
