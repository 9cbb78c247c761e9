"""Model files: what is saved comes back, and what is no model is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import warpfit as wf
from support.files import rewrite
from support.layers import LAYERS
from support.training import adam, assert_same_weights, blobs, mlp
from warpfit import losses, nn
from warpfit.errors import ConfigError, DataError, DataWarning, FileFormatError
from warpfit.nn.spec import LayerSpec
from warpfit.training.storage import HEADER, unsealed, write_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def rows(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).normal(size=(4, *shape)).astype(dtype)


# -- there and back
# ------------------------------------------------------------------------------------------


def test_every_kind_of_layer_is_tried() -> None:
    of_residual = {"junction"}  # tests/nn/test_residual.py
    tried = {layer.spec.kind for layer, _ in LAYERS.values()}
    assert tried | of_residual == set(LayerSpec.by_kind)
    public = {
        value
        for value in vars(nn).values()
        if isinstance(value, type) and issubclass(value, nn.Layer)
    }
    assert {type(layer) for layer, _ in LAYERS.values()} == public - {nn.Layer}


@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer_comes_back(name: str, path: Path) -> None:
    layer, shape = LAYERS[name]
    model = nn.Sequential(layer)
    for holder in model.named_arrays().values():
        holder.data[...] = np.random.default_rng(1).uniform(0.5, 1.5, holder.data.shape)
    wf.save(model, path)
    loaded = wf.load(path)
    assert repr(loaded) == repr(model)
    assert type(loaded[0]) is type(layer)
    assert loaded[0].spec == layer.spec
    assert_same_weights(loaded, model)
    x = rows(shape) if layer.spec.num_indices is None else np.arange(12).reshape(4, 3) % 7
    np.testing.assert_array_equal(wf.predict(loaded, x), wf.predict(model, x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_trained_network_comes_back(dtype: str, path: Path) -> None:
    x, labels = blobs(50)
    layers = mlp(6, 8, 3, dtype=dtype)
    model = nn.Sequential(
        layers[0], nn.BatchNorm1d(8, dtype=dtype), nn.Dropout(0.2), *list(layers)[1:]
    )
    wf.fit(model, x, labels, optimizer=adam(model), epochs=3, verbose=False)
    wf.save(model, path)
    loaded = wf.load(str(path))
    assert loaded.dtype == dtype
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert_same_weights(loaded, model)
    np.testing.assert_array_equal(wf.predict(loaded, x), wf.predict(model, x))
    assert wf.evaluate(loaded, x, labels) == wf.evaluate(model, x, labels)


@pytest.mark.parametrize(
    "loss", [None, "mse", losses.Huber(0.25), losses.SoftmaxCrossEntropy(0.1, (1.0, 2.0, 0.5))]
)
def test_what_outputs_mean_comes_back(loss: Any, path: Path) -> None:
    model = mlp(5, 3)
    model.loss = loss
    wf.save(model, path)
    assert wf.load(path).loss == (losses.resolve(loss) if loss is not None else None)


def test_a_loss_whose_class_is_not_imported_asks_for_it_when_it_is_needed(path: Path) -> None:
    model = mlp(5, 3)
    model.loss = {"name": "mine", "margin": 2}
    wf.save(model, path)
    wf.save(wf.load(path), path)
    loaded = wf.load(path)
    assert wf.predict(loaded, rows((5,))).shape == (4, 3)
    for call in (
        lambda: wf.predict(loaded, rows((5,)), kind="labels"),
        lambda: wf.evaluate(loaded, rows((5,)), [0]),
    ):
        with pytest.raises(ConfigError, match=r"expected a loss among .*, got \{'name': 'mine'"):
            call()


@pytest.mark.parametrize(
    "loss", [3, "mse", {}, {"name": 3}, {"name": "huber", "delta": "x"}, {"name": "mse", "a": 1}]
)
def test_a_forged_loss(loss: Any, path: Path) -> None:
    model = mlp(5, 3)
    header = {
        "layers": [{"name": "0", **model[0].spec.to_dict()}],
        "dtype": "float32",
        "loss": loss,
    }
    write_file(path, "warpfit-model", model.state_dict(), header)
    with pytest.raises(FileFormatError, match="loss"):
        wf.load(path)


def test_a_loaded_network_is_ones_own_and_trains_on(path: Path) -> None:
    x, labels = blobs(50)
    model = mlp(6, 8, 3)
    wf.save(model, path)
    first, second = wf.load(path), wf.load(path)
    for one in (model, first):
        wf.fit(one, x, labels, optimizer=adam(one), epochs=2, verbose=False)
    assert_same_weights(first, model)
    assert_same_weights(second, mlp(6, 8, 3))


def test_nested_chains_come_back_flat(path: Path) -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(5, 4, seed=0), nn.ReLU()), nn.Sequential(nn.Linear(4, 3, seed=1))
    )
    wf.save(model, path)
    loaded = wf.load(path)
    assert len(loaded) == 3
    np.testing.assert_array_equal(wf.predict(loaded, rows((5,))), wf.predict(model, rows((5,))))


def test_a_layer_used_twice_is_one_layer_again(path: Path) -> None:
    shared = nn.Linear(5, 5, seed=0)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    wf.save(model, path)
    loaded = wf.load(path)
    assert loaded[0] is loaded[2]
    np.testing.assert_array_equal(wf.predict(loaded, rows((5,))), wf.predict(model, rows((5,))))


def test_several_dropouts_keep_masks_of_their_own(path: Path) -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 5, seed=0), nn.Dropout(0.5))
    wf.save(model, path)
    loaded = wf.load(path)
    assert [loaded[idx].spec.layer_idx for idx in (0, 2)] == [0, 1]


def test_a_chain_of_nothing(path: Path) -> None:
    wf.save(nn.Sequential(), path)
    assert len(wf.load(path)) == 0


def test_strided_parameters_are_saved_as_they_look(path: Path) -> None:
    model = mlp(6, 3)
    model[0].weight.data = np.asfortranarray(model[0].weight.data)
    wf.save(model, path)
    assert_same_weights(wf.load(path), mlp(6, 3))


def test_metadata_comes_back(path: Path) -> None:
    metadata = {"classes": ["a", "b", "ß"], "accuracy": 0.975, "nested": {"none": None}}
    wf.save(mlp(6, 3), path, metadata=metadata)
    assert wf.load_metadata(path) == metadata
    wf.save(mlp(6, 3), path, metadata={"accuracy": np.float32(0.5), "epochs": np.int64(3)})
    assert wf.load_metadata(path) == {"accuracy": 0.5, "epochs": 3}
    wf.save(mlp(6, 3), path)
    assert wf.load_metadata(path) == {}


def test_a_file_is_a_plain_safetensors_file(path: Path) -> None:
    model = mlp(6, 3)
    wf.save(model, path)
    np.testing.assert_equal(load_file(path), model.state_dict())
    assert list(path.parent.iterdir()) == [path]


# -- what cannot be saved
# ------------------------------------------------------------------------------------


def test_places_that_cannot_be_written(path: Path) -> None:
    wf.save(mlp(6, 3), path)
    for place in (path.parent, path / "below", path.parent / "missing" / "file"):
        with pytest.raises(ConfigError, match=f"cannot write {place}: "):
            wf.save(mlp(6, 3), place)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("value", [object(), {1, 2}, np.zeros(3), b"bytes"])
def test_metadata_that_json_cannot_hold(value: Any, path: Path) -> None:
    wf.save(mlp(6, 3), path)
    with pytest.raises(ConfigError, match=f"cannot write {path}: expected what JSON can hold"):
        wf.save(mlp(6, 4), path, metadata={"value": value})
    assert_same_weights(wf.load(path), mlp(6, 3))


# -- what is no model
# ----------------------------------------------------------------------------------------


def forge(path: Path, *, arrays: Any = None, **changes: Any) -> None:
    """Save a small network and change the file's arrays, or entries of its JSON text."""
    wf.save(mlp(6, 8, 3), path)
    rewrite(path, lambda header, stored: (header.update(changes), stored.update(arrays or {})))


def refused(path: Path, match: str) -> None:
    with pytest.raises(FileFormatError, match=match) as caught:
        wf.load(path)
    assert "\n" not in str(caught.value)


def test_equal_models_have_equal_files(path: Path) -> None:
    contents = set()
    for _ in range(
        16
    ):  # an order that is random, as that of entries of the metadata, shows in some of them
        wf.save(mlp(6, 8, 3), path, metadata={"a": 1, "b": 2})
        contents.add(path.read_bytes())
    assert len(contents) == 1


def test_what_the_checksum_was_not_computed_from_is_refused(path: Path) -> None:
    wf.save(mlp(6, 8, 3), path)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    arrays = load_file(path)
    save_file(arrays, path, metadata)  # as another program may write it
    assert_same_weights(wf.load(path), mlp(6, 8, 3))
    other = {"0.weight": arrays["0.weight"] + 1}
    swapped = {"0.bias": arrays["2.bias"], "2.bias": arrays["0.bias"]}
    for changed, text in (
        (arrays | other, metadata),
        (arrays | swapped, metadata),
        ({name: array.reshape(-1) for name, array in arrays.items()}, metadata),
        ({name: array.view("i4") for name, array in arrays.items()}, metadata),
        (arrays, {HEADER: metadata[HEADER].replace("relu", "tanh")}),
        (arrays, {HEADER: metadata[HEADER].replace(": ", ":")}),
        (arrays, {HEADER: metadata[HEADER][:-4] + '00"}'}),
        (arrays, {HEADER: unsealed(metadata[HEADER])[0]}),
    ):
        save_file(changed, path, text)
        refused(path, "is damaged: its content is not what its checksum was computed from")


def test_many_arrays_that_are_not_finite_make_one_sentence(path: Path) -> None:
    forge(
        path, arrays={"0.weight": np.full((6, 8), np.nan, "f4"), "2.bias": np.full(3, np.inf, "f4")}
    )
    with pytest.warns(
        DataWarning, match=r"NaN or infinity in 0\.weight and 1 other arrays$"
    ) as caught:
        wf.load(path)
    assert len(caught) == 1


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_warned_of(value: float, path: Path) -> None:
    model = mlp(6, 8, 3)
    model[2].weight.data[3, 1] = value
    wf.save(model, path)
    with pytest.warns(
        DataWarning, match=r"model.safetensors holds NaN or infinity in 2\.weight$"
    ) as caught:
        loaded = wf.load(path)
    assert [warning.filename for warning in caught] == [__file__]
    assert_same_weights(loaded, model)


def test_a_file_that_the_memory_has_no_room_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Huge:
        def __init__(self, path: str, framework: str) -> None:
            raise MemoryError

    wf.save(mlp(6, 8, 3), path)
    monkeypatch.setattr("safetensors.safe_open", Huge)
    with pytest.raises(
        DataError, match=r"is too large for this machine's memory: its arrays take 0\.0 GiB"
    ):
        wf.load(path)


def test_rewriting_alone_is_harmless(path: Path) -> None:
    forge(path)
    assert_same_weights(wf.load(path), mlp(6, 8, 3))


def test_files_of_other_kinds(path: Path) -> None:
    refused(path, "does not exist; expected a model file")
    refused(path.parent, "is a folder; expected a model file")
    for content in (
        b"",
        b"hello",
        b"\0" * 100,
        b"\xff" * 100,
        json.dumps({"format": "warpfit-model"}).encode(),
    ):
        path.write_bytes(content)
        refused(path, "is no readable warpfit-model file")
    save_file({"a": np.zeros(3)}, path)
    refused(path, "to be a warpfit-model file, found format None")
    for text in ("null", "[]", '"warpfit-model"', "{}"):
        save_file({}, path, {HEADER: text})
        refused(path, "to be a warpfit-model file, found format None")
    for text in ("{", "", "[" * 100_000, '{"format": 1' + "0" * 5000 + "}"):
        save_file({}, path, {HEADER: text})
        refused(path, "is no readable warpfit-model file")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"format": "warpfit-checkpoint"},
            r"a warpfit-checkpoint file, which fit\(..., resume_from",
        ),
        ({"version": 3}, "to have version 2, found 3"),
        ({"version": True}, "to have version 2, found True"),
        (
            {"dtype": "float64"},
            "expected all arrays in its dtype, float32 or float64, found 'float64'",
        ),
        ({"dtype": "float16"}, "found 'float16'"),
        ({"dtype": None}, "found None"),
        ({"layers": None}, "holds no model: expected a network"),
        ({"layers": 3}, "holds no model: expected a network"),
        ({"layers": [3]}, "holds no model: expected a network"),
        ({"layers": []}, r"holds no model: expected shape None for 0.bias, found \(8,\)"),
        ({"layers": [{"kind": "linear"}]}, "holds no model: expected a network"),
        (
            {"layers": [{"name": "0", "kind": "system"}]},
            "expected a layer kind among .*, got 'system'",
        ),
        ({"layers": [{"name": "0", "kind": []}]}, "holds no model: "),
        ({"layers": [{"name": "0", "kind": "linear"}]}, "expected a description of a"),
    ],
)
def test_foreign_texts(changes: dict[str, Any], match: str, path: Path) -> None:
    forge(path, **changes)
    refused(path, match)


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        (
            {"0.weight": np.zeros((6, 9), "f4")},
            r"expected shape \(6, 8\) for 0.weight, found \(6, 9\)",
        ),
        (
            {"0.weight": np.zeros((8, 6), "f4")},
            r"expected shape \(6, 8\) for 0.weight, found \(8, 6\)",
        ),
        ({"0.weight": np.zeros(48, "f4")}, r"found \(48,\)"),
        ({"extra": np.zeros(1, "f4")}, r"expected shape None for extra, found \(1,\)"),
        ({"0.weight": np.zeros((6, 8), "f8")}, "expected all arrays in its dtype"),
        (
            {"0.weight": np.zeros((6, 8), "f2")},
            "expected float32 or float64 in 0.weight, found float16",
        ),
        (
            {"0.weight": np.zeros((6, 8), "i4")},
            "expected float32 or float64 in 0.weight, found int32",
        ),
    ],
)
def test_foreign_arrays(arrays: dict[str, np.ndarray], match: str, path: Path) -> None:
    forge(path, arrays=arrays)
    refused(path, match)


@pytest.mark.parametrize("size", [10**9, 2**62, 2**63, 10**30, -1, 7.5, "6", None, True, [6]])
@pytest.mark.parametrize("bias", [True, False])
def test_forged_sizes_ask_for_no_memory(size: Any, bias: bool, path: Path) -> None:
    for sizes in ((size, 8), (6, size), (0, size), (size, size)):
        linear = {"kind": "linear", "bias": bias, "activation": {"name": "identity"}}
        layer = {"name": "0", **linear, "in_features": sizes[0], "out_features": sizes[1]}
        forge(path, layers=[layer])
        refused(path, "holds no model: |is no readable")


def test_one_name_for_two_layers(path: Path) -> None:
    linear = {"name": "0", "kind": "linear", "bias": True, "activation": {"name": "identity"}}
    sizes = ({"in_features": 6, "out_features": 8}, {"in_features": 8, "out_features": 3})
    forge(path, layers=[linear | sizes[0], linear | sizes[1]])
    refused(path, "expected one layer of the name '0', found two that differ")


def test_metadata_that_is_none(path: Path) -> None:
    forge(path, metadata=[1, 2])
    with pytest.raises(FileFormatError, match="expected metadata as a JSON object, found list"):
        wf.load_metadata(path)
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match="is no readable"):
        wf.load_metadata(path)


@pytest.mark.parametrize(
    "layer",
    [
        {"kind": "flatten", "start_dim": "x", "end_dim": -1},
        {"kind": "flatten", "start_dim": 1, "end_dim": None},
        {"kind": "flatten", "start_dim": [1], "end_dim": -1},
        {"kind": "flatten", "start_dim": 1.5, "end_dim": -1},
        {"kind": "dropout", "p": "0.5", "layer_idx": 0},
        {"kind": "dropout", "p": True, "layer_idx": 0},
        {"kind": "dropout", "p": 0.5, "layer_idx": "x"},
        {"kind": "softmax", "log": "no"},
        {"kind": "activation", "activation": {"name": "leaky_relu", "slope": "x"}},
        {"kind": "activation", "activation": {"name": "leaky_relu", "slope": None}},
        {"kind": "activation", "activation": {"name": ["relu"], "slope": 0.01}},
        {"kind": "activation", "activation": "relu"},
        {"kind": "max_pool2d", "kernel_size": "2", "stride": 1, "padding": 0},
        {"kind": "avg_pool2d", "kernel_size": [2, 2, 2], "stride": 1, "padding": 0},
        {
            "kind": "layer_norm",
            "normalized_shape": "8",
            "eps": 0.1,
            "elementwise_affine": False,
            "bias": False,
        },
        {
            "kind": "layer_norm",
            "normalized_shape": 8,
            "eps": 0.1,
            "elementwise_affine": False,
            "bias": False,
        },
        {
            "kind": "layer_norm",
            "normalized_shape": [8],
            "eps": "x",
            "elementwise_affine": False,
            "bias": False,
        },
        {
            "kind": "batch_norm",
            "num_features": 8,
            "num_dims": "1",
            "eps": 0.1,
            "momentum": 0.1,
            "affine": False,
        },
    ],
    ids=lambda layer: " ".join(map(str, layer.values())),
)
def test_forged_settings_of_a_layer_are_refused_before_they_are_used(
    layer: dict[str, Any], path: Path
) -> None:
    wf.save(nn.Sequential(), path)
    rewrite(path, lambda header, arrays: header.update(layers=[{"name": "0", **layer}]))
    refused(path, "holds no model: ")
