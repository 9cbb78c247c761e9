"""Altered model files and checkpoints: each loads as something that runs, or raises FileFormatError."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import adam, blobs, mlp
from warpfit import nn
from warpfit.errors import ConfigError, DivergedError, FileFormatError, ShapeError, WarpfitError
from warpfit.training.storage import HEADER

Rng = np.random.Generator

NUM_CASES = 250  # of each of the three tests here
MAX_BYTES = 30_000_000
MAX_OUTPUTS = 100_000

NASTY: tuple[Any, ...] = (
    *(None, True, False, "", "x", "0", [], [[]], {}, {"a": 1}, [1, 2], "linear", "float32", "identity"),
    *(0, 1, -1, 2, 3, 7, 255, 10**9, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, 0.5, -0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")),
)


# -- alterations ---------------------------------------------------------------------------------------------


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every entry inside a JSON value."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [place for key, child in children for place in ((*path, key), *places(child, (*path, key)))]


def altered(value: Any, rng: Rng) -> Any:
    """Return a JSON value with one to three entries replaced, removed, renamed, doubled or moved."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.integers(1, 4)):
        known = places(value)
        if not known:
            return value
        *above, key = known[rng.integers(len(known))]
        parent = value
        for step in above:
            parent = parent[step]
        alter_entry(parent, key, int(rng.integers(5)), rng)
    return value


def alter_entry(parent: Any, key: Any, kind: int, rng: Rng) -> None:
    nasty = NASTY[rng.integers(len(NASTY))]
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(int(rng.integers(len(parent) + 1)), parent[key])
    elif kind == 1:
        parent[str(nasty)] = parent.pop(key)
    elif kind == 2 and isinstance(parent, list):
        parent[key], parent[0] = parent[0], parent[key]
    elif kind == 3 and isinstance(parent[key], int | float):
        parent[key] = parent[key] * int(rng.integers(-2, 4)) + int(rng.integers(-1, 2))
    else:
        parent[key] = nasty


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a safetensors file as JSON, and what follows it."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def join(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def cut(content: bytes, rng: Rng) -> bytes:
    return content[: rng.integers(len(content))]


def grow(content: bytes, rng: Rng) -> bytes:
    place = int(rng.integers(len(content)))
    return content[:place] + rng.bytes(int(rng.integers(1, 20))) + content[place:]


def flip(content: bytes, rng: Rng) -> bytes:
    changed = bytearray(content)
    header_bytes = 8 + int.from_bytes(content[:8], "little")
    ends = (8, header_bytes, len(content))
    for _ in range(rng.integers(1, 4)):
        changed[rng.integers(ends[rng.integers(3)])] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def alter_text(content: bytes, rng: Rng) -> bytes:
    """Alter our own JSON text."""
    header, body = split(content)
    text = altered(json.loads(header["__metadata__"][HEADER]), rng)
    return join({**header, "__metadata__": {HEADER: json.dumps(text)}}, body)


def alter_layers(content: bytes, rng: Rng) -> bytes:
    """Alter the description of the layers, or of the run."""
    header, body = split(content)
    text = json.loads(header["__metadata__"][HEADER])
    key = "layers" if "layers" in text else ("callbacks", "reports", "plateau", "plan")[rng.integers(4)]
    text[key] = altered(text[key], rng)
    return join({**header, "__metadata__": {HEADER: json.dumps(text)}}, body)


def alter_header(content: bytes, rng: Rng) -> bytes:
    """Alter the format's own header: dtypes, shapes, offsets, names."""
    header, body = split(content)
    return join(altered(header, rng), body)


def swap_arrays(content: bytes, rng: Rng) -> bytes:
    """Exchange the names of two arrays, or give one array another's place."""
    header, body = split(content)
    names = [name for name in header if name != "__metadata__"]
    one, other = rng.choice(names, 2)
    header[one], header[other] = (header[other], header[one]) if rng.random() < 0.5 else (header[one],) * 2
    return join(header, body)


ALTERATIONS: tuple[Callable[[bytes, Rng], bytes], ...] = (
    cut,
    grow,
    flip,
    flip,
    alter_text,
    alter_layers,
    alter_layers,
    alter_layers,
    alter_header,
    swap_arrays,
)


def fuzz(path: Path, check: Callable[[Path], bool], seed: int) -> tuple[int, int]:
    """Run a check over altered copies of the file; return how many were accepted, and the peak of memory."""
    rng = np.random.default_rng(seed)
    content = path.read_bytes()
    accepted = 0
    tracemalloc.start()
    try:
        for case in range(NUM_CASES):
            path.write_bytes(ALTERATIONS[case % len(ALTERATIONS)](content, rng))
            # What is not finite runs, too; NumPy warns of it.
            with np.errstate(all="ignore"):
                accepted += check(path)
        return accepted, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# -- models --------------------------------------------------------------------------------------------------


def dense() -> nn.Sequential:
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


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, seed=0),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 2, stride=1, dilation=2, seed=1),
        nn.AvgPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(4, 3, seed=2),
        nn.Softmax(),
    )


def runs(model: nn.Sequential, shape: tuple[int, ...]) -> None:
    """Run a loaded model, unless it says that it does not take such samples or is very large."""
    try:
        network = model.spec(shape)
    except ShapeError:
        return
    if network is not None and max(np.prod(found, dtype=object) for found in network.shapes) < MAX_OUTPUTS:
        assert wf.predict(model, np.ones((2, *shape), model.dtype)).shape == (2, *network.output_shape)


@pytest.mark.parametrize(("make_model", "shape"), [(dense, (5,)), (convolutional, (6, 6, 1))])
def test_altered_models(
    make_model: Callable[[], nn.Sequential], shape: tuple[int, ...], tmp_path: Path
) -> None:
    def check(path: Path) -> bool:
        try:
            model = wf.load(path)
        except FileFormatError:
            return False
        runs(model, shape)
        return True

    wf.save(make_model(), tmp_path / "model", metadata={"a": [1, 2]})
    accepted, peak = fuzz(tmp_path / "model", check, seed=20240901)
    assert 0 < accepted < NUM_CASES / 2
    assert peak < MAX_BYTES


# -- checkpoints ---------------------------------------------------------------------------------------------


def test_altered_checkpoints(tmp_path: Path) -> None:
    x, labels = blobs(24)
    path = tmp_path / "checkpoint"

    def train(epochs: int, resume_from: Path | None = None) -> None:
        layers = mlp(6, 4, 3)
        model = nn.Sequential(layers[0], nn.BatchNorm1d(4), *list(layers)[1:])
        before = model.state_dict()
        schedule = wf.optim.ReduceOnPlateau(0.05)
        stopping = wf.EarlyStopping(patience=9)
        try:
            wf.fit(
                model,
                x,
                labels,
                optimizer=adam(model, schedule),
                batch_size=8,
                epochs=epochs,
                validation_data=(x, labels),
                callbacks=[stopping] if resume_from else [stopping, wf.Checkpoint(path)],
                resume_from=resume_from,
                verbose=False,
            )
        except WarpfitError as error:
            if not isinstance(error, DivergedError):
                np.testing.assert_equal(model.state_dict(), before)
            raise

    def check(path: Path) -> bool:
        try:
            train(4, resume_from=path)
        except FileFormatError:
            return False
        except ConfigError as error:  # a whole checkpoint, but of another run or a longer one
            if "checkpoint of the same run" in str(error) or "expected epochs to be at least" in str(error):
                return False
            raise
        except DivergedError:  # a whole checkpoint, whose numbers are no good
            return True
        return True

    train(3)
    accepted, peak = fuzz(path, check, seed=20240902)
    assert 0 < accepted < NUM_CASES / 2
    assert peak < MAX_BYTES
