"""Plans on paper: how a network would be trained in one launch, on a card that need not be
there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from warpfit import backends
from warpfit.engines.base import Plan, TrainingData
from warpfit.engines.launch_plan import LaunchDescription, describe, prepare_launch
from warpfit.engines.scaling import resolve_loss_scale
from warpfit.errors import ConfigError, required
from warpfit.training.evaluate import network_of
from warpfit.training.recipes import make_loss, make_model, make_optimizer
from warpfit.training.settings import TrainSettings

__all__ = ["plan_on_paper"]


def plan_on_paper(
    settings: TrainSettings, *, num_rows: int, features: int, outputs: int, card: str | None = None
) -> tuple[Plan, LaunchDescription]:
    """Return the plan of settings for bytes of so many features, and how it would be launched.

    Parameters
    ----------
    settings : TrainSettings
        Of an mlp. Losses but cross_entropy have `outputs` numbers a row as targets.
    num_rows, features, outputs : int
    card : str, optional
        By its name in `CARDS`; None is the settings' device.

    Raises
    ------
    ConfigError
        If the network cannot be trained in one launch, or there is no such card or device.
    """
    device, found = _device_and_card(settings.device, card)
    resolved = settings.resolved(
        num_rows=num_rows, has_classes=settings.loss in ("auto", "cross_entropy")
    )
    model = make_model(resolved, (features,), outputs)
    optimizer, loss = make_optimizer(resolved, model), make_loss(resolved)
    precision = "float16" if settings.precision == "auto" else settings.precision
    plan = Plan(
        engine="one_launch",
        device=device,
        precision=precision,
        network=network_of(model, (features,)),
        loss=loss,
        optimizer=optimizer.spec,
        batch_size=resolved.batch_size,
        epochs=resolved.epochs or 1,
        trained=tuple(model.state_dict()),
        num_rows=num_rows,
    )
    data = _blank(num_rows, features, 0 if resolved.loss == "cross_entropy" else outputs)
    prepared = required(prepare_launch(plan, data, card=found))
    scale = resolve_loss_scale("auto", prepared.gradient_precision, resolved.batch_size, num_rows)
    plan = replace(plan, reason=prepared.reason, loss_scale=scale, prepared=prepared)
    return plan, describe(prepared, data)


def _device_and_card(device: str, name: str | None) -> tuple[str, Any]:
    """Return the device of a plan and its `Card`: the one of this name, or else that of the
    device.
    """
    from warpfit.backends.cuda.cards import CARDS, card_of

    if name is not None:
        if name not in CARDS:
            raise ConfigError(f"expected a card among {', '.join(CARDS)}, got {name!r}")
        return "cuda:0", CARDS[name]
    device = backends.resolve_device(device)
    if device == "cpu":
        raise ConfigError(
            f"expected a GPU, or --card with one of {', '.join(CARDS)}, got device 'cpu'"
        )
    return device, card_of(cast(Any, backends.get(device)).runtime)


def _blank(num_rows: int, features: int, numbers: int) -> TrainingData:
    """Return data of bytes, and labels, or so many numbers a row, that take no memory."""
    targets = (
        np.broadcast_to(np.float32(0), (num_rows, numbers))
        if numbers
        else np.broadcast_to(0, num_rows)
    )
    return TrainingData(np.broadcast_to(np.uint8(0), (num_rows, features)), targets)
