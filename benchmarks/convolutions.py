"""Convolutions one by one, beside cuDNN's best algorithms.

Each pass of each shape is captured some times in a CUDA graph of its own, ours as engines capture
it, cuDNN's through PyTorch in channels-last memory with `cudnn.benchmark`, which tries all
algorithms. The graphs take turns on one stream. Outputs and gradients are float16, but for those of
our weights, which are float32; biases there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import Any

CALLS, ROUNDS = 10, 9
BATCH = 512
PASSES = ("forward", "input", "weight")


@dataclass(frozen=True)
class Shape:
    """A convolution with square images and kernels, perhaps in groups."""

    size: int
    channels: int
    outputs: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    batch: int = BATCH
    groups: int = 1

    @property
    def name(self) -> str:
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        groups = ", depthwise" if self.groups == self.channels > 1 else groups
        stride = "" if self.stride == 1 else f", stride {self.stride}"
        padding = "" if not self.padding else ", padded"
        batch = "" if self.batch == BATCH else f"{self.batch} of "
        image = f"{batch}{self.size} × {self.size} × {self.channels}"
        taps = f"{self.kernel} × {self.kernel}"
        return f"{image}, {taps} to {self.outputs}{groups}{stride}{padding}"

    @property
    def x(self) -> tuple[int, int, int, int]:
        return self.batch, self.size, self.size, self.channels

    @property
    def w(self) -> tuple[int, int, int, int]:
        return self.kernel, self.kernel, self.channels // self.groups, self.outputs

    @property
    def y(self) -> tuple[int, int, int, int]:
        side = (self.size + 2 * self.padding - self.kernel) // self.stride + 1
        return self.batch, side, side, self.outputs

    @property
    def flop(self) -> float:
        return 2.0 * prod(self.y) * prod(self.w[:3])

    @property
    def bytes(self) -> int:
        """What each pass reads and writes at least."""
        return 2 * (prod(self.x) + prod(self.w) + prod(self.y))

    @property
    def settings(self) -> dict[str, Any]:
        pairs = {"stride": (self.stride,) * 2, "padding": (self.padding,) * 2}
        return {**pairs, "groups": self.groups}


SHAPES = (
    Shape(28, 1, 32, padding=0),
    Shape(26, 32, 64, padding=0),
    Shape(32, 64, 64),
    Shape(16, 128, 128),
    Shape(8, 256, 256),
    Shape(4, 512, 512),
    Shape(32, 64, 128, stride=2),
    Shape(32, 64, 128, kernel=1, stride=2, padding=0),
    # Depthwise ones of MobileNet's kind, and groups of ResNeXt's.
    Shape(32, 128, 128, batch=64, groups=128),
    Shape(14, 512, 512, batch=64, groups=512),
    Shape(56, 64, 64, stride=2, batch=64, groups=64),
    Shape(28, 192, 192, kernel=5, padding=2, batch=64, groups=192),
    Shape(28, 128, 128, batch=64, groups=32),
    Shape(14, 256, 256, batch=64, groups=32),
    Shape(7, 1024, 1024, batch=64, groups=32),
)


def rows(shapes: tuple[Shape, ...] = SHAPES, report: Callable[[str], None] = print) -> list[Any]:
    """Return microseconds, TFLOP/s and bytes of each pass of each shape, ours and cuDNN's."""
    import torch

    from warpfit.backends.cuda import CudaBackend
    from warpfit.backends.cuda.runtime import open_device

    torch.backends.cudnn.benchmark = True
    runtime, found = open_device(0), []
    stream = torch.cuda.ExternalStream(int(runtime.stream.handle))
    for shape in shapes:
        ops = CudaBackend(runtime, reuse=True)
        ours, theirs = _ours(ops, shape), _theirs(shape)
        row: dict[str, Any] = {"shape": shape.name, "bytes": shape.bytes, "passes": {}}
        for name in PASSES:
            if name == "input" and shape.channels == 1:
                continue  # of the data
            graphs = [_our_graph(ops, ours[name]), _their_graph(stream, theirs[name])]
            us, cudnn_us = _times(stream, graphs)
            rates = [shape.flop / 1e6 / each for each in (us, cudnn_us)]
            row["passes"][name] = {
                "warpfit": {"us": us, "tflops": rates[0]},
                "cudnn": {"us": cudnn_us, "tflops": rates[1]},
            }
            report(
                f"{shape.name:52} {name:8} {us:7.1f} µs {rates[0]:4.0f} TFLOP/s, cuDNN "
                f"{cudnn_us:7.1f} µs {rates[1]:4.0f}: {cudnn_us / us:.2f}"
            )
        found.append(row)
    return found


def _ours(ops: Any, shape: Shape) -> dict[str, Callable[[], Any]]:
    import numpy as np

    rng = np.random.default_rng(0)
    x, w, dz = (
        ops.copy(ops.asarray(rng.standard_normal(size, np.float32), "float16"))
        for size in (shape.x, shape.w, shape.y)
    )
    settings = shape.settings
    return {
        "forward": lambda: ops.conv2d_forward(x, w, None, **settings),
        "input": lambda: ops.conv2d_backward_input(dz, w, shape.x, **settings),
        "weight": lambda: ops.conv2d_backward_weight(
            dz, x, shape.w[:2], **settings, needs_db=False
        ),
    }


def _theirs(shape: Shape) -> dict[str, Callable[[], Any]]:
    import torch

    def images(size: tuple[int, ...]) -> Any:
        (count, height, width, channels) = size
        values = torch.randn((count, channels, height, width), device="cuda", dtype=torch.float16)
        return values.contiguous(memory_format=torch.channels_last)

    kh, kw, channels, outputs = shape.w
    x, w, dz = images(shape.x), images((outputs, kh, kw, channels)), images(shape.y)
    pairs, groups = (shape.settings["stride"], shape.settings["padding"], (1, 1)), shape.groups

    def backward(mask: list[bool]) -> Any:
        rest = (*pairs, False, (0, 0), groups, mask)
        return torch.ops.aten.convolution_backward(dz, x, w, None, *rest)

    return {
        "forward": lambda: torch.nn.functional.conv2d(x, w, None, *pairs, groups),
        "input": lambda: backward([True, False, False]),
        "weight": lambda: backward([False, True, False]),
    }


def _our_graph(ops: Any, call: Callable[[], Any]) -> Callable[[], None]:
    for _ in range(2):
        ops.begin_step()
        call()
    with ops.runtime.capture() as graph:
        for _ in range(CALLS):
            ops.begin_step()
            call()
    launch: Callable[[], None] = graph.launch
    return launch


def _their_graph(stream: Any, call: Callable[[], Any]) -> Callable[[], None]:
    import torch

    stream.wait_stream(torch.cuda.default_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(CALLS):
            call()
    replay: Callable[[], None] = graph.replay
    return replay


def _times(stream: Any, graphs: list[Callable[[], None]]) -> list[float]:
    """Return the microseconds of a call, the median of some rounds; the graphs take turns."""
    import torch

    times: list[list[float]] = [[] for _ in graphs]
    with torch.cuda.stream(stream):
        for idx in range(ROUNDS + 2):
            for run, own in zip(graphs, times, strict=True):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record(stream)
                run()
                end.record(stream)
                end.synchronize()
                if idx >= 2:
                    own.append(begin.elapsed_time(end) * 1e3 / CALLS)
    return [median(own) for own in times]
