"""The contract of losses: their means over the batch, gradients, and counts of correct rows."""

from __future__ import annotations

from abc import ABC, abstractmethod

from warpfit.backends.contract.terms import Array, LossTerms, Number


class LossContract(ABC):
    """Losses of rows, and the same as one operation of a step."""

    # -- losses: each forward returns (mean loss (), total weight (), what backward needs)

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
    def element_loss_forward(
        self,
        prediction: Array,
        target: Array,
        terms: LossTerms,
        *,
        sample_weight: Array | None = None,
    ) -> tuple[Array, Array]:
        """Return of_term · Σᵢ sᵢ Σⱼ l / Σ s, and Σ s. By the name of the terms, l is:

        ``'mse'``: (p - t)². ``'absolute_error'``: |p - t|. ``'huber'``: d²/2 where |d| ≤ delta, the
        setting, else delta (|d| - delta/2), with d = p - t. ``'binary_cross_entropy'``: max(p, 0) -
        p t + log(1 + exp(-|p|)), of logits p, t in [0, 1]. prediction p and target t (M, N),
        sample_weight s (M,), ones if None.
        """

    @abstractmethod
    def element_loss_backward(
        self,
        prediction: Array,
        target: Array,
        total_weight: Array,
        terms: LossTerms,
        *,
        sample_weight: Array | None = None,
    ) -> Array:
        """Return of_derivative · sᵢ l' / Σ s, with l' the derivative with respect to p, or for
        ``'mse'`` half of it, p - t; for ``'absolute_error'`` it is 0 where p equals t.
        """

    @abstractmethod
    def count_correct(self, logits: Array, labels: Array) -> Array:
        """Return how many rows have their largest logit, the first, at the label: () int64."""

    @abstractmethod
    def count_correct_binary(self, logits: Array, target: Array) -> Array:
        """Return how many rows have every (z > 0) equal to (t > 0.5): () int64."""

    # -- losses of a step, as one operation; a backend may decline them
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
        """Record the loss of `softmax_cross_entropy_forward`; return the gradient, or None."""
        return None

    def element_loss_step(
        self,
        prediction: Array,
        target: Array,
        record: Array,
        row: Number,
        terms: LossTerms,
        *,
        scale: float = 1.0,
        sample_weight: Array | None = None,
    ) -> Array | None:
        """Record the loss of `element_loss_forward`; return the gradient, or None."""
        return None
