"""The contract of ensembles whose members share weights: their products, and what is their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from warpfit.backends.contract.terms import Array, Number
from warpfit.backends.update_rules import UpdateNumbers


class MemberLayer(NamedTuple):
    """Of h: relu((h · scale_in) @ weight · scale_out + bias) · mask; or the gradients of these."""

    scale_in: Array  # (E, K)
    weight: Array  # (K, N): that all members share
    # scale_out and bias (E, N).
    scale_out: Array
    bias: Array


class MemberHead(NamedTuple):
    """Of h: h @ weight + bias, of each member its own; or the gradients of these."""

    weight: Array  # (E, K, N)
    bias: Array  # (E, N)


class MemberLayers(NamedTuple):
    """Hidden layers and the head that follows them, or their gradients."""

    hidden: Sequence[MemberLayer]
    head: MemberHead


class MemberUpdate(NamedTuple):
    """A step of Adam, by gradients that nobody else asks for."""

    # In float32; the layers compute with these, but for the weights that members share.
    parameters: MemberLayers
    moments: Sequence[MemberLayers]  # of parameters: averages of gradients, and of their squares
    copies: Sequence[Array]  # of each layer's shared weights, in half precision
    numbers: UpdateNumbers  # those that are kept, of all but biases


NOT_AT_ONCE = "this backend computes the layers of members one by one"


class MemberContract(ABC):
    """Of E members, whose rows stand one after the other."""

    @abstractmethod
    def batched_matmul(
        self, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> Array:
        """Return op(a[e]) @ op(b[e]) of every e: (E, M, K) @ (E, K, N) → (E, M, N), op being a
        transposition of the last two axes or nothing.
        """

    @abstractmethod
    def member_orders(self, orders: Array, keys: Array, batch_size: int) -> None:
        """Write an epoch's orders of N rows, one of each member: of each batch the rows of all
        members, one member after the other; the last batch may be shorter.

        orders (E N,) int64; keys (E, 8) uint32, round keys as `epoch_order` takes them.
        """

    @abstractmethod
    def member_relu_forward(
        self,
        z: Array,
        scale: Array,
        bias: Array,
        next_scale: Array,
        *,
        p: float,
        seed: int,
        step: Number,
        layer_idx: int,
        first_member: int = 0,
    ) -> tuple[Array, Array]:
        """Return y = relu(z · scale + bias) · mask · next_scale, and bool (E, M, N): where neither
        relu nor the mask is 0.

        z and y (E, M, N); scale, bias and next_scale (E, N), which all rows of a member share. The
        mask is 0 with probability p, to 2⁻¹⁶, else 1 / (1 - p). Unit i = m N + n of member e is
        decided by word i % 16, of 16 bits, of Philox4x64-10 with the counter (1 + i // 16,
        first_member + e, layer_idx, step) and the key ``stream_key(seed, DROPOUT)`` of
        `warpfit.random`, and kept if that word is at least round(p · 2¹⁶). The words of a counter
        are the four of 64 bits in their order, the lowest 16 bits of each first. p in [0, 1); step
        and layer_idx below 2³².
        """

    @abstractmethod
    def member_relu_backward(
        self,
        dy: Array,
        z: Array,
        kept: Array,
        scale: Array,
        bias: Array,
        next_scale: Array,
        *,
        p: float,
    ) -> tuple[Array, Array, Array, Array]:
        """Return dz (E, M, N), and dscale, dbias and dnext_scale (E, N), which are sums over rows.

        `kept` is what `member_relu_forward` returned. With q = dy · kept / (1 - p) these are q ·
        next_scale · scale, next_scale · Σ q z, next_scale · Σ q, and scale · Σ q z + bias · Σ q.
        """

    def computes_member_layers(self, layers: MemberLayers) -> bool:
        """Whether `member_layers_forward` takes these; else the operations serve, one by one."""
        return False

    def member_layers_forward(
        self,
        x: Array,
        layers: MemberLayers,
        *,
        p: float,
        seed: int,
        step: Number,
        keeps: bool = True,
    ) -> tuple[Array, Any]:
        """Return outputs (E, M, N) of all layers at once, and what `member_layers_backward` takes.

        x (E, M, K), or (1, M, K) for all members, float32. Masks are those of
        `member_relu_forward`, by the layer's place. Products are in the dtype of the shared
        weights, one of half precision; all else, outputs too, is in float32. Without `keeps` there
        is no backward pass.
        """
        raise NotImplementedError(NOT_AT_ONCE)

    def member_layers_backward(
        self, dy: Array, kept: Any, *, needs_dx: bool, update: MemberUpdate | None = None
    ) -> tuple[MemberLayers | None, Array | None]:
        """Return the gradients of all layers, in float32, and dx (E, M, K) if asked for, from dy
        (E, M, N) float32; x had a batch of each member.

        With `update` nothing but dx is returned, and parameters are changed.
        """
        raise NotImplementedError(NOT_AT_ONCE)
