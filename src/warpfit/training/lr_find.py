"""lr_find: the losses of some steps at learning rates that rise, and a rate that they suggest."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends, losses
from warpfit.backends.transfer import to_host
from warpfit.checks import brief, check_count, check_number
from warpfit.data.loader import DataLoader
from warpfit.display import html_picture, html_table
from warpfit.errors import ConfigError
from warpfit.losses import Loss
from warpfit.losses.base import LossLike
from warpfit.nn.module import Module
from warpfit.optim.base import Optimizer
from warpfit.training.arguments import optimizer_of
from warpfit.training.evaluate import network_of
from warpfit.training.inputs import as_rows, check_same_length
from warpfit.training.state import trained_names

Numbers = npt.NDArray[np.float64]

# Times the lowest mean loss so far that end the search, and the share of all steps in a mean.
TOO_MUCH, AVERAGED = 4.0, 1 / 20
LEAST_STEPS = 10


@dataclass(frozen=True, eq=False)
class LRCurve:
    """What `lr_find` finds: the loss at every learning rate. A notebook shows it as a picture.

    Attributes
    ----------
    rates : ndarray (steps,) float64
        Rising exponentially.
    losses : ndarray (steps,) float64
        Of each step's batch, before its update.
    smoothed : ndarray (steps,) float64
        Their mean over neighbouring steps.
    suggestion : float or None
        The rate at which the smoothed loss falls fastest; None if it does not fall.

    Examples
    --------
    >>> wf.lr_find(model, x, y, optimizer=opt, num_steps=50)
    LRCurve(... rates, 1e-07 to ...; suggestion ...)
    """

    rates: Numbers
    losses: Numbers
    smoothed: Numbers
    suggestion: float | None

    def plot(self, path: str | Path | None = None, *, title: str = "") -> Any:
        """Draw the loss over the rate; write the picture to `path` if given, and return the figure.

        Raises
        ------
        ConfigError
            If matplotlib is not installed, or the picture cannot be written.
        """
        from warpfit.plots import plot_rates, save_figure

        figure = plot_rates(self.rates, self.losses, self.smoothed, self.suggestion, title)
        if path is not None:
            save_figure(figure, path)
        return figure

    def _repr_html_(self) -> str:
        from warpfit.plots import has_matplotlib

        words = html_table(repr(self), (), (), "")
        return words + html_picture(self.plot(), "loss by rate") if has_matplotlib() else words

    def __repr__(self) -> str:
        span = f"{self.rates[0]:.3g} to {self.rates[-1]:.3g}" if len(self.rates) else "none"
        found = None if self.suggestion is None else f"{self.suggestion:.3g}"
        return f"LRCurve({len(self.rates)} rates, {span}; suggestion {found})"


def lr_find(
    model: Module,
    x: Any,
    y: Any,
    *,
    optimizer: str | Optimizer,
    loss: LossLike = "cross_entropy",
    batch_size: int = 64,
    min_lr: float = 1e-7,
    max_lr: float = 10.0,
    num_steps: int = 200,
    device: str = "auto",
    seed: int = 0,
) -> LRCurve:
    """Train a copy of a model at learning rates that rise exponentially, and suggest one.

    It ends early where the loss explodes. Model and optimizer stay as they are.

    Parameters
    ----------
    model : Module
    x, y : array_like (N, ...)
        As `fit` takes them. Steps go through them as often as they need.
    optimizer : str or Optimizer
        Over the model's parameters, or a name; its own rate is not used.
    loss : str, Loss or function
    batch_size : int
        As `fit` will have it: the best rate depends on it.
    min_lr, max_lr : float
        The first rate and the last.
    num_steps : int
        At least 10.
    device : str
        As `fit`'s; ``'auto'`` is the first CUDA device, or the CPU where there is none.
    seed : int
        Of the order of the rows.

    Returns
    -------
    LRCurve
        Whose ``suggestion`` is where the loss falls fastest.

    Raises
    ------
    ShapeError, DTypeError, DataError, ConfigError, DeviceError
        If an argument is not what is described here.

    References
    ----------
    Smith: Cyclical Learning Rates for Training Neural Networks (2017).

    Examples
    --------
    >>> curve = wf.lr_find(model, x, y, optimizer=opt)
    >>> 1e-4 < curve.suggestion < 1
    True
    """
    trained, stepper = _copies(model, optimizer)
    rows = as_rows("x", x, dtype=trained.dtype)
    rates = _rates(min_lr, max_lr, check_count("num_steps", num_steps, LEAST_STEPS))
    trained.to(backends.resolve_device(device)).train()
    criterion = losses.resolve(loss)
    output_shape = network_of(trained, rows.shape[1:]).output_shape
    targets = criterion.prepare_targets(
        as_rows("y", y, dtype=trained.dtype), output_shape, trained.dtype
    )
    check_same_length("y", targets, len(rows))
    batches = _batches(DataLoader(to_host(rows), to_host(targets), batch_size, seed=seed))
    width = max(1, round(AVERAGED * num_steps))
    found: list[float] = []
    lowest = np.inf
    # What overflows here is how the search ends.
    with np.errstate(over="ignore", invalid="ignore"):
        for rate in rates:
            found.append(_step(trained, stepper, criterion, next(batches), float(rate)))
            recent = float(np.mean(found[-width:]))
            lowest = min(lowest, recent) if len(found) >= width else lowest
            if not np.isfinite(recent) or recent > TOO_MUCH * lowest > 0:
                break
    return _curve(rates[: len(found)], np.array(found), width)


def _copies(model: Any, optimizer: Any) -> tuple[Module, Optimizer]:
    """Return copies of model and optimizer that belong together."""
    if not isinstance(model, Module):
        raise ConfigError(f"expected a model (a Module), got {brief(model)}")
    optimizer = optimizer_of(optimizer, model)
    trained_names(model, optimizer)
    return deepcopy((model, optimizer))


def _rates(min_lr: float, max_lr: float, num_steps: int) -> Numbers:
    check_number("min_lr", min_lr, 0)
    check_number("max_lr", max_lr, 0)
    if not 0 < min_lr < max_lr < np.inf:
        raise ConfigError(f"expected 0 < min_lr < max_lr, got {min_lr} and {max_lr}")
    return np.geomspace(min_lr, max_lr, num_steps)


def _batches(loader: DataLoader) -> Iterator[tuple[Any, Any]]:
    while True:
        yield from loader


def _step(
    model: Module, optimizer: Optimizer, loss: Loss, batch: tuple[Any, Any], rate: float
) -> float:
    """Train with a batch at this rate, and return the loss before."""
    x, y = batch
    optimizer.zero_grad()
    value = loss(model(model.input_tensor(x)), y)
    value.backward()
    optimizer.step(rate, num_rows=len(x))
    return float(value.item())


def _curve(rates: Numbers, found: Numbers, width: int) -> LRCurve:
    """Return the finite part of a search with what it suggests."""
    rates, found = rates[np.isfinite(found)], found[np.isfinite(found)]
    if not len(found):
        return LRCurve(rates, found, found, None)
    window = np.ones(min(width, len(found)))
    smoothed = np.convolve(found, window, "same") / np.convolve(np.ones(len(found)), window, "same")
    # How far it falls over as many steps as are averaged: noise falls less.
    falls = smoothed[:-width] - smoothed[width:]
    before = falls[: max(0, int(np.argmin(smoothed)) - width + 1)]
    if not len(before) or before.max() <= 0:
        return LRCurve(rates, found, smoothed, None)
    return LRCurve(rates, found, smoothed, float(rates[np.argmax(before) + width // 2]))
