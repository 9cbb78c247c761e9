"""What comes in as rows: what is refused, by which words, and what is taken with a warning."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

import warpfit as wf
from support.training import blobs, mlp, sgd
from warpfit import losses
from warpfit.errors import DataError, DataWarning, DTypeError, ShapeError, WarpfitError
from warpfit.training.inputs import as_rows

X, LABELS = blobs(20)


def masked(array: Any, *places: Any) -> Any:
    mask = np.zeros(np.shape(array), bool)
    for place in places:
        mask[place] = True
    return np.ma.masked_array(array, mask)


def trained(x: Any = X, y: Any = LABELS, **settings: Any) -> Any:
    model = mlp(6, 3)
    wf.fit(model, x, y, optimizer=sgd(model), epochs=1, device="cpu", verbose=False, **settings)
    return model


def swept(x: Any = X, y: Any = LABELS, **settings: Any) -> Any:
    def build(candidate: Any) -> Any:
        model = mlp(6, 3)
        return model, sgd(model)

    settings = {
        "candidates": [{}],
        "epochs": 1,
        "n_jobs": 1,
        "device": "cpu",
        "verbose": False,
        **settings,
    }
    return wf.fit_many(build, x, y, **settings)


MASKED = {
    "x": lambda call: call(x=masked(X, 3, (5, 1))),
    "y": lambda call: call(y=masked(LABELS, 3)),
    "sample_weight": lambda call: call(sample_weight=masked(np.ones(20), 3)),
    "validation x": lambda call: call(validation_data=(masked(X, 3), LABELS)),
    "validation y": lambda call: call(validation_data=(X, masked(LABELS, 3))),
    "class_weight": lambda call: call(class_weight=masked(np.ones(3), 1)),
}


@pytest.mark.parametrize("call", [trained, swept], ids=["fit", "fit_many"])
@pytest.mark.parametrize("name", MASKED)
def test_training_on_masked_values_is_refused(call: Any, name: str) -> None:
    with pytest.raises(
        DataError, match=f"expected {name} without masked values, got [167] masked; fill them"
    ):
        MASKED[name](call)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: wf.predict(mlp(6, 3), x),
        lambda x: wf.evaluate(mlp(6, 3), x, LABELS),
        lambda x: mlp(6, 3)(x),
        lambda x: wf.tensor(x),
        lambda x: wf.Tensor(x),
        lambda x: wf.tensor(X) + x,
        lambda x: losses.MeanSquaredError()(X, x),
        lambda x: losses.MeanSquaredError()(x, X),
        lambda x: wf.data.DataLoader(x, LABELS),
        lambda x: list(wf.data.DataLoader(LABELS, x)),
        lambda x: wf.predict(mlp(6, 3), list(x)),
    ],
)
def test_masked_values_are_refused_wherever_arrays_come_in(call: Any) -> None:
    with pytest.raises(DataError, match="without masked values, got 1 masked"):
        call(masked(X, (3, 2)))
    call(masked(X))


def test_a_mask_of_nothing_is_no_mask() -> None:
    np.testing.assert_array_equal(as_rows("x", masked(X)), X)
    assert type(as_rows("x", masked(X))) is np.ndarray


class Batches:
    """What gives batches, and is no array."""

    def __iter__(self) -> Any:
        return iter([(X, LABELS)])


@pytest.mark.parametrize(
    ("x", "error", "match"),
    [
        (sparse.csr_matrix(X), DTypeError, r"got a sparse csr_matrix; its toarray\(\) is one"),
        (sparse.coo_array(X), DTypeError, "got a sparse coo_array"),
        ((X, LABELS), ShapeError, r"\(a tuple of 2 parts, of shapes \[\(20, 6\), \(20,\)\]\)"),
        ([[1.0, 2.0], [3.0]], ShapeError, r"\(a list of 2 parts, of shapes \[\(2,\), \(1,\)\]\)"),
        ({"a": X}, DTypeError, "expected x to hold numbers, got a dict"),
        ({1, 2}, DTypeError, "expected x to hold numbers, got a set"),
        ("x.npy", DTypeError, "expected x to hold numbers, got 'x.npy'"),
        (len, DTypeError, "expected x to hold numbers, got a builtin_function_or_method"),
        (np.array(["2020-01-01"], "M8[D]"), DTypeError, r"got dates or times \(datetime64\[D\]\)"),
        (np.zeros(3, [("a", int)]), DTypeError, r"got dtype \[\('a'"),
        (
            pd.DataFrame({"a": [1.0], "city": ["Rome"]}),
            DTypeError,
            r"got other columns: 'city' \(\w+\); wf.data.TablePreprocessor encodes them",
        ),
        (
            pd.DataFrame(dict.fromkeys("abcdef", pd.array([1, None], "Int64"))),
            DataError,
            "got NaN or infinity in row 1, column 0",
        ),
        (
            np.full((2, 6), 1e200),
            DataError,
            r"numbers that float32 can hold, got 1e\+200 in row 0, column 0",
        ),
    ],
)
def test_what_is_no_array_of_rows(x: Any, error: type[Exception], match: str) -> None:
    for call in (lambda: trained(x=x), lambda: wf.predict(mlp(6, 3), x)):
        with pytest.raises(error, match=match) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (wf.data.DataLoader(X, LABELS), "got a DataLoader; pass its rows x and y"),
        (Batches(), "got a Batches$"),
        ((row for row in X), "got a generator, which can be read only once; make a list of it"),
    ],
)
def test_batches_beside_targets_are_no_rows(x: Any, match: str) -> None:
    for call in (lambda: trained(x=x), lambda: wf.evaluate(mlp(6, 3), x, LABELS)):
        with pytest.raises(DTypeError, match=match):
            call()


def test_what_is_no_array_of_torch() -> None:
    torch = pytest.importorskip("torch")
    no_array = "expected x to be an array of rows, but "
    for x, error, match in (
        (
            torch.tensor(X).requires_grad_(),
            DTypeError,
            r"requires a gradient; its detach\(\) is one",
        ),
        (torch.zeros(20, 6).to_sparse(), ShapeError, no_array),
        (torch.zeros(20, 6).bfloat16(), DTypeError, r"a tensor of bfloat16; its float\(\) is one"),
    ):
        test_what_is_no_array_of_rows(x, error, match)


def test_tables_of_numbers_are_taken() -> None:
    frame = pd.DataFrame({"a": [1.5, 2.5], "b": [True, False], "c": pd.array([3, 4], "Int64")})
    np.testing.assert_array_equal(as_rows("x", frame), [[1.5, 1, 3], [2.5, 0, 4]])
    labels = as_rows("y", pd.Series([3, 4], dtype="Int64"))
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(labels, [3, 4])
    with pytest.raises(DataError, match=r"y to be finite, got NaN or infinity in row 1$"):
        as_rows("y", pd.Series([3, None], dtype="Int64"))


@pytest.mark.parametrize(
    "y", [["cat", "dog"] * 10, np.array([b"cat"] * 20), pd.Series(["cat"] * 20)]
)
def test_labels_of_text_say_what_to_do(y: Any) -> None:
    with pytest.raises(
        DTypeError,
        match=r"expected y to hold numbers, got text such as .*numpy.unique.*MLPClassifier",
    ):
        trained(y=y)


# -- numbers that the model's dtype cannot hold
# --------------------------------------------------------------


def with_number(number: float) -> Any:
    x = X.astype(np.float64)
    x[7, 2] = number
    return x


@pytest.mark.parametrize(
    "call",
    [
        lambda x: trained(x=x),
        lambda x: trained(validation_data=(x, LABELS)),
        lambda x: wf.predict(mlp(6, 3), x),
        lambda x: wf.evaluate(mlp(6, 3), x, LABELS),
    ],
)
def test_numbers_too_large_are_refused_by_their_place(call: Any) -> None:
    with pytest.raises(
        DataError, match=r"x to hold numbers that float32 can hold, got -1e\+200 in row 7, column 2"
    ):
        call(with_number(-1e200))


def test_numbers_that_the_models_dtype_holds_are_taken() -> None:
    model = mlp(6, 3, dtype="float64")
    assert np.isfinite(wf.predict(model, with_number(1e200))).all()


def test_a_model_called_with_numbers_too_large() -> None:
    with pytest.raises(
        DataError, match=r"numbers that float32 can hold, got one of magnitude 1e\+200"
    ):
        mlp(6, 3)(with_number(1e200))


@pytest.mark.parametrize("kind", ["labels", "probabilities"])
def test_outputs_that_are_not_finite_give_no_class(kind: str) -> None:
    model = mlp(6, 3)
    model.layers[0].weight.data[:] = 3e38
    x = np.where(np.arange(6) % 2, 1.0, -1.0) * np.array([[0.0], [1e6]])
    assert not np.isfinite(wf.predict(model, x)[1]).any()
    with pytest.raises(
        DataError, match="got NaN or infinity for 1 of 2 rows, first row 1; its numbers, or the"
    ):
        wf.predict(model, x, kind=kind)


# -- weights
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [trained, swept], ids=["fit", "fit_many"])
@pytest.mark.parametrize(
    "settings",
    [
        {"sample_weight": np.zeros(20)},
        {"sample_weight": np.full(20, 1e-300)},
        {"class_weight": [0, 0, 0]},
        {"class_weight": {0: 0, 1: 0, 2: 0}},
        {"class_weight": {2: 0}, "sample_weight": (LABELS == 2).astype(float)},
        {"loss": losses.SoftmaxCrossEntropy(class_weight=(0, 0, 0))},
    ],
)
def test_weights_that_leave_no_row(call: Any, settings: Any) -> None:
    with pytest.raises(WarpfitError, match="none above 0"):
        call(**settings)


def test_validation_rows_without_a_weight() -> None:
    rows = LABELS == 2
    with pytest.raises(DataError, match="none above 0, class weights"):
        trained(class_weight={2: 0}, validation_data=(X[rows], LABELS[rows]))


def test_a_fold_without_a_weight() -> None:
    folds = [(np.arange(10), np.arange(10, 20)), (np.arange(10, 20), np.arange(10))]
    with pytest.raises(
        DataError, match="expected weights that leave a row to train or test on, got none above 0"
    ):
        swept(folds=folds, sample_weight=np.repeat([1.0, 0.0], 10))


# -- what is taken with a warning
# ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "last", "width"),
    [
        ("cross_entropy", "Softmax", 3),
        ("cross_entropy", "Sigmoid", 3),
        ("binary_cross_entropy", "Sigmoid", 1),
    ],
)
@pytest.mark.parametrize("many", [False, True], ids=["fit", "fit_many"])
def test_outputs_that_are_probabilities_already_are_warned_of(
    loss: str, last: str, width: int, many: bool
) -> None:
    """Keras's habit: the loss would apply the softmax to probabilities, and label all rows
    alike.
    """

    def build(_: Any) -> Any:
        model = wf.nn.Sequential(wf.nn.Linear(4, width), getattr(wf.nn, last)())
        return model, wf.optim.SGD(model.parameters(), lr=0.1)

    x, y = ROWS[:60], np.arange(60) % 2
    settings: dict[str, Any] = {"loss": loss, "epochs": 1, "verbose": False, "device": "cpu"}

    def train() -> Any:
        if many:
            return wf.fit_many(build, x, y, candidates=[{"a": 1}, {"a": 2}], n_jobs=1, **settings)
        model, optimizer = build(None)
        return wf.fit(model, x, y, optimizer=optimizer, **settings)

    with pytest.warns(DataWarning, match=f"ends in {last}, but {loss} takes logits") as caught:
        train()
    assert [(each.filename, each.category) for each in caught] == [(__file__, DataWarning)]


def test_log_probabilities_and_a_sigmoid_for_a_distance_are_not_warned_of() -> None:
    for loss, last in (("cross_entropy", wf.nn.LogSoftmax()), ("mse", wf.nn.Sigmoid())):
        model = wf.nn.Sequential(wf.nn.Linear(4, 3), last)
        y = np.arange(60) % 3 if loss == "cross_entropy" else np.full((60, 3), 0.5)
        optimizer = wf.optim.SGD(model.parameters(), lr=0.1)
        wf.fit(
            model,
            ROWS[:60],
            y,
            loss=loss,
            optimizer=optimizer,
            epochs=1,
            verbose=False,
            device="cpu",
        )


@pytest.mark.parametrize(
    ("shape", "remedy"), [((20, 1), r"y\.ravel\(\)"), ((20, 3), r"y\.argmax\(axis=1\)")]
)
def test_labels_in_columns_name_what_makes_them_a_row_each(
    shape: tuple[int, int], remedy: str
) -> None:
    with pytest.raises(ShapeError, match=remedy):
        trained(y=np.zeros(shape, np.int64))


@pytest.mark.parametrize("call", [trained, swept], ids=["fit", "fit_many"])
def test_one_class_is_warned_of(call: Any) -> None:
    with pytest.warns(
        DataWarning, match="at least two classes in y, got 20 rows of one, 2: the network"
    ) as caught:
        call(y=np.full(20, 2))
    assert len(caught) == 1


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64", "int16"])
def test_pixels_that_are_no_bytes_are_warned_of(dtype: str) -> None:
    pixels = np.arange(120).reshape(20, 6) * 255 // 119
    match = (
        f"x holds {dtype} numbers from 0 to 255, like pixels, and they are taken as "
        "they are; make them uint8"
    )
    model = mlp(6, 3)
    for call in (
        lambda: trained(pixels.astype(dtype)),
        lambda: swept(pixels.astype(dtype)),
        lambda: wf.predict(model, pixels.astype(dtype)),
        lambda: wf.evaluate(model, pixels.astype(dtype), LABELS),
    ):
        with pytest.warns(DataWarning, match=match) as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__]
    trained(pixels.astype(np.uint8))
    trained(pixels.astype(dtype) // 2)


def fitted(x: np.ndarray, y: np.ndarray, **settings: Any) -> None:
    model = wf.nn.Sequential(wf.nn.Linear(x.shape[1], 3))
    optimizer = wf.optim.SGD(model.parameters(), lr=1e-12)
    wf.fit(model, x, y, optimizer=optimizer, epochs=1, verbose=False, device="cpu", **settings)


ROWS = np.random.default_rng(0).normal(size=(5000, 4))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            ROWS * [1, 1e5, 1, 1],
            r"column 1 reaches [34]\S*e\+05, column \d [34]\S*; standardise them",
        ),
        (ROWS * [1, 30, 0.1, 1], r"column 1 reaches 1\d\d, column 2 0\.[34]\d*"),
        (ROWS + np.array([0, 0, 0, 1e6]), r"column 3 reaches 1e\+06, column \d [34]"),
        (ROWS * 1e4, "columns of very different or large scale"),
    ],
)
def test_columns_of_other_scales_are_warned_of(x: np.ndarray, message: str) -> None:
    labels = np.arange(len(x)) % 3
    with pytest.warns(DataWarning, match=message) as caught:
        fitted(x, labels)
    assert [(each.filename, each.category) for each in caught] == [(__file__, DataWarning)]


def test_large_targets_of_a_distance_are_warned_of() -> None:
    y = 5e3 * ROWS[:, :3]
    for loss in ("mse", "absolute_error", "huber"):
        with pytest.warns(
            DataWarning, match=rf"y reaches \S+e\+04, which makes gradients of '{loss}' as large"
        ):
            fitted(ROWS, y, loss=loss)
    fitted(ROWS, np.abs(y), loss="poisson")


def test_rows_of_one_scale_are_not_warned_of() -> None:
    labels = np.arange(len(ROWS)) % 3
    pixels = np.random.default_rng(0).integers(0, 256, (5000, 4), dtype=np.uint8)
    pixels[:, 1] = pixels[:, 1] > 254
    constant = np.where(np.arange(4) == 2, 0, ROWS)
    table = wf.data.TablePreprocessor().fit_transform(ROWS * [1, 1e5, 1e-4, 1] + [0, 0, 0, 1e6])
    rare = np.where(
        (np.arange(len(ROWS)) == 3)[:, None], ROWS, -0.01
    )  # such as a prepared column that is nearly all 0
    for x in (ROWS, pixels, constant, table, 100 * ROWS, rare):
        fitted(x, labels)


def test_estimators_follow_scikit_learn_and_say_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        wf.MLPClassifier((4,), max_iter=2, device="cpu").fit(
            ROWS * [1, 1e5, 1, 1], np.arange(len(ROWS)) % 3
        )


def test_a_sweep_warns_once() -> None:
    def build(candidate: dict[str, Any]) -> Any:
        model = wf.nn.Sequential(wf.nn.Linear(4, 3))
        return model, wf.optim.SGD(model.parameters(), lr=1e-12)

    with pytest.warns(DataWarning, match="standardise them") as caught:
        wf.fit_many(
            build,
            ROWS * [1, 1e5, 1, 1],
            np.arange(len(ROWS)) % 3,
            candidates=[{}, {"a": 1}],
            epochs=1,
            folds=2,
            n_jobs=1,
            device="cpu",
            verbose=False,
        )
    assert len(caught) == 1
