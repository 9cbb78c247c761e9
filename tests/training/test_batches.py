"""Batches of a loader as the input of fit: the same steps, epoch by epoch, on every engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import Taped, adam, assert_same_weights, blobs, mlp, same_weights
from warpfit import nn
from warpfit.data import DataLoader
from warpfit.errors import ConfigError, DataError, DTypeError, ShapeError

X, LABELS = blobs(60)


def fit(model: nn.Module, x: Any, y: Any = None, **settings: Any) -> wf.History:
    settings = {"epochs": 3, "verbose": False, "optimizer": adam(model), **settings}
    return wf.fit(model, x, y, **settings)


def assert_same_run(one: wf.History, other: wf.History) -> None:
    np.testing.assert_array_equal(one.step_losses, other.step_losses)
    assert one["accuracy"] == other["accuracy"]
    assert one["val_loss"] == other["val_loss"]


@pytest.mark.parametrize("wrap", [lambda model: model, Taped], ids=["layers", "tape"])
def test_a_loader_trains_as_its_rows_do(wrap: Any) -> None:
    of_rows, of_loader = wrap(mlp(6, 8, 3)), wrap(mlp(6, 8, 3))
    expected = fit(of_rows, X, LABELS, batch_size=16, seed=5)
    found = fit(of_loader, DataLoader(X, LABELS, 16, seed=5))
    assert_same_run(found, expected)
    assert_same_weights(of_loader, of_rows)
    assert (found.plan.batch_size, found.plan.shuffle, found["num_rows"]) == (16, False, [60] * 3)


@pytest.mark.parametrize("engine", ["layerwise", "graph", "one_launch"])
def test_every_engine_takes_them(cuda: str, engine: str) -> None:
    settings: dict[str, Any] = {"device": cuda, "engine": engine, "epochs": 3}
    if engine == "one_launch":
        settings["precision"] = "float16"
    of_rows, of_loader = mlp(6, 8, 3), mlp(6, 8, 3)
    expected = fit(of_rows, X, LABELS, batch_size=16, seed=5, **settings)
    found = fit(of_loader, DataLoader(X, LABELS, 16, seed=5), **settings)
    assert found.plan.engine == engine
    np.testing.assert_allclose(found.step_losses, expected.step_losses, rtol=2e-3)
    for one, other in zip(
        of_loader.state_dict().values(), of_rows.state_dict().values(), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=2e-3)


def test_pytorchs_loader() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(LABELS))
    of_rows, of_loader = mlp(6, 3), mlp(6, 3)
    expected = fit(of_rows, X, LABELS, batch_size=25, shuffle=False)
    assert_same_run(fit(of_loader, torch.utils.data.DataLoader(data, 25)), expected)
    assert_same_weights(of_loader, of_rows)
    torch.manual_seed(0)
    shuffled = mlp(6, 3)
    fit(shuffled, torch.utils.data.DataLoader(data, 25, shuffle=True))
    assert not same_weights(shuffled, of_rows)


def batches(first: int = 0) -> Iterator[tuple[Any, Any]]:
    for start in range(first, 60, 20):
        yield X[start : start + 20], LABELS[start : start + 20]


@pytest.mark.parametrize("source", [batches, list(batches())], ids=["function", "list"])
def test_a_function_that_makes_a_generator_and_a_list(source: Any) -> None:
    of_rows, of_batches = mlp(6, 3), mlp(6, 3)
    expected = fit(of_rows, X, LABELS, batch_size=20, shuffle=False)
    assert_same_run(fit(of_batches, source), expected)


def test_every_epoch_is_read_anew_and_only_once() -> None:
    read: list[int] = []

    def noisy() -> Iterator[tuple[Any, Any]]:
        read.append(len(read))
        for x, y in batches():
            yield x + np.float32(0.01 * read[-1]), y

    model, by_hand = mlp(6, 3), mlp(6, 3)
    found = fit(model, noisy)
    assert read == [0, 1, 2]
    opt = adam(by_hand)
    losses = []
    for epoch in range(3):
        part = X + np.float32(0.01 * epoch)
        losses += fit(by_hand, part, LABELS, optimizer=opt, batch_size=20, shuffle=False, epochs=1)[
            "loss"
        ]
    assert found["loss"] == losses
    assert_same_weights(model, by_hand)


def test_pixels_class_weights_and_validation_by_a_loader() -> None:
    pixels = (X * 255).astype(np.uint8)
    settings: dict[str, Any] = {"class_weight": "balanced", "seed": 1}
    of_rows, of_batches = mlp(6, 3), mlp(6, 3)
    expected = fit(
        of_rows,
        pixels,
        LABELS,
        batch_size=20,
        shuffle=False,
        validation_data=(X[:30], LABELS[:30]),
        **settings,
    )
    source = [(pixels[i : i + 20], LABELS[i : i + 20]) for i in (0, 20, 40)]
    validation = DataLoader(X[:30], LABELS[:30], 7, shuffle=False)
    found = fit(of_batches, source, validation_data=validation, **settings)
    assert_same_run(found, expected)
    assert found["val_loss"][-1] is not None
    of_generator = fit(mlp(6, 3), source, validation_data=batches(), epochs=1)
    assert of_generator["val_accuracy"][-1] is not None


def test_callbacks_schedules_and_early_stopping() -> None:
    of_rows, of_loader = mlp(6, 3), mlp(6, 3)
    runs = []
    for model, data in ((of_rows, (X, LABELS)), (of_loader, (DataLoader(X, LABELS, 16, seed=5),))):
        stopping = wf.EarlyStopping("loss", patience=1, min_delta=0.05)
        optimizer = adam(model, wf.optim.Cosine(0.01))
        runs.append(
            fit(
                model,
                *data,
                optimizer=optimizer,
                epochs=20,
                batch_size=16,
                seed=5 if len(data) == 2 else 0,
                callbacks=[stopping],
            )
        )
    assert_same_run(*runs)
    assert len(runs[0]) < 20
    assert runs[0]["lr"] == runs[1]["lr"]
    assert runs[1].stopped_by.startswith("early stopping")


def test_a_plan_of_batches_is_taken_again() -> None:
    model = mlp(6, 3)
    plan = fit(model, batches).plan
    assert fit(mlp(6, 3), batches, plan=plan).plan == plan
    of_rows = fit(mlp(6, 3), X, LABELS).plan
    with pytest.raises(ConfigError, match="expected the plan of a run on batches of 20 rows, got"):
        fit(mlp(6, 3), batches, plan=of_rows)


def test_a_resumed_run_says_that_its_batches_are_others(tmp_path: Path) -> None:
    path = tmp_path / "run"
    fit(mlp(6, 3), batches, callbacks=[wf.Checkpoint(path)], epochs=2)
    with pytest.raises(ConfigError, match=r"expected arrays x and y to resume a run: .* new_data"):
        fit(mlp(6, 3), batches, resume_from=path)
    on = fit(mlp(6, 3), batches, resume_from=path, new_data=True)
    never_stopped = fit(mlp(6, 3), batches)
    assert on["loss"] == never_stopped["loss"]


def changing(*epochs: Any) -> Any:
    """Return a function that gives other batches in every epoch."""
    coming = iter(epochs)
    return lambda: iter(next(coming))


WHOLE = list(batches())


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        (batches(), ConfigError, "got a generator, which can be read only once; make a list of it"),
        (X, ConfigError, r"expected y beside x, or x as batches .*; got an array of shape \(60, 6"),
        (None, ConfigError, "expected y beside x, or x as batches .*; got None alone"),
        ("x.npy", ConfigError, "expected y beside x, or x as batches .*; got 'x.npy' alone"),
        ([], DataError, r"expected batches \(x, y\) in epoch 1, got none"),
        ([X], ConfigError, r"expected batch 1 as a pair \(x, y\), got an array of shape \(60, 6\)"),
        ([(X, LABELS, LABELS)], ConfigError, r"expected batch 1 as a pair \(x, y\), got"),
        ([(X, LABELS[1:])], ShapeError, "expected as many rows in y of batch 1 as in x, got 59 an"),
        ([(X, LABELS), (X, ["a"] * 60)], DTypeError, "expected y of batch 2 to hold numbers"),
        (
            [(X, LABELS), (X[:, :5], LABELS)],
            ShapeError,
            r"x alike in all batches, float32 of shape \(60, 6\) in batch 1, got float32 of shape "
            r"\(60, 5\) in batch 2",
        ),
        (
            [(X, LABELS), ((X * 255).astype(np.uint8), LABELS)],
            ShapeError,
            r"x alike in all batches, .* got uint8 of",
        ),
        (
            [(X[:20], LABELS[:20]), (X[:30], LABELS[:30])],
            ShapeError,
            "of one size, here 20 rows, and a shorter one at the end at most, got 20, 30",
        ),
        (
            [(X[:20], LABELS[:20]), (X[:10], LABELS[:10]), (X[:20], LABELS[:20])],
            ShapeError,
            "got 20, 10, 20 in epoch 1",
        ),
        (
            changing(WHOLE, WHOLE[1:]),
            DataError,
            r"expected the same rows of x in every epoch, float32 of shape \(60, 6\), got "
            r"float32 of shape \(40, 6\) in epoch 2",
        ),
        (changing(WHOLE, [(X, LABELS)]), ShapeError, "here 20 rows, .* got 60 in epoch 2"),
        (
            changing(WHOLE, [(x * np.nan, y) for x, y in WHOLE]),
            DataError,
            "expected x to be finite, got NaN or infinity in row 0",
        ),
    ],
)
def test_what_gives_no_batches(source: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match) as caught:
        fit(mlp(6, 3), source)
    assert "\n" not in str(caught.value)


def test_after_an_error_the_model_has_the_last_whole_epoch() -> None:
    model, expected = mlp(6, 3), mlp(6, 3)
    with pytest.raises(DataError):
        fit(model, changing(WHOLE, WHOLE, WHOLE[1:]))
    fit(expected, batches, epochs=2)
    assert_same_weights(model, expected)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"batch_size": 16}, "expected no batch_size beside batches of 20 rows, got 16"),
        ({"sample_weight": np.ones(60)}, r"expected no sample_weight beside batches \(x, y\)"),
    ],
)
def test_what_batches_leave_no_choice_of(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        fit(mlp(6, 3), batches, **settings)


def test_no_rows_to_validate_on() -> None:
    with pytest.raises(DataError, match=r"expected validation batches .*, got none"):
        fit(mlp(6, 3), X, LABELS, validation_data=iter([]))


def test_evaluation_and_predictions_of_batches() -> None:
    model = mlp(6, 3)
    fit(model, X, LABELS)
    loader, labels = DataLoader(X, LABELS, 16, shuffle=False), wf.predict(model, X, kind="labels")
    for source in (loader, list(loader), iter(list(loader)), lambda: iter(list(loader))):
        assert wf.evaluate(model, source) == wf.evaluate(model, X, LABELS)
    for batches_of_x in (loader, (x for x, _ in loader), ([x] for x, _ in loader)):
        np.testing.assert_array_equal(wf.predict(model, batches_of_x, kind="labels"), labels)


@pytest.mark.parametrize(
    ("ask", "error", "match"),
    [
        (
            lambda m: wf.evaluate(m, X),
            ConfigError,
            r"expected y beside x, .* got an array .* alone",
        ),
        (lambda m: wf.evaluate(m, (X, LABELS)), ConfigError, "expected y beside x"),
        (lambda m: wf.evaluate(m, iter([])), DataError, r"expected batches \(x, y\), got none"),
        (lambda m: wf.evaluate(m, [X]), ConfigError, r"expected batch 1 as a pair \(x, y\)"),
        (lambda m: wf.evaluate(m, lambda: 3), ConfigError, "returns an iterator, got 3 of it"),
        (
            lambda m: wf.evaluate(m, batches, sample_weight=np.ones(60)),
            ConfigError,
            "expected no sample_weight beside batches",
        ),
        (lambda m: wf.predict(m, iter([])), DataError, "expected batches of x, got none"),
        (
            lambda m: wf.predict(m, [(X[:20], LABELS[:20]), (X[20:], LABELS[20:])]),
            ConfigError,
            r"^expected x as rows, or an iterator of batches, got a list of 2 pairs \(x, y\); "
            r"iter\(\) of it is one$",
        ),
        (lambda m: wf.predict(m, ((X, LABELS),)), ConfigError, r"got a tuple of 1 pair \(x, y\)"),
        (
            lambda m: wf.predict(m, iter([(X, X, X)])),
            ConfigError,
            "expected batch 1 as x or a pair",
        ),
        (lambda m: wf.predict(m, iter([X, X[:, :3]])), ShapeError, r"got \(3,\), which is a row"),
        (lambda m: fit(m, (X, LABELS)), ConfigError, "x and y as two arguments, got one pair"),
        (lambda m: fit(m, lambda: 3), ConfigError, "returns an iterator, got 3 of it"),
    ],
)
def test_what_are_no_batches_to_evaluate_or_predict(
    ask: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        ask(mlp(6, 3))


def test_a_data_set_of_pytorchs_needs_a_loader() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(LABELS))
    with pytest.raises(ConfigError, match=r"of single samples; a DataLoader of it gives batches"):
        fit(mlp(6, 3), data)
