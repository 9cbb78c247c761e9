"""Which class a row is of, as 0 and 1: scikit-learn's `LabelBinarizer` where a row has one label.

The package of that takes longer to import than many a small fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.multiclass import type_of_target, unique_labels

from warpfit.checks import Array

if TYPE_CHECKING:
    from sklearn.preprocessing import LabelBinarizer


@dataclass(frozen=True, eq=False)
class OneLabelBinarizer:
    """Attributes are named as scikit-learn's."""

    y_type_: str  # 'binary' or 'multiclass'
    classes_: Array  # (C,), sorted

    def transform(self, y: Array) -> Array:
        """Return bool of labels (N,), all of them known: (N, 1) up to two classes, else (N, C).

        Raises
        ------
        ValueError
            If there are several labels a row.
        """
        if y.ndim != 1:
            raise ValueError("The object was not fitted with multilabel input.")
        if self.y_type_ == "binary":
            are_last = y == self.classes_[1] if len(self.classes_) > 1 else np.zeros(len(y), bool)
            return np.asarray(are_last)[:, None]
        indicators = np.zeros((len(y), len(self.classes_)), bool)
        indicators[np.arange(len(y)), np.searchsorted(self.classes_, y)] = True
        return indicators


def binarizer_of(y: Any) -> OneLabelBinarizer | LabelBinarizer:
    """Return what encodes labels like those of y, as `LabelBinarizer` does, or raise as it does."""
    if are_integers(y):
        classes = np.unique(y)
        return OneLabelBinarizer("binary" if len(classes) <= 2 else "multiclass", classes)
    if not issparse(y) and (kind := type_of_target(y, input_name="y")) in ("binary", "multiclass"):
        return OneLabelBinarizer(kind, unique_labels(y))
    from sklearn.preprocessing import LabelBinarizer

    return LabelBinarizer().fit(y)


def are_integers(y: Any) -> bool:
    """Return whether y is an array (N,) of integers or bool, whose values are its classes."""
    return type(y) is np.ndarray and y.ndim == 1 and y.dtype.kind in "iub"


def as_label_binarizer(binarizer: OneLabelBinarizer | LabelBinarizer) -> LabelBinarizer:
    """Return scikit-learn's own, fitted alike."""
    if not isinstance(binarizer, OneLabelBinarizer):
        return binarizer
    from sklearn.preprocessing import LabelBinarizer

    theirs = LabelBinarizer()
    theirs.__dict__.update(vars(binarizer), sparse_input_=False)
    return theirs


def as_ours(theirs: LabelBinarizer) -> OneLabelBinarizer | LabelBinarizer:
    """Return ours, fitted alike, unless theirs is for several labels a row."""
    is_ours = theirs.y_type_ in ("binary", "multiclass")
    return OneLabelBinarizer(theirs.y_type_, theirs.classes_) if is_ours else theirs
