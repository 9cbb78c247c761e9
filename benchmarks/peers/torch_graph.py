"""The same training steps in PyTorch as it is quickest: a compiled step, some of them in a CUDA
graph.

`torch.compile` makes one function of forward, loss, backward, update and sums. A graph holds up to
32 steps and begins with what these need: their rows, which it finds by itself, as a counter on the
device says how far the epoch is; what Adam takes from the number of a step, the scheduled rate
included; and which units dropout keeps. The host only has the epoch's order drawn, on the device,
and starts graphs. The shorter last batch would be compiled for itself, and is left out. Weights are
float32; for bfloat16, rows of x are kept in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import pi
from typing import Any, Protocol

import numpy as np
import torch
from torch.func import grad_and_value
from torch.nn.functional import linear, relu

from peers.torch_eager import MATMUL_PRECISIONS, loss_and_correct, make_optimizer, mlp

STEPS_OF_A_GRAPH = 32
# Adam's usual settings.
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
# Each network, batch and precision is compiled for itself; by default the ninth of a function would
# stay eager.
torch._dynamo.config.recompile_limit = 1024
torch._dynamo.config.accumulated_recompile_limit = 1024


# -- a step
# --------------------------------------------------------------------------------------------------


def outputs_of(
    parameters: list[Any], x: Any, dtype: torch.dtype, kept: Any = None, dropout: float = 0.0
) -> Any:
    """Return the network's outputs (B, O) in float32, with products in `dtype`.

    `kept` (B, all hidden units) bool says which units dropout keeps; None keeps all.
    """
    layers = list(zip(parameters[::2], parameters[1::2], strict=True))
    first_unit = 0
    for idx, (weight, bias) in enumerate(layers):
        x = x if idx == 0 else relu(x)
        if idx > 0 and kept is not None:
            units = slice(first_unit, first_unit + x.shape[1])
            x, first_unit = torch.where(kept[:, units], x / (1 - dropout), 0), units.stop
        x = linear(x, weight.to(dtype), bias.to(dtype))
    return x.float()


def batch_gradients(
    parameters: list[Any],
    total: Any,
    correct: Any,
    x: Any,
    y: Any,
    kept: Any = None,
    *,
    dtype: torch.dtype,
    dropout: float = 0.0,
) -> list[Any]:
    """Return the gradients of a batch; add its loss to `total` and its right rows to `correct`."""

    def loss_of(parameters: list[Any]) -> tuple[Any, Any]:
        return loss_and_correct(outputs_of(parameters, x, dtype, kept, dropout), y)

    gradients, (loss, right) = grad_and_value(loss_of, has_aux=True)(parameters)
    total.add_(loss)
    correct.add_(right)
    return gradients


def step(parameters: list[Any], *batch: Any, lr: float, **settings: Any) -> None:
    """Train on a batch by SGD, in place; the other arguments are those of `batch_gradients`."""
    gradients = batch_gradients(parameters, *batch, **settings)
    torch._foreach_add_(parameters, gradients, alpha=-lr)


def adam_step(
    parameters: list[Any],
    means: list[Any],
    squares: list[Any],
    numbers: Any,
    *batch: Any,
    **settings: Any,
) -> None:
    """Train on a batch by Adam or AdamW, in place; `numbers` is a row of `adam_numbers`."""
    gradients = batch_gradients(parameters, *batch, **settings)
    rate, eps, remaining, _ = numbers.unbind()
    torch._foreach_mul_(means, BETA1)
    torch._foreach_add_(means, gradients, alpha=1 - BETA1)
    torch._foreach_mul_(squares, BETA2)
    torch._foreach_addcmul_(squares, gradients, gradients, value=1 - BETA2)
    # Numbers in lists: of a single tensor, what is compiled would have the host read the number.
    count = len(parameters)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_add_(roots, [eps] * count)
    changes = torch._foreach_div(means, roots)
    torch._foreach_mul_(changes, [rate] * count)
    torch._foreach_mul_(parameters, [remaining] * count)
    torch._foreach_sub_(parameters, changes)


def adam_numbers(
    steps_done: Any, offsets: Any, *, lr: float, weight_decay: float, steps_of_schedule: int | None
) -> Any:
    """Return what Adam takes from the number of each of the next steps, (steps, 4) float32.

    Columns are the rate and eps, both with the bias corrections in them; what decoupled decay
    leaves of a weight; and the rate alone: lr, or half a cosine from lr to 0, again and again, over
    `steps_of_schedule`.
    """
    done = (steps_done + offsets).double()
    rate = torch.full_like(done, lr)
    if steps_of_schedule is not None:
        rate = rate * 0.5 * (1 + torch.cos(done % steps_of_schedule * (pi / steps_of_schedule)))
    of_mean, of_square = 1 - BETA1 ** (done + 1), torch.sqrt(1 - BETA2 ** (done + 1))
    columns = (rate * of_square / of_mean, EPS * of_square, 1 - rate * weight_decay, rate)
    return torch.stack(columns, dim=1).float()


# -- updates
# --------------------------------------------------------------------------------------------------

Compile = Callable[[Any], Any]
Numbers = Callable[[Any, Any], Any]


class Update(Protocol):
    """How a step is trained, with the optimizer state."""

    def numbers(self, offsets: Any) -> Sequence[Any]:
        """Return what each of the next steps takes from its number; `offsets` are 0, 1, ...
        (steps,).
        """

    def train(self, numbers: Any, parameters: list[Any], *batch: Any, kept: Any) -> None:
        """Train on a batch, in place."""

    def reset(self) -> None:
        """Forget all steps."""


class SGD:
    """w ← w - lr · g, compiled with the rest of the step."""

    def __init__(self, compiled: Compile, lr: float, settings: dict[str, Any]) -> None:
        self.step = partial(compiled(step), lr=lr, **settings)

    def numbers(self, offsets: Any) -> Sequence[Any]:
        return [None] * len(offsets)

    def train(self, numbers: Any, parameters: list[Any], *batch: Any, kept: Any) -> None:
        self.step(parameters, *batch, kept=kept)

    def reset(self) -> None:
        """There is nothing to forget."""


class CompiledAdam:
    """Adam or AdamW, compiled with the rest of the step: one kernel updates all parameters."""

    def __init__(
        self, compiled: Compile, parameters: list[Any], numbers: Numbers, settings: dict[str, Any]
    ) -> None:
        self.step = partial(compiled(adam_step), **settings)
        self.means, self.squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
        self.next_numbers = NextNumbers(numbers, parameters[0].device)

    def numbers(self, offsets: Any) -> Sequence[Any]:
        return self.next_numbers.take(offsets)

    def train(self, numbers: Any, parameters: list[Any], *batch: Any, kept: Any) -> None:
        self.step(parameters, self.means, self.squares, numbers, *batch, kept=kept)

    def reset(self) -> None:
        for array in (*self.means, *self.squares, self.next_numbers.steps_done):
            array.zero_()


class FusedAdam:
    """PyTorch's own Adam or AdamW behind the compiled rest of the step, fused and capturable, as
    its pages advise.
    """

    def __init__(
        self,
        compiled: Compile,
        optimizer: Any,
        device: Any,
        numbers: Numbers | None,
        settings: dict[str, Any],
    ) -> None:
        self.gradients_of, self.optimizer = (
            partial(compiled(batch_gradients), **settings),
            optimizer,
        )
        self.next_numbers = None if numbers is None else NextNumbers(numbers, device)

    def numbers(self, offsets: Any) -> Sequence[Any]:
        return (
            [None] * len(offsets) if self.next_numbers is None else self.next_numbers.take(offsets)
        )

    def train(self, numbers: Any, parameters: list[Any], *batch: Any, kept: Any) -> None:
        gradients = self.gradients_of(parameters, *batch, kept=kept)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if numbers is not None:
            self.optimizer.param_groups[0]["lr"] = numbers[3]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def reset(self) -> None:
        remembered = [array for state in self.optimizer.state.values() for array in state.values()]
        for array in remembered + (
            [] if self.next_numbers is None else [self.next_numbers.steps_done]
        ):
            array.zero_()


class NextNumbers:
    """`adam_numbers` of the next steps; a counter on the device says which these are."""

    def __init__(self, numbers: Numbers, device: Any) -> None:
        self.numbers, self.steps_done = numbers, torch.zeros((), device=device, dtype=torch.int64)

    def take(self, offsets: Any) -> Sequence[Any]:
        rows = self.numbers(self.steps_done, offsets)
        self.steps_done.add_(len(offsets))
        return rows.unbind()


# -- epochs
# --------------------------------------------------------------------------------------------------


class Trainer:
    """Trains a network of linear layers and ReLU in whole batches.

    Parameters
    ----------
    sizes : tuple of int
    x : ndarray (N, F) float32
    y : ndarray (N,) int64 or (N, O) float32
    precision : str
        ``'float32'``, ``'tf32'`` or ``'bfloat16'``.
    optimizer : str
        ``'sgd'``, ``'adam'`` or ``'adamw'``.
    weight_decay : float
        Of ``'adamw'``.
    dropout : float
        Share of units that is dropped after each ReLU.
    schedule : str
        ``'constant'``, or for Adam's forms ``'cosine'``: half a cosine from lr to 0 over the steps
        of each epoch.
    fused : bool
        Whether Adam's update is PyTorch's fused one, in place of one that is compiled with the rest
        of the step.
    mode : str or None
        Of `torch.compile`; ``'max-autotune-no-cudagraphs'`` also tries products of Triton.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        x: Any,
        y: Any,
        *,
        batch_size: int,
        lr: float,
        precision: str,
        optimizer: str = "sgd",
        weight_decay: float = 0.0,
        dropout: float = 0.0,
        schedule: str = "constant",
        fused: bool = False,
        mode: str | None = None,
        device: str = "cuda",
    ) -> None:
        torch.set_float32_matmul_precision(MATMUL_PRECISIONS[precision])
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.x = torch.from_numpy(np.ascontiguousarray(x)).to(device, self.dtype)
        self.y = torch.from_numpy(np.ascontiguousarray(y)).to(device)
        self.parameters = [parameter.detach() for parameter in mlp(sizes).to(device).parameters()]
        self.total = torch.zeros((), device=device)
        self.correct = torch.zeros((), device=device, dtype=torch.int64)
        self.order = torch.arange(len(x), device=device)
        self.next_row = torch.zeros((), device=device, dtype=torch.int64)
        self.offsets = torch.arange(len(x), device=device)  # graphs read them, but do not keep them
        self.batch_size, self.steps = batch_size, len(x) // batch_size
        self.dropout, self.num_units = dropout, sum(sizes[1:-1])
        self.update = self._make_update(optimizer, lr, weight_decay, schedule, fused, mode)
        steps_of_graph = min(STEPS_OF_A_GRAPH, self.steps)
        self.num_graphs, remaining = divmod(self.steps, steps_of_graph)
        self.run_graph = self._recorded(steps_of_graph)
        self.run_last_graph = self._recorded(remaining) if remaining else None

    def epoch(self) -> tuple[float, float]:
        """Train for an epoch, and return the mean of its steps' losses and the share of rows that
        were right.
        """
        self.order.copy_(torch.randperm(len(self.order), device=self.order.device))
        for counter in (self.next_row, self.total, self.correct):
            counter.zero_()
        for _ in range(self.num_graphs):
            self.run_graph()
        if self.run_last_graph is not None:
            self.run_last_graph()
        total, correct = torch.stack((self.total, self.correct.float())).tolist()
        return total / self.steps, correct / (self.steps * self.batch_size)

    def _make_update(
        self,
        optimizer: str,
        lr: float,
        weight_decay: float,
        schedule: str,
        fused: bool,
        mode: str | None,
    ) -> Update:
        compiled = partial(torch.compile, mode=mode, dynamic=False, fullgraph=True)
        settings = {"dtype": self.dtype, "dropout": self.dropout}
        is_scheduled = schedule == "cosine"
        if optimizer == "sgd":
            if is_scheduled:
                raise ValueError("expected a constant rate for sgd, got a cosine")
            return SGD(compiled, lr, settings)
        numbers = partial(
            compiled(adam_numbers),
            lr=lr,
            weight_decay=weight_decay if optimizer == "adamw" else 0.0,
            steps_of_schedule=self.steps if is_scheduled else None,
        )
        if not fused:
            return CompiledAdam(compiled, self.parameters, numbers, settings)
        own = make_optimizer(self.parameters, optimizer, lr, weight_decay, capturable=True)
        return FusedAdam(compiled, own, self.x.device, numbers if is_scheduled else None, settings)

    def _recorded(self, steps: int) -> Callable[[], None]:
        """Return a function that trains on the next batches, recorded; the parameters stay as they
        are.
        """
        size = self.batch_size
        offsets = self.offsets[: steps * size]

        def train() -> None:
            rows = self.order.index_select(0, self.next_row + offsets)
            x, y = self.x.index_select(0, rows), self.y.index_select(0, rows)
            kept = self._draw_kept(len(rows))
            numbers = self.update.numbers(offsets[:steps])
            # From the last: its labels may not be aligned, and what is compiled for these serves
            # all.
            for idx, own in zip(reversed(range(steps)), numbers, strict=True):
                part = slice(idx * size, (idx + 1) * size)
                self.update.train(
                    own,
                    self.parameters,
                    self.total,
                    self.correct,
                    x[part],
                    y[part],
                    kept=None if kept is None else kept[part],
                )
            self.next_row.add_(steps * size)

        def warm_up() -> None:
            self.next_row.zero_()
            train()

        start = [parameter.clone() for parameter in self.parameters]
        run = captured(train, warm_up)
        for parameter, value in zip(self.parameters, start, strict=True):
            parameter.copy_(value)
        self.update.reset()
        return run

    def _draw_kept(self, num_rows: int) -> Any:
        """Return which units dropout keeps (rows, all hidden units), None for all."""
        if not self.dropout:
            return None
        kept = torch.empty((num_rows, self.num_units), device=self.x.device, dtype=torch.bool)
        return kept.bernoulli_(1 - self.dropout)


def captured(train: Callable[[], None], warm_up: Callable[[], None]) -> Callable[[], None]:
    """Return a function that runs `train` as a CUDA graph; what it compiles or sets up happens in
    `warm_up`.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            warm_up()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Threads of other libraries in the process may do what a capture forbids.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        train()
    return graph.replay
