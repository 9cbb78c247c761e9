"""TabM as two methods: as pytabkit has it; and as TabArena has it, with embeddings of numbers and
gradient clipping.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import sqrt
from typing import Any

from warpfit import backends
from warpfit.errors import ConfigError
from warpfit.tabular import tabm_network, tabm_training
from warpfit.tabular.members import (
    AUTO,
    Member,
    Method,
    Shape,
    Trained,
    Training,
    trained_in_turn,
)
from warpfit.tabular.onnx_tabm import tabm_onnx
from warpfit.tabular.quantiles import QuantilePreprocessor
from warpfit.tabular.tabm_network import TabM
from warpfit.tabular.training import Rows

NUM_BINS, LARGEST_NORM = 48, 1.0
# What patience leaves of 10,000: medians of three tables were 46, 88 and 150 (docs/log/tables.md).
LIKELY_EPOCHS = 88


def _defaults(are_classes: bool) -> Mapping[str, Any]:
    return {
        "n_epochs": 10_000,
        "batch_size": 256,
        "lr": 2e-3,
        "hidden_layer_sizes": tabm_network.HIDDEN,
        "dropout": 0.1,
        "weight_decay": 3e-4,
        "label_smoothing": 0.0,
        "num_bins": 0,
        "precision": AUTO,
    }


def _ple_defaults(are_classes: bool) -> Mapping[str, Any]:
    others = {"hidden_layer_sizes": (512, 512), "num_bins": NUM_BINS}
    return {**_defaults(are_classes), **others}


def _space(are_classes: bool) -> Mapping[str, Any]:
    """Return the authors' space, without those of other embeddings."""
    from scipy.stats import loguniform, uniform

    return {
        "lr": loguniform(1e-4, 3e-3),
        "weight_decay": [0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1],
        "dropout": uniform(0, 0.5),
        "hidden_layer_sizes": [
            (width,) * depth for depth in (2, 3, 4, 5) for width in range(128, 1025, 128)
        ],
    }


def _network(shape: Shape, seed: int) -> TabM:
    return TabM(
        shape.columns,
        shape.num_outputs,
        are_classes=shape.are_classes,
        num_bins=shape.num_bins,
        hidden=shape.hidden,
    )


def _widths(shape: Shape) -> tuple[int, ...]:
    # A layer of all members multiplies as much as one of so many times the units on both sides.
    times = sqrt(tabm_network.NUM_MEMBERS)
    hidden = tuple(int(size * times) for size in shape.hidden)
    of_number = tabm_network.PiecewiseLinear.SIZE if shape.num_bins else 1
    inputs = of_number * shape.columns.num_numbers + sum(shape.columns.num_codes)
    return (inputs, *hidden, shape.num_outputs)


def _train(members: Sequence[Member], training: Training) -> Iterator[Trained]:
    settings, is_on_cpu = training.settings, backends.get(training.device).synchronous
    train = partial(
        tabm_training.train,
        settings=tabm_training.Settings(
            settings["lr"],
            settings["weight_decay"],
            settings["dropout"],
            LARGEST_NORM if settings["num_bins"] else None,
        ),
        patience=tabm_training.PATIENCE,
        precision=_precision(settings["precision"], is_on_cpu=is_on_cpu),
    )
    return trained_in_turn(0, members, training, _begun, train)


def _begun(member: Member, training: Training, rows: Rows) -> TabM:
    """Return a member's network with its initial values, on the host."""
    network = _network(member.shape(training.settings), member.seed)
    tabm_network.set_initial_values(network, rows.x, member.seed)
    return network


def _precision(asked: str, *, is_on_cpu: bool) -> str | None:
    if asked == AUTO:
        return None
    if asked == "float16" or (is_on_cpu and asked != "float32"):
        known = "'float32' or None" if is_on_cpu else "'float32', 'bfloat16' or None"
        raise ConfigError(f"expected precision {known} for TabM on this device, got {asked!r}")
    return asked


TABM, TABM_PLE = (
    Method(
        defaults=defaults,
        preprocessor=QuantilePreprocessor,
        network=_network,
        train=_train,
        outputs=tabm_training.outputs_of,
        space=_space,
        widths=_widths,
        onnx=tabm_onnx,
        likely_epochs=LIKELY_EPOCHS,
    )
    for defaults in (_defaults, _ple_defaults)
)
