"""Texts: settings in TOML, and messages of the playground's page."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from fuzzing.harness import Feed, Rng, family, must_work
from fuzzing.mutations import altered, altered_bytes, nasty
from warpfit.apps.playground.drawing import as_digit
from warpfit.apps.playground.messages import DIGITS, DRAWING_SIZE, OF_MANY_DIGITS, Predict, parse
from warpfit.training.settings import TrainSettings, merged_settings

VALUES = (
    *(
        "1",
        "-1",
        "0",
        "2.5",
        "true",
        "'relu'",
        "'adam'",
        "''",
        "[]",
        "[8, 4]",
        "[-1]",
        "nan",
        "inf",
        "-inf",
    ),
    *(
        "9223372036854775807",
        "1e400",
        "{}",
        "{a = 1}",
        "1979-05-27",
        "'none'",
        '"\\u0000"',
        "[[1]]",
        "0x7f",
        "'8,4'",
    ),
)


@family("TOML settings")
def toml_settings(folder: Path) -> Feed:
    """Feed `merged_settings`, which ``warpfit train --config`` calls."""
    path = folder / "fuzzed.toml"
    names = [*vars(TrainSettings()), "batch-size", "unknown"]

    def feed(rng: Rng) -> None:
        chosen = rng.choice(names, size=rng.integers(1, 5), replace=False)
        content = "\n".join(
            f"{name} = {VALUES[rng.integers(len(VALUES))]}" for name in chosen
        ).encode()
        path.write_bytes(altered_bytes(content, rng) if rng.random() < 0.3 else content)
        settings = merged_settings({}, path)
        with must_work():
            path.write_text(settings.to_toml(), encoding="utf-8")
            merged_settings({}, path)

    return feed


MESSAGES: tuple[dict[str, Any], ...] = (
    *(
        {"type": kind, "task": DIGITS, "settings": vars(OF_MANY_DIGITS), **more}
        for kind, more in (("train", {"afresh": True}), ("reset", {}))
    ),
    {
        "type": "train",
        "task": "points",
        "settings": vars(OF_MANY_DIGITS),
        "points": {"name": "moons", "noise": 0.1},
        "afresh": False,
    },
    {"type": "stop"},
    {"type": "sample"},
    {"type": "predict", "id": 3, "pixels": base64.b64encode(bytes(range(112)) * 112).decode()},
)


@family("playground messages")
def playground_messages(folder: Path) -> Feed:
    """Feed `parse`, and what is drawn to the function that prepares a drawing."""

    def feed(rng: Rng) -> None:
        message = altered(MESSAGES[rng.integers(len(MESSAGES))], rng)
        if rng.random() < 0.2:
            message = {"type": "predict", "id": 1, "pixels": nasty(rng)}
        text = json.dumps(message)
        if rng.random() < 0.3:
            text = altered_bytes(text.encode(), rng).decode(errors="replace")
        request = parse(text)
        with must_work():
            if isinstance(request, Predict):
                assert request.pixels.shape == (DRAWING_SIZE, DRAWING_SIZE)
                for size in (28, 8):
                    as_digit(request.pixels, size)

    return feed
