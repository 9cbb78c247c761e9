"""Plans on paper: how a network would be trained in one launch, on a card not at hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np

from warpfit import backends
from warpfit.backends.base import HALF_DTYPES
from warpfit.engines.base import Plan, TrainingData
from warpfit.engines.launch_arguments import kernels_of
from warpfit.engines.launch_plan import (
    LaunchDescription,
    PreparedLaunch,
    describe,
    launches_on,
    prepare_launch,
)
from warpfit.engines.scaling import AUTO, resolve_loss_scale
from warpfit.errors import ConfigError, DeviceError, required
from warpfit.training.evaluate import network_of
from warpfit.training.on_cards import OnCards, expected_on_cards
from warpfit.training.recipes import make_loss, make_model, make_optimizer
from warpfit.training.settings import TrainSettings, merged_settings

Kernel = tuple[str, tuple[tuple[str, str], ...]]

# What is trained most, of MNIST's and digits' sizes: settings, and rows, features and outputs. What
# one does not say is as in the first.
USUAL_FORMS: tuple[Mapping[str, Any], ...] = tuple(
    {"hidden": hidden, "optimizer": optimizer, **sizes}
    for sizes, hidden, optimizer in product(
        (
            {"rows": 60_000, "features": 784, "outputs": 10},
            {"rows": 1_438, "features": 64, "outputs": 10},
        ),
        ("256", "128", "256,128"),
        ("sgd", "adam", "adamw"),
    )
)
# Of x; and of rows that validate, beside those that train.
SOURCES, SHARE_VALIDATED = ("uint8", "float32", "float64"), 1 / 6


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
    plan, data = _planned(
        settings, num_rows, features, outputs, *_device_and_card(settings.device, card)
    )
    return plan, describe(cast(PreparedLaunch, plan.prepared), data)


def cards_on_paper(
    settings: TrainSettings, *, num_rows: int, features: int, outputs: int, cards: int
) -> OnCards:
    """Return what is expected of a step of settings on so many cards that share each batch.

    Raises
    ------
    ConfigError
        As `expected_on_cards`, and if products are not in half precision.
    """
    if settings.precision not in (AUTO, *HALF_DTYPES):
        raise ConfigError(
            f"expected precision 'auto', {' or '.join(map(repr, HALF_DTYPES))} for several cards, "
            f"whose prices are those of half precision, got {settings.precision!r}"
        )
    resolved = _resolved(settings, num_rows)
    optimizer = make_optimizer(resolved, make_model(resolved, (features,), outputs))
    widths = (features, *(settings.hidden or ()), outputs)
    num_slots = len(optimizer.spec.slot_names)
    return expected_on_cards(widths, resolved.batch_size or 1, cards, num_slots)


def launch_on_paper(
    settings: TrainSettings, *, num_rows: int, features: int, outputs: int, cards: int
) -> float | str:
    """Return the microseconds that are expected of a step of settings in one launch over so many
    H200s, or why they do not train it in one.
    """
    device, card = _device_and_card("cuda", "h200")
    names = tuple(f"cuda:{idx}" for idx in range(cards)) if cards > 1 else ()
    try:
        plan, _ = _planned(settings, num_rows, features, outputs, device, card, names)
    except ConfigError as error:
        return str(error)
    return cast(float, cast(PreparedLaunch, plan.prepared).microseconds)


def _planned(
    settings: TrainSettings,
    num_rows: int,
    features: int,
    outputs: int,
    device: str,
    card: Any,
    devices: tuple[str, ...] = (),
) -> tuple[Plan, TrainingData]:
    resolved = _resolved(settings, num_rows)
    model = make_model(resolved, (features,), outputs)
    optimizer, loss = make_optimizer(resolved, model), make_loss(resolved)
    precision = "float16" if settings.precision == AUTO else settings.precision
    plan = Plan(
        engine="one_launch",
        device=device,
        precision=precision,
        network=network_of(model, (features,)),
        loss=loss,
        optimizer=optimizer.spec,
        batch_size=resolved.batch_size or 1,
        epochs=resolved.epochs or 1,
        trained=tuple(name for name, _ in model.named_parameters()),
        num_rows=num_rows,
        devices=devices,
    )
    data = _blank(num_rows, features, 0 if resolved.loss == "cross_entropy" else outputs)
    prepared = required(prepare_launch(plan, data, card=card))
    scale = resolve_loss_scale("auto", prepared.precision, plan.batch_size, num_rows)
    return replace(plan, reason=prepared.reason, loss_scale=scale, prepared=prepared), data


def _resolved(settings: TrainSettings, num_rows: int) -> TrainSettings:
    has_classes = settings.loss in (AUTO, "cross_entropy")
    return settings.resolved(num_rows=num_rows, has_classes=has_classes)


def kernels_on_paper(
    forms: Iterable[Mapping[str, Any]], arch: str | None = None
) -> tuple[str, list[Kernel]]:
    """Return the architecture, and the kernels by name and defines, that train networks in one
    launch, each with and without validation data, where a card can.

    Parameters
    ----------
    forms : iterable of mappings
        As `USUAL_FORMS`.
    arch : str, optional
        Such as ``'sm_90'``: for all cards of `CARDS` that have it; None is the first GPU's.

    Raises
    ------
    ConfigError
        As `plan_on_paper`, if none of them can; if no card has the architecture.
    DeviceError
        If there is no GPU, and no architecture was named.
    """
    cards = _cards_of(arch)
    found: dict[Kernel, None] = {}
    obstacle: ConfigError | None = None
    for form, card in product(forms, cards):
        try:
            launches = _launches(form, card)
        except ConfigError as error:
            obstacle = error
            continue
        for launch, source in product(launches, SOURCES):
            for name, defines in (("initial_values", {}), *kernels_of(launch, source)):
                found[name, tuple((key, str(value)) for key, value in defines.items())] = None
    if obstacle is not None and not found:
        raise obstacle
    return cards[0].arch, list(found)


def _launches(form: Mapping[str, Any], card: Any) -> list[Any]:
    settings = {**USUAL_FORMS[0], **form}
    rows, features, outputs = (settings.pop(name) for name in ("rows", "features", "outputs"))
    plan, data = _planned(merged_settings(settings), rows, features, outputs, "cuda:0", card)
    num_validated = int(rows * SHARE_VALIDATED)
    return launches_on(card, cast(PreparedLaunch, plan.prepared), plan, data, num_validated)


def _cards_of(arch: str | None) -> list[Any]:
    from warpfit.backends.cuda.cards import CARDS

    if arch is None:
        try:
            return [_device_and_card("cuda", None)[1]]
        except DeviceError as error:
            raise DeviceError(f"{error}; --arch names one that need not be here") from error
    found = [card for card in CARDS.values() if arch in (card.arch, card.arch.rstrip("a"))]
    if not found:
        known = dict.fromkeys(card.arch.rstrip("a") for card in CARDS.values())
        raise ConfigError(f"expected an architecture among {', '.join(known)}, got {arch!r}")
    return found


def _device_and_card(device: str, name: str | None) -> tuple[str, Any]:
    """Return the device of a plan and its `Card`: that of this name, or the device's."""
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
