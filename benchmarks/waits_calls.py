"""A row of `waits.py` by one program, in this process: prints a JSON object of its seconds.

    python benchmarks/waits_calls.py ROW PROGRAM STARTED FOLDER [--small] [--device cuda]

STARTED is `time.time_ns()` from before the process began, FOLDER has the small data sets as .npy.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from time import perf_counter, time_ns
from typing import Any

import numpy as np

# What a row times, in order, by name; each returns how good the result is, or its own Seconds.
Calls = dict[str, Callable[[], float]]

FIRST, SECOND = "first call", "second call"
PREDICTED_ROWS = 10
SHAPES = {
    "breast cancer (100,)": ("cancer", (100,)),
    "breast cancer (64, 32)": ("cancer", (64, 32)),
    "digits (100,)": ("digits", (100,)),
    "digits (64, 32)": ("digits", (64, 32)),
}
ARCHITECTURES = tuple(
    sizes for width in range(16, 176, 16) for sizes in ((width,), (width, width // 2))
)


class Seconds(float):
    """Seconds that a call has measured by itself."""


@dataclass(frozen=True)
class Sizes:
    """How large everything is; smaller for a trial."""

    images: int = 60_000
    networks: int = 512
    candidates: int = 200
    rows: int = 4_000
    small_networks: int = 1_000
    table_rows: int = 200_000
    iterations: int = 100
    architectures: int = 20
    epochs: int = 20
    repeats: int = 1_000


SMALL = Sizes(320, 3, 2, 256, 3, 640, 2, 2, 2, 5)


@dataclass(frozen=True)
class Scope:
    """What calls are made of: sizes, the folder of small data sets, and the device."""

    sizes: Sizes
    folder: Path
    device: str

    def dataset(self, name: str) -> tuple[Any, Any]:
        return np.load(self.folder / f"{name}_x.npy"), np.load(self.folder / f"{name}_y.npy")

    def images(self) -> tuple[Any, Any]:
        """Return MNIST, or as many made-up rows of its width as a trial takes."""
        if self.sizes is SMALL:
            rng = np.random.default_rng(0)
            shape = (self.sizes.images, 784)
            return rng.random(shape, np.float32), rng.integers(0, 10, self.sizes.images)
        data = import_module("warpfit").data.load_dataset("mnist", flat=True, download=False)
        return data.x_train, data.y_train


def twice(call: Callable[[], float]) -> Calls:
    return {FIRST: call, SECOND: call}


# -- many networks
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Many:
    """Networks of one shape that train at once by SGD."""

    sizes: tuple[int, ...]
    rates: Any
    epochs: int
    batch: int
    folds: int = 1


def many(scope: Scope) -> tuple[Many, Any, Any]:
    rates = np.full(scope.sizes.networks, 0.1)
    return Many((784, 128, 10), rates, epochs=3, batch=64), *scope.images()


def folds(scope: Scope) -> tuple[Many, Any, Any]:
    rates = np.geomspace(0.01, 0.5, scope.sizes.candidates)
    return Many((784, 64, 10), rates, epochs=5, batch=64, folds=5), *scope.images()


def small(scope: Scope) -> tuple[Many, Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((scope.sizes.rows, 32)).astype(np.float32)
    rates = np.full(scope.sizes.small_networks, 0.1)
    case = Many((32, 64, 64, 2), rates, epochs=scope.sizes.epochs, batch=128)
    return case, x, (x[:, 0] > x[:, 1]).astype(np.int64)


def perceptron(nn: Any, sizes: tuple[int, ...]) -> Any:
    *hidden, last = (nn.Linear(*fans) for fans in pairwise(sizes))
    return nn.Sequential(*(layer for linear in hidden for layer in (linear, nn.ReLU())), last)


def many_of_ours(problem: Callable[[Scope], tuple[Many, Any, Any]], scope: Scope) -> Calls:
    wf = import_module("warpfit")
    case, x, y = problem(scope)
    candidates = [{"lr": float(rate), "seed": idx} for idx, rate in enumerate(case.rates)]

    def build(candidate: Any) -> Any:
        model = perceptron(wf.nn, case.sizes)
        return model, wf.optim.SGD(model.parameters(), lr=candidate["lr"])

    def call() -> float:
        sweep = wf.fit_many(
            build,
            x,
            y,
            candidates=candidates,
            folds=case.folds if case.folds > 1 else None,
            epochs=case.epochs,
            batch_size=case.batch,
            device=scope.device,
            keep_models=False,
            verbose=False,
        )
        return float(sweep.best["score"])

    return twice(call)


def many_of_peer(
    module_name: str, problem: Callable[[Scope], tuple[Many, Any, Any]], scope: Scope
) -> Calls:
    """A network a fold and candidate, of which each trains on as many rows as a fold leaves; the
    second call keeps what is compiled, and draws new values.
    """
    module = import_module(f"peers.{module_name}")
    case, x, y = problem(scope)
    kept = len(x) - (len(x) // case.folds if case.folds > 1 else 0)
    rates = np.repeat(case.rates, case.folds).astype(np.float32)
    on_device = {"device": device_of(scope)} if hasattr(module, "torch") else {}
    trainer: Any = None

    def call() -> float:
        nonlocal trainer
        if trainer is None:
            settings = {"rates": rates, "batch_size": case.batch, "precision": "bfloat16"}
            trainer = module.Trainer(case.sizes, x[:kept], y[:kept], **settings, **on_device)
        elif on_device:
            drawn = module.stacked_parameters(case.sizes, len(rates), **on_device)
            for parameter, values in zip(trainer.parameters, drawn, strict=True):
                parameter.copy_(values)
        else:
            trainer.parameters = module.stacked_parameters(case.sizes, len(rates))
        for _ in range(case.epochs):
            _, right = trainer.epoch()
        return float(right.max())

    return twice(call)


def device_of(scope: Scope) -> str:
    """Return the device in PyTorch's words; where none is named, the GPU if there is one."""
    if scope.device != "auto":
        return scope.device
    return "cuda" if import_module("torch").cuda.is_available() else "cpu"


# -- fits of estimators
# -------------------------------------------------------------------------------------------------


def classifier(program: str, scope: Scope) -> Callable[..., Any]:
    """Return the constructor of our classifier, or of scikit-learn's."""
    if program == "sklearn":
        return partial(import_module("sklearn.neural_network").MLPClassifier, random_state=0)
    device = {"warpfit auto": scope.device, "warpfit cpu": "cpu", "warpfit cuda": "cuda"}[program]
    kind: Any = import_module("warpfit").MLPClassifier
    return partial(kind, random_state=0, device=device)


def fit_by(program: str, scope: Scope) -> Callable[[str, tuple[int, ...]], float]:
    """Return a function that fits a data set for the iterations of the row by a program."""
    if program.startswith(("warpfit", "sklearn")):
        make = classifier(program, scope)

        def fit(name: str, hidden: tuple[int, ...]) -> float:
            model = make(hidden_layer_sizes=hidden, max_iter=scope.sizes.iterations)
            return float(model.fit(*scope.dataset(name)).loss_)

        return fit
    module = import_module(f"peers.{program}")

    def train(name: str, hidden: tuple[int, ...]) -> float:
        x, y = scope.dataset(name)
        return trained(module, x, y, hidden, scope.sizes.iterations, scope)

    return train


def trained(
    module: Any, x: Any, y: Any, hidden: tuple[int, ...], epochs: int, scope: Scope
) -> float:
    """Train as scikit-learn's defaults do, in float32, and return the loss of the last epoch."""
    sizes = (x.shape[1], *hidden, int(y.max()) + 1)
    trainer = trainer_of(module, sizes, x, y, min(200, len(x)), "adam", scope)
    return [trainer.epoch()[0] for _ in range(epochs)][-1]


def trainer_of(
    module: Any, sizes: tuple[int, ...], x: Any, y: Any, batch: int, optimizer: str, scope: Scope
) -> Any:
    x = np.ascontiguousarray(x, np.float32)
    settings: dict[str, Any] = {"batch_size": batch, "lr": 1e-3, "optimizer": optimizer}
    if hasattr(module, "jax"):
        return module.Trainer(sizes, x, y, precision="float32", unroll=1, **settings)
    model = module.mlp(sizes) if module.__name__.endswith("torch_eager") else sizes
    return module.Trainer(model, x, y, precision="float32", device=device_of(scope), **settings)


def shapes(program: str, scope: Scope) -> Calls:
    """Fits of four shapes, after one of another that brings the runtime up."""
    fit = fit_by(program, scope)
    fits: Calls = {name: partial(fit, *what) for name, what in SHAPES.items()}
    return {"runtime": partial(fit, "iris", (10,)), **fits}


def first_fit(program: str, scope: Scope) -> Calls:
    return twice(partial(fit_by(program, scope), "cancer", (100,)))


def iris(program: str, scope: Scope) -> Calls:
    return twice(partial(fit_by(program, scope), "iris", (100,)))


def predict(program: str, scope: Scope) -> Calls:
    """Seconds of a call on ten rows beyond the products and activations in NumPy."""
    X, y = scope.dataset("digits")
    model = classifier(program, scope)(hidden_layer_sizes=(64, 32), max_iter=5).fit(X, y)
    layers, few = list(zip(model.coefs_, model.intercepts_, strict=True)), X[:PREDICTED_ROWS]

    def in_numpy() -> None:
        rows = few
        for weight, bias in layers:
            rows = np.maximum(rows @ weight + bias, 0)
        rows.argmax(1)

    def beyond(call: Callable[[], Any]) -> Seconds:
        least = [
            min(_seconds(what) for _ in range(scope.sizes.repeats)) for what in (call, in_numpy)
        ]
        return Seconds(max(0.0, least[0] - least[1]))

    targets = y[:PREDICTED_ROWS]
    return {
        "predict": partial(beyond, partial(model.predict, few)),
        "score": partial(beyond, partial(model.score, few, targets)),
    }


def _seconds(call: Callable[[], Any]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


# -- searches
# -------------------------------------------------------------------------------------------------


def searched(program: str, scope: Scope) -> Calls:
    """`SweepCV` over the learning rates of 784-64-10; of scikit-learn's search one candidate is
    measured, and as many times its seconds are returned as there are candidates.
    """
    case, x, y = folds(scope)
    make = partial(
        classifier(program, scope),
        hidden_layer_sizes=case.sizes[1:-1],
        solver="sgd",
        momentum=0.0,
        nesterovs_momentum=False,
        batch_size=case.batch,
        max_iter=case.epochs,
        tol=0.0,
        n_iter_no_change=case.epochs + 1,
    )
    rates = [float(rate) for rate in case.rates]
    if program != "sklearn":
        sweep: Any = import_module("warpfit").SweepCV
        grid = {"learning_rate_init": rates}
        return twice(lambda: best_of(sweep(make(), grid, cv=case.folds, refit=False).fit(x, y)))
    search: Any = import_module("sklearn.model_selection").GridSearchCV

    def measured() -> Seconds:
        one = search(
            make(), {"learning_rate_init": rates[:1]}, cv=case.folds, refit=False, n_jobs=-1
        )
        return Seconds(_seconds(lambda: one.fit(x, y)) * len(rates))

    return {FIRST: measured}


def best_of(search: Any) -> float:
    return float(search.cv_results_["mean_test_score"].max())


def architectures(program: str, scope: Scope) -> Calls:
    """A search over widths and depths on digits, three folds each."""
    X, y = scope.dataset("digits")
    hidden = ARCHITECTURES[: scope.sizes.architectures]
    if program.startswith(("warpfit", "sklearn")):
        make = partial(classifier(program, scope), max_iter=scope.sizes.epochs)
        grid = {"hidden_layer_sizes": list(hidden)}
        if program == "sklearn":
            kind: Any = import_module("sklearn.model_selection").GridSearchCV
            return twice(lambda: best_of(kind(make(), grid, cv=3, n_jobs=-1).fit(X, y)))
        sweep: Any = import_module("warpfit").SweepCV
        return twice(lambda: best_of(sweep(make(), grid, cv=3).fit(X, y)))
    module = import_module(f"peers.{program}")
    kept = len(X) - len(X) // 3

    def call() -> float:
        epochs = scope.sizes.epochs
        fits = [(sizes, fold) for sizes in hidden for fold in range(3)]
        rows = [np.roll(np.arange(len(X)), fold * (len(X) // 3))[:kept] for fold in range(3)]
        return min(trained(module, X[rows[k]], y[rows[k]], s, epochs, scope) for s, k in fits)

    return twice(call)


# -- a table
# -------------------------------------------------------------------------------------------------


def table(program: str, scope: Scope) -> Calls:
    """200,000 rows of 54 numbers, 54-256-256-256-7, AdamW, validated after each epoch."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((scope.sizes.table_rows, 54)).astype(np.float32)
    y = (x[:, :7] @ rng.standard_normal((7, 7))).argmax(1)
    held_out = x[: len(x) // 10], y[: len(x) // 10]
    sizes, epochs = (54, 256, 256, 256, 7), scope.sizes.epochs
    if program == "warpfit auto":
        return twice(partial(fit_table, sizes, x, y, held_out, epochs, scope))
    module = import_module(f"peers.{program}")

    def call() -> float:
        trainer = trainer_of(module, sizes, x, y, 256, "adamw", scope)
        validate = validation_of(module, trainer, *held_out)
        for _ in range(epochs):
            trainer.epoch()
            share = validate()
        return share

    return twice(call)


def fit_table(
    sizes: tuple[int, ...], x: Any, y: Any, held_out: Any, epochs: int, scope: Scope
) -> float:
    wf = import_module("warpfit")
    model = perceptron(wf.nn, sizes)
    history = wf.fit(
        model,
        x,
        y,
        optimizer=wf.optim.AdamW(model.parameters(), lr=1e-3),
        epochs=epochs,
        batch_size=256,
        validation_data=held_out,
        device=scope.device,
        verbose=False,
    )
    return float(history.reports[-1].val_accuracy)


def validation_of(module: Any, trainer: Any, x: Any, y: Any) -> Callable[[], float]:
    """Return a function that finds the share of rows that a peer's network has right."""
    if hasattr(module, "jax"):
        rows, labels = module.jnp.asarray(x), module.jnp.asarray(y, module.jnp.int32)
        right = module.jax.jit(module.loss_and_correct)
        return lambda: int(right(trainer.parameters, rows, labels)[1]) / len(x)
    torch = module.torch
    rows, labels = (torch.from_numpy(part).to(trainer.x.device) for part in (x, y))

    def share() -> float:
        with torch.no_grad():
            eager = hasattr(trainer, "model")
            outputs = (
                trainer.forward(rows)
                if eager
                else module.outputs_of(trainer.parameters, rows, trainer.dtype)
            )
            return float((outputs.argmax(1) == labels).float().mean())

    return share


# -- the process
# -------------------------------------------------------------------------------------------------

OURS = "warpfit auto"


def many_calls(problem: Callable[[Scope], tuple[Many, Any, Any]]) -> Callable[[str, Scope], Calls]:
    def calls(program: str, scope: Scope) -> Calls:
        if program == OURS:
            return many_of_ours(problem, scope)
        return many_of_peer(program, problem, scope)

    return calls


CALLS: dict[str, Callable[[str, Scope], Calls]] = {
    "many": many_calls(many),
    "folds": many_calls(folds),
    "small": many_calls(small),
    "search": searched,
    "shapes": shapes,
    "first-fit": first_fit,
    "architectures": architectures,
    "table": table,
    "iris": iris,
    "predict": predict,
}


def measured(row: str, program: str, started: int, scope: Scope) -> dict[str, Any]:
    """Return the seconds of each call, those from the process's start to the first call's end
    (``process``), and how good the results are.
    """
    seconds: dict[str, float] = {}
    quality: dict[str, float] = {}
    for name, call in CALLS[row](program, scope).items():
        start = perf_counter()
        result = call()
        own = isinstance(result, Seconds)
        seconds[name] = float(result) if own else perf_counter() - start
        seconds.setdefault("process", (time_ns() - started) / 1e9)
        quality |= {} if own else {name: result}
    return {"seconds": seconds, "quality": quality}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", choices=CALLS)
    parser.add_argument("program")
    parser.add_argument("started", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # runs end after a given number of epochs
    scope = Scope(SMALL if arguments.small else Sizes(), arguments.folder, arguments.device)
    print(json.dumps(measured(arguments.row, arguments.program, arguments.started, scope)))


if __name__ == "__main__":
    main()
