"""Warnings name the user's line, whatever lies between."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline

from warpfit import MLPRegressor, errors
from warpfit.callers import warn

FITS = """
import os
os.environ.pop("WARPFIT_DEVICE", None)
import numpy as np, warpfit as wf
from warpfit import MLPClassifier
from warpfit.backends.cuda import runtime
runtime.why_unavailable = lambda opening=None: "there is none"
x = np.random.default_rng(0).uniform(size=(32, 4))
for _ in range(2):
    MLPClassifier((3,), solver="lbfgs", max_iter=10**8).fit(x, x[:, 0] > 0.5)  # this line
    model = wf.nn.Sequential(wf.nn.Linear(4, 2))
    optimizer = wf.optim.SGD(model.parameters())
    asked = {"optimizer": optimizer, "epochs": 1, "engine": "layerwise", "verbose": False}
    wf.fit(model, x, x[:, 0] > 0.5, **asked)
"""


def test_the_device_warning_comes_once_and_names_the_users_line() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", FITS],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    told = [line for line in done.stderr.splitlines() if "DeviceWarning" in line]
    assert told == ["<string>:10: DeviceWarning: device 'auto' is the CPU: there is none"]


def test_the_line_that_calls_a_pipeline_is_named() -> None:
    x = np.random.default_rng(0).uniform(size=(16, 2))
    pipeline = make_pipeline(MLPRegressor(hidden_layer_sizes=(3,), max_iter=1, device="cpu"))
    with pytest.warns(ConvergenceWarning) as caught:
        pipeline.fit(x, x[:, 0])
    assert caught[0].filename == __file__


def test_warnings_can_be_filtered_together() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__ if name.endswith("Warning")]
    assert len(kinds) >= 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", errors.WarpfitWarning)
        for kind in kinds:
            assert issubclass(kind, UserWarning)
            warn("nothing", kind)
