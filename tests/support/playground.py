"""What the tests of the playground ask for, and the images they train on."""

from __future__ import annotations

import base64

import numpy as np

from warpfit.apps.playground.messages import DRAWING_SIZE
from warpfit.data import Dataset

__all__ = ["SETTINGS", "TRAIN_DIGITS", "TRAIN_POINTS", "a_drawing", "small_data"]

SETTINGS = {
    "width": 8,
    "depth": 1,
    "activation": "relu",
    "optimizer": "sgd",
    "lr": 0.05,
    "batch_size": 16,
    "epochs": 2,
}
TRAIN_DIGITS = {"type": "train", "task": "digits", "settings": SETTINGS, "afresh": True}
TRAIN_POINTS = {**TRAIN_DIGITS, "task": "points", "points": {"name": "moons", "noise": 0.1}}


def small_data(num_rows: int = 60) -> Dataset:
    """Return images of 8×8 pixels in three classes: bright above, in the middle or below."""
    labels = np.arange(num_rows) % 3
    images = np.random.default_rng(0).uniform(0, 0.2, size=(num_rows, 8, 8))
    for label in range(3):
        images[labels == label, 3 * label : 3 * label + 2] += 0.8
    x = images.reshape(num_rows, 64).astype(np.float32)
    return Dataset("small", x, labels, x, labels, ("above", "middle", "below"))


def a_drawing() -> str:
    """Return a vertical line as the page sends it."""
    pixels = np.zeros((DRAWING_SIZE, DRAWING_SIZE), np.uint8)
    pixels[20:90, 50:60] = 255
    return base64.b64encode(pixels.tobytes()).decode()
