"""The recipe airbench: a network of convolutions for images of 32 × 32 pixels, trained by Muon for
eight epochs.

In its authors' program the bias of the first layer is trained for three epochs, with a rate that
falls to 0 by then. Here it is trained in all of them, with a rate whose sum over the steps is the
same, and does not decay.

References
----------
Jordan: 94% on CIFAR-10 in 3.29 Seconds on a Single GPU (2024); ``airbench94_muon.py`` of the
repository KellerJordan/cifar10-airbench, whose settings these are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import nn, optim, random
from warpfit.errors import ShapeError
from warpfit.losses import SoftmaxCrossEntropy
from warpfit.training.evaluate import predict

Array = npt.NDArray[Any]

EPOCHS, BATCH_SIZE = 8, 2000
LOSS = SoftmaxCrossEntropy(0.2)
WIDTHS = (64, 256, 256)
SHIFT = 2  # pixels, along each axis
# The first layer's filters are of so many pixels a side; their variance gets so much more.
WHITENED, LEAST_VARIANCE = 2, 5e-4
MOST_WHITENED = 5000  # images whose patches are looked at
# Batch norm: what joins a variance, and the batch's share in the running statistics.
EPS, MOMENTUM = 1e-12, 0.4
# Rates for a sum over the batch, and what all but filters lose of themselves in a step for a row.
BIAS_LR, HEAD_LR, DECAY = 0.053, 0.67, 2e-6
FILTER_LR, FILTER_MOMENTUM, OTHERS_MOMENTUM = 0.24, 0.6, 0.85
SHARE_OF_FIRST_BIAS = 3 / EPOCHS


def network(channels: int, num_classes: int, steps_per_epoch: int) -> nn.Sequential:
    """Return the network for images (32, 32, channels), with random initial values.

    The first of a convolution's filters repeat its inputs. Batch norms have no weights that are
    trained.
    """
    width = 2 * channels * WHITENED**2
    layers: list[nn.Module] = [
        nn.RandomFlip(alternate=steps_per_epoch),
        nn.RandomShift(SHIFT, padding_mode="reflect"),
        nn.Conv2d(channels, width, WHITENED),
        nn.GELU(),
    ]
    for outputs in WIDTHS:
        layers += _group(width, outputs)
        width = outputs
    head = nn.Linear(width, num_classes, bias=False)
    # Outputs are divided by the width, which is in the weights here.
    head.weight.data /= head.weight.data.std() * width
    return nn.Sequential([*layers, nn.MaxPool2d(3), nn.Flatten(), head])


def _group(channels: int, outputs: int) -> list[nn.Module]:
    convolutions = [
        nn.Conv2d(inputs, outputs, 3, padding="same", bias=False) for inputs in (channels, outputs)
    ]
    norms = [nn.BatchNorm2d(outputs, EPS, MOMENTUM) for _ in convolutions]
    for convolution, norm in zip(convolutions, norms, strict=True):
        _repeat_inputs(convolution.weight.data)
        norm.weight.requires_grad = False
    return [
        convolutions[0],
        nn.MaxPool2d(2),
        norms[0],
        nn.GELU(),
        convolutions[1],
        norms[1],
        nn.GELU(),
    ]


def _repeat_inputs(filters: Array) -> None:
    """Make of a convolution's first filters (H, W, inputs, outputs) what gives its inputs."""
    height, width, inputs, outputs = filters.shape
    same = np.arange(min(inputs, outputs))
    filters[..., same] = 0
    filters[height // 2, width // 2, same, same] = 1


def whiten(model: nn.Sequential, images: Array) -> None:
    """Give the first convolution the eigenvectors of the images' patches, with either sign, and
    leave these as they are.

    Parameters
    ----------
    model : Sequential
        What `network` returns.
    images : ndarray (N, H, W, C) float
        With values in [0, 1], as the network takes them. Each channel's mean and deviation over
        the images go into the filters.
    """
    first: Any = model[2]
    axes = (0, 1, 2)
    means = images.mean(axes, dtype=np.float64)
    deviations = np.maximum(images.std(axes, dtype=np.float64), LEAST_VARIANCE)
    standardised = (images[:MOST_WHITENED] - means) / deviations
    sides = (WHITENED, WHITENED)
    patches = np.lib.stride_tricks.sliding_window_view(standardised, sides, (1, 2))
    rows = np.moveaxis(patches, 3, -1).reshape(-1, WHITENED**2 * images.shape[3])
    variances, vectors = np.linalg.eigh((rows.T @ rows / len(rows)).astype(np.float64))
    scaled = vectors / np.sqrt(variances + LEAST_VARIANCE)
    filters = np.concatenate([scaled, -scaled], axis=1).reshape(first.weight.shape)
    filters = filters / deviations[:, np.newaxis]
    dtype = first.weight.data.dtype
    shifts = np.einsum("hwco,c->o", filters, means)
    first.weight.data[...] = filters.astype(dtype)
    first.bias.data[...] = (first.bias.data - shifts).astype(dtype)
    first.weight.requires_grad = False


def optimizer_of(model: nn.Sequential, batch_size: int = BATCH_SIZE) -> optim.Muon:
    """Return Muon for the filters, and Nesterov's momentum for biases and the last layer.

    The rates are those for a mean over the batch, and for a last layer that divides by its width.
    """
    layers: list[Any] = [layer for layer in model if list(layer.named_parameters())]
    first, head = layers[0], layers[-1]
    filters = [layer.weight for layer in layers[1:] if isinstance(layer, nn.Conv2d)]
    biases = [layer.bias for layer in layers if isinstance(layer, nn.BatchNorm2d)]
    width, decay = head.weight.shape[0], DECAY * batch_size
    bias_lr, head_lr = BIAS_LR * batch_size, HEAD_LR * batch_size / width**2
    groups = [
        {"params": [first.bias], "lr": SHARE_OF_FIRST_BIAS * bias_lr, "weight_decay": 0.0},
        {"params": biases, "lr": bias_lr, "weight_decay": decay / bias_lr},
        {"params": [head.weight], "lr": head_lr, "weight_decay": decay / head_lr},
    ]
    others = optim.SGD(groups, bias_lr, momentum=OTHERS_MOMENTUM, nesterov=True)
    return optim.Muon(
        filters,
        optim.Linear(FILTER_LR),
        momentum=FILTER_MOMENTUM,
        weight_decay=0.0,
        ns_steps=3,
        adjust_lr_fn="none",
        normalize=True,
        others=others,
    )


def mirrored_half(images: Array, seed: int) -> Array:
    """Return images (N, H, W, C), half of which, drawn by a seed, are mirrored left to right."""
    drawn = random.uniform((len(images),), random.stream_key(seed, random.DROPOUT), 0) < 0.5
    found = images.copy()
    found[drawn] = images[drawn, :, ::-1]
    return found


def outputs_of_views(model: nn.Sequential, images: Array) -> Array:
    """Return the mean outputs (N, classes) for images, theirs mirrored, and both moved by a pixel
    up and to the left, and down and to the right, which count half.
    """
    if images.ndim != 4:
        raise ShapeError(f"expected images (N, H, W, C), got shape {images.shape}")
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), "reflect")
    height, width = images.shape[1:3]
    moved = [padded[:, at : at + height, at : at + width] for at in (0, 2)]
    weighted = [(images, 0.25), *((view, 0.125) for view in moved)]
    found = [
        share * predict(model, np.ascontiguousarray(view))
        for seen, share in weighted
        for view in (seen, seen[:, :, ::-1])
    ]
    return np.add.reduce(found)
