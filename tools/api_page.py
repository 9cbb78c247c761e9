"""Write docs/api.md: every public name in one line, from signatures and docstrings.

python tools/api_page.py            # write it
python tools/api_page.py --check    # exit 1 if it is not what would be written
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from warpfit import nn
from warpfit.losses import Loss
from warpfit.nn import activations
from warpfit.optim import Optimizer

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"

INTRODUCTION = """# The API in one page

Every public name, in one line. Formulas and defaults are PyTorch's; images are channels-last,
`(N, H, W, C)`; uint8 input means x / 255. What is wrong with an argument is one sentence, in an
exception of `warpfit.errors`. The [site](../CONTRIBUTING.md#the-documentation-site) has each name
with its parameters. This page is written by `python tools/api_page.py`.

```python
import warpfit as wf
from warpfit import autograd, data, errors, losses, nn, optim
```
"""


@dataclass(frozen=True)
class Section:
    """Names of a module, in the order in which one meets them, and what its classes have that one
    looks for.
    """

    title: str
    module: str
    names: tuple[str, ...]
    words: str = ""
    members: tuple[str, ...] = ()


MODULES = (
    "warpfit",
    "warpfit.nn",
    "warpfit.losses",
    "warpfit.optim",
    "warpfit.data",
    "warpfit.autograd",
    "warpfit.accel",
    "warpfit.errors",
    "warpfit.optuna",
)


# Where it is not the last part of a module's name; `optuna` alone is Optuna's.
ALIASES = {"warpfit": "wf", "warpfit.optuna": "wf.optuna", "warpfit.tabular": "wf.tabular"}


def is_layer(thing: Any) -> bool:
    """Return whether a public name is a layer of the package."""
    return isinstance(thing, type) and issubclass(thing, nn.Layer) and thing is not nn.Layer


def ours(registry: Mapping[str, type]) -> dict[str, str]:
    """Return the names of the package's classes of a registry, by the names that users give."""
    return {
        name: kind.__name__
        for name, kind in registry.items()
        if kind.__module__.startswith("warpfit.")
    }


SECTIONS = (
    Section(
        "Train",
        "warpfit",
        (
            "fit",
            "evaluate",
            "predict",
            "save",
            "load",
            "load_metadata",
            "load_trained",
            "TrainedModel",
            "manual_seed",
            "History",
            "Evaluation",
            "lr_find",
            "LRCurve",
        ),
        "`history = wf.fit(model, x, y, optimizer=opt)` trains on the GPU if there is one. "
        "`history.plan` says by which [engine](engines.md), in what precision, and why.",
        ("History.to_dict", "History.plot", "LRCurve.plot"),
    ),
    Section(
        "Callbacks",
        "warpfit",
        (
            "Callback",
            "Run",
            "EarlyStopping",
            "Checkpoint",
            "CSVLog",
            "JSONLLog",
            "TensorBoardLog",
            "MLflowLog",
            "WandbLog",
            "Profile",
        ),
    ),
    Section(
        "Many networks at once",
        "warpfit",
        ("fit_many", "Halving", "Sweep"),
        "A network for every candidate and fold: [many networks at once](sweep.md).",
        ("Sweep.plot",),
    ),
    Section(
        "Optuna",
        "warpfit.optuna",
        ("optimize", "Optimized"),
        "Studies by hundreds of trials at a time: [Optuna](optuna.md).",
    ),
    Section(
        "Estimators",
        "warpfit",
        ("MLPClassifier", "MLPRegressor", "SweepCV", "RandomizedSweepCV", "from_sklearn"),
        "scikit-learn's, on every device: [coming from scikit-learn](scikit-learn.md).",
        tuple(f"MLPClassifier.{name}" for name in ("save", "load", "to_onnx", "to_sklearn")),
    ),
    Section(
        "Programs that exist",
        "warpfit.accel",
        ("install", "uninstall", "report", "Report", "forget"),
        "scikit-learn's own classes, trained here: [programs that exist](accel.md).",
    ),
    Section(
        "Tables",
        "warpfit",
        ("TabularClassifier", "TabularRegressor"),
        "Straight from a frame: [from a table to predictions](tables.md).",
        tuple(
            f"TabularClassifier.{name}"
            for name in ("fit", "predict", "predict_proba", "save", "load", "to_onnx")
        ),
    ),
    Section(
        "Searches over tables",
        "warpfit.tabular",
        ("search_space",),
        "For scikit-learn's `RandomizedSearchCV`.",
    ),
    Section(
        "Networks",
        "warpfit.nn",
        (
            "Sequential",
            "Residual",
            "Module",
            "ModuleList",
            "Layer",
            "Parameter",
            "Buffer",
            "NetworkSpec",
            "forward",
            "backward",
            "parameters",
        ),
        "A `Sequential` of the layers below runs on every engine, a `Module` of one's own on "
        "`layerwise`.",
        (
            "Sequential.to_onnx",
            *(
                f"Module.{name}"
                for name in (
                    "summary",
                    "num_parameters",
                    "parameters",
                    "state_dict",
                    "load_state_dict",
                    "to",
                    "train",
                    "eval",
                    "zero_grad",
                )
            ),
        ),
    ),
    Section(
        "Layers",
        "warpfit.nn",
        tuple(
            name
            for name in nn.__all__
            if is_layer(getattr(nn, name)) and name not in activations.__all__
        ),
    ),
    Section(
        "Activations",
        "warpfit.nn",
        tuple(activations.__all__),
    ),
    Section(
        "Losses",
        "warpfit.losses",
        (*ours(Loss.by_name).values(), "Loss", "resolve"),
        f"By name in `fit(loss=...)`: {', '.join(f'`{name!r}`' for name in ours(Loss.by_name))}; "
        "or a [function of outputs and targets](extending.md#a-loss).",
    ),
    Section(
        "Optimizers",
        "warpfit.optim",
        (*ours(Optimizer.by_name).values(), "Optimizer", "OptimizerSpec"),
        members=tuple(
            f"Optimizer.{name}" for name in ("step", "zero_grad", "state_dict", "load_state_dict")
        ),
    ),
    Section(
        "Learning rates",
        "warpfit.optim",
        (
            "Constant",
            "Step",
            "Exponential",
            "Cosine",
            "Linear",
            "OneCycle",
            "InverseScaling",
            "ReduceOnPlateau",
            "Schedule",
        ),
        "In place of a number: `optim.SGD(model.parameters(), lr=optim.Cosine(0.1))`.",
    ),
    Section(
        "Data",
        "warpfit.data",
        (
            "load_dataset",
            "load_user_data",
            "TablePreprocessor",
            "Dataset",
            "DataLoader",
            "available_datasets",
            "dataset_names",
            "epoch_order",
            "read_idx",
            "write_idx",
        ),
    ),
    Section(
        "Tensors",
        "warpfit.autograd",
        (
            "Tensor",
            "tensor",
            "no_grad",
            "record",
            "concatenate",
            "stack",
            "where",
            "maximum",
            "minimum",
            "relu",
            "sigmoid",
            "tanh",
            "softmax",
            "log_softmax",
            "activate",
            "apply",
        ),
        "For modules of one's own. The first three are `wf.Tensor`, `wf.tensor` and "
        "`wf.no_grad`, too.",
    ),
    Section(
        "Errors",
        "warpfit.errors",
        (
            "WarpfitError",
            "ShapeError",
            "DTypeError",
            "DataError",
            "FileFormatError",
            "IndexingError",
            "ConfigError",
            "DeviceError",
            "KernelError",
            "CompileError",
            "DivergedError",
            "Obstacle",
            "WarpfitWarning",
            "DataWarning",
            "ConfigWarning",
            "DeviceWarning",
            "TrainingWarning",
        ),
    ),
)


def page() -> str:
    """Return the page's text."""
    return INTRODUCTION + "".join(_section(section) for section in SECTIONS)


def _section(section: Section) -> str:
    module = import_module(section.module)
    alias = ALIASES.get(section.module, section.module.rpartition(".")[2])
    names = (*section.names, *section.members)
    lines = [_line(alias, name, attrgetter(name)(module)) for name in names]
    words = f"{section.words}\n\n" if section.words else ""
    return f"\n## {section.title}\n\n{words}" + "".join(lines)


def _line(alias: str, name: str, thing: Any) -> str:
    return f"* `{alias}.{name}{_signature(thing)}`: {_first_line(thing)}\n"


def _signature(thing: Any) -> str:
    """Return parameters and defaults without annotations, nothing for an exception or a
    property.
    """
    if isinstance(thing, property) or (isinstance(thing, type) and issubclass(thing, Exception)):
        return ""
    found = inspect.signature(thing)
    empty = inspect.Parameter.empty
    parameters = [
        each.replace(annotation=empty, default=_shown(each.default))
        for each in found.parameters.values()
        if each.name != "self"
    ]
    return str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


class _Words:
    """A default that reads as it is written."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __repr__(self) -> str:
        return self.words


def _shown(default: Any) -> Any:
    plain = (type(None), bool, int, float, str, tuple)
    return (
        default
        if default is inspect.Parameter.empty or isinstance(default, plain)
        else _Words("...")
    )


def _first_line(thing: Any) -> str:
    words = (inspect.getdoc(thing) or "").strip().split("\n\n")[0]
    return " ".join(words.split())


def main(arguments: list[str] | None = None) -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description="Write docs/api.md.")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    check = parser.parse_args(arguments).check
    written = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if written == page():
        return 0
    if check:
        print("docs/api.md is out of date: run python tools/api_page.py", file=sys.stderr)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
