"""The tape: what each result was computed from, and how its gradient flows back there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from warpfit import backends
from warpfit.backends import Array

# From the gradient of a result to the gradients of its inputs, None where an input needs none.
Pullback = Callable[[Array], Sequence[Array | None]]

_recording: ContextVar[bool] = ContextVar("recording", default=True)


@contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing inside the ``with`` block, or inside a function that this decorates.

    Examples
    --------
    >>> with wf.no_grad():
    ...     outputs = model(wf.tensor(x))
    >>> outputs.requires_grad
    False
    """
    token = _recording.set(False)
    try:
        yield
    finally:
        _recording.reset(token)


class Node:
    """A result on the tape, or what no result is computed from."""

    grad: Array | None  # the sum of those that arrived here, only of nodes without inputs
    requires_grad: bool
    _inputs: Sequence[Node] = ()
    _pullback: Pullback | None = None

    def _come_from(self, inputs: Sequence[Node], pullback: Pullback) -> None:
        """Note what this was computed from, if that is recorded and a gradient is asked for."""
        if _recording.get() and any(source.requires_grad for source in inputs):
            self.requires_grad = True
            self._inputs = tuple(inputs)
            self._pullback = pullback

    def _flow_back(self, gradient: Array) -> None:
        """Add this node's gradient, times the derivative, to ``grad`` of all it was made from."""
        gradients = {id(self): gradient}
        for node in self._made_from():
            arrived = gradients.pop(id(node), None)
            if arrived is None:
                continue
            if node._pullback is None:
                # A copy, because `arrived` may share memory with another node's gradient.
                copy = backends.of(arrived).copy
                node.grad = copy(arrived) if node.grad is None else _sum(node.grad, arrived)
                continue
            for source, part in zip(node._inputs, node._pullback(arrived), strict=True):
                if part is not None and source.requires_grad:
                    known = gradients.get(id(source))
                    gradients[id(source)] = part if known is None else _sum(known, part)

    def _made_from(self) -> list[Node]:
        """Return this node and those it was made from, every one before its inputs."""
        order: list[Node] = []
        visited: set[int] = set()
        pending: list[tuple[Node, bool]] = [(self, False)]
        while pending:
            node, done = pending.pop()
            if done:
                order.append(node)
            elif id(node) not in visited:
                visited.add(id(node))
                pending.append((node, True))
                pending.extend((source, False) for source in node._inputs if source.requires_grad)
        return order[::-1]


def _sum(a: Array, b: Array) -> Array:
    return backends.of(a).binary("add", a, b)
