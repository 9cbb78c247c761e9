"""Digests of data: the same wherever it lives, another for other data, and cheap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.training import blobs
from warpfit import backends
from warpfit.engines.base import TrainingData
from warpfit.training import same_run
from warpfit.training.same_run import data_digests

X, Y = blobs(60)


def digests(x: Any, y: Any = Y, weights: Any = None) -> dict[str, str]:
    return data_digests(TrainingData(x, y, weights), None)


def test_each_array_has_its_own() -> None:
    found = data_digests(TrainingData(X, Y, np.ones(60)), TrainingData(X[:5], Y[:5]))
    assert list(found) == ["x", "y", "sample_weight", "validation x", "validation y"]
    assert len(set(found.values())) == 5


@pytest.mark.parametrize("sampled_bytes", [same_run.SAMPLED_BYTES, 200, 1])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float32", "float64"])
def test_equal_data_have_equal_digests_wherever_they_lie(
    kernel_runtime: Any,
    tmp_path: Path,
    dtype: str,
    sampled_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(same_run, "SAMPLED_BYTES", sampled_bytes)
    x = (100 * X).astype(dtype).reshape(60, 3, 2)
    mapped = np.memmap(tmp_path / "x", dtype, "w+", shape=x.shape)
    mapped[:] = x
    ops = backends.cuda.backend_of(kernel_runtime)
    assert digests(x) == digests(mapped) == digests(x.astype(x.dtype.newbyteorder(">")))
    assert digests(ops.asarray(x), ops.asarray(Y)) == digests(x)


@pytest.mark.parametrize(
    "other",
    [X[:, :5], X[:59], X.reshape(60, 3, 2), X.astype("f8"), X.view("i4"), X[::-1].copy()],
    ids=["columns", "rows", "shape", "dtype", "view", "order"],
)
def test_other_data_have_others(other: Any) -> None:
    assert digests(other)["x"] != digests(X)["x"]


def test_every_row_counts_up_to_a_size_and_every_kth_and_the_last_beyond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    for sampled_bytes in (X.nbytes, X.nbytes // 4):
        monkeypatch.setattr(same_run, "SAMPLED_BYTES", sampled_bytes)
        rows = []
        for row in range(60):
            other = X.copy()
            other[row, 3] += 1
            rows += [row] if digests(other) != digests(X) else []
        seen.append(rows)
    assert seen == [list(range(60)), [*range(0, 60, 4), 59]]
