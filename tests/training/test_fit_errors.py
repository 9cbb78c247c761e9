"""What fit refuses: one clear sentence, and nothing has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.devices import no_gpu
from support.training import Taped, adam, blobs, mlp, sgd, unchanged
from warpfit import losses, nn, optim
from warpfit.errors import (
    ConfigError,
    DataError,
    DeviceError,
    DTypeError,
    FileFormatError,
    ShapeError,
)
from warpfit.training.inputs import as_rows

X, LABELS = blobs(20)
TARGETS = X[:, :1]


def with_value(array: np.ndarray, value: Any, place: Any = 7) -> np.ndarray:
    changed = np.array(array, dtype=float)
    changed[place] = value
    return changed


def refuses(
    error: type[Exception], match: str, *, loss: Any = "cross_entropy", **changes: Any
) -> None:
    model = changes.pop("model", None) or (mlp(6, 3) if loss == "cross_entropy" else mlp(6, 1))
    optimizer = adam(model)
    arguments = {
        "x": X,
        "y": LABELS if loss == "cross_entropy" else TARGETS,
        "loss": loss,
        "optimizer": optimizer,
        "epochs": 2,
        "batch_size": 8,
        "verbose": False,
        **changes,
    }
    with unchanged(model, optimizer), pytest.raises(error, match=match) as caught:
        wf.fit(model, **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("x", "error", "match"),
    [
        (X[:, :5], ShapeError, r"Linear: expected samples of shape \(6,\), got \(5,\)"),
        (X[0], ShapeError, r"Linear: expected samples of shape \(6,\), got \(\)"),
        (X.reshape(20, 2, 3), ShapeError, r"expected samples of shape \(6,\), got \(2, 3\)"),
        (3.0, ShapeError, "expected x to be an array of rows, got a single number"),
        ([[1, 2], [3]], ShapeError, "expected x to be an array of rows, but"),
        (X[:0], DataError, r"expected x to have at least one row, got shape \(0, 6\)"),
        ([], DataError, "expected x to have at least one row"),
        (X[:19], ShapeError, "expected as many rows in y as in x, got 20 and 19"),
        (X.astype(str), DTypeError, "expected x to hold numbers, got text such as '"),
        (X.astype(object), DTypeError, "expected x to hold numbers, got dtype object of float"),
        (
            X.astype(complex),
            DTypeError,
            r"expected x to hold numbers, got complex numbers \(complex128\)",
        ),
        (None, DTypeError, "expected x to hold numbers, got None"),
        (with_value(X, np.nan), DataError, "expected x to be finite, got NaN or infinity in row 7"),
        (with_value(X, np.inf), DataError, "expected x to be finite, got NaN or infinity in row 7"),
        (with_value(X, np.nan).astype("f2"), DataError, "expected x to be finite"),
    ],
)
def test_x(x: Any, error: type[Exception], match: str) -> None:
    refuses(error, match, x=x)


def test_nan_is_found_in_any_chunk() -> None:
    x = np.zeros((3000, 3000), np.float32)
    x[2345, 17] = np.nan
    refuses(DataError, "in row 2345", model=mlp(3000, 3), x=x, y=np.zeros(3000, int))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_whose_squares_overflow_are_finite(dtype: str) -> None:
    rows = np.full((20, 4), np.finfo(dtype).max, dtype)
    np.testing.assert_array_equal(as_rows("x", rows), rows, strict=True)


@pytest.mark.parametrize(
    ("y", "error", "match"),
    [
        (
            LABELS + 1,
            DataError,
            r"expected labels in \[0, 3\) for 3 outputs, got labels from 1 to 3",
        ),
        (
            LABELS - 1,
            DataError,
            r"expected labels in \[0, 3\) for 3 outputs, got labels from -1 to 1",
        ),
        (LABELS.astype(float), DTypeError, "expected integer labels, got dtype float64"),
        (LABELS.reshape(-1, 1), ShapeError, r"expected labels of shape \(M,\), got \(20, 1\)"),
        (np.eye(3)[LABELS], ShapeError, r"expected labels of shape \(M,\)"),
        (LABELS[:5], ShapeError, "expected as many rows in y as in x, got 5 and 20"),
        (LABELS.astype(str), DTypeError, "expected y to hold numbers"),
        (None, ConfigError, r"expected y beside x, or x as batches \(x, y\)"),
        (2, ShapeError, "expected y to be an array of rows"),
        (
            with_value(LABELS, np.nan),
            DataError,
            "expected y to be finite, got NaN or infinity in row 7",
        ),
    ],
)
def test_labels(y: Any, error: type[Exception], match: str) -> None:
    refuses(error, match, y=y)


@pytest.mark.parametrize(
    ("loss", "y", "error", "match"),
    [
        ("mse", np.ones((20, 2)), ShapeError, r"mse: expected targets of shape \(M, 1\)"),
        (
            "mse",
            with_value(TARGETS, np.nan),
            DataError,
            "expected y to be finite, got NaN or infinity in row 7",
        ),
        ("huber", with_value(TARGETS, -np.inf), DataError, "expected y to be finite"),
        (
            "binary_cross_entropy",
            3 + TARGETS,
            DataError,
            r"expected targets in \[0, 1\], got values from 3",
        ),
    ],
)
def test_targets(loss: str, y: Any, error: type[Exception], match: str) -> None:
    refuses(error, match, loss=loss, y=y)


@pytest.mark.parametrize(
    ("setting", "error", "match"),
    [
        (
            {"batch_size": 0},
            ConfigError,
            "expected batch_size to be an integer of at least 1, got 0",
        ),
        ({"batch_size": -3}, ConfigError, "expected batch_size to be"),
        (
            {"batch_size": 2.0},
            ConfigError,
            "expected batch_size to be an integer of at least 1, got 2.0",
        ),
        ({"batch_size": True}, ConfigError, "expected batch_size to be"),
        ({"batch_size": None}, ConfigError, "expected batch_size to be"),
        ({"epochs": -1}, ConfigError, "expected epochs to be an integer of at least 0, got -1"),
        ({"epochs": "3"}, ConfigError, "expected epochs to be an integer of at least 0, got '3'"),
        (
            {"report_every": 0},
            ConfigError,
            "expected report_every to be an integer of at least 1, got 0",
        ),
        ({"seed": -1}, ConfigError, "expected a seed that is an integer"),
        ({"seed": 1.5}, ConfigError, "expected a seed that is an integer"),
        ({"loss": "hinge"}, ConfigError, "expected a loss among cross_entropy, .*, got 'hinge'"),
        ({"loss": 3}, ConfigError, "expected a loss among"),
        ({"loss": losses.SoftmaxCrossEntropy}, ConfigError, "expected a loss among"),
        (
            {"engine": "warp"},
            ConfigError,
            "expected an engine among auto, layerwise, graph, one_launch, got 'warp'",
        ),
        ({"engine": None}, ConfigError, "expected an engine among"),
        ({"device": "cuda"}, DeviceError, "expected a CUDA device for 'cuda:0', but"),
        ({"device": "cuda:1"}, DeviceError, "expected a CUDA device for 'cuda:1', but"),
        ({"device": "tpu"}, ConfigError, "expected one device, 'auto', 'cpu', .* got 'tpu'"),
        ({"device": None}, ConfigError, "expected one device"),
        (
            {"precision": "float16"},
            ConfigError,
            "expected precision .* on device 'cpu', got 'float16'",
        ),
        ({"precision": "tf32"}, ConfigError, "expected precision"),
        ({"precision": np.float32}, ConfigError, "expected precision"),
        (
            {"plan": "fast"},
            ConfigError,
            "expected plan to be an earlier run's plan or None, got str",
        ),
        ({"callbacks": wf.EarlyStopping()}, ConfigError, "expected callbacks to be a sequence"),
        (
            {"callbacks": [print]},
            ConfigError,
            "expected callbacks to be a sequence of Callback objects",
        ),
        ({"callbacks": None}, ConfigError, "expected callbacks to be a sequence"),
        ({"optimizer": None}, ConfigError, "expected an optimizer of .*, got NoneType"),
        (
            {"optimizer": "adams"},
            ConfigError,
            "optimizer of warpfit.optim, or its name among .*adam, .*, got 'adams'",
        ),
        (
            {"optimizer": optim.Adam},
            ConfigError,
            "expected an optimizer of warpfit.optim, or its name among .*, got the class Adam",
        ),
        (
            {"optimizer": adam(mlp(6, 3))},
            ConfigError,
            "over the model's own parameters, got 2 that are not",
        ),
        ({"validation_split": 1.0}, ConfigError, r"expected validation_split in \[0, 1\), got 1.0"),
        ({"validation_split": "0.1"}, ConfigError, "expected validation_split in"),
        ({"validation_split": -0.1}, ConfigError, "expected validation_split in"),
        (
            {"validation_split": 0.04},
            DataError,
            "rows to train and to validate on, got 20 and 0 of 20",
        ),
        (
            {"validation_split": 0.1, "validation_data": (X, LABELS)},
            ConfigError,
            "expected validation_data or validation_split, got both",
        ),
        (
            {"validation_split": 0.1, "y": LABELS[:-1]},
            ShapeError,
            "expected as many rows in y as in x, got 19 and 20",
        ),
        (
            {"validation_split": 0.1, "sample_weight": np.ones(19)},
            ShapeError,
            r"expected sample_weight of shape \(20,\), got \(19,\)",
        ),
        (
            {"resume_from": "nowhere.ckpt"},
            FileFormatError,
            "nowhere.ckpt does not exist; expected a checkpoint file",
        ),
    ],
)
def test_settings(
    monkeypatch: pytest.MonkeyPatch, setting: dict[str, Any], error: type[Exception], match: str
) -> None:
    no_gpu(monkeypatch)
    refuses(error, match, **setting) if "loss" not in setting else refuses(
        error, match, y=LABELS, model=mlp(6, 3), **setting
    )


@pytest.mark.parametrize("model", [None, nn.Linear, np.zeros, "model"])
def test_models(model: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected a model \(a Module\), got"):
        wf.fit(model, X, LABELS, optimizer=adam(mlp(6, 3)), verbose=False)


@pytest.mark.parametrize(
    ("weight", "error", "match"),
    [
        (np.ones(19), ShapeError, r"expected sample_weight of shape \(20,\), got \(19,\)"),
        (np.ones((20, 1)), ShapeError, r"expected sample_weight of shape \(20,\), got \(20, 1\)"),
        (
            with_value(np.ones(20), np.nan),
            DataError,
            "expected sample_weight to be finite, .* in row 7",
        ),
        (with_value(np.ones(20), -1), DataError, "expected sample weights of at least 0, got -1"),
        (["a"] * 20, DTypeError, "expected sample_weight to hold numbers"),
        (1.0, ShapeError, "expected sample_weight to be an array of rows"),
        ("balanced", DTypeError, "expected sample_weight to hold numbers"),
    ],
)
def test_sample_weights(weight: Any, error: type[Exception], match: str) -> None:
    refuses(error, match, sample_weight=weight)


@pytest.mark.parametrize(
    ("weight", "error", "match"),
    [
        (
            "even",
            ConfigError,
            "expected class_weight 'balanced', a mapping or a sequence, got 'even'",
        ),
        ([1, 2], ShapeError, r"expected 3 class weights, one a class, got shape \(2,\)"),
        ([[1, 2, 3]], ShapeError, "expected 3 class weights"),
        (5, ShapeError, "expected class_weight to be an array of rows, got a single number"),
        ({3: 1.0}, ConfigError, r"expected class weights for classes in \[0, 3\), got \[3\]"),
        ({"a": 1.0, 7: 2.0}, ConfigError, r"got \['a', 7\]"),
        ({0: "heavy"}, DTypeError, "expected class_weight to hold numbers"),
        ({0: np.nan}, DataError, "expected class_weight to be finite"),
        ([1, -1, 1], ConfigError, "expected class weights that are finite and at least 0"),
    ],
)
def test_class_weights(weight: Any, error: type[Exception], match: str) -> None:
    refuses(error, match, class_weight=weight)


def test_class_weights_of_losses_without_classes() -> None:
    refuses(
        ConfigError,
        "expected no class_weight for the loss 'mse', got 'balanced'",
        loss="mse",
        class_weight="balanced",
    )
    loss = losses.SoftmaxCrossEntropy(class_weight=(1.0, 2.0))
    refuses(ShapeError, "expected 3 class weights", model=mlp(6, 3), y=LABELS, loss=loss)


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [
        (X, ConfigError, r"expected validation_data as a pair \(x, y\)"),
        (3, ConfigError, r"expected validation_data as a pair \(x, y\)"),
        ((X, LABELS, LABELS), ConfigError, r"expected validation_data as a pair \(x, y\)"),
        (
            (X[:, :5], LABELS),
            ShapeError,
            r"expected validation x with rows of shape \(6,\), got \(5,\)",
        ),
        (
            (X[:5], LABELS),
            ShapeError,
            "expected as many rows in validation y as in x, got 20 and 5",
        ),
        ((X[:0], LABELS[:0]), DataError, "expected validation x to have at least one row"),
        ((X, LABELS + 1), DataError, r"expected labels in \[0, 3\)"),
        (
            (with_value(X, np.nan), LABELS),
            DataError,
            "expected validation x to be finite, .* in row 7",
        ),
        ((X, None), DTypeError, "expected validation y to hold numbers"),
    ],
)
def test_validation_data(data: Any, error: type[Exception], match: str) -> None:
    refuses(error, match, validation_data=data)


def test_plans_for_something_else() -> None:
    model = mlp(6, 3)
    plan = wf.fit(model, X, LABELS, optimizer=adam(model), epochs=1, verbose=False).plan
    match = "expected a plan made for this model, optimizer and shape of x"
    refuses(ConfigError, match, model=mlp(6, 4, 3), plan=plan)
    refuses(ConfigError, match, plan=replace(plan, trained=("0.weight",)))
    other = mlp(6, 3)
    sgd_plan = wf.fit(other, X, LABELS, optimizer=sgd(other), epochs=1, verbose=False).plan
    refuses(ConfigError, match, plan=sgd_plan)
    momentum = replace(sgd_plan, optimizer=sgd(other, momentum=0.9).spec)
    with unchanged(other, sgd(other)), pytest.raises(ConfigError, match="whose optimizer keeps"):
        wf.fit(other, X, LABELS, optimizer=sgd(other), plan=momentum, verbose=False)
    refuses(
        ConfigError,
        "expected an engine among",
        plan=replace(plan, network=mlp(6, 3).spec((6,)), engine="warp"),
    )


def test_a_tapeds_wrong_shapes() -> None:
    refuses(
        ShapeError,
        r"Linear: expected samples|expected x of shape \(M, 6\)",
        model=Taped(mlp(6, 3)),
        x=X[:, :5],
    )


def test_early_stopping_on_what_is_not_reported() -> None:
    refuses(ConfigError, "got none; is validation_data given", callbacks=[wf.EarlyStopping()])
    callbacks = [wf.EarlyStopping("accuracy")]
    refuses(ConfigError, "expected reports of accuracy", loss="mse", callbacks=callbacks)


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing" / "file", tmp_path / "file" / "below"):
        for callback in (wf.Checkpoint(path), wf.CSVLog(path), wf.JSONLLog(path)):
            refuses(ConfigError, f"cannot write {path}: ", callbacks=[callback], epochs=0)
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
