"""Arguments of public functions: each call is right but for one or two arguments, which are
anything.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import chdir
from decimal import Decimal
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

import warpfit as wf
from fuzzing.harness import Feed, Rng, family
from warpfit import autograd, data, losses, nn, optim
from warpfit.nn import backward, forward
from warpfit.optim import schedules

Call = tuple[Callable[..., Any], Callable[[], dict[str, Any]]]

ROWS, INPUTS, CLASSES = 6, 3, 2
X = np.random.default_rng(0).uniform(size=(ROWS, INPUTS)).astype(np.float32)
Y = np.arange(ROWS) % CLASSES
IMAGE = np.ones((2, 5, 5, 2), np.float32)


class Odd:
    """An object that nothing is to be made of."""


def _anything() -> list[Any]:
    """Return values of all kinds, new ones, for some are used up or changed."""
    frame = pd.DataFrame({"a": [1.0] * ROWS, "b": [2] * ROWS, "c": [True, False, True] * 2})
    masked = np.ma.masked_array(X, X > 0.5)
    numbers = [
        0,
        1,
        -1,
        3,
        2**40,
        2**70,
        0.0,
        0.5,
        -0.5,
        1e200,
        1e-300,
        np.nan,
        np.inf,
        -np.inf,
        1j,
        True,
        False,
    ]
    scalars = [
        None,
        Decimal("0.5"),
        np.float16(2),
        np.int8(-3),
        np.uint64(2**63),
        np.bool_(True),
        np.str_("a"),
    ]
    texts = [
        "",
        "a",
        "auto",
        "cpu",
        "cuda:9",
        "mse",
        "cross_entropy",
        "float64",
        "balanced",
        b"\0",
        "\0",
        "é" * 300,
        "/",
    ]
    containers = [
        [],
        (),
        {},
        set(),
        [[]],
        [None],
        ["a", "b"],
        {"a": 1},
        {0: 1.0},
        {0: "x"},
        {1: -1, 0: 0},
        range(6),
    ]
    ragged = [
        [[1, 2], [3]],
        (X, Y),
        [X, X[:2]],
        [object()],
        [[1, "a"]],
        [1, [2]],
        [(1, 2), {}],
        [np.nan] * ROWS,
    ]
    shapes = [
        (),
        (0,),
        (ROWS,),
        (ROWS + 1,),
        (ROWS, 0),
        (0, INPUTS),
        (ROWS, INPUTS),
        (ROWS, 2, 2),
        (1, 1, 1, 1, 1),
    ]
    dtypes = [
        "float64",
        "float16",
        "longdouble",
        "int64",
        "uint8",
        "int8",
        "uint64",
        "bool",
        "complex64",
        "object",
    ]
    arrays = [np.ones(shape) for shape in shapes] + [X.astype(dtype) for dtype in dtypes]
    strange = [
        np.full((ROWS, INPUTS), np.nan),
        np.full((ROWS, INPUTS), 1e300),
        np.array([["x"] * INPUTS] * ROWS),
        np.array([b"x"] * ROWS),
        np.zeros(ROWS, "M8[s]"),
        np.zeros(ROWS, "m8[D]"),
        np.zeros(ROWS, [("a", int), ("b", float)]),
        np.array([None, 1] * 3),
        np.array(3),
        X[:, ::-1],
        X.astype(">f8"),
        np.asfortranarray(X),
        np.broadcast_to(np.float32(1), (ROWS, INPUTS)),
        np.matrix(np.ones((ROWS, INPUTS))),
        masked,
        masked[0],
        np.ma.masked,
        [np.ma.masked] * ROWS,
    ]
    pandas = [
        frame,
        frame["a"],
        frame.astype(object),
        frame.assign(t="x"),
        frame["b"].astype("Int64"),
        frame.iloc[:0],
    ]
    more = [
        pd.Series([None, 1.0] * 3),
        pd.Series(["x", "y"] * 3),
        pd.Categorical(["x", "y"] * 3),
        pd.NA,
        frame.index,
    ]
    sparses = [sparse.csr_matrix(X), sparse.coo_array(X), sparse.eye(ROWS)]
    readers = [
        iter([1, 2]),
        (row for row in X),
        map(int, "12"),
        data.DataLoader(X, Y),
    ]
    objects = [
        Odd(),
        Odd,
        len,
        lambda *a: None,
        datetime.date(2020, 1, 1),
        Path("x"),
        slice(2),
        Ellipsis,
        NotImplemented,
    ]
    ours = [
        wf.Tensor(X),
        wf.tensor(X, requires_grad=True),
        nn.ReLU(),
        nn.Linear(3, 2),
        nn.Linear,
        losses.Huber(),
    ]
    others = [
        optim.Cosine(0.1),
        optim.SGD(nn.Linear(1, 1).parameters()),
        wf.EarlyStopping(),
        [wf.EarlyStopping],
        nn,
    ]
    groups = (
        numbers,
        scalars,
        texts,
        containers,
        ragged,
        arrays,
        strange,
        pandas,
        more,
        _of_torch(),
        sparses,
    )
    return [value for group in (*groups, readers, objects, ours, others) for value in group]


def _of_torch() -> list[Any]:
    """Return tensors of several kinds, and none where PyTorch is not installed."""
    if find_spec("torch") is None:
        return []
    import torch

    return [
        torch.tensor(X),
        torch.tensor(X).requires_grad_(),
        torch.tensor(X).to_sparse(),
        torch.ones(2, device="meta"),
        torch.ones(ROWS, INPUTS, dtype=torch.bfloat16),
        torch.ones(ROWS, dtype=torch.complex64),
        torch.ones(()),
        torch.utils.data.DataLoader(X),
    ]


def _calls(folder: Path, calls: list[Call]) -> Feed:
    """Return what feeds one of the calls, in a folder, with one or two of its arguments replaced by
    anything.
    """

    def feed(rng: Rng) -> None:
        call, arguments = calls[rng.integers(len(calls))]
        given, values = arguments(), _anything()
        for name in rng.choice(
            list(given), size=min(len(given), int(rng.integers(1, 3))), replace=False
        ):
            given[str(name)] = values[rng.integers(len(values))]
        if (
            type(given.get("epochs")) is int
        ):  # as many as are asked for are trained, however long it takes
            given["epochs"] = min(given["epochs"], 2)
        with chdir(folder):  # where anything that is a path leads
            call(**given)

    return feed


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(INPUTS, 4, seed=0), nn.ReLU(), nn.Linear(4, CLASSES, seed=1))


# -- training
# ------------------------------------------------------------------------------------------------


def _fit(**given: Any) -> None:
    model = given.pop("model")
    is_ours = isinstance(model, nn.Module) and model.parameters()
    given.setdefault(
        "optimizer", optim.SGD(model.parameters() if is_ours else _model().parameters())
    )
    wf.fit(model, **given)


def _fit_arguments() -> dict[str, Any]:
    return {
        "model": _model(),
        "x": X,
        "y": Y,
        "loss": "cross_entropy",
        "epochs": 1,
        "batch_size": 4,
        "validation_data": (X, Y),
        "class_weight": None,
        "sample_weight": np.ones(ROWS),
        "device": "cpu",
        "precision": "auto",
        "loss_scale": "auto",
        "engine": "auto",
        "plan": None,
        "seed": 0,
        "shuffle": True,
        "report_every": 1,
        "callbacks": (),
        "resume_from": None,
        "verbose": False,
    }


def _fit_with_optimizer() -> dict[str, Any]:
    model = _model()
    return {**_fit_arguments(), "model": model, "optimizer": optim.Adam(model.parameters())}


def _fit_validated(x: Any, y: Any) -> None:
    _fit(**{**_fit_arguments(), "validation_data": (x, y)})


def _build(candidate: dict[str, Any]) -> Any:
    model = _model()
    return model, optim.SGD(model.parameters(), lr=candidate.get("lr", 0.1))


def _fit_many_arguments() -> dict[str, Any]:
    own = {
        "grid": {"lr": [0.1]},
        "candidates": None,
        "folds": 2,
        "metric": None,
        "halving": None,
        "executor": None,
    }
    fits = {
        name: value
        for name, value in _fit_arguments().items()
        if name not in ("model", "plan", "resume_from")
    }
    more = {
        "build": _build,
        "n_jobs": 1,
        "keep_models": True,
        "on_plan": None,
        "validation_data": None,
    }
    return {**fits, **own, **more}


def _fit_many(**given: Any) -> None:
    if callable(given["on_plan"]):  # what a function of the user's raises is the user's
        given["on_plan"] = lambda plan: None
    wf.fit_many(**given)


def _candidate(**settings: Any) -> None:
    given = {**_fit_many_arguments(), "grid": None, "candidates": [settings], "folds": None}
    wf.fit_many(**given)


@family("fit, evaluate, predict")
def training(folder: Path) -> Feed:
    """Feed `fit`, `evaluate` and `predict`."""
    asked = {"model": _model, "x": lambda: X}
    return _calls(
        folder,
        [
            (_fit, _fit_arguments),
            (_fit, _fit_with_optimizer),
            (_fit_validated, lambda: {"x": X, "y": Y}),
            (
                wf.evaluate,
                lambda: {
                    **{name: make() for name, make in asked.items()},
                    "y": Y,
                    "loss": "cross_entropy",
                    "sample_weight": None,
                    "batch_size": 4,
                },
            ),
            (
                wf.predict,
                lambda: {
                    **{name: make() for name, make in asked.items()},
                    "kind": "labels",
                    "batch_size": 4,
                    "loss": None,
                },
            ),
            (
                lambda **given: wf.save(path=folder / "m.safetensors", **given),
                lambda: {"model": _model(), "metadata": {}},
            ),
            (lambda path: wf.save(_model(), path), lambda: {"path": folder / "m.safetensors"}),
            (lambda path: wf.load(path), lambda: {"path": folder / "none.safetensors"}),
            (lambda path: wf.load_metadata(path), lambda: {"path": folder / "none.safetensors"}),
        ],
    )


@family("fit_many")
def sweeps(folder: Path) -> Feed:
    """Feed `fit_many`."""
    settings = {
        "lr": 0.1,
        "batch_size": 4,
        "epochs": 1,
        "loss": "cross_entropy",
        "seed": 0,
        "class_weight": None,
    }
    more = {
        "engine": "auto",
        "precision": "auto",
        "loss_scale": "auto",
        "shuffle": True,
        "report_every": 1,
    }
    return _calls(
        folder,
        [
            (_fit_many, _fit_many_arguments),
            (_candidate, lambda: {**settings, **more}),
            (wf.Halving, lambda: {"factor": 3, "min_epochs": 1}),
        ],
    )


# -- layers, optimizers, losses
# ------------------------------------------------------------------------------


LAYERS: list[Call] = [
    (
        nn.Linear,
        lambda: {
            "in_features": 3,
            "out_features": 2,
            "device": "cpu",
            "bias": True,
            "init": "default",
        },
    ),
    (nn.Linear, lambda: {"in_features": 3, "out_features": 2, "seed": 0, "dtype": "float32"}),
    (
        nn.Conv2d,
        lambda: {
            "in_channels": 2,
            "out_channels": 3,
            "kernel_size": 3,
            "stride": 1,
            "padding": (1, 1),
            "dilation": 1,
            "bias": True,
            "device": "cpu",
            "init": "default",
            "seed": None,
            "dtype": "float32",
        },
    ),
    (
        nn.Conv1d,
        lambda: {
            "in_channels": 2,
            "out_channels": 3,
            "kernel_size": 3,
            "stride": 1,
            "padding": "same",
            "dilation": 1,
            "bias": True,
        },
    ),
    (nn.MaxPool2d, lambda: {"kernel_size": 2, "stride": None, "padding": 0}),
    (nn.AvgPool2d, lambda: {"kernel_size": (2, 2), "stride": (1, 1), "padding": (1, 0)}),
    (
        nn.BatchNorm1d,
        lambda: {
            "num_features": 3,
            "eps": 1e-5,
            "momentum": 0.1,
            "affine": True,
            "dtype": "float32",
        },
    ),
    (
        nn.BatchNorm2d,
        lambda: {"num_features": 3, "eps": 1e-5, "momentum": 0.1, "affine": True, "device": "cpu"},
    ),
    (
        nn.LayerNorm,
        lambda: {"normalized_shape": (3,), "eps": 1e-5, "elementwise_affine": True, "bias": True},
    ),
    (
        nn.GroupNorm,
        lambda: {"num_groups": 2, "num_channels": 4, "eps": 1e-5, "affine": True},
    ),
    (nn.Dropout, lambda: {"p": 0.5, "seed": 0}),
    (nn.RandomCrop, lambda: {"size": (2, 1), "seed": 0}),
    (nn.RandomCutout, lambda: {"size": (2, 1), "seed": 0}),
    (nn.RandomFlip, lambda: {"p": 0.5, "alternate": 2, "seed": 0}),
    (
        nn.RandomShift,
        lambda: {"pixels": (2, 1), "padding_mode": "reflect", "seed": 0},
    ),
    (nn.Embedding, lambda: {"num_embeddings": 5, "embedding_dim": 2, "seed": 0}),
    (lambda x: nn.Embedding(5, 2)(x), lambda: {"x": np.zeros((3, 2), "int64")}),
    (nn.Flatten, lambda: {"start_dim": 1, "end_dim": -1}),
    (nn.LeakyReLU, lambda: {"negative_slope": 0.1}),
    (nn.GELU, lambda: {"approximate": "none"}),
    (lambda a, b: nn.Sequential(a, b), lambda: {"a": nn.Linear(3, 3), "b": nn.ReLU()}),
    (lambda shape: _model().summary(shape), lambda: {"shape": (3,)}),
    (lambda shape: _model().spec(shape), lambda: {"shape": (3,)}),
    (lambda x: _model()(x), lambda: {"x": X}),
    (lambda x: nn.Sequential(nn.Conv2d(2, 2, 3), nn.MaxPool2d(2))(x), lambda: {"x": IMAGE}),
    (lambda x: nn.BatchNorm1d(3)(x), lambda: {"x": X}),
    (lambda x: nn.LayerNorm(3)(x), lambda: {"x": X}),
    (lambda x: nn.Softmax()(x), lambda: {"x": X}),
    (lambda **given: _model().to(**given), lambda: {"device": "cpu", "dtype": "float64"}),
    (lambda state: _model().load_state_dict(state), lambda: {"state": _model().state_dict()}),
    (
        lambda value: _model().load_state_dict({**_model().state_dict(), "0.weight": value}),
        lambda: {"value": np.ones((3, 4))},
    ),
    (lambda training: _model().train(training), lambda: {"training": True}),
    (forward, lambda: {"model": _model(), "x": X}),
    (lambda grad: _explicit(grad), lambda: {"grad": np.ones((ROWS, CLASSES))}),
    (
        lambda model, grad: backward(model, grad),
        lambda: {"model": _model(), "grad": np.ones((ROWS, CLASSES))},
    ),
    (nn.parameters, lambda: {"model": _model()}),
    (nn.Parameter, lambda: {"data": X}),
    (wf.manual_seed, lambda: {"seed": 1}),
]


def _explicit(grad: Any) -> None:
    model = _model()
    forward(model, X)
    backward(model, grad)


@family("layers")
def layers(folder: Path) -> Feed:
    """Feed what `nn` offers."""
    return _calls(folder, LAYERS)


def _optimizers() -> list[Call]:
    shared: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.0, "clip_norm": None}
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (optim.SGD, {"momentum": 0.9, "nesterov": True, "lr_in_velocity": False, "l2": 0.0}),
        (optim.Adam, {"betas": (0.9, 0.99), "eps": 1e-8}),
        (optim.AdamW, {"betas": (0.9, 0.99), "eps": 1e-8}),
        (optim.RMSprop, {"alpha": 0.9, "eps": 1e-8, "momentum": 0.0}),
        (optim.Adagrad, {"lr_decay": 0.1, "eps": 1e-8}),
        (optim.Adadelta, {"rho": 0.9, "eps": 1e-6}),
        (optim.Muon, {"momentum": 0.9, "ns_steps": 5, "adjust_lr_fn": "none", "normalize": True}),
        (optim.NAdam, {"betas": (0.9, 0.99), "eps": 1e-8, "momentum_decay": 0.004}),
    ]
    return [
        (kind, lambda own=own: {"parameters": _model().parameters(), **shared, **own})
        for kind, own in kinds
    ]


def _step(lr: Any, num_rows: Any) -> None:
    model = _model()
    optimizer = optim.Adam(model.parameters(), l2=0.1)
    losses.SoftmaxCrossEntropy()(model(wf.tensor(X)), Y).backward()
    optimizer.step(lr, num_rows=num_rows)


def _load_optimizer(step_count: Any, slots: Any) -> None:
    optim.Adam(_model().parameters()).load_state_dict({"step_count": step_count, "slots": slots})


def _slots() -> Any:
    return optim.Adam(_model().parameters()).state_dict()["slots"]


LOSSES = (
    "SoftmaxCrossEntropy",
    "BinaryCrossEntropy",
    "MeanSquaredError",
    "AbsoluteError",
    "Huber",
    "Poisson",
)
OPTIMIZERS: list[Call] = [
    *_optimizers(),
    (_step, lambda: {"lr": 0.1, "num_rows": ROWS}),
    (_load_optimizer, lambda: {"step_count": 1, "slots": _slots()}),
    (lambda state: optim.SGD(_model().parameters()).load_state_dict(state), lambda: {"state": {}}),
    (
        lambda moment: _load_optimizer(1, {**_slots(), "first_moment": moment}),
        lambda: {"moment": []},
    ),
    (optim.Constant, lambda: {"lr": 0.1}),
    (optim.Step, lambda: {"lr": 0.1, "every": 3, "factor": 0.5}),
    (optim.Exponential, lambda: {"lr": 0.1, "factor": 0.5}),
    (optim.InverseScaling, lambda: {"lr": 0.1, "power": 0.5, "per_epoch": 1, "before": 0}),
    (optim.Linear, lambda: {"lr": 0.1, "final_lr": 0.0}),
    (optim.Cosine, lambda: {"lr": 0.1, "final_lr": 0.0, "warmup_epochs": 1.0}),
    (optim.OneCycle, lambda: {"lr": 0.1, "rise": 0.3, "start_divisor": 25.0, "final_divisor": 1e4}),
    (
        optim.ReduceOnPlateau,
        lambda: {
            "lr": 0.1,
            "factor": 0.1,
            "patience": 3,
            "threshold": 0.1,
            "cooldown": 0,
            "min_lr": 0.0,
        },
    ),
    (schedules.as_schedule, lambda: {"lr": {"name": "cosine", "lr": 0.1}}),
    (
        lambda **settings: schedules.as_schedule({"name": "step", **settings}),
        lambda: {"lr": 0.1, "every": 2},
    ),
    (
        wf.EarlyStopping,
        lambda: {"monitor": "loss", "patience": 2, "min_delta": 0.0, "restore_best": True},
    ),
    (wf.Checkpoint, lambda: {"path": "x", "every": 1}),
    (wf.CSVLog, lambda: {"path": "x"}),
    (wf.JSONLLog, lambda: {"path": "x"}),
    (wf.Profile, lambda: {"path": "x"}),
    (losses.SoftmaxCrossEntropy, lambda: {"label_smoothing": 0.1, "class_weight": (1.0, 2.0)}),
    (losses.Huber, lambda: {"delta": 1.0}),
    (losses.MeanSquaredError, lambda: {"half": True}),
    (losses.BinaryCrossEntropy, lambda: {"sum_outputs": True}),
    (losses.resolve, lambda: {"loss": {"name": "huber", "delta": 1.0}}),
    (lambda **settings: losses.resolve({"name": "huber", **settings}), lambda: {"delta": 1.0}),
    (
        lambda class_weight, label_smoothing: losses.resolve(
            {
                "name": "cross_entropy",
                "class_weight": class_weight,
                "label_smoothing": label_smoothing,
            }
        ),
        lambda: {"class_weight": [1.0, 2.0], "label_smoothing": 0.0},
    ),
    *[
        (getattr(losses, name)(), lambda: {"outputs": X, "targets": X, "sample_weight": None})
        for name in LOSSES
        if name != "SoftmaxCrossEntropy"
    ],
    (
        losses.SoftmaxCrossEntropy(),
        lambda: {"outputs": X, "targets": Y, "sample_weight": np.ones(ROWS)},
    ),
    (
        losses.SoftmaxCrossEntropy.forward_and_grad,
        lambda: {"outputs": X, "targets": Y, "sample_weight": None},
    ),
    (
        losses.Huber.forward_and_grad,
        lambda: {"outputs": X, "targets": X, "sample_weight": np.ones(ROWS)},
    ),
]


@family("optimizers, losses")
def optimizers(folder: Path) -> Feed:
    """Feed what `optim` and `losses` offer, and callbacks."""
    return _calls(folder, OPTIMIZERS)


# -- tensors and data
# ----------------------------------------------------------------------------------------


def _t() -> wf.Tensor:
    return wf.tensor(X, requires_grad=True)


REDUCTIONS = ("sum", "mean", "max", "min")
OPERATORS = (
    "add",
    "sub",
    "mul",
    "truediv",
    "pow",
    "matmul",
    "radd",
    "rsub",
    "rmul",
    "rtruediv",
    "rpow",
    "rmatmul",
)
TENSORS: list[Call] = [
    (wf.tensor, lambda: {"data": X, "dtype": "float32", "requires_grad": False, "device": None}),
    (wf.Tensor, lambda: {"data": X, "requires_grad": False}),
    *[
        (lambda other, name=name: getattr(_t(), f"__{name}__")(other), lambda: {"other": 2.0})
        for name in (*OPERATORS, "lt", "le", "gt", "ge")
    ],
    *[
        (
            lambda axis, keepdims, name=name: getattr(_t(), name)(axis, keepdims),
            lambda: {"axis": 0, "keepdims": True},
        )
        for name in REDUCTIONS
    ],
    (lambda shape: _t().reshape(shape), lambda: {"shape": (-1, 2)}),
    (lambda a, b: _t().reshape(a, b), lambda: {"a": 2, "b": 9}),
    (lambda axes: _t().transpose(axes), lambda: {"axes": (1, 0)}),
    (lambda shape: _t().expand(shape), lambda: {"shape": (2, ROWS, INPUTS)}),
    (lambda axis: _t().flatten(axis), lambda: {"axis": 0}),
    (lambda axis: _t().unsqueeze(axis), lambda: {"axis": 0}),
    (lambda axis: _t().squeeze(axis), lambda: {"axis": None}),
    (lambda index: _t()[index], lambda: {"index": 1}),
    (lambda a, b: _t()[a, b], lambda: {"a": 1, "b": slice(2)}),
    (lambda gradient: (_t() * 2).backward(gradient), lambda: {"gradient": X}),
    (lambda device: _t().to(device), lambda: {"device": "cpu"}),
    (autograd.concatenate, lambda: {"tensors": [_t(), _t()], "axis": 0}),
    (autograd.stack, lambda: {"tensors": [_t(), _t()], "axis": 0}),
    (autograd.maximum, lambda: {"a": _t(), "b": 0.5}),
    (autograd.minimum, lambda: {"a": 0.5, "b": _t()}),
    (autograd.where, lambda: {"condition": X > 0.5, "a": _t(), "b": 0.0}),
]
DATA: list[Call] = [
    (
        lambda **given: list(data.DataLoader(**given)),
        lambda: {"x": X, "y": Y, "batch_size": 2, "shuffle": True, "seed": 0, "drop_last": False},
    ),
    (data.epoch_order, lambda: {"num_rows": 10, "seed": 0, "epoch": 0}),
    (
        data.Dataset,
        lambda: {
            "name": "d",
            "x_train": X,
            "y_train": Y,
            "x_test": X,
            "y_test": Y,
            "class_names": ("a", "b"),
        },
    ),
    (data.load_dataset, lambda: {"name": "digits", "flat": True, "data_dir": None}),
    (data.load_user_data, lambda: {"path": "nowhere.csv"}),
    (data.read_idx, lambda: {"path": "nowhere"}),
]


@family("tensors")
def tensors(folder: Path) -> Feed:
    """Feed tensors and the functions of `autograd`."""
    return _calls(folder, TENSORS)


@family("data")
def of_data(folder: Path) -> Feed:
    """Feed what `data` offers."""
    write = (
        lambda path, array: data.write_idx(path, array),
        lambda: {"path": folder / "idx", "array": X},
    )
    return _calls(folder, [*DATA, write])


# -- estimators
# ----------------------------------------------------------------------------------------------


def _estimate(
    kind: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    X_val: Any,
    y_val: Any,
    rows: Any,
    **settings: Any,
) -> None:
    kind(**settings).fit(X, y, sample_weight, X_val, y_val).predict(rows)


def _partial(kind: Any, X: Any, y: Any, sample_weight: Any) -> None:
    kind(device="cpu", hidden_layer_sizes=(2,)).partial_fit(X, y, sample_weight)


def _estimator_arguments(kind: Any) -> dict[str, Any]:
    own = kind(device="cpu", hidden_layer_sizes=(2,), max_iter=2).get_params()
    return {**own, "X": X, "y": Y, "sample_weight": None, "X_val": X, "y_val": Y, "rows": X}


def _search(**given: Any) -> None:
    rows, targets, estimator = given.pop("X"), given.pop("y"), given.pop("estimator")
    wf.SweepCV(estimator, n_jobs=1, **given).fit(rows, targets)  # processes take seconds to start


def _search_arguments() -> dict[str, Any]:
    estimator = wf.MLPClassifier(device="cpu", hidden_layer_sizes=(2,), max_iter=2)
    return {
        "estimator": estimator,
        "param_grid": {"alpha": [0.1]},
        "X": X,
        "y": Y,
        "cv": 2,
        "scoring": None,
    }


@family("estimators", ValueError, TypeError)
def estimators(folder: Path) -> Feed:
    """Feed the estimators, which refuse as scikit-learn's do."""
    kinds = (wf.MLPClassifier, wf.MLPRegressor)
    calls: list[Call] = []
    for kind in kinds:
        calls += [
            (
                lambda kind=kind, **given: _estimate(kind, **given),
                lambda kind=kind: _estimator_arguments(kind),
            ),
            (
                lambda kind=kind, **given: _partial(kind, **given),
                lambda: {"X": X, "y": Y, "sample_weight": None},
            ),
        ]
    return _calls(folder, [*calls, (_search, _search_arguments)])


# -- estimators of tables
# ------------------------------------------------------------------------------------

DAYS = pd.date_range("2020", periods=ROWS)
TABLE = pd.DataFrame({"x": X[:, 0], "t": ["a", "b", None] * 2, "d": DAYS})
TABLE_SETTINGS: dict[str, Any] = {
    "n_epochs": 2,
    "batch_size": 4,
    "hidden_layer_sizes": (2,),
    "device": "cpu",
    "random_state": 0,
}


def _estimate_table(kind: Any, *, rows: Any, given: dict[str, Any], **settings: Any) -> None:
    for name in ("n_epochs", "n_ensemble"):  # so many are trained, however long it takes
        if settings[name] is None or isinstance(settings[name], int | np.integer):
            settings[name] = min(settings[name] or 2, 2)
    kind(**settings).fit(**given).predict(rows)


def _table_rows() -> dict[str, Any]:
    return {"X": TABLE, "y": Y, "sample_weight": None, "X_val": TABLE, "y_val": Y}


def _fit_table(kind: Any, rows: Any, **given: Any) -> None:
    settings = kind(**TABLE_SETTINGS).get_params()
    _estimate_table(kind, rows=rows, given=given, **settings)


def _fold_table(kind: Any, **settings: Any) -> None:
    _estimate_table(kind, rows=TABLE, given={"X": TABLE, "y": Y}, **settings)


def _folds(kind: Any) -> dict[str, Any]:
    settings: dict[str, Any] = kind(**TABLE_SETTINGS, n_folds=2).get_params()
    return {name: value for name, value in settings.items() if name != "verbose"}


@family("estimators of tables", ValueError, TypeError)
def estimators_of_tables(folder: Path) -> Feed:
    """Feed the estimators of tables, which refuse as scikit-learn's do."""
    calls: list[Call] = [
        (wf.tabular.search_space, lambda: {"method": "realmlp", "task": "regression"})
    ]
    for kind in (wf.TabularClassifier, wf.TabularRegressor):
        calls += [
            (partial(_fit_table, kind), lambda: {**_table_rows(), "rows": TABLE}),
            (partial(_fold_table, kind), partial(_folds, kind)),
        ]
    return _calls(folder, calls)
