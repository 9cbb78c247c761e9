"""What all operations speak of: arrays, numbers, dtypes, and the names of functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

# An array of some backend: a numpy.ndarray here, a device array elsewhere.
Array = Any

Pair = tuple[int, int]
Pairs = tuple[Pair, Pair, Pair]  # stride, padding and dilation of windows
Axis = int | tuple[int, ...] | None

# A number that an operation is given, or that lies, () float64, on the backend's device: an
# operation that has been captured finds another there each time.
Number = float | Array

FLOAT_DTYPES = ("float32", "float64")

# Half-precision dtypes: stored as such, computed in float32. Only device arrays have them.
HALF_DTYPES = ("float16", "bfloat16")

# How a run computes: a float dtype for everything, or products of float32 numbers on tensor cores
# ("tf32"), or activations and their gradients in half precision with parameters and sums in
# float32.
PRECISIONS = (*FLOAT_DTYPES, "tf32", *HALF_DTYPES)

# Largest |result - reference| / max(1, |reference|) element by element, against the NumPy backend
# in float64.
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}

UNARY = ("neg", "exp", "log", "sqrt", "square", "abs", "sign", "reciprocal", "sin", "cos")
BINARY = ("add", "sub", "mul", "div", "pow", "maximum", "minimum")
COMPARISONS = ("eq", "lt", "gt", "le", "ge")
REDUCTIONS = ("sum", "mean", "max", "min")


class ImageWindows(NamedTuple):
    """Windows of images: their size, and what they may show around an image."""

    size: Pair
    padding: Pair = (0, 0)  # pixels on each side
    reflects: bool = False  # whether these are the image's reflection without the border, not zeros


# The losses that are sums over elements.
ELEMENT_LOSSES = ("mse", "absolute_error", "huber", "binary_cross_entropy")


@dataclass(frozen=True)
class LossTerms:
    """A loss, for an operation that knows several."""

    # 'cross_entropy', of labels; or of numbers 'mse', 'absolute_error', 'huber' or
    # 'binary_cross_entropy', as sums over outputs.
    name: str
    setting: float = 0.0  # the share of label smoothing, or Huber's delta
    # of_term and of_derivative: what a row's sum and its derivatives are multiplied by; the
    # derivative of a square comes as half of it.
    of_term: float = 1.0
    of_derivative: float = 1.0
