"""What the page may ask: everything within bounds, nothing else, and one sentence for what is
refused.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as property_settings
from hypothesis import strategies as st

from support.playground import SETTINGS, TRAIN_DIGITS, TRAIN_POINTS, a_drawing
from warpfit.apps.playground.messages import (
    BOUNDS,
    DRAWING_SIZE,
    MAX_BYTES,
    PointChoice,
    Predict,
    Sample,
    Settings,
    Stop,
    Train,
    contents,
    parse,
)
from warpfit.errors import ConfigError
from warpfit.training.settings import OPTIMIZERS

PREDICT = {"type": "predict", "id": 3, "pixels": a_drawing()}


def parsed(message: Any) -> Any:
    return parse(json.dumps(message))


def test_what_may_be_asked() -> None:
    settings = Settings(**SETTINGS)
    digits = Train("digits", settings, None, True, 2)
    assert parsed(TRAIN_DIGITS) == digits
    assert parsed(TRAIN_POINTS) == replace(digits, task="points", points=PointChoice("moons", 0.1))
    assert parsed({**TRAIN_DIGITS, "afresh": False}) == replace(digits, afresh=False)
    assert parsed({"type": "reset", "task": "digits", "settings": SETTINGS}) == replace(
        digits, epochs=0
    )
    assert parsed({"type": "stop"}) == Stop()
    assert parsed({"type": "sample"}) == Sample()
    predict = parsed(PREDICT)
    assert isinstance(predict, Predict)
    assert (predict.id, predict.pixels.shape, predict.pixels.dtype) == (
        3,
        (DRAWING_SIZE,) * 2,
        np.uint8,
    )
    assert predict.pixels[50, 55] == 255
    assert predict.pixels[50, 65] == 0


def test_the_bounds_themselves_are_allowed() -> None:
    for name, value in [
        ("width", 1),
        ("width", 512),
        ("depth", 0),
        ("lr", 1e-5),
        ("lr", 10),
        ("epochs", 1000),
    ]:
        assert getattr(parsed(with_setting(name, value)).settings, name) == value


def with_setting(name: str, value: Any) -> dict[str, Any]:
    return {**TRAIN_DIGITS, "settings": {**SETTINGS, name: value}}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("width", 0, "expected width to be an integer from 1 to 512, got 0"),
        ("width", 513, "got 513"),
        ("width", 8.0, "got 8.0"),
        ("width", "8", 'got "8"'),
        ("width", True, "got true"),
        ("width", None, "got null"),
        ("width", 10**400, "got a larger integer"),
        ("depth", -1, "expected depth to be an integer from 0 to 4, got -1"),
        ("lr", 0, "expected lr to be a number from 1e-05 to 10, got 0"),
        ("lr", 11, "got 11"),
        ("lr", 10**400, "got a larger integer"),
        ("lr", [1], "got a list"),
        ("batch_size", 2000, "batch_size to be an integer from 1 to 1024"),
        ("epochs", 1001, "epochs to be an integer from 1 to 1000"),
        ("optimizer", "magic", f'expected optimizer among {", ".join(OPTIMIZERS)}, got "magic"'),
        ("optimizer", {}, "got an object"),
        ("activation", "x" * 1000, f'got "{"x" * 39}…'),
    ],
)
def test_settings_out_of_bounds(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parsed(with_setting(name, value))
    assert message in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("", "expected a message in JSON, got something else"),
        ("{", "expected a message in JSON"),
        ("[" * 20_000, "expected a message in JSON"),
        ("1" * 5000, "expected a message in JSON"),
        ("[]", "expected the message to be an object, got a list"),
        ("null", "expected the message to be an object, got null"),
        ('{"type": "stop", "type": "stop"}', "expected every key once in an object, got one twice"),
        ('{"type": "stop", "x": NaN}', "expected finite numbers, got NaN"),
        ('{"type": "stop", "x": -Infinity}', "expected finite numbers, got -Infinity"),
        ({}, "expected type among train, reset, stop, predict, sample, got null"),
        ({"type": ["stop"]}, "expected type among"),
        ({"type": "format"}, 'got "format"'),
        ({"type": "stop", "now": True}, 'expected only type in the message, got "now"'),
        ({"type": "train"}, "expected task in the message, got none"),
        ({**TRAIN_DIGITS, "task": "mnist"}, 'expected task among digits, points, got "mnist"'),
        ({**TRAIN_DIGITS, "afresh": 1}, "expected afresh to be true or false, got 1"),
        ({**TRAIN_DIGITS, "settings": []}, "expected settings to be an object, got a list"),
        ({**TRAIN_DIGITS, "settings": {}}, "expected width in settings, got none"),
        ({**TRAIN_DIGITS, "settings": {**SETTINGS, "seed": 1}}, 'in settings, got "seed"'),
        (
            {**TRAIN_DIGITS, "points": {"name": "moons", "noise": 0}},
            "and for no other, got task 'digits'",
        ),
        ({**TRAIN_DIGITS, "task": "points"}, "expected points for the task points"),
        (
            {**TRAIN_POINTS, "points": {"name": "stars", "noise": 0}},
            "expected name among spirals, moons",
        ),
        (
            {**TRAIN_POINTS, "points": {"name": "moons", "noise": 1}},
            "noise to be a number from 0 to 0.5",
        ),
        ({**PREDICT, "id": -1}, "expected id to be an integer from 0"),
        ({**PREDICT, "pixels": [0]}, "expected pixels in base64, got a list"),
        ({**PREDICT, "pixels": "é" * 9}, "expected pixels in base64, got other characters"),
        ({**PREDICT, "pixels": "AAAA"}, "expected 112×112 pixels of a byte, got 3 bytes"),
        (
            {**PREDICT, "pixels": "A" * MAX_BYTES},
            f"a message of at most {MAX_BYTES} bytes, got a longer one",
        ),
    ],
)
def test_what_is_refused(message: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(message if isinstance(message, str) else json.dumps(message))
    assert sentence in str(error.value)


def test_a_number_too_large_for_a_float() -> None:
    text = json.dumps(with_setting("lr", 7.5)).replace("7.5", "1e999")
    with pytest.raises(
        ConfigError, match="expected lr to be a number from 1e-05 to 10, got a number too large"
    ):
        parse(text)


# Some of each kind: a table of all of Unicode would take a second to make.
CHARACTERS = 'a0 \0\n"\\{}[]:,-.eé☃𝄞\u202e'
NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(CHARACTERS, max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(CHARACTERS, max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@property_settings(max_examples=10)
@given(st.sampled_from(["type", "task", "settings", "afresh", "points"]), NESTED)
def test_any_value_is_taken_or_refused(key: str, value: Any) -> None:
    try:
        request = parsed({**TRAIN_POINTS, key: value})
    except ConfigError:
        return
    assert isinstance(request, Train)


@given(st.text(CHARACTERS, max_size=40))
def test_any_text_is_taken_or_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text)


def test_the_page_is_told_bounds_that_its_defaults_keep() -> None:
    for num_digits in (100, 60_000):
        told = json.loads(json.dumps(contents(num_digits)))
        assert set(told["bounds"]) == {*BOUNDS, "points", "noise"}
        for task, settings in told["defaults"].items():
            message = {"type": "train", "task": task, "settings": settings, "afresh": True}
            extra = {"points": told["points"]} if task == "points" else {}
            assert parsed({**message, **extra}).epochs == settings["epochs"]


def test_pixels_need_not_be_padded_right_by_luck() -> None:
    whole = base64.b64encode(bytes(DRAWING_SIZE**2)).decode()
    with pytest.raises(ConfigError, match="base64"):
        parsed({**PREDICT, "pixels": whole + "="})
