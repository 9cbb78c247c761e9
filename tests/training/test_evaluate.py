"""evaluate and predict."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.numeric import layouts
from support.training import Taped, adam, blobs, mlp
from warpfit import losses, nn
from warpfit.errors import ConfigError, DataError, DTypeError, ShapeError

X, LABELS = blobs(50)


def by_hand(model: nn.Sequential, x: np.ndarray) -> np.ndarray:
    first, second = model[0], model[2]
    hidden = np.maximum(x @ first.weight.data + first.bias.data, 0)
    return hidden @ second.weight.data + second.bias.data


# -- predict
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wrap", [lambda model: model, Taped])
def test_outputs_probabilities_and_labels(dtype: str, wrap: Any) -> None:
    model = mlp(6, 8, 3, dtype=dtype)
    expected = by_hand(model, X)
    model = wrap(model)
    outputs = wf.predict(model, X)
    assert outputs.dtype == dtype
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    probabilities = wf.predict(model, X, kind="probabilities")
    exponentials = np.exp(expected)
    np.testing.assert_allclose(
        probabilities, exponentials / exponentials.sum(axis=1, keepdims=True), rtol=1e-5
    )
    labels = wf.predict(model, X, kind="labels")
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(labels, expected.argmax(axis=1))


@pytest.mark.parametrize("batch_size", [1, 7, 49, 50, 1000, np.int64(8)])
def test_batch_sizes_do_not_matter(batch_size: Any) -> None:
    model = mlp(6, 8, 3, dtype="float64")
    np.testing.assert_allclose(
        wf.predict(model, X, batch_size=batch_size), wf.predict(model, X), rtol=1e-12
    )
    part, whole = (
        wf.evaluate(model, X, LABELS, batch_size=batch_size),
        wf.evaluate(model, X, LABELS),
    )
    assert part.loss == pytest.approx(whole.loss, rel=1e-12)
    assert part.accuracy == whole.accuracy


@pytest.mark.parametrize("kind", ["outputs", "probabilities", "labels"])
def test_no_rows_give_no_rows(kind: str) -> None:
    result = wf.predict(mlp(6, 8, 3), X[:0], kind=kind)
    assert result.shape == ((0,) if kind == "labels" else (0, 3))
    assert result.dtype == (np.int64 if kind == "labels" else np.float32)


def test_bytes_mean_255ths() -> None:
    pixels = (X * 255).astype(np.uint8)
    model = mlp(6, 8, 3)
    np.testing.assert_array_equal(
        wf.predict(model, pixels), wf.predict(model, (pixels / 255).astype("f4"))
    )
    assert wf.evaluate(model, pixels, LABELS) == wf.evaluate(
        model, (pixels / 255).astype("f4"), LABELS
    )


def test_layouts_lists_and_other_dtypes() -> None:
    model = mlp(6, 8, 3)
    expected = wf.predict(model, X)
    for _, array in layouts(X):
        np.testing.assert_array_equal(wf.predict(model, array), expected)
    np.testing.assert_array_equal(wf.predict(model, X.tolist()), expected)
    halves = X.astype(np.float16)
    np.testing.assert_array_equal(
        wf.predict(model, halves), wf.predict(model, halves.astype(np.float32))
    )


def test_images_and_outputs_of_more_axes() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, seed=0))
    images = np.random.default_rng(0).normal(size=(5, 6, 4, 1))
    assert wf.predict(model, images, batch_size=2).shape == (5, 4, 2, 2)
    assert wf.predict(model, images, kind="labels").shape == (5, 4, 2)


def test_dropout_and_batch_norm_are_in_evaluation_whatever_their_mode() -> None:
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5)).train()
    for wrapped in (model, Taped(model)):
        np.testing.assert_allclose(wf.predict(wrapped, X), X / np.sqrt(1 + 1e-5), rtol=1e-6)
    assert model[0].training
    np.testing.assert_array_equal(model[0].running_mean.data, np.zeros(6))


def test_the_result_belongs_to_the_caller() -> None:
    identity = nn.Sequential(nn.Identity())
    given = X.copy()
    wf.predict(identity, given)[...] = 0
    np.testing.assert_array_equal(given, X)


# -- what outputs mean
# ---------------------------------------------------------------------------------------


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def fitted(loss: str, num_outputs: int, y: Any) -> tuple[nn.Sequential, wf.History]:
    model = mlp(6, 8, num_outputs)
    settings: dict[str, Any] = {
        "epochs": 4,
        "batch_size": 8,
        "validation_data": (X, y),
        "verbose": False,
    }
    return model, wf.fit(model, X, y, loss=loss, optimizer=adam(model, 0.05), **settings)


NUM_OUTPUTS = {"cross_entropy": (2, 3), "binary_cross_entropy": (1, 3)}
EVERY_LOSS = [(name, n) for name in losses.Loss.by_name for n in NUM_OUTPUTS.get(name, (1, 2))]


def targets_of(loss: str, num_outputs: int) -> Any:
    if loss == "cross_entropy":
        return LABELS % num_outputs
    several = np.stack([k == LABELS for k in range(1, num_outputs + 1)], axis=1).astype(np.int64)
    return several[:, 0] if num_outputs == 1 else several


@pytest.mark.parametrize(("loss", "num_outputs"), EVERY_LOSS)
def test_outputs_mean_what_the_loss_says(loss: str, num_outputs: int) -> None:
    y = targets_of(loss, num_outputs)
    model, history = fitted(loss, num_outputs, y)
    outputs = wf.predict(model, X)
    result = wf.evaluate(model, X, y)
    assert result == wf.evaluate(model, X, y, loss=loss)
    assert (result.loss, result.accuracy) == (history["val_loss"][-1], history["val_accuracy"][-1])
    if not losses.Loss.by_name[loss].counts_correct:
        for kind in ("probabilities", "labels"):
            with pytest.raises(
                ConfigError, match=f"{loss} have no {kind}: expected kind='outputs'"
            ):
                wf.predict(model, X, kind=kind)
        expected = np.exp(outputs) if loss == "poisson" else outputs
        np.testing.assert_allclose(wf.predict(model, X, kind="values"), expected, rtol=1e-6)
        return
    labels, probabilities = (
        wf.predict(model, X, kind=kind) for kind in ("labels", "probabilities")
    )
    assert (labels.shape, labels.dtype, probabilities.shape) == (
        y.shape,
        np.int64,
        (50, num_outputs),
    )
    matches = (labels == y).reshape(50, -1).all(axis=1)
    assert 0 < result.accuracy == matches.mean()
    if loss == "cross_entropy":
        np.testing.assert_array_equal(labels, probabilities.argmax(axis=1))
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    else:
        np.testing.assert_allclose(probabilities, sigmoid(outputs), rtol=1e-5)
        np.testing.assert_array_equal(labels.reshape(50, -1), probabilities > 0.5)
    with pytest.raises(ConfigError, match="are logits of classes"):
        wf.predict(model, X, kind="values")


def test_one_logit_tells_two_classes_apart() -> None:
    model, history = fitted("binary_cross_entropy", 1, LABELS == 0)
    assert history["val_accuracy"][-1] > 0.9
    assert set(wf.predict(model, X, kind="labels")) == {0, 1}
    assert wf.evaluate(model, X, LABELS == 0).accuracy > 0.9


def test_where_no_loss_is_known() -> None:
    refused = [
        *(
            lambda kind=kind: wf.predict(mlp(6, 1), X, kind=kind)
            for kind in ("probabilities", "labels", "values")
        ),
        lambda: wf.predict(mlp(6, 3), X, kind="values"),
        lambda: wf.evaluate(mlp(6, 1), X, np.zeros(50, np.int64)),
    ]
    for call in refused:
        with pytest.raises(
            ConfigError, match=r"set model.loss, or give loss=, such as 'binary_cross_entropy'"
        ):
            call()
    model = mlp(6, 1)
    given = wf.predict(model, X, kind="labels", loss="binary_cross_entropy")
    model.loss = "binary_cross_entropy"
    np.testing.assert_array_equal(wf.predict(model, X, kind="labels"), given)
    assert wf.evaluate(model, X, given).accuracy == 1


def test_what_a_model_was_trained_with_last_counts_and_copies_know_it() -> None:
    model, _ = fitted("mse", 3, targets_of("mse", 3))
    optimizer = adam(model)
    wf.fit(model, X, LABELS, optimizer=optimizer, epochs=1, class_weight={0: 2.0}, verbose=False)
    assert model.loss == losses.SoftmaxCrossEntropy(class_weight=(2.0, 1.0, 1.0))
    for other in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        model.to(dtype="float64"),
    ):
        assert other.loss == model.loss
        assert wf.evaluate(other, X, LABELS).loss == pytest.approx(
            wf.evaluate(model, X, LABELS).loss
        )


class WithALoss(Taped):
    """A user's module with something else by the name of what fit would set."""

    def loss(self, y: Any) -> Any:
        return y


def test_a_module_with_something_else_by_the_name_of_loss_keeps_it() -> None:
    model = WithALoss(mlp(6, 1))
    wf.fit(
        model,
        X,
        LABELS == 0,
        loss="binary_cross_entropy",
        optimizer=adam(model),
        epochs=1,
        verbose=False,
    )
    assert model.loss(3) == 3
    for call in (
        lambda: wf.predict(model, X, kind="labels"),
        lambda: wf.evaluate(model, X, LABELS == 0),
    ):
        with pytest.raises(ConfigError, match="does not say what the outputs mean, give loss="):
            call()
    assert wf.predict(model, X, kind="labels", loss="binary_cross_entropy").shape == (50,)


class Margin(losses.Loss):
    """A loss of a user's own for one output: right is what has the sign of the target, 0 or 1."""

    counts_correct = True

    def vjp(self, ops: Any, outputs: Any, targets: Any, **_: Any) -> Any:
        signs = ops.binary("sub", ops.binary("mul", targets, 2.0), 1.0)
        loss = ops.reduce(
            "mean", ops.unary("exp", ops.unary("neg", ops.binary("mul", signs, outputs)))
        )
        pull = ops.binary("div", ops.unary("neg", signs), float(len(outputs)))
        return loss, ops.asarray(np.array(float(len(outputs))), str(outputs.dtype)), lambda: pull

    def labels(self, outputs: Any) -> Any:
        return (outputs[:, 0] > 0).astype(np.int64)


def test_a_users_own_loss_says_what_its_outputs_mean() -> None:
    model = mlp(6, 1)
    model.loss = Margin()
    np.testing.assert_array_equal(
        wf.predict(model, X, kind="labels"), wf.predict(model, X)[:, 0] > 0
    )
    with pytest.raises(ConfigError, match="have no probabilities"):
        wf.predict(model, X, kind="probabilities")


# -- evaluate
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss", ["cross_entropy", losses.SoftmaxCrossEntropy(0.1, (1.0, 2.0, 3.0)), "mse", "huber"]
)
@pytest.mark.parametrize("weighted", [True, False])
def test_evaluation_is_the_loss_of_all_rows(loss: Any, weighted: bool) -> None:
    classes = losses.resolve(loss).counts_correct
    model = mlp(6, 8, 3 if classes else 1, dtype="float64")
    x, y = blobs(50, dtype="float64")
    weights = np.linspace(0, 2, 50) if weighted else None
    result = wf.evaluate(model, x, y, loss=loss, sample_weight=weights, batch_size=16)
    expected = losses.resolve(loss)(wf.predict(model, x), y, sample_weight=weights)
    assert result.loss == pytest.approx(expected, rel=1e-12)
    assert result.num_rows == 50
    assert result.accuracy == (
        (wf.predict(model, x, kind="labels") == y).mean() if classes else None
    )


def test_weights_of_zero_are_refused() -> None:
    with pytest.raises(
        DataError, match="expected sample weights that sum to more than 0, got none above 0"
    ):
        wf.evaluate(mlp(6, 3), X, LABELS, sample_weight=np.zeros(50))
    loss = losses.SoftmaxCrossEntropy(class_weight=(0, 1, 1))
    with pytest.raises(
        DataError, match=r"weights that leave a row .*, class weights \(0.0, 1.0, 1.0\)"
    ):
        wf.evaluate(mlp(6, 3), X, np.zeros(50, int), loss=loss)


def test_inputs_and_model_stay_as_they_are() -> None:
    model = mlp(6, 8, 3)
    given = X.copy(), LABELS.copy()
    state = model.state_dict()
    wf.evaluate(model, *given)
    wf.predict(Taped(model), given[0])
    np.testing.assert_equal((given, model.state_dict()), ((X, LABELS), state))


# -- errors
# --------------------------------------------------------------------------------------------------


def spoilt() -> np.ndarray:
    x = X.copy()
    x[3, 2] = np.inf
    return x


@pytest.mark.parametrize(
    ("x", "error", "match"),
    [
        (X[:, :5], ShapeError, r"Linear: expected samples of shape \(6,\), got \(5,\)"),
        (X[0], ShapeError, r"Linear: expected samples of shape \(6,\), got \(\)"),
        (3, ShapeError, "expected x to be an array of rows, got a single number"),
        ([[1], [2, 3]], ShapeError, "expected x to be an array of rows"),
        (spoilt(), DataError, "expected x to be finite, got NaN or infinity in row 3"),
        (X.astype(str), DTypeError, "expected x to hold numbers"),
    ],
)
def test_rows_that_are_none(x: Any, error: type[Exception], match: str) -> None:
    for call in (lambda: wf.predict(mlp(6, 3), x), lambda: wf.evaluate(mlp(6, 3), x, LABELS)):
        with pytest.raises(error, match=match):
            call()


def test_settings_that_make_no_sense() -> None:
    model = mlp(6, 3)
    with pytest.raises(
        ConfigError,
        match="expected kind among outputs, probabilities, labels, values, got 'logits'",
    ):
        wf.predict(model, X, kind="logits")
    for call in (wf.predict, lambda *args, **kwargs: wf.evaluate(*args, LABELS, **kwargs)):
        with pytest.raises(
            ConfigError, match="expected batch_size to be an integer of at least 1, got 0"
        ):
            call(model, X, batch_size=0)
        with pytest.raises(ConfigError, match=r"expected a model \(a Module\), got 'model'"):
            call("model", X)
    with pytest.raises(DataError, match="expected x to have at least one row"):
        wf.evaluate(model, X[:0], LABELS[:0])
    with pytest.raises(ShapeError, match="expected as many rows in y as in x, got 49 and 50"):
        wf.evaluate(model, X, LABELS[1:])
    with pytest.raises(DataError, match=r"expected labels in \[0, 3\)"):
        wf.evaluate(model, X, LABELS + 1)
    with pytest.raises(ConfigError, match="expected a loss among"):
        wf.evaluate(model, X, LABELS, loss="hinge")
    with pytest.raises(DataError, match="expected sample weights of at least 0, got -1"):
        wf.evaluate(model, X, LABELS, sample_weight=-np.ones(50))
