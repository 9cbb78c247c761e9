"""Flip single bits in files of models, estimators and checkpoints, and count what becomes of them.

python tools/bit_flips.py                   # 400 flips in a file of each kind
python tools/bit_flips.py --flips 20 --seed 7

A damaged file is refused; or it gives the same result, down to the last bit, as before; or another
one: silently. A model's result is its weights, settings, metadata and predictions; an estimator's
is its parameters, attributes and predictions; a checkpoint's is the history, weights and optimizer
of the run that goes on from it. Exits 1 if a flip was silent.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import warpfit as wf
from warpfit import nn
from warpfit.errors import WarpfitError

OUTCOMES = ("refused", "same result", "silent")


class Kind(NamedTuple):
    """A kind of file: the function that writes one, and the one that reads it and returns what
    follows from it.
    """

    write: Callable[[Path], None]
    result: Callable[[Path], Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--flips", type=int, default=400, metavar="N", help="flips in a file of each kind"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides which bits")
    arguments = parser.parse_args()
    print(f"{'file':<12}{'bytes':>8}" + "".join(f"{outcome:>14}" for outcome in OUTCOMES))
    silent = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in KINDS.items():
            path = Path(folder) / f"{name}.safetensors"
            counts = count_flips(kind, path, arguments.flips, arguments.seed)
            cells = "".join(f"{counts[outcome]:>14,}" for outcome in OUTCOMES)
            print(f"{name:<12}{path.stat().st_size:>8,}{cells}", flush=True)
            silent += counts["silent"]
    return int(silent > 0)


def count_flips(kind: Kind, path: Path, flips: int, seed: int) -> Counter[str]:
    """Write a file at `path`, and return how many of some single flipped bits have which
    outcome.
    """
    kind.write(path)
    content = path.read_bytes()
    expected = described(kind.result(path))
    if described(kind.result(path)) != expected:
        raise AssertionError(f"expected equal results of equal files, got two of {path}")
    places = np.random.default_rng(seed).choice(8 * len(content), size=flips, replace=False)
    counts: Counter[str] = Counter()
    for place in places.tolist():
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        counts[_outcome(kind, path, expected)] += 1
    path.write_bytes(content)
    return counts


def _outcome(kind: Kind, path: Path, expected: Any) -> str:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = described(kind.result(path))
    except WarpfitError:
        return "refused"
    return "same result" if found == expected else "silent"


def described(value: Any) -> Any:
    """Return a value in a form that is equal only to that of the same bits, all the way down."""
    if isinstance(value, np.ndarray):
        return (
            str(value.dtype),
            value.shape,
            value.tolist() if value.dtype == object else value.tobytes(),
        )
    if isinstance(value, dict):
        return [(key, described(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return (type(value).__name__, [described(item) for item in value])
    return (
        type(value).__name__,
        described(vars(value)) if hasattr(value, "__dict__") else repr(value),
    )


# -- the kinds of files
# -----------------------------------------------------------------------------------------

_RNG = np.random.default_rng(0)
X = _RNG.uniform(size=(48, 6)).astype("f4")
LABELS = _RNG.integers(0, 3, 48)


def _network() -> nn.Sequential:
    layers = (
        nn.Linear(6, 8, seed=0),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(8, 3, seed=1),
    )
    return nn.Sequential(*layers)


def _trained(path: Path, epochs: int, resume_from: Path | None = None) -> Any:
    """Return what comes of a run that writes checkpoints to `path`, or goes on from one."""
    model = _network()
    optimizer = wf.optim.Adam(model.parameters(), wf.optim.ReduceOnPlateau(0.05))
    history = wf.fit(
        model,
        X,
        LABELS,
        optimizer=optimizer,
        batch_size=16,
        epochs=epochs,
        validation_data=(X, LABELS),
        callbacks=[wf.EarlyStopping(patience=9), *([] if resume_from else [wf.Checkpoint(path)])],
        device="cpu",
        resume_from=resume_from,
        verbose=False,
    )
    columns = {name: list(values) for name, values in history.to_dict().items()}
    for name in ("seconds", "samples_per_second"):
        columns[name][EPOCHS:] = []  # what a new epoch takes is no result
    return columns, history.step_losses, model.state_dict(), optimizer.state_dict()


EPOCHS = 3


def _write_model(path: Path) -> None:
    model = _network()
    optimizer = wf.optim.Adam(model.parameters())
    wf.fit(model, X, LABELS, optimizer=optimizer, epochs=2, device="cpu", verbose=False)
    wf.save(model, path, metadata={"classes": ["a", "b", "c"], "accuracy": 0.5})


def _model_result(path: Path) -> Any:
    model = wf.load(path)
    return repr(model), model.state_dict(), wf.load_metadata(path), wf.predict(model, X)


def _write_estimator(path: Path) -> None:
    settings = {"hidden_layer_sizes": (8,), "max_iter": 5, "random_state": 0, "device": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wf.MLPClassifier(early_stopping=True, **settings).fit(
            X, np.array(["a", "b", "c"])[LABELS]
        ).save(path)


def _estimator_result(path: Path) -> Any:
    estimator = wf.MLPClassifier.load(path)
    return estimator, estimator.predict_proba(X), estimator.predict(X)


def _write_table(path: Path) -> None:
    settings = {"n_epochs": 2, "hidden_layer_sizes": (4,), "random_state": 0, "device": "cpu"}
    labels = np.array(["a", "b", "c"])[LABELS]
    wf.TabularClassifier(n_folds=2, batch_size=16, **settings).fit(X, labels).save(path)


def _table_result(path: Path) -> Any:
    estimator = wf.TabularClassifier.load(path)
    attributes = {
        name: value
        for name, value in vars(estimator).items()
        if name not in ("members_", "network_", "preprocessor_")
    }
    members = [
        (each.losses, each.errors, each.best_epoch, each.seed, each.network.state_dict())
        for each in estimator.members_
    ]
    return attributes, members, estimator.predict_proba(X)


KINDS = {
    "model": Kind(_write_model, _model_result),
    "estimator": Kind(_write_estimator, _estimator_result),
    "table": Kind(_write_table, _table_result),
    "checkpoint": Kind(
        lambda path: _trained(path, EPOCHS) and None,
        lambda path: _trained(path, EPOCHS + 1, resume_from=path),
    ),
}


if __name__ == "__main__":
    sys.exit(main())
