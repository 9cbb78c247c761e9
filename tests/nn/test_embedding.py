"""Embedding: PyTorch's, alone and in whole runs, and no index that it does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import assert_same_weights, unchanged
from warpfit import nn, optim
from warpfit.backends import get
from warpfit.errors import ConfigError, DataError, DTypeError
from warpfit.nn import Embedding, Layer
from warpfit.nn.embedding import EmbeddingSpec
from warpfit.nn.spec import LayerSpec

RNG = np.random.default_rng(0)
X = RNG.integers(0, 7, (60, 3))
LABELS = (X[:, 0] + X[:, 1]) % 3


def network(dtype: str = "float32") -> nn.Sequential:
    return nn.Sequential(
        Embedding(7, 4, seed=0, dtype=dtype),
        nn.Flatten(),
        nn.Linear(12, 8, seed=1, dtype=dtype),
        nn.ReLU(),
        nn.Linear(8, 3, seed=2, dtype=dtype),
    )


class Table(nn.Module):
    """Columns of indices beside a column of numbers."""

    def __init__(self) -> None:
        self.first, self.second = Embedding(7, 4, seed=0), Embedding(9, 2, seed=1)
        self.head = nn.Linear(7, 3, seed=2)

    def forward(self, x: Any) -> Any:
        parts = [self.first(x[:, 0]), self.second(x[:, 1]), x[:, 2:]]
        return self.head(wf.autograd.concatenate(parts, axis=1))


def fit(model: nn.Module, x: Any = X, y: Any = LABELS, **settings: Any) -> wf.History:
    optimizer = settings.pop("optimizer", None) or optim.Adam(model.parameters(), 0.01)
    asked = {"epochs": 4, "batch_size": 16, "seed": 5, "device": "cpu", "verbose": False}
    return wf.fit(model, x, y, optimizer=optimizer, **{**asked, **settings})


def test_the_layer_is_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = Embedding(7, 4, dtype="float64"), torch.nn.Embedding(7, 4).double()
    theirs.weight.data = torch.tensor(ours.weight.data.copy())
    y, other_y = ours(wf.tensor(X)), theirs(torch.tensor(X))
    np.testing.assert_array_equal(y.data, other_y.detach().numpy())
    dy = RNG.standard_normal(y.shape)
    y.backward(dy)
    other_y.backward(torch.tensor(dy))
    np.testing.assert_allclose(ours.weight.grad, theirs.weight.grad, rtol=1e-12)


def test_runs_are_pytorchs(cuda: str) -> None:
    torch = pytest.importorskip("torch")
    models = [network("float64"), network("float64")]
    theirs = torch.nn.Sequential(
        torch.nn.Embedding(7, 4), torch.nn.Flatten(), torch.nn.Linear(12, 8), torch.nn.ReLU(),
        torch.nn.Linear(8, 3),
    ).double()  # fmt: skip
    theirs[0].weight.data = torch.tensor(models[0][0].weight.data.copy())
    for idx in (2, 4):
        theirs[idx].weight.data = torch.tensor(models[0][idx].weight.data.T.copy())
        theirs[idx].bias.data = torch.tensor(models[0][idx].bias.data.copy())
    for model, device in zip(models, ("cpu", cuda), strict=True):
        sgd = optim.SGD(model.parameters(), 0.1, momentum=0.9)
        fit(model, optimizer=sgd, shuffle=False, epochs=2, device=device)
    reference = torch.optim.SGD(theirs.parameters(), 0.1, momentum=0.9)
    for first in [*range(0, 60, 16)] * 2:
        rows = slice(first, first + 16)
        reference.zero_grad()
        outputs = theirs(torch.tensor(X[rows]))
        torch.nn.functional.cross_entropy(outputs, torch.tensor(LABELS[rows])).backward()
        reference.step()
    for model in models:
        weight = model.state_dict()["0.weight"]
        np.testing.assert_allclose(weight, theirs[0].weight.detach().numpy(), rtol=1e-9)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("dtype", ["int16", "int64", "uint32", "float32", "bool"])
def test_indices_of_any_dtype_give_equal_bits(cuda: str, dtype: str) -> None:
    x = (X > 3) if dtype == "bool" else X.astype(dtype)
    expected = network()
    fit(expected, x.astype("int64"), device=cuda)
    model = network()
    fit(model, x, device=cuda)
    assert_same_weights(model, expected)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("make", [network, Table])
def test_equal_seeds_give_equal_bits_and_learn(cuda: str, make: Any) -> None:
    for device in ("cpu", cuda):
        models = [make(), make()]
        histories = [fit(model, device=device, epochs=8) for model in models]
        assert_same_weights(*models)
        assert histories[0]["loss"][-1] < 0.95 * histories[0]["loss"][0]
        assert histories[0].plan.engine == "layerwise"
        assert histories[0].plan.precision == "float32"


def test_indices_beyond_what_half_precision_holds() -> None:
    layer = Embedding(1 << 12, 1)
    x = np.array([[4093, 4094, 4095]])
    np.testing.assert_array_equal(layer(x)[0, :, 0], layer.weight.data[4093:, 0])


def test_files(tmp_path: Path) -> None:
    model = network()
    fit(model, epochs=1)
    wf.save(model, tmp_path / "model")
    other = wf.load(tmp_path / "model")
    np.testing.assert_array_equal(wf.predict(other, X), wf.predict(model, X))


def test_fit_many(cuda: str) -> None:
    def build(candidate: dict[str, Any]) -> tuple[nn.Module, optim.Optimizer]:
        model = network()
        return model, optim.Adam(model.parameters(), candidate["lr"])

    for device in ("cpu", cuda):
        settings = {"epochs": 2, "batch_size": 16, "device": device, "verbose": False}
        sweep = wf.fit_many(build, X, LABELS, grid={"lr": [0.01]}, n_jobs=1, **settings)
        alone = network()
        fit(alone, **{**settings, "seed": 0})
        assert_same_weights(sweep.models[0], alone)


# -- values
# --------------------------------------------------------------------------------------------------


def test_spec_goes_through_json() -> None:
    spec = Embedding(7, 4).spec
    assert LayerSpec.from_dict(spec.to_dict()) == spec == EmbeddingSpec(7, 4)
    assert type(Layer.from_spec(spec)) is Embedding
    assert spec.output_shape((3,)) == (3, 4)
    assert spec.output_shape(()) == (4,)
    assert repr(Embedding(7, 4)) == "Embedding(7, 4, 28 parameters)"


def test_the_start_is_normal() -> None:
    weight = Embedding(500, 40, seed=3).weight.data
    assert abs(weight.mean()) < 0.02
    assert abs(weight.std() - 1) < 0.02
    np.testing.assert_array_equal(weight, Embedding(500, 40, seed=3).weight.data)


def test_empty_batches_stay_empty() -> None:
    assert Embedding(7, 4)(np.zeros((0, 3), "int64")).shape == (0, 3, 4)


def test_gradients_of_indices_are_0() -> None:
    x = wf.Tensor(X.astype("float32"), requires_grad=True)
    Embedding(7, 4)(x).sum().backward()
    np.testing.assert_array_equal(x.grad, np.zeros(X.shape))


# -- what is refused
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [7, -1, 2.5])
def test_an_index_out_of_range_is_named_before_anything_starts(cuda: str, wrong: float) -> None:
    x = X.astype("float32" if wrong == 2.5 else "int32")
    x[41, 2] = wrong
    message = f"to hold indices from 0 to 6, got {wrong} in row 41, column 2"
    model = network()
    optimizer = optim.Adam(model.parameters(), 0.01)
    for device in ("cpu", cuda):
        with unchanged(model, optimizer), pytest.raises(DataError, match=f"expected x {message}"):
            fit(model, x, optimizer=optimizer, device=device)
        with pytest.raises(DataError, match=f"expected validation x {message}"):
            fit(model, optimizer=optimizer, device=device, validation_data=(x, LABELS))
        with pytest.raises(DataError, match=f"expected x {message}"):
            fit(model, get(device).asarray(x), optimizer=optimizer, device=device)
    with pytest.raises(DataError, match=f"expected x {message}"):
        wf.predict(model, x)
    with pytest.raises(DataError, match=f"expected x {message}"):
        wf.evaluate(model, x, LABELS)


def test_an_index_out_of_range_in_a_module_of_ones_own(cuda: str) -> None:
    x = X.copy()
    x[:, 1] = 9
    for device in ("cpu", cuda):
        message = "the input of Embedding to hold indices from 0 to 8, got 9 in row 0"
        with pytest.raises(DataError, match=message):
            fit(Table(), x, device=device)


def test_not_a_number() -> None:
    with pytest.raises(DataError, match="got nan in row 0, column 1"):
        Embedding(7, 4)(np.array([[1.0, np.nan]]))


def test_bytes_are_no_indices() -> None:
    message = r"expected x to hold indices in another dtype than uint8, .*astype\('int32'\)"
    with pytest.raises(DTypeError, match=message):
        fit(network(), X.astype("uint8"))
    with pytest.raises(DTypeError, match=message):
        wf.predict(network(), X.astype("uint8"))


def test_indices_from_0_to_255_are_no_pixels() -> None:
    model = nn.Sequential(Embedding(256, 2), nn.Flatten(), nn.Linear(2, 2))
    x = np.arange(256)[:, None]
    fit(model, x, x[:, 0] % 2, epochs=1)
    wf.predict(model, x)
    wf.evaluate(model, x, x[:, 0] % 2)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("make", [network, Table])
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_half_precision_is_refused(cuda: str, precision: str, make: Any) -> None:
    message = f"expected precision 'float32', 'tf32' or 'float64' for .*, got '{precision}'"
    with pytest.raises(ConfigError, match=message):
        fit(make(), device=cuda, precision=precision)
    fit(make(), device=cuda, precision="tf32", epochs=1)


@pytest.mark.parametrize(
    ("engine", "told"), [("graph", ", which 'layerwise' runs"), ("one_launch", "")]
)
def test_other_engines_say_why_not(cuda: str, engine: str, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"expected .*layers.*, got embedding{told}"):
        fit(network(), device=cuda, engine=engine)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0, 4), "num_embeddings to be an integer of at least 1, got 0"),
        ((7, 1.5), "embedding_dim to be an integer of at least 1, got 1.5"),
        ((2**24 + 1, 1), "num_embeddings of at most 16,777,216, got 16,777,217"),
    ],
)
def test_refuses_settings(settings: tuple[Any, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"Embedding: expected {message}"):
        Embedding(*settings)


def test_a_single_index_out_of_range() -> None:
    with pytest.raises(DataError, match=r"indices from 0 to 4, got 7$"):
        nn.Embedding(5, 2)(np.array(7))
