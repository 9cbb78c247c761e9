"""The contract of losses: their means over the batch, gradients, and counts of correct rows."""

from __future__ import annotations

from abc import ABC, abstractmethod

from warpfit.backends.contract.terms import Array, Number


class LossContract(ABC):
    """Losses of rows, and the same as one operation of a step."""

    # -- losses: each forward returns (mean loss (), total weight (), what backward needs)
    # ---------------

    @abstractmethod
    def softmax_cross_entropy_forward(
        self,
        logits: Array,
        labels: Array,
        *,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
        label_smoothing: float = 0.0,
    ) -> tuple[Array, Array, Array]:
        """Return the loss Σᵢ sᵢ lᵢ / Σᵢ sᵢ w[labelᵢ], its denominator, and the softmax (M, C).

        With log-probabilities p of row i and smoothing ε: lᵢ = -(1-ε) w[label] p[label] - (ε/C) Σ_c
        w_c p_c. logits (M, C), labels (M,) of an integer dtype in [0, C), which is not checked,
        class_weight w (C,), sample_weight s (M,).
        """

    @abstractmethod
    def softmax_cross_entropy_backward(
        self,
        probabilities: Array,
        labels: Array,
        total_weight: Array,
        *,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
        label_smoothing: float = 0.0,
    ) -> Array:
        """Return the loss's gradient with respect to the logits, (M, C)."""

    @abstractmethod
    def mean_squared_error_forward(
        self,
        prediction: Array,
        target: Array,
        *,
        sample_weight: Array | None = None,
        half: bool = False,
    ) -> tuple[Array, Array]:
        """Return Σᵢ sᵢ Σⱼ (p - t)² / (N Σ s) and Σ s; half of it with ``half`` (scikit-learn's
        loss).

        prediction and target (M, N), sample_weight s (M,), ones if None.
        """

    @abstractmethod
    def mean_squared_error_backward(
        self,
        prediction: Array,
        target: Array,
        total_weight: Array,
        *,
        sample_weight: Array | None = None,
        half: bool = False,
    ) -> Array:
        """Return sᵢ · 2 (p - t) / (N Σ s); with ``half`` scikit-learn's sᵢ (p - t) / Σ s, for any
        N.
        """

    @abstractmethod
    def absolute_error_forward(
        self, prediction: Array, target: Array, *, sample_weight: Array | None = None
    ) -> tuple[Array, Array]:
        """Return Σᵢ sᵢ Σⱼ |p - t| / (N Σ s) and Σ s."""

    @abstractmethod
    def absolute_error_backward(
        self,
        prediction: Array,
        target: Array,
        total_weight: Array,
        *,
        sample_weight: Array | None = None,
    ) -> Array:
        """Return sᵢ · sign(p - t) / (N Σ s), 0 where p equals t."""

    @abstractmethod
    def huber_forward(
        self,
        prediction: Array,
        target: Array,
        *,
        delta: float = 1.0,
        sample_weight: Array | None = None,
    ) -> tuple[Array, Array]:
        """Return the mean of d²/2 where |d| ≤ delta, else delta (|d| - delta/2), with d = p - t;
        and Σ s.
        """

    @abstractmethod
    def huber_backward(
        self,
        prediction: Array,
        target: Array,
        total_weight: Array,
        *,
        delta: float = 1.0,
        sample_weight: Array | None = None,
    ) -> Array:
        """Return sᵢ · clip(p - t, -delta, delta) / (N Σ s)."""

    @abstractmethod
    def binary_cross_entropy_forward(
        self,
        logits: Array,
        target: Array,
        *,
        sample_weight: Array | None = None,
        sum_outputs: bool = False,
    ) -> tuple[Array, Array]:
        """Return the mean of max(z, 0) - z t + log(1 + exp(-|z|)), and Σ s; target in [0, 1].

        With ``sum_outputs`` outputs are summed rather than averaged (scikit-learn's loss).
        """

    @abstractmethod
    def binary_cross_entropy_backward(
        self,
        logits: Array,
        target: Array,
        total_weight: Array,
        *,
        sample_weight: Array | None = None,
        sum_outputs: bool = False,
    ) -> Array:
        """Return sᵢ (sigmoid(z) - t) / (N Σ s), without N under ``sum_outputs``."""

    @abstractmethod
    def count_correct(self, logits: Array, labels: Array) -> Array:
        """Return how many rows have their largest logit (the first, if several) at the label: ()
        int64.
        """

    @abstractmethod
    def count_correct_binary(self, logits: Array, target: Array) -> Array:
        """Return how many rows have every (z > 0) equal to (t > 0.5): () int64."""

    # -- losses of a step, as one operation; a backend may decline them
    # ------------------------------------
    #
    # They write (mean loss, total weight, rows that are right or 0) to record[row], as
    # `record_step` does, and return the mean's gradient times `scale`, of the outputs' shape and
    # dtype, or do nothing and return None. Outputs may be in half precision; targets and weights
    # are float32 then. Targets may be rows of an array in the backend's own terms.

    def softmax_cross_entropy_step(
        self,
        logits: Array,
        labels: Array,
        record: Array,
        row: Number,
        *,
        scale: float = 1.0,
        class_weight: Array | None = None,
        sample_weight: Array | None = None,
        label_smoothing: float = 0.0,
    ) -> Array | None:
        """Record the loss of `softmax_cross_entropy_forward` and what is right; return the
        gradient, or None.
        """
        return None

    def mean_squared_error_step(
        self,
        prediction: Array,
        target: Array,
        record: Array,
        row: Number,
        *,
        scale: float = 1.0,
        sample_weight: Array | None = None,
        half: bool = False,
    ) -> Array | None:
        """Record the loss of `mean_squared_error_forward`; return the gradient, or None."""
        return None

    def absolute_error_step(
        self,
        prediction: Array,
        target: Array,
        record: Array,
        row: Number,
        *,
        scale: float = 1.0,
        sample_weight: Array | None = None,
    ) -> Array | None:
        """Record the loss of `absolute_error_forward`; return the gradient, or None."""
        return None

    def huber_step(
        self,
        prediction: Array,
        target: Array,
        record: Array,
        row: Number,
        *,
        scale: float = 1.0,
        delta: float = 1.0,
        sample_weight: Array | None = None,
    ) -> Array | None:
        """Record the loss of `huber_forward`; return the gradient, or None."""
        return None

    def binary_cross_entropy_step(
        self,
        logits: Array,
        target: Array,
        record: Array,
        row: Number,
        *,
        scale: float = 1.0,
        sample_weight: Array | None = None,
        sum_outputs: bool = False,
    ) -> Array | None:
        """Record the loss of `binary_cross_entropy_forward` and what is right; return the gradient,
        or None.
        """
        return None
