"""What the estimators' parameters may be, and what they stand for."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from warpfit.backends import ALL_CARDS
from warpfit.backends.activations import ACTIVATIONS
from warpfit.errors import ConfigError
from warpfit.tabular.methods import METHODS

MOST_NETWORKS = 1_000_000
_COUNT = Interval(Integral, 1, None, closed="left")
_SHARE = Interval(Real, 0, 1, closed="left")
_POSITIVE = Interval(Real, 0, None, closed="neither")

# Of what None stands for the method's own value.
CHOSEN_BY_METHOD: dict[str, list[Any]] = {
    "n_epochs": [_COUNT, None],
    "batch_size": [_COUNT, None],
    "lr": [_POSITIVE, None],
    "hidden_layer_sizes": ["array-like", _COUNT, None],
    "activation": [StrOptions(set(ACTIVATIONS)), None],
    "dropout": [_SHARE, None],
    "weight_decay": [Interval(Real, 0, None, closed="left"), None],
    "frequency_scale": [_POSITIVE, None],
    "precision": [StrOptions({"float32", "float16", "bfloat16"}), None],
}
CONSTRAINTS: dict[str, list[Any]] = {
    **CHOSEN_BY_METHOD,
    "method": [StrOptions(set(METHODS))],
    "n_folds": [Interval(Integral, 2, None, closed="left"), None],
    "n_ensemble": [Interval(Integral, 1, MOST_NETWORKS, closed="both")],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
    "time_limit": [_POSITIVE, None],
    "random_state": ["random_state"],
    "device": [str, list, tuple],
    "verbose": ["verbose"],
}


def settings_of(estimator: Any) -> dict[str, Any]:
    """Return the parameters that the method knows, with its own values for None, or raise
    ConfigError.
    """
    settings = dict(METHODS[estimator.method].defaults(estimator._are_classes))
    for name in (*CHOSEN_BY_METHOD, "label_smoothing"):
        value = getattr(estimator, name, None)
        if value is None:
            continue
        if name not in settings:
            raise ConfigError(
                f"expected {name}=None for method {estimator.method!r}, which has none, got {value}"
            )
        settings[name] = value
    try:
        sizes = np.atleast_1d(settings["hidden_layer_sizes"])
    except ValueError:  # ragged
        sizes = np.empty(0)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 1).any():
        raise ConfigError(
            f"expected hidden_layer_sizes as integers of at least 1, got "
            f"{estimator.hidden_layer_sizes}"
        )
    return settings


def one_device(device: Any) -> Any:
    """Return the device of a fit to a table, which takes one, or raise ConfigError."""
    devices = device.split(",") if isinstance(device, str) else list(device)
    if len(devices) != 1 or devices[0] == ALL_CARDS:
        raise ConfigError(
            "expected one device, as networks for tables train on one; several are for `SweepCV` "
            f"and `RandomizedSweepCV`, got {device!r}"
        )
    return devices[0]
