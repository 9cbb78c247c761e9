"""Plans on paper: how a network would be trained in one launch, on a card that need not be there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from warpfit import backends
from warpfit.engines.base import Plan, TrainingData
from warpfit.engines.one_launch import LaunchDescription, describe
from warpfit.engines.scaling import resolve_loss_scale
from warpfit.errors import ConfigError
from warpfit.training.evaluate import network_of
from warpfit.training.recipes import make_loss, make_model, make_optimizer
from warpfit.training.settings import TrainSettings

__all__ = ["CARD_NAMES", "plan_on_paper"]

CARD_NAMES = ("t4", "a100", "rtx3090", "rtx4090", "h100", "h200")


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
        One of `CARD_NAMES`; None is the settings' device.

    Raises
    ------
    ConfigError
        If the network cannot be trained in one launch, or there is no such card or device.
    """
    from warpfit.backends.cuda.cards import CARDS, card_of

    if card is not None and card not in CARDS:
        raise ConfigError(f"expected a card among {', '.join(CARDS)}, got {card!r}")
    device = "cuda:0" if card is not None else backends.resolve_device(settings.device)
    if card is None and device == "cpu":
        raise ConfigError(f"expected a GPU, or --card with one of {', '.join(CARDS)}, got device 'cpu'")
    resolved = settings.resolved(num_rows=num_rows, has_classes=settings.loss in ("auto", "cross_entropy"))
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
        loss_scale=resolve_loss_scale("auto", precision, resolved.batch_size, num_rows),
    )
    has_classes = resolved.loss == "cross_entropy"
    y = (
        np.broadcast_to(np.int64(0), (num_rows,))
        if has_classes
        else np.broadcast_to(np.float32(0), (num_rows, outputs))
    )
    data = TrainingData(np.broadcast_to(np.uint8(0), (num_rows, features)), y)
    found = CARDS[card] if card is not None else card_of(backends.get(device).runtime)  # type: ignore[attr-defined]
    description = describe(plan, data, found)
    return replace(plan, reason=description.layout), description
