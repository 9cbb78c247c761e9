"""Parts of kernels, each by itself: rules of stopping, as the host has them, and what is known
ahead of an update.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import warpfit as wf
from conftest import on_emulator
from emulator.device import Device
from emulator.runtime import EmulatedRuntime
from support.updates import update
from warpfit import backends
from warpfit.engines.base import EpochReport
from warpfit.engines.launch_settings import stopping_settings
from warpfit.estimators.convergence import Convergence, reported_score

pytestmark = on_emulator

NUM, EPOCHS = 256, 12
# Multiples of the least improvement, so that many a value is just it.
STEP = 0.25
VALUES = np.random.default_rng(0).integers(-6, 7, (NUM, EPOCHS)) * STEP
Rule = Any


def run(
    rules: npt.NDArray[Any], numbers: npt.NDArray[np.float32], **defines: Any
) -> tuple[Any, Any]:
    """Return the verdicts on all epochs, and the weights after a step."""
    device = Device()
    device.runtime = EmulatedRuntime(folder=Path(__file__).parent / "parts")
    verdicts, found = np.empty((NUM, EPOCHS, 3), np.int32), np.empty((NUM, 2), np.float32)
    sgd = {"OPTIMIZER": "SgdRule", "ADAPTIVE": 0, "SLOTS": 1, "RATE_IN_VELOCITY": 0, "DECAYS": 1}
    known = {
        name: str(value) for name, value in {**sgd, "MOMENTUM": 1, "NESTEROV": 1, **defines}.items()
    }
    device.run("rules", rules, VALUES, verdicts, EPOCHS, numbers, found, grid=NUM // 32, **known)
    return verdicts, found


def early_stopping(monitor: str, min_delta: float) -> Rule:
    return wf.EarlyStopping(monitor, patience=3, min_delta=min_delta)


def convergence(monitor: str, tol: float) -> Rule:
    """Return an estimator's rule, of one that has not begun."""
    estimator = SimpleNamespace(
        early_stopping=monitor == "val_accuracy",
        tol=tol,
        n_iter_no_change=2,
        best_loss_=np.inf,
        best_validation_score_=-np.inf,
        _no_improvement_count=0,
        validation_scores_=[],
        verbose=False,
        solver="adam",
        learning_rate="constant",
        coefs_=[np.empty(0)],
    )
    return Convergence(estimator, reported_score if estimator.early_stopping else None)


def verdicts_of(rule: Rule, values: npt.NDArray[np.float64]) -> list[list[int]]:
    """Return what the host makes of each epoch, up to the one that ends the run."""
    found: list[list[int]] = []
    stops: list[str] = []
    for epoch, value in enumerate(values, 1):
        before = rule.hand_over().best
        watched = dict.fromkeys(("loss", "accuracy", "val_loss", "val_accuracy"), value)
        report = EpochReport(
            epoch=epoch, lr=0.1, seconds=1.0, num_rows=1, step_losses=np.empty(0), **watched
        )
        if isinstance(rule, Convergence):
            rule.estimator.loss_ = value
        rule.on_epoch_end(SimpleNamespace(report=report, stop=stops.append))
        after = rule.hand_over()
        found.append([after.best != before, after.bad_epochs, bool(stops)])
        if stops:
            break
    return found


RULES = [
    (make, monitor, least)
    for make, monitors in (
        (early_stopping, ("val_loss", "accuracy")),
        (convergence, ("loss", "val_accuracy")),
    )
    for monitor in monitors
    for least in (0.0, STEP)
]


def test_kernels_stop_as_the_host_does() -> None:
    made = [RULES[i % len(RULES)] for i in range(NUM)]
    rules = np.concatenate(
        [stopping_settings(make(monitor, least).hand_over()) for make, monitor, least in made]
    )
    verdicts, _ = run(rules, np.zeros((NUM, 7), np.float32))
    for i, (make, monitor, least) in enumerate(made):
        expected = verdicts_of(make(monitor, least), VALUES[i])
        np.testing.assert_array_equal(
            verdicts[i, : len(expected)], expected, err_msg=f"{make, monitor, least}"
        )


@pytest.mark.parametrize("nesterov", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_what_is_known_ahead_of_an_update_by_sgd_comes_to_the_same(nesterov: int) -> None:
    numbers = np.random.default_rng(1).uniform(0.1, 0.9, (NUM, 7)).astype(np.float32)
    rule = stopping_settings(early_stopping("loss", 0.0).hand_over())
    _, found = run(np.repeat(rule, NUM), numbers, NESTEROV=nesterov)
    for (weight, velocity, gradient, rate, decay, momentum, _), own in zip(
        numbers.astype(float), found, strict=True
    ):
        arrays = [np.array([number]) for number in (weight, gradient, velocity)]
        settings = {
            "lr": rate,
            "momentum": momentum,
            "weight_decay": decay,
            "nesterov": bool(nesterov),
        }
        update(backends.get("cpu"), "sgd", *([array] for array in arrays), **settings)
        np.testing.assert_allclose(own, arrays[0][0], rtol=1e-5, atol=1e-6)
