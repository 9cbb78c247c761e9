"""Files of models, estimators and checkpoints: damaged, and forged with checksums that are
right.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import load, save

import warpfit as wf
from fuzzing.data_files import CELLS
from fuzzing.harness import Feed, Rng, family, must_work
from fuzzing.mutations import altered, altered_bytes, nasty
from warpfit import nn
from warpfit.errors import DivergedError, ShapeError, WarpfitError
from warpfit.training.jobs import prepare
from warpfit.training.settings import TrainSettings
from warpfit.training.storage import HEADER, sealed, unsealed
from warpfit.training.tables import predict_table
from warpfit.training.trained import load_trained

Arrays = dict[str, np.ndarray]

MAX_OUTPUTS = 100_000


# -- mutations
# -----------------------------------------------------------------------------------------------


def mutated(content: bytes, rng: Rng) -> bytes:
    """Return a file damaged, one time in three, or else forged: with the checksum of what it then
    holds.
    """
    if rng.random() < 0.2:
        return altered_bytes(content, rng, head=8 + int.from_bytes(content[:8], "little"))
    if rng.random() < 0.15:
        header, body = _split(content)
        return _join(altered(header, rng), body)
    text, arrays = _parsed(content)
    FORGERIES[rng.integers(len(FORGERIES))](text, arrays, rng)
    return _sealed(json.dumps(text), arrays)


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a safetensors file as JSON, and what follows it."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def _join(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def _parsed(content: bytes) -> tuple[dict[str, Any], Arrays]:
    text, _ = unsealed(_split(content)[0]["__metadata__"][HEADER])
    return json.loads(text), dict(sorted(load(content).items()))


def _sealed(text: str, arrays: Arrays) -> bytes:
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    return save(arrays, {HEADER: sealed(text, arrays)})


def _alter_text(text: dict[str, Any], arrays: Arrays, rng: Rng) -> None:
    """Alter one of the parts of our JSON text, which are unequal in size."""
    key = list(text)[rng.integers(len(text))]
    text[key] = altered({key: text[key]}, rng).get(key, nasty(rng))


def _alter_below(text: dict[str, Any], arrays: Arrays, rng: Rng) -> None:
    """Alter a part of a part: the description of one layer, one attribute, the plan's network,
    ...
    """
    parts = [part for part in text.values() if isinstance(part, dict | list) and part]
    if parts:
        part = parts[rng.integers(len(parts))]
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        key = keys[rng.integers(len(keys))]
        found = altered([part[key]], rng)
        part[key] = found[0] if found else nasty(rng)


def _rename_arrays(text: dict[str, Any], arrays: Arrays, rng: Rng) -> None:
    """Exchange the names of two arrays, give one the other's content, or take it away."""
    if arrays:
        names = list(arrays)
        one, other = (names[idx] for idx in rng.integers(len(names), size=2))
        kind = rng.integers(3)
        if kind == 0:
            arrays[one], arrays[other] = arrays[other], arrays[one]
        elif kind == 1:
            arrays[one] = arrays[other]
        else:
            del arrays[one]


def _alter_array(text: dict[str, Any], arrays: Arrays, rng: Rng) -> None:
    """Give an array another shape, dtype or numbers."""
    if not arrays:
        return
    name = list(arrays)[rng.integers(len(arrays))]
    array = arrays[name]
    arrays[name] = (
        lambda: array.T,
        lambda: array.reshape(-1),
        lambda: array[None],
        lambda: array[:0],
        lambda: array.astype(("f2", "f4", "f8", "i4", "u1", "?")[rng.integers(6)]),
        lambda: np.full_like(array, (np.nan, np.inf, 1e38, 0)[rng.integers(4)]),
    )[rng.integers(6)]()


FORGERIES: tuple[Callable[[dict[str, Any], Arrays, Rng], None], ...] = (
    *(_alter_text, _alter_text, _alter_below, _alter_below, _alter_below),
    *(_rename_arrays, _alter_array),
)


def _feeding(path: Path, use: Callable[[Path], None]) -> Feed:
    """Return what feeds mutations of the file that lies at `path`."""
    content = path.read_bytes()

    def feed(rng: Rng) -> None:
        path.write_bytes(mutated(content, rng))
        use(path)

    return feed


# -- models
# --------------------------------------------------------------------------------------------------


def _dense() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 4, seed=0),
        nn.BatchNorm1d(4),
        nn.LeakyReLU(),
        nn.Dropout(0.2),
        nn.Linear(4, 4, bias=False, seed=1),
        nn.LayerNorm(4),
        nn.GELU(),
        nn.Linear(4, 3, seed=2),
        nn.LogSoftmax(),
    )


def _convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, seed=0),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 2, stride=1, dilation=2, seed=1),
        nn.AvgPool2d(2, stride=1),
        nn.GlobalMaxPool2d(),
        nn.Linear(4, 3, seed=2),
        nn.Softmax(),
    )


def _sequential() -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(2, 3, 3, padding=1, seed=0), nn.Flatten(), nn.Linear(12, 2))


MODELS = ((_dense(), (5,)), (_convolutional(), (6, 6, 1)), (_sequential(), (4, 2)))


def _use_model(shape: tuple[int, ...], path: Path) -> None:
    """Load a model, and run it, unless it says that it takes no such samples or is very large."""
    model = wf.load(path)
    try:
        network = model.spec(shape)
    except ShapeError:
        return
    if (
        network is not None
        and max(np.prod(found, dtype=object) for found in network.shapes) < MAX_OUTPUTS
    ):
        with must_work():
            outputs = wf.predict(model, np.ones((2, *shape), model.dtype))
            assert outputs.shape == (2, *network.output_shape)


@family("model files")
def model_files(folder: Path) -> Feed:
    """Feed `warpfit.load` and the model that it returns."""
    feeds = []
    for number, (model, shape) in enumerate(MODELS):
        path = folder / f"model {number}.safetensors"
        wf.save(model, path, metadata={"a": [1, 2]})
        feeds.append(_feeding(path, partial(_use_model, shape)))
    return lambda rng: feeds[rng.integers(len(feeds))](rng)


# -- models of warpfit train
# ---------------------------------------------------------------------------------


def trained_on_tables(folder: Path) -> Iterator[tuple[Path, Path, Any]]:
    """Yield a table, the file of a model that ``warpfit train`` made of it, and its data, by
    task.
    """
    draws = np.random.default_rng(0).normal(size=(40, 3))
    rows = [
        f"{x:.2f},{'red' if y > 0 else 'blue'},{'' if z > 1 else f'{z:.1f}'}" for x, y, z in draws
    ]
    labels = [["no", "yes"][int(x > z)] for x, _, z in draws], [f"{x + z:.3f}" for x, _, z in draws]
    for task, column in zip(("classes", "numbers"), labels, strict=True):
        table = folder / f"{task}.csv"
        lines = [f"{row},{label}" for row, label in zip(rows, column, strict=True)]
        table.write_text("\n".join(["width,colour,depth,label", *lines]))
        job = prepare(TrainSettings(data=str(table), epochs=1, device="cpu", quiet=True))
        job.run(folder / task, verbose=False)
        yield table, folder / task / "model.safetensors", job.dataset


@family("files of warpfit train")
def trained_files(folder: Path) -> Feed:
    """Feed `load_trained`, and what ``warpfit evaluate`` and ``warpfit predict`` ask of the model
    then.
    """

    def use(table: Path, dataset: Any, path: Path) -> None:
        trained = load_trained(path)
        with must_work():
            rows = np.zeros((2, *trained.card.network_shape), trained.model.dtype)
            assert len(wf.predict(trained.model, rows)) == 2
            repr(trained.card)
        trained.test_on(dataset, "all")
        predict_table(trained, table)

    found = list(trained_on_tables(folder))
    feeds = [_feeding(path, partial(use, table, dataset)) for table, path, dataset in found]
    return lambda rng: feeds[rng.integers(len(feeds))](rng)


@family("tables to predict")
def tables_to_predict(folder: Path) -> Feed:
    """Feed `predict_table` a model's own table with cells, columns or bytes changed."""
    known = [
        (load_trained(path), table.read_text()) for table, path, _ in trained_on_tables(folder)
    ]
    path = folder / "fuzzed.csv"

    def feed(rng: Rng) -> None:
        trained, text = known[rng.integers(len(known))]
        rows = [line.split(",") for line in text.split("\n")[: int(rng.integers(1, 12))]]
        for _ in range(rng.integers(4)):
            row = rows[rng.integers(len(rows))]
            row[rng.integers(len(row))] = CELLS[rng.integers(len(CELLS))]
        if rng.random() < 0.3:
            rows = [row[: int(rng.integers(1, 5))] for row in rows]
        content = "\n".join(map(",".join, rows)).encode()
        path.write_bytes(altered_bytes(content, rng) if rng.random() < 0.2 else content)
        predictions = predict_table(trained, path)
        with must_work():
            predictions.write(folder / "predictions.csv")

    return feed


# -- estimators
# ----------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "hidden_layer_sizes": (4,),
    "max_iter": 3,
    "random_state": 0,
    "device": "cpu",
}


def _fitted_estimators() -> Iterator[Any]:
    """Yield estimators of every kind of target, with what their files can hold besides."""
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(40, 5)).astype("f4"), rng.integers(0, 3, 40)
    topics = rng.integers(0, 2, (40, 4))
    yield wf.MLPClassifier(**SETTINGS, early_stopping=True).fit(
        x, np.array(["a", "b", "c"])[labels]
    )
    yield wf.MLPClassifier(**SETTINGS, n_ensemble=2, class_weight={0: 1.0, 1: 2.0}).fit(
        x, labels > 0
    )
    yield wf.MLPClassifier(**SETTINGS, solver="sgd").fit(x, topics)
    yield wf.MLPRegressor("huber", **SETTINGS, n_ensemble=2).fit(x, labels)
    yield wf.MLPRegressor(
        wf.losses.Huber(0.3), learning_rate=wf.optim.Step(0.01, every=3), **SETTINGS
    ).fit(x, topics)


def _use_estimator(kind: Any, path: Path) -> None:
    """Load an estimator and do with it what can be done."""
    estimator = kind.load(path)
    with must_work():
        rows = np.ones((2, estimator.n_features_in_), np.float32)
        if estimator.device != "cpu":
            estimator.set_params(device="cpu")
        predicted = estimator.predict(rows)
        assert len(predicted) == 2
        if kind is wf.MLPClassifier:
            probabilities = estimator.predict_proba(rows)
            assert probabilities.shape == (2, len(estimator.classes_))
            estimator.score(rows, predicted)
        repr(estimator)
        estimator.save(path)
        kind.load(path)


@family("estimator files")
def estimator_files(folder: Path) -> Feed:
    """Feed `MLPClassifier.load` and `MLPRegressor.load`, and the estimators that they return."""
    feeds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, estimator in enumerate(_fitted_estimators()):
            path = folder / f"estimator {number}.safetensors"
            estimator.save(path)
            feeds.append(_feeding(path, partial(_use_estimator, type(estimator))))
    return lambda rng: feeds[rng.integers(len(feeds))](rng)


# -- estimators of tables
# ------------------------------------------------------------------------------------


def _fitted_tables() -> Iterator[tuple[Any, Any]]:
    """Yield fitted estimators of tables, and a table that each takes."""
    rng = np.random.default_rng(0)
    towns = [f"town {idx}" for idx in range(10)]
    frame = pd.DataFrame(
        {"x": rng.normal(size=40), "town": towns * 4, "plan": list("ab") * 20, "y": [1.0] * 40}
    )
    settings: dict[str, Any] = {
        "n_epochs": 2,
        "batch_size": 16,
        "hidden_layer_sizes": (4,),
        "random_state": 0,
        "device": "cpu",
    }
    labels = np.array(["a", "b", "c"])[rng.integers(0, 3, 40)]
    yield wf.TabularClassifier(n_folds=2, **settings).fit(frame, labels), frame
    yield wf.TabularRegressor(n_ensemble=2, **settings).fit(frame, frame[["x", "y"]]), frame
    yield wf.TabularRegressor(**settings).fit(frame[["x"]].to_numpy(), frame["x"]), None


def _use_table(kind: Any, frame: Any, path: Path) -> None:
    """Load an estimator of tables and do with it what can be done."""
    estimator = kind.load(path)
    with must_work():
        estimator.set_params(device="cpu")
        known = frame is not None and estimator.n_features_in_ == frame.shape[1]
        if known and list(getattr(estimator, "feature_names_in_", frame.columns)) == list(frame):
            rows = frame if hasattr(estimator, "feature_names_in_") else frame.to_numpy()
        else:
            rows = np.ones((2, estimator.n_features_in_))
            names = getattr(estimator, "feature_names_in_", None)
            rows = rows if names is None else pd.DataFrame(rows, columns=names)
        assert len(estimator.predict(rows)) == len(rows)
        repr(estimator)
        estimator.save(path)
        kind.load(path)


@family("files of tables")
def table_files(folder: Path) -> Feed:
    """Feed `TabularClassifier.load` and `TabularRegressor.load`, and what they return."""
    feeds = []
    for number, (estimator, frame) in enumerate(_fitted_tables()):
        path = folder / f"table {number}.safetensors"
        estimator.save(path)
        feeds.append(_feeding(path, partial(_use_table, type(estimator), frame)))
    return lambda rng: feeds[rng.integers(len(feeds))](rng)


# -- checkpoints
# ---------------------------------------------------------------------------------------------


@family("checkpoints")
def checkpoints(folder: Path) -> Feed:
    """Feed ``fit(resume_from=...)``, which changes nothing where it refuses."""
    rng = np.random.default_rng(0)
    x, labels = rng.uniform(size=(24, 6)).astype("f4"), rng.integers(0, 3, 24)
    path = folder / "checkpoint"

    def train(epochs: int, resume_from: Path | None) -> None:
        layers = (nn.Linear(6, 4, seed=0), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3, seed=1))
        model = nn.Sequential(*layers)
        optimizer = wf.optim.Adam(model.parameters(), wf.optim.ReduceOnPlateau(0.05))
        stopping = wf.EarlyStopping(patience=9)
        before = model.state_dict()
        try:
            wf.fit(
                model,
                x,
                labels,
                optimizer=optimizer,
                batch_size=8,
                epochs=epochs,
                validation_data=(x, labels),
                callbacks=[stopping] if resume_from else [stopping, wf.Checkpoint(path)],
                device="cpu",
                resume_from=resume_from,
                verbose=False,
            )
        except DivergedError:  # a whole checkpoint, whose numbers are no good
            pass
        except WarpfitError:
            np.testing.assert_equal(model.state_dict(), before)
            raise

    train(3, None)
    return _feeding(path, lambda path: train(4, path))
