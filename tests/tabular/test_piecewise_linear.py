from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from warpfit.autograd import Tensor
from warpfit.gradcheck import check_module, distinct_values
from warpfit.tabular.piecewise_linear import PiecewiseLinear, quantile_edges

EDGES = [np.array([-1.0, 0, 2]), np.array([0.0, 1]), np.array([-2.0, -1, 0.5, 3])]
DTYPE = "float64"


def embedding() -> PiecewiseLinear:
    """Return one of three numbers with parameters of which no two are equal."""
    layer = PiecewiseLinear(3, 3, DTYPE)
    layer.set_edges(EDGES)
    parameters = layer.parameters()
    values = distinct_values(*(each.shape for each in parameters), seed=1)
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data[...] = value
    return layer


def points() -> Any:
    """Return numbers in every bin, at edges, and beyond them."""
    return np.array(
        [[-3.0, -1, -9], [-1, 0, -2], [-0.5, 0.3, -1.5], [0, 1, 0], [1, 2, 1], [2, 5, 3], [7, 0, 8]]
    )


def encoded(x: float, edges: Any) -> list[float]:
    """Return what the paper makes of a number, without limits at both ends."""
    found = []
    for idx, (low, high) in enumerate(pairwise(edges)):
        share = (x - low) / (high - low)
        if idx > 0:
            share = max(share, 0.0)
        if idx < len(edges) - 2:
            share = min(share, 1.0)
        found.append(share)
    return found


def test_a_line_and_pieces_between_edges() -> None:
    layer, x = embedding(), points()
    found = np.asarray(layer(x)).reshape(len(x), 3, layer.SIZE)
    for row, idx in np.ndindex(x.shape):
        shares = encoded(x[row, idx], EDGES[idx])
        pieces = layer.pieces.data[idx, : len(shares)]
        line = x[row, idx] * layer.weight.data[idx] + layer.bias.data[idx]
        np.testing.assert_allclose(found[row, idx], line + shares @ pieces, rtol=1e-12)


def test_gradients() -> None:
    result = check_module(embedding(), Tensor(points()), lambda y: y)
    errors = {each.name: each.worst_error for each in result.inputs if each.name != "x"}
    assert len(errors) == 3
    assert max(errors.values()) < 1e-6


def test_edges_are_quantiles_of_which_equal_ones_are_one() -> None:
    x = np.column_stack([np.arange(9.0), [0.0] * 5 + [1, 2, 3, 4]])
    first, second = quantile_edges(x, 4)
    assert first.tolist() == [0, 2, 4, 6, 8]
    assert second.tolist() == [0, 2, 4]
    assert len(quantile_edges(x[:3], 48)[0]) == 3


@pytest.mark.filterwarnings("ignore")
def test_it_is_that_of_rtdl_num_embeddings() -> None:
    torch: Any = pytest.importorskip("torch")
    theirs = pytest.importorskip("rtdl_num_embeddings", reason="it is not installed")
    random = np.random.default_rng(0)
    x = random.normal(size=(500, 3))
    x[:, 1] = random.integers(0, 4, 500)
    bins = theirs.compute_bins(torch.tensor(x), n_bins=48)
    edges = quantile_edges(x, 48)
    for one, other in zip(edges, bins, strict=True):  # their shares are in float32
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-5, atol=1e-6)
    edges = [each.numpy() for each in bins]
    ours = PiecewiseLinear(3, 48, DTYPE)
    ours.set_edges(edges)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    module = theirs.PiecewiseLinearEmbeddings(bins, 16, activation=False, version="B")
    torch.set_default_dtype(before)
    values = distinct_values(*(each.shape for each in ours.parameters()), seed=1)
    for parameter, value in zip(ours.parameters(), values, strict=True):
        parameter.data[...] = value
    own = ours.pieces.data.copy()
    for idx, each in enumerate(edges):
        # Theirs has a column's last bin at the end.
        count = len(each) - 1
        own[idx, -1] = ours.pieces.data[idx, count - 1]
        own[idx, count - 1 : -1] = 0
    with torch.no_grad():
        module.linear0.weight.copy_(torch.tensor(ours.weight.data))
        module.linear0.bias.copy_(torch.tensor(ours.bias.data))
        module.linear.weight.copy_(torch.tensor(own))
        inputs = np.vstack([x, 10 * x])
        expected = module(torch.tensor(inputs)).flatten(1).numpy()
    np.testing.assert_allclose(ours(inputs), expected, rtol=1e-12, atol=1e-12)
