"""The known datasets: found in the right places, checked, read, downloaded."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from warpfit.data import available_datasets, dataset_names, load_dataset, registry, write_idx
from warpfit.data.registry import DATASETS, DataFile
from warpfit.errors import ConfigError, DataError, FileFormatError

IDX_NAMES = [file.name for file in DATASETS["mnist"].files]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep every test off the user's own data and off the network."""
    monkeypatch.setattr(registry, "user_cache", lambda: tmp_path / "cache")
    for record in list(DATASETS.values()):
        dead = dataclasses.replace(
            record, mirrors=tuple("http://127.0.0.1:9/" for _ in record.mirrors)
        )
        monkeypatch.setitem(DATASETS, record.name, dead)
    return tmp_path / "cache"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_toy(folder: Path, *, seed: int = 0, packed: bool = True) -> None:
    """Write the four files of a dataset of 12 + 5 images of 3×4."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = (
        rng.integers(0, 256, (12, 3, 4), dtype=np.uint8),
        rng.integers(0, 10, 12, dtype=np.uint8),
        rng.integers(0, 256, (5, 3, 4), dtype=np.uint8),
        rng.integers(0, 10, 5, dtype=np.uint8),
    )
    for name, array in zip(IDX_NAMES, arrays, strict=True):
        write_idx(folder / (name if packed else name.removesuffix(".gz")), array)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make 'mnist' mean toy files; return a data folder that has them in ``mnist/``."""
    folder = tmp_path / "data" / "mnist"
    write_toy(folder)
    files = tuple(
        DataFile(name, unpacked=sha256(gzip.decompress((folder / name).read_bytes())))
        for name in IDX_NAMES
    )
    monkeypatch.setitem(DATASETS, "mnist", dataclasses.replace(DATASETS["mnist"], files=files))
    return folder.parent


def test_names() -> None:
    assert dataset_names() == ("mnist", "fashion_mnist", "kmnist", "cifar10", "digits")
    for name in (None, "nope", "MNIST"):
        with pytest.raises(
            ConfigError, match="expected one of mnist, fashion_mnist, kmnist, cifar10, digits"
        ):
            load_dataset(name)  # type: ignore[arg-type]


def test_records_are_complete() -> None:
    for record in DATASETS.values():
        assert len(record.class_names) == 10
        assert record.source
        for file in record.files:
            known = [checksum for checksum in (file.packed, file.unpacked) if checksum]
            assert len(known) == 1
            assert len(bytes.fromhex(known[0])) == 32
        assert len(record.mirrors) == (2 if record.files else 0)
    assert [record.name for record in DATASETS.values() if not record.tried] == [
        "fashion_mnist",
        "kmnist",
        "cifar10",
    ]


def test_real_mnist(mnist_root: Path) -> None:
    data = load_dataset("mnist", data_dir=mnist_root, raw=True)
    assert data.x_train.flags.writeable
    assert repr(data) == "Dataset(mnist: 60000 + 10000 samples, 28×28 uint8, 10 classes)"
    assert data.y_train.dtype == data.y_test.dtype == np.int64
    assert data.y_train[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.y_test[:5].tolist() == [7, 2, 1, 0, 4]
    assert data.x_test[0].sum() == 18454
    assert data.class_names == tuple("0123456789")


def test_floats_flat_and_raw(toy: Path) -> None:
    raw = load_dataset("mnist", data_dir=toy, raw=True)
    floats = load_dataset("mnist", data_dir=str(toy))
    flat = load_dataset("mnist", data_dir=toy, flat=True)
    assert raw.x_train.dtype == np.uint8
    assert floats.x_train.dtype == np.float32
    assert floats.x_train.shape == (12, 3, 4)
    np.testing.assert_array_equal(floats.x_test, (raw.x_test / 255).astype(np.float32))
    np.testing.assert_array_equal(flat.x_train, floats.x_train.reshape(12, 12))
    assert load_dataset("mnist", data_dir=toy, flat=True, raw=True).x_test.shape == (5, 12)


@pytest.mark.parametrize("sub_folder", ["mnist", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_mnist_lies_in_its_folder_or_directly_in_the_root_packed_or_not(
    toy: Path, tmp_path: Path, sub_folder: str, packed: bool
) -> None:
    write_toy(tmp_path / "other" / sub_folder, packed=packed)
    found = load_dataset("mnist", data_dir=tmp_path / "other", download=False)
    np.testing.assert_array_equal(found.y_train, load_dataset("mnist", data_dir=toy).y_train)


def test_data_dir_then_environment_then_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = dataclasses.replace(DATASETS["kmnist"], files=tuple(map(DataFile, IDX_NAMES)))
    monkeypatch.setitem(DATASETS, "kmnist", record)
    monkeypatch.setenv("WARPFIT_DATA", str(tmp_path / "env"))
    labels = []
    for seed, root in enumerate((cache, tmp_path / "env", tmp_path / "given")):
        write_toy(root / "kmnist", seed=seed)
        (tmp_path / "given").mkdir(exist_ok=True)
        labels.append(load_dataset("kmnist", data_dir=tmp_path / "given").y_train.tolist())
        assert available_datasets(tmp_path / "given")[2].location == str(root / "kmnist")
    assert labels[0] != labels[1] != labels[2]


def test_home_is_expanded(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(toy.parent))
    assert load_dataset("mnist", data_dir="~/data").num_classes == 10


def test_wrong_checksum_of_a_found_file(toy: Path) -> None:
    path = toy / "mnist" / IDX_NAMES[3]
    expected = DATASETS["mnist"].files[3].unpacked
    write_idx(path, np.arange(5, dtype=np.uint8))
    found = sha256(gzip.decompress(path.read_bytes()))
    with pytest.raises(
        DataError, match=rf"content of {path} .* expected SHA-256 {expected}, found {found}"
    ):
        load_dataset("mnist", data_dir=toy)


def test_wrong_checksum_of_a_packed_file(tmp_path: Path) -> None:
    write_toy(tmp_path / "fashion_mnist")
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz .* expected SHA-256 3aede38d"):
        load_dataset("fashion_mnist", data_dir=tmp_path)


def test_a_file_that_is_cut_short(toy: Path) -> None:
    path = toy / "mnist" / IDX_NAMES[0]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FileFormatError, match="cut short"):
        load_dataset("mnist", data_dir=toy)


def test_unpacked_files_without_a_known_checksum_are_checked_for_their_kind(tmp_path: Path) -> None:
    folder = tmp_path / "kmnist"
    write_toy(folder, packed=False)
    assert load_dataset("kmnist", data_dir=tmp_path).x_train.shape == (12, 3, 4)
    labels = folder / "t10k-labels-idx1-ubyte"
    write_idx(labels, np.arange(5, dtype=np.int32))
    with pytest.raises(
        FileFormatError, match=f"{labels} holds int32 in 1 dimensions; expected uint8 in 1"
    ):
        load_dataset("kmnist", data_dir=tmp_path)
    write_idx(labels, np.arange(4, dtype=np.uint8))
    with pytest.raises(DataError, match="x_test has 5 samples but y_test has 4"):
        load_dataset("kmnist", data_dir=tmp_path)
    write_idx(labels, np.array([1, 2, 10, 3, 4], np.uint8))
    with pytest.raises(DataError, match="y_test has label 10 in row 2"):
        load_dataset("kmnist", data_dir=tmp_path)


def test_a_folder_that_is_named_and_not_there(
    tmp_path: Path, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPFIT_DATA", str(toy))
    assert load_dataset("mnist").num_classes == 10
    for look in (lambda folder: load_dataset("mnist", data_dir=folder), available_datasets):
        for folder in (tmp_path / "nope", toy / "mnist" / "nope"):
            with pytest.raises(
                ConfigError, match=r"data_dir .*nope is no folder; expected one that holds"
            ):
                look(folder)


def test_nothing_found_and_no_network(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPFIT_DATA", str(tmp_path / "env"))
    write_toy(tmp_path / "env")
    (tmp_path / "env" / IDX_NAMES[1]).unlink()
    given = tmp_path / "given"
    given.mkdir()
    with pytest.raises(DataError) as error:
        load_dataset("mnist", data_dir=given)
    url = f"http://127.0.0.1:9/{IDX_NAMES[0]}"
    assert str(error.value) == (
        f"the dataset 'mnist' is not in {tmp_path}/given/mnist, {tmp_path}/given, "
        f"{tmp_path}/env/mnist, "
        f"{tmp_path}/env (which lacks {IDX_NAMES[1]}), {cache}/mnist, and downloading failed "
        f"({url}: no connection; {url}: no connection); put {', '.join(IDX_NAMES)} into a folder "
        "<data>/mnist and give <data> as data_dir or in $WARPFIT_DATA"
    )


def test_downloading_can_be_forbidden(cache: Path) -> None:
    with pytest.raises(
        DataError, match=r"not in .*mnist, and downloading was not allowed; put train-images"
    ):
        load_dataset("mnist", download=False)
    assert not cache.exists()


@pytest.fixture
def mirror(toy: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let 'mnist' come from ``good://`` but not from ``dead://``; return the URLs that were
    asked.
    """
    asked = []

    def download(url: str, path: Path) -> None:
        asked.append(url)
        if url.startswith("dead://"):
            raise DataError(f"{url}: no connection")
        path.write_bytes((toy / "mnist" / url.removeprefix("good://")).read_bytes())

    monkeypatch.setattr("warpfit.data.download._download", download)
    record = dataclasses.replace(DATASETS["mnist"], mirrors=("dead://", "good://"))
    monkeypatch.setitem(DATASETS, "mnist", record)
    return asked


def test_download_into_the_cache_and_only_once(cache: Path, mirror: list[str], toy: Path) -> None:
    (cache.parent / "empty").mkdir()
    data = load_dataset("mnist", data_dir=cache.parent / "empty")
    np.testing.assert_array_equal(data.x_test, load_dataset("mnist", data_dir=toy).x_test)
    assert mirror == [start + name for name in IDX_NAMES for start in ("dead://", "good://")]
    assert sorted(path.name for path in (cache / "mnist").iterdir()) == sorted(IDX_NAMES)
    mirror.clear()
    load_dataset("mnist")
    assert mirror == []


def test_download_takes_up_where_it_was_broken_off(cache: Path, mirror: list[str]) -> None:
    load_dataset("mnist")
    (cache / "mnist" / IDX_NAMES[2]).unlink()
    mirror.clear()
    load_dataset("mnist")
    assert mirror == [start + IDX_NAMES[2] for start in ("dead://", "good://")]


def test_a_mirror_with_another_file(cache: Path, mirror: list[str], toy: Path) -> None:
    (toy / "mnist" / IDX_NAMES[1]).write_bytes(b"<html>log in first</html>")
    with pytest.raises(
        DataError, match=r"dead://.*no connection; the content of good://\S+ is not the published"
    ):
        load_dataset("mnist")
    assert [path.name for path in (cache / "mnist").iterdir()] == [IDX_NAMES[0]]


def test_a_web_page_is_no_packed_file(
    cache: Path, mirror: list[str], toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tuple(DataFile(name, packed="ab" * 32) for name in IDX_NAMES)
    monkeypatch.setitem(DATASETS, "mnist", dataclasses.replace(DATASETS["mnist"], files=files))
    (toy / "mnist" / IDX_NAMES[0]).write_bytes(b"<html>log in first</html>")
    with pytest.raises(
        DataError, match=r"good://train-images-idx3-ubyte.gz is not the published file"
    ):
        load_dataset("mnist")
    assert list((cache / "mnist").iterdir()) == []


def test_a_cache_that_cannot_be_written(cache: Path, mirror: list[str]) -> None:
    cache.write_bytes(b"a file in the way")
    with pytest.raises(
        DataError, match=r"not in .*, and downloading failed \(cannot make the folder .*\); put"
    ):
        load_dataset("mnist")
    assert mirror == []


def test_the_cache_is_the_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert registry.user_cache().name == "warpfit"


def test_digits() -> None:
    data = load_dataset("digits")
    assert repr(data) == "Dataset(digits: 1438 + 359 samples, 8×8 float32, 10 classes)"
    assert data.x_train.max() == 1
    assert data.x_train.min() == 0
    assert data.y_train.dtype == np.int64
    np.testing.assert_array_less(np.abs(np.bincount(data.y_test) - 35.9), 2)
    again = load_dataset("digits", raw=True, flat=True)
    assert again.x_train.dtype == np.uint8
    assert again.x_train.max() == 16
    np.testing.assert_array_equal(again.x_train.reshape(-1, 8, 8) / np.float32(16), data.x_train)


def test_digits_split_is_fixed() -> None:
    data = load_dataset("digits", raw=True)
    assert data.y_test[:15].tolist() == [1, 4, 6, 5, 3, 4, 5, 6, 0, 9, 5, 6, 8, 4, 2]
    assert data.x_test[0, 0].tolist() == [0, 0, 0, 12, 13, 5, 0, 0]


@pytest.fixture
def write_cifar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, bytes]], Path]:
    def write(members: dict[str, bytes]) -> Path:
        folder = tmp_path / "cifar10"
        folder.mkdir(exist_ok=True)
        path = folder / "cifar-10-binary.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name, content in members.items():
                member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        file = DataFile(path.name, packed=sha256(path.read_bytes()))
        monkeypatch.setitem(
            DATASETS, "cifar10", dataclasses.replace(DATASETS["cifar10"], files=(file,))
        )
        return path

    return write


def cifar_members(rows: int = 3) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (6, rows, 3073), dtype=np.uint8)
    records[:, :, 0] = np.arange(6 * rows).reshape(6, rows) % 10
    names = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
    return {
        "readme.html": b"<html>",
        **{name: records[i].tobytes() for i, name in enumerate(names)},
    }


def test_cifar(write_cifar: Callable[[dict[str, bytes]], Path], tmp_path: Path) -> None:
    members = cifar_members()
    write_cifar(members)
    data = load_dataset("cifar10", data_dir=tmp_path, raw=True)
    assert repr(data) == "Dataset(cifar10: 15 + 3 samples, 32×32×3 uint8, 10 classes)"
    assert data.y_train.tolist() == [i % 10 for i in range(15)]
    assert data.y_test.tolist() == [5, 6, 7]
    record = np.frombuffer(members["data_batch_2.bin"], np.uint8)[:3073]
    for colour in range(3):
        plane = record[1 + 1024 * colour : 1025 + 1024 * colour].reshape(32, 32)
        np.testing.assert_array_equal(data.x_train[3, :, :, colour], plane)
    flat = load_dataset("cifar10", data_dir=tmp_path, flat=True)
    assert flat.x_train.shape == (15, 3072)
    assert flat.x_train.dtype == np.float32


def test_unpacked_cifar(write_cifar: Callable[[dict[str, bytes]], Path], tmp_path: Path) -> None:
    path = write_cifar(cifar_members())
    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    path.unlink()
    assert load_dataset("cifar10", data_dir=tmp_path).x_test.shape == (3, 32, 32, 3)


def test_damaged_cifar(write_cifar: Callable[[dict[str, bytes]], Path], tmp_path: Path) -> None:
    members = cifar_members()
    path = write_cifar({**members, "test_batch.bin": members["test_batch.bin"][:-1]})
    with pytest.raises(
        FileFormatError, match=r"test_batch.bin in .* has 9218 bytes; expected records of 3073"
    ):
        load_dataset("cifar10", data_dir=tmp_path)
    del members["data_batch_4.bin"]
    write_cifar(members)
    with pytest.raises(FileFormatError, match=r"lacks data_batch_4.bin"):
        load_dataset("cifar10", data_dir=tmp_path)
    path.unlink()
    path.with_suffix("").write_bytes(b"no archive")
    with pytest.raises(FileFormatError, match="no readable tar archive"):
        load_dataset("cifar10", data_dir=tmp_path)


def test_available_datasets(toy: Path) -> None:
    listings = {listing.name: listing for listing in available_datasets(toy)}
    assert tuple(listings) == dataset_names()
    assert listings["mnist"].location == str(toy / "mnist")
    assert listings["mnist"].shape == "60000 + 10000 × 28×28"
    assert listings["kmnist"].location is None
    assert not listings["kmnist"].tried
    assert listings["digits"].location == "scikit-learn"
    assert "CC BY" in listings["digits"].source
