"""Print a digest of what training gives, case by case: equal digests mean equal bits.

    python tools/bits.py > before.txt                     # on a GPU; change a kernel, then
    python tools/bits.py --against before.txt             # says what differs, and exits 1
    python tools/bits.py --emulator --against other.txt   # without a GPU, on the tests' emulator

A digest is of the parameters, the optimizer state and the losses of all steps. Beside it stands how
the network was launched: a case that goes by another kernel than before is a difference as well.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import warpfit as wf
from warpfit import nn, optim
from warpfit.errors import WarpfitError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

ROWS = 300


def network(
    *sizes: int, activation: Callable[[], nn.Module] = nn.ReLU, dropout: float = 0.0
) -> nn.Sequential:
    """Return linear layers of these sizes with an activation, and a dropout if there is any,
    between them.
    """
    layers: list[nn.Module] = []
    for idx, (inputs, outputs) in enumerate(pairwise(sizes)):
        if layers:
            layers += [activation(), nn.Dropout(dropout)] if dropout else [activation()]
        layers.append(nn.Linear(inputs, outputs, seed=idx))
    return nn.Sequential(*layers)


def rows(features: int, outputs: int, loss: str) -> tuple[Any, Any]:
    """Return x (300, features) float32 and targets for a loss."""
    rng = np.random.default_rng(features + outputs)
    x = rng.standard_normal((ROWS, features)).astype("float32")
    if loss == "cross_entropy":
        return x, rng.integers(0, outputs, ROWS)
    y = rng.standard_normal((ROWS, outputs)).astype("float32")
    return x, (y > 0).astype("float32") if loss == "binary_cross_entropy" else y


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda parameters: optim.SGD(parameters, optim.Cosine(0.1)),
    "nesterov": lambda parameters: optim.SGD(parameters, 0.05, momentum=0.9, nesterov=True),
    "decay": lambda parameters: optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: optim.Adam(parameters, 0.01),
    "adamw": lambda parameters: optim.AdamW(parameters, 0.01, weight_decay=0.1),
    "rmsprop": lambda parameters: optim.RMSprop(parameters, 0.003, momentum=0.5),
    "clipped": lambda parameters: optim.Adam(parameters, 0.01, clip_norm=0.5),
    "penalty": lambda parameters: optim.SGD(parameters, 0.05, momentum=0.9, l2=0.5),
}


def digest_of(*models: nn.Module, losses: Any, optimizer: optim.Optimizer | None = None) -> str:
    """Return twelve digits that stand for all these numbers."""
    found = hashlib.sha256(np.ascontiguousarray(losses).tobytes())
    states = [model.state_dict() for model in models]
    states += [optimizer.state_dict()] if optimizer else []
    for array in _arrays(states):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:12]


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list | tuple):
        for one in value:
            yield from _arrays(one)
    elif isinstance(value, int | float | np.ndarray):
        yield np.asarray(value)


def early_stopping() -> list[wf.Callback]:
    """Return a rule that kernels follow by themselves."""
    return [wf.EarlyStopping("loss", patience=1)]


def fitted(
    sizes: tuple[int, ...],
    optimizer: str = "sgd",
    *,
    loss: str = "cross_entropy",
    precision: str = "float16",
    engine: str = "one_launch",
    batch: int = 32,
    validated: bool = False,
    weighted: bool = False,
    activation: Callable[[], nn.Module] = nn.ReLU,
    dropout: float = 0.0,
    callbacks: Callable[[], list[wf.Callback]] = list,
) -> tuple[str, str]:
    """Return the digest of one network by `fit`, and how it was launched."""
    model = network(*sizes, activation=activation, dropout=dropout)
    x, y = rows(sizes[0], sizes[-1], loss)
    own = OPTIMIZERS[optimizer](model.parameters())
    weights = np.random.default_rng(3).uniform(0, 2, ROWS).astype("float32") if weighted else None
    history = wf.fit(
        model, x, y, loss=loss, optimizer=own, epochs=3, batch_size=batch, device="cuda",
        precision=precision, engine=engine, seed=7, verbose=False, callbacks=callbacks(),
        sample_weight=weights, validation_data=(x[:70], y[:70]) if validated else None,
    )  # fmt: skip
    numbers = [
        history.step_losses,
        [[r.val_loss or 0.0, r.val_accuracy or 0.0] for r in history.reports],
    ]
    joined = np.concatenate([np.ravel(np.asarray(part, np.float64)) for part in numbers])
    return digest_of(model, losses=joined, optimizer=own), history.plan.reason


def swept(
    sizes: tuple[int, ...],
    optimizer: str = "sgd",
    *,
    count: int = 3,
    loss: str = "cross_entropy",
    precision: str = "float16",
    batch: int = 16,
    folds: int | None = None,
    activation: Callable[[], nn.Module] = nn.Tanh,
    dropout: float = 0.0,
) -> tuple[str, str]:
    """Return the digest of networks by `fit_many`, and how they were launched."""
    x, y = rows(sizes[0], sizes[-1], loss)

    def build(candidate: Any) -> tuple[nn.Module, optim.Optimizer]:
        model = network(*sizes, activation=activation, dropout=dropout)
        return model, OPTIMIZERS[optimizer](model.parameters())

    sweep = wf.fit_many(
        build, x, y, candidates=[{"seed": seed} for seed in range(count)], loss=loss, epochs=2,
        batch_size=batch, device="cuda", precision=precision, folds=folds, verbose=False,
    )  # fmt: skip
    models = [model for model in sweep.models if model is not None]
    losses = np.concatenate([history.step_losses for history in sweep.histories])
    return digest_of(*models, losses=losses), str(sweep.plan)


def cases() -> dict[str, Callable[[], tuple[str, str]]]:
    """Return every case by its name: each kernel that trains whole networks, with what changes its
    code.
    """
    found: dict[str, Callable[[], tuple[str, str]]] = {}

    def add(kind: Callable[..., tuple[str, str]], *arguments: Any, **settings: Any) -> None:
        words = [str(argument) for argument in arguments]
        words += [f"{key}={getattr(value, '__name__', value)}" for key, value in settings.items()]
        found[f"{kind.__name__} {' '.join(words)}"] = lambda: kind(*arguments, **settings)

    for optimizer in OPTIMIZERS:
        add(fitted, (20, 32, 5), optimizer)
        add(fitted, (20, 24, 16, 5), optimizer, activation=nn.GELU)
        add(swept, (20, 24, 5), optimizer)
        add(swept, (20, 24, 16, 5), optimizer)
    for loss in ("binary_cross_entropy", "mse", "absolute_error", "huber"):
        add(fitted, (20, 32, 4), loss=loss)
        add(fitted, (20, 24, 16, 4), "adam", loss=loss)
        add(swept, (20, 24, 4), loss=loss)
    for precision in ("bfloat16", "float32"):
        add(fitted, (20, 32, 5), precision=precision)
        add(fitted, (20, 24, 16, 5), "adam", precision=precision)
    add(fitted, (20, 5))
    add(fitted, (20, 5), "adam")
    add(fitted, (64, 64, 5), "adam", batch=128)
    add(fitted, (20, 24, 16, 5), weighted=True)
    add(fitted, (20, 24, 16, 5), dropout=0.3)
    add(fitted, (20, 24, 16, 5), validated=True)
    add(fitted, (20, 24, 16, 5), callbacks=early_stopping)
    add(fitted, (20, 24, 16, 5), batch=100)
    add(fitted, (20, 24, 16, 5), engine="graph")
    add(fitted, (20, 24, 16, 5), engine="graph", batch=256)
    add(fitted, (20, 24, 16, 5), engine="layerwise", precision="float32")
    add(swept, (20, 24, 5), folds=3)
    add(swept, (20, 24, 5), dropout=0.2)
    add(swept, (20, 24, 5), count=20)
    add(swept, (64, 128, 5), count=8, batch=32)
    return found


def large_cases() -> dict[str, Callable[[], tuple[str, str]]]:
    """Return cases of sizes that only a GPU computes quickly."""
    return {
        "fitted 784-256-10": lambda: fitted((784, 256, 10), "nesterov", batch=64),
        "fitted 784-1024-10": lambda: fitted((784, 1024, 10), batch=64),
        "fitted 784-512-512-10": lambda: fitted((784, 512, 512, 10), "adam", batch=64),
        "fitted 784-512-512-10 in float32": lambda: fitted(
            (784, 512, 512, 10), precision="float32"
        ),
        "fitted 784-4096-10": lambda: fitted((784, 4096, 10), "adam"),
        "fitted 784-3x2048-10": lambda: fitted((784, 2048, 2048, 2048, 10)),
        "fitted 784-256-10, 512 rows": lambda: fitted((784, 256, 10), "adam", batch=256),
        "swept 784-128-10": lambda: swept((784, 128, 10), "adam", count=300, batch=64),
        "swept 784-512-10": lambda: swept((784, 512, 10), count=20, batch=64),
        "swept 10-32-32-2": lambda: swept((10, 32, 32, 2), "nesterov", count=500, batch=64),
    }


def emulate() -> None:
    """Let the first CUDA device be the one that the tests emulate."""
    from emulator.runtime import EmulatedRuntime
    from warpfit.backends.cuda import runtime

    emulated = EmulatedRuntime()
    emulated.name = "cuda:0"
    runtime._OPEN[0] = emulated


def read(path: Path) -> dict[str, str]:
    """Return the digests of a file that this program has printed, by case."""
    lines = (line.split("\t") for line in path.read_text().splitlines() if "\t" in line)
    return {case: digest for digest, case, *_ in lines}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, metavar="FILE", help="what an earlier run printed")
    parser.add_argument(
        "--emulator", action="store_true", help="without a GPU, and without the large cases"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose names have this")
    arguments = parser.parse_args()
    if arguments.emulator:
        emulate()
    before = read(arguments.against) if arguments.against else {}
    differing = 0
    known = cases() if arguments.emulator else {**cases(), **large_cases()}
    chosen = {case: run for case, run in known.items() if arguments.only in case}
    for case, run in chosen.items():
        try:
            digest, launched = run()
        except WarpfitError as error:
            digest, launched = "refused", str(error)
        differs = before.get(case, digest) != digest
        differing += differs
        verdict = "DIFFERS" if differs else ""
        print(digest, case, launched.replace("\n", " ")[:150], verdict, sep="\t", flush=True)
    if arguments.against:
        print(f"{differing} of {len(chosen)} cases differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
