"""Layers against PyTorch's, where it is installed: values, and the gradients of x and parameters.

Samples are channels-last here, and channels-first there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from warpfit import Tensor, nn

torch = pytest.importorskip("torch")


class Pair(NamedTuple):
    """A layer of each library, with the shape of a batch, channels last."""

    ours: Callable[..., nn.Module]
    theirs: Callable[..., Any]
    shape: tuple[int, ...]


IMAGES, SEQUENCES = (2, 7, 6, 2), (3, 9, 2)
PAIRS: dict[str, Pair] = {
    "Conv2d, same": Pair(
        lambda: nn.Conv2d(2, 3, (3, 5), padding="same", dilation=(2, 1)),
        lambda: torch.nn.Conv2d(2, 3, (3, 5), padding="same", dilation=(2, 1)),
        IMAGES,
    ),
    "Conv1d": Pair(
        lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1, dilation=2),
        lambda: torch.nn.Conv1d(2, 3, 3, stride=2, padding=1, dilation=2),
        SEQUENCES,
    ),
    "Conv1d, same": Pair(
        lambda: nn.Conv1d(2, 3, 5, padding="same", bias=False),
        lambda: torch.nn.Conv1d(2, 3, 5, padding="same", bias=False),
        SEQUENCES,
    ),
    "GroupNorm": Pair(
        lambda: nn.GroupNorm(2, 6, eps=1e-3), lambda: torch.nn.GroupNorm(2, 6, 1e-3), (2, 4, 3, 6)
    ),
    "GroupNorm of rows": Pair(
        lambda: nn.GroupNorm(3, 6, affine=False),
        lambda: torch.nn.GroupNorm(3, 6, affine=False),
        (4, 6),
    ),
    "GlobalAvgPool2d": Pair(nn.GlobalAvgPool2d, lambda: torch.nn.AdaptiveAvgPool2d(1), IMAGES),
    "GlobalMaxPool2d": Pair(nn.GlobalMaxPool2d, lambda: torch.nn.AdaptiveMaxPool2d(1), IMAGES),
}


def channels_first(array: Any) -> Any:
    return np.moveaxis(array, -1, 1)


def in_their_order(name: str, array: Any) -> Any:
    """Return a parameter as PyTorch has it: outputs and inputs first, then the kernel's axes."""
    if name != "weight" or array.ndim < 3:
        return array
    return np.moveaxis(array, (-1, -2), (0, 1))


@pytest.mark.parametrize("name", PAIRS)
def test_layers_are_pytorchs(name: str) -> None:
    pair = PAIRS[name]
    ours, theirs = pair.ours().to(dtype="float64"), pair.theirs().double()
    rng = np.random.default_rng(0)
    values = rng.standard_normal(pair.shape)
    x = Tensor(values, requires_grad=True)
    other_x = torch.tensor(channels_first(values), requires_grad=True)
    for own, parameter in ours.named_parameters():
        parameter.data[...] = rng.standard_normal(parameter.shape)
        getattr(theirs, own).data = torch.tensor(in_their_order(own, parameter.data))
    y, other_y = ours(x), theirs(other_x)
    dy = rng.standard_normal(y.shape)
    y.backward(dy)
    other_y.backward(torch.tensor(channels_first(dy)).reshape(other_y.shape))
    expected = other_y.detach().numpy().reshape(channels_first(y.data).shape)
    np.testing.assert_allclose(channels_first(y.data), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(channels_first(x.grad), other_x.grad, rtol=1e-10, atol=1e-12)
    for own, parameter in ours.named_parameters():
        np.testing.assert_allclose(
            in_their_order(own, parameter.grad), getattr(theirs, own).grad, rtol=1e-10, atol=1e-12
        )
