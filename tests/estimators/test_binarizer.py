"""Labels as 0 and 1, beside scikit-learn's `LabelBinarizer`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.preprocessing import LabelBinarizer

from warpfit import MLPClassifier
from warpfit.estimators.binarizer import OneLabelBinarizer, as_label_binarizer, binarizer_of

ONE_LABEL = {
    "two integers": np.array([7, -3, 7, 7]),
    "three integers": np.array([2, 0, 1, 2], np.int8),
    "one class": np.array([4, 4]),
    "text": np.array(["pear", "apple", "fig"]),
    "objects": np.array(["yes", "no", "no"], object),
    "booleans": np.array([True, False]),
    "whole floats": np.array([1.0, 2.0, 5.0]),
}


@pytest.mark.parametrize("y", ONE_LABEL.values(), ids=ONE_LABEL)
def test_one_label_is_encoded_as_scikit_learn_does(y: np.ndarray[Any, Any]) -> None:
    ours, theirs = binarizer_of(y), LabelBinarizer().fit(y)
    assert type(ours) is OneLabelBinarizer
    assert ours.y_type_ == theirs.y_type_
    np.testing.assert_array_equal(ours.classes_, theirs.classes_, strict=True)
    for some in (y, y[:1]):
        np.testing.assert_array_equal(ours.transform(some), theirs.transform(some).astype(bool))
    assert vars(as_label_binarizer(ours)).keys() == vars(theirs).keys()


@pytest.mark.parametrize("kind", [np.array, csr_matrix])
def test_several_labels_are_scikit_learns(kind: Any) -> None:
    theirs = binarizer_of(kind([[1, 0], [1, 1]]))
    assert type(theirs) is LabelBinarizer
    assert as_label_binarizer(theirs) is theirs


@pytest.mark.parametrize(
    "y", [np.array([0.5, 1.5]), np.array([[1, 2], [3, 0]]), np.array([1, 2], object)]
)
def test_what_are_no_labels_is_refused_as_there(y: Any) -> None:
    with pytest.raises(ValueError) as expected:
        LabelBinarizer().fit(y)
    with pytest.raises(ValueError) as found:
        binarizer_of(y)
    assert str(found.value) == str(expected.value)


def test_several_labels_are_refused_after_one() -> None:
    y = np.array([[1, 0], [1, 1]])
    ours, theirs = binarizer_of([0, 1]), LabelBinarizer().fit([0, 1])
    with pytest.raises(ValueError) as expected:
        theirs.transform(y)
    with pytest.raises(ValueError) as found:
        ours.transform(y)
    assert str(found.value) == str(expected.value)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("y", [[0, 1, 1], [0, 1, 2], [5, 5, 5]])
def test_scikit_learns_estimator_gets_its_own(y: list[int]) -> None:
    ours = MLPClassifier((2,), max_iter=2, device="cpu").fit([[0.0], [1.0], [2.0]], y)
    theirs = ours.to_sklearn()
    assert type(theirs._label_binarizer) is LabelBinarizer
    np.testing.assert_array_equal(theirs.predict([[0.5]]), ours.predict([[0.5]]), strict=True)
    assert theirs.partial_fit([[0.0]], y[:1]).t_ == ours.t_ + 1
