"""A layer of every kind."""

from __future__ import annotations

from warpfit import nn

# Every layer of the package with samples that it takes.
LAYERS: dict[str, tuple[nn.Layer, tuple[int, ...]]] = {
    "Linear": (nn.Linear(5, 3, seed=0), (5,)),
    "Linear without bias": (nn.Linear(5, 3, bias=False, seed=0), (5,)),
    "Conv2d": (
        nn.Conv2d(2, 3, (3, 2), stride=2, padding=(1, 0), dilation=(1, 2), seed=0),
        (6, 5, 2),
    ),
    "Conv2d without bias": (nn.Conv2d(1, 2, 1, bias=False, seed=0), (2, 2, 1)),
    "Conv1d": (nn.Conv1d(2, 3, 3, stride=2, padding=1, dilation=2, seed=0), (9, 2)),
    "MaxPool2d": (nn.MaxPool2d(3, stride=2, padding=1), (6, 5, 2)),
    "AvgPool2d": (nn.AvgPool2d((2, 3)), (6, 6, 2)),
    "GlobalAvgPool2d": (nn.GlobalAvgPool2d(), (6, 6, 2)),
    "GlobalMaxPool2d": (nn.GlobalMaxPool2d(), (6, 6, 2)),
    "BatchNorm1d": (nn.BatchNorm1d(5, eps=1e-3, momentum=0.3), (5,)),
    "BatchNorm1d plain": (nn.BatchNorm1d(5, affine=False), (5,)),
    "BatchNorm2d": (nn.BatchNorm2d(2), (3, 3, 2)),
    "LayerNorm": (nn.LayerNorm((3, 2), eps=1e-3), (4, 3, 2)),
    "LayerNorm without bias": (nn.LayerNorm(5, bias=False), (5,)),
    "LayerNorm plain": (nn.LayerNorm(5, elementwise_affine=False), (5,)),
    "GroupNorm": (nn.GroupNorm(2, 4, eps=1e-3), (3, 3, 4)),
    "RandomCrop": (nn.RandomCrop((2, 3)), (3, 4, 2)),
    "RandomCutout": (nn.RandomCutout(2), (3, 4, 2)),
    "RandomFlip": (nn.RandomFlip(0.3), (3, 4, 2)),
    "RandomShift": (nn.RandomShift((1, 2)), (3, 4, 2)),
    "Dropout": (nn.Dropout(0.3), (5,)),
    "Flatten": (nn.Flatten(), (2, 3)),
    "Embedding": (nn.Embedding(7, 4), (3,)),
    "Identity": (nn.Identity(), (5,)),
    "ReLU": (nn.ReLU(), (5,)),
    "LeakyReLU": (nn.LeakyReLU(0.3), (5,)),
    "Tanh": (nn.Tanh(), (5,)),
    "Sigmoid": (nn.Sigmoid(), (5,)),
    "GELU": (nn.GELU(), (5,)),
    "GELU by tanh": (nn.GELU("tanh"), (5,)),
    "SiLU": (nn.SiLU(), (5,)),
    "SELU": (nn.SELU(), (5,)),
    "Mish": (nn.Mish(), (5,)),
    "Softmax": (nn.Softmax(), (5,)),
    "LogSoftmax": (nn.LogSoftmax(), (5,)),
}
