"""The datasets that warpfit knows by name: where they are sought, how they are checked and read."""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from warpfit.checks import Array, brief, check_flag
from warpfit.data.dataset import Dataset, split_rows, unit_floats
from warpfit.data.download import fetch
from warpfit.data.idx import parse_idx, read_bytes, unpacked
from warpfit.errors import ConfigError, DataError, FileFormatError
from warpfit.extras import needs
from warpfit.files import PathLike, as_path

Splits = tuple[Array, Array, Array, Array]
Contents = Sequence[tuple[bytes, Path]]

WARPFIT_DATA = "WARPFIT_DATA"
CIFAR_RECORD_BYTES = 1 + 3 * 32 * 32
CIFAR_BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


@dataclass(frozen=True)
class DataFile:
    """A file of a dataset, under the name it is published, and the SHA-256 known of it.

    `unpacked` is that of the bytes inside, the same for every packing; `packed` that of the .gz
    file.
    """

    name: str
    unpacked: str | None = None
    packed: str | None = None


@dataclass(frozen=True)
class DatasetRecord:
    """What is known of a dataset.

    `num_rows` are those to train and to test on, `sample` is the shape of one. `read` turns the
    unpacked bytes of `files` (with their paths, for messages) into x_train, y_train, x_test, y_test
    as stored; `top` is the largest pixel. `tried` says whether the checksums were compared with
    real files by the authors of warpfit, or are as published.
    """

    name: str
    num_rows: tuple[int, int]
    sample: tuple[int, ...]
    source: str
    class_names: tuple[str, ...]
    read: Callable[[Contents], Splits]
    tried: bool
    files: tuple[DataFile, ...] = ()
    mirrors: tuple[str, ...] = ()
    top: int = 255
    in_root: bool = False  # the files may also lie directly in the data folder

    @property
    def shape(self) -> str:
        """The sizes in a few words."""
        return f"{' + '.join(map(str, self.num_rows))} × {'×'.join(map(str, self.sample))}"

    @property
    def location(self) -> str | None:
        """Where the data are if no file is needed, else None."""
        return None if self.files else "scikit-learn"


@dataclass(frozen=True)
class DatasetListing:
    """A line of `available_datasets`; `location` is None where the dataset was not found."""

    name: str
    location: str | None
    shape: str
    source: str
    tried: bool


def dataset_names() -> tuple[str, ...]:
    """Return the names that `load_dataset` knows.

    Examples
    --------
    >>> "mnist" in data.dataset_names()
    True
    """
    return tuple(DATASETS)


def available_datasets(data_dir: PathLike | None = None) -> list[DatasetListing]:
    """Return each known dataset and where it was found; nothing is read or downloaded.

    Examples
    --------
    >>> [listing.name for listing in data.available_datasets()]
    ['mnist', 'fashion_mnist', 'kmnist', 'cifar10', 'digits']
    """
    _check_folder(data_dir)
    listings = []
    for record in DATASETS.values():
        paths = _find(record, data_dir)
        location = str(paths[0].parent) if paths else record.location
        listings.append(
            DatasetListing(record.name, location, record.shape, record.source, record.tried)
        )
    return listings


def load_dataset(
    name: str,
    *,
    flat: bool = False,
    raw: bool = False,
    data_dir: PathLike | None = None,
    download: bool = True,
) -> Dataset:
    """Load a dataset by its name.

    Its files are looked for in `data_dir`, in ``$WARPFIT_DATA`` and in the user's cache, each time
    as ``<folder>/<name>/*.gz`` or unpacked without the ``.gz`` (MNIST also directly in the folder);
    then they are downloaded into the user's cache. Checksums are compared whenever they are known.

    ``digits`` comes with scikit-learn, without a test set: a fifth is held out, of each class its
    share, by `split_rows` with seed 0.

    Parameters
    ----------
    name : {'mnist', 'fashion_mnist', 'kmnist', 'cifar10', 'digits'}
    flat : bool
        Give samples as (N, H·W·C) instead of (N, H, W) or (N, H, W, C).
    raw : bool
        Give the stored uint8 instead of float32 in [0, 1]. Pixels of ``digits`` end at 16, all
        others at 255.
    data_dir : path, optional
        The folder to look in first.
    download : bool
        False never asks the network.

    Raises
    ------
    ConfigError
        If the name is unknown, or `data_dir` is no folder.
    DataError
        If the dataset was neither found nor could be downloaded, or a file has the wrong checksum.
    FileFormatError
        If a file is damaged.

    Examples
    --------
    >>> digits = data.load_dataset("digits", flat=True)
    >>> digits.x_train.shape, digits.x_test.shape
    ((1438, 64), (359, 64))
    """
    record = DATASETS.get(name) if isinstance(name, str) else None
    if record is None:
        raise ConfigError(f"unknown dataset {brief(name)}; expected one of {', '.join(DATASETS)}")
    flat, raw = check_flag("flat", flat), check_flag("raw", raw)
    if data_dir is not None:
        data_dir = as_path("data_dir", data_dir)
    _check_folder(data_dir)
    paths = _find(record, data_dir)
    if paths is None:
        paths = _download(record, data_dir, download)
    with ThreadPoolExecutor() as pool:  # which unpacks and sums up several files at once
        contents = list(pool.map(_read_file, paths, record.files))
    x_train, y_train, x_test, y_test = record.read(contents)
    return Dataset(
        name=name,
        x_train=_pixels(x_train, record.top, flat=flat, raw=raw),
        y_train=y_train.astype(np.int64),
        x_test=_pixels(x_test, record.top, flat=flat, raw=raw),
        y_test=y_test.astype(np.int64),
        class_names=record.class_names,
    )


def user_cache() -> Path:
    """Return the folder that downloads go to: the platform's usual place for caches."""
    with needs("data", "the user's cache needs"):
        from platformdirs import user_cache_dir

    return Path(user_cache_dir("warpfit"))


def _pixels(x: Array, top: int, *, flat: bool, raw: bool) -> Array:
    x = x.reshape(len(x), math.prod(x.shape[1:])) if flat else x
    return x.copy() if raw else unit_floats(x, top)


def _check_folder(data_dir: PathLike | None) -> None:
    """Raise ConfigError for a named folder that is not there: other data would be a surprise."""
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise ConfigError(f"data_dir {data_dir} is no folder; expected one that holds datasets")


def _folders(record: DatasetRecord, data_dir: PathLike | None) -> Iterator[Path]:
    for root in (data_dir, os.environ.get(WARPFIT_DATA)):
        if root:
            root = Path(root).expanduser()
            yield root / record.name
            if record.in_root:
                yield root
    yield user_cache() / record.name


def _find(record: DatasetRecord, data_dir: PathLike | None) -> list[Path] | None:
    """Return the paths of a dataset's files in the first folder that has all of them, else None."""
    if not record.files:
        return []
    for folder in _folders(record, data_dir):
        paths = [_find_file(folder, file) for file in record.files]
        if None not in paths:
            return [path for path in paths if path]
    return None


def _find_file(folder: Path, file: DataFile) -> Path | None:
    candidates = (folder / file.name, folder / file.name.removesuffix(".gz"))
    return next((path for path in candidates if path.is_file()), None)


def _download(record: DatasetRecord, data_dir: PathLike | None, download: bool) -> list[Path]:
    if not download:
        raise DataError(_not_found(record, data_dir, "downloading was not allowed"))
    folder = user_cache() / record.name
    try:
        return [_find_file(folder, file) or _fetch(record, file, folder) for file in record.files]
    except (DataError, ConfigError) as error:
        raise DataError(_not_found(record, data_dir, f"downloading failed ({error})")) from error


def _fetch(record: DatasetRecord, file: DataFile, folder: Path) -> Path:
    urls = [mirror + file.name for mirror in record.mirrors]
    return fetch(urls, folder / file.name, lambda content, url: _checked(content, file, url))


def _not_found(record: DatasetRecord, data_dir: PathLike | None, then: str) -> str:
    folders = ", ".join(_what_is_in(folder, record) for folder in _folders(record, data_dir))
    names = ", ".join(file.name for file in record.files)
    return (
        f"the dataset {record.name!r} is not in {folders}, and {then}; put {names} into a folder "
        f"<data>/{record.name} and give <data> as data_dir or in ${WARPFIT_DATA}"
    )


def _what_is_in(folder: Path, record: DatasetRecord) -> str:
    missing = [file.name for file in record.files if _find_file(folder, file) is None]
    if len(missing) == len(record.files):
        return str(folder)
    return f"{folder} (which lacks {', '.join(missing)})"


def _read_file(path: Path, file: DataFile) -> tuple[bytes, Path]:
    return _checked(read_bytes(path), file, str(path)), path


def _checked(stored: bytes, file: DataFile, where: str) -> bytes:
    """Return the unpacked content of a file whose known checksums agree."""
    if where.endswith(".gz"):
        _compare(stored, file.packed, where)
    content = unpacked(stored, where)
    _compare(content, file.unpacked, f"the content of {where}")
    return content


def _compare(content: bytes, expected: str | None, where: str) -> None:
    if expected is None:
        return
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(
            f"{where} is not the published file: expected SHA-256 {expected}, found {found}"
        )


def _read_idx_files(contents: Contents) -> Splits:
    x_train, y_train, x_test, y_test = (
        _idx_bytes(content, path, ndim)
        for (content, path), ndim in zip(contents, (3, 1, 3, 1), strict=True)
    )
    return x_train, y_train, x_test, y_test


def _idx_bytes(content: bytes, path: Path, ndim: int) -> Array:
    array = parse_idx(content, path, copy=False)
    if array.dtype != np.uint8 or array.ndim != ndim:
        raise FileFormatError(
            f"{path} holds {array.dtype} in {array.ndim} dimensions; expected uint8 in {ndim}"
        )
    return array


def _read_cifar(contents: Contents) -> Splits:
    """Read the binary version of CIFAR-10, whose pickled version could run code."""
    import tarfile

    [(content, path)] = contents
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            members = {Path(member.name).name: archive.extractfile(member) for member in archive}
            batches = {
                name: file.read()
                for name, file in members.items()
                if file and name in CIFAR_BATCHES
            }
    except tarfile.TarError as error:
        raise FileFormatError(f"{path} is no readable tar archive: {error}") from error
    missing = [name for name in CIFAR_BATCHES if name not in batches]
    if missing:
        raise FileFormatError(f"{path} lacks {', '.join(missing)}")
    train, test = CIFAR_BATCHES[:-1], CIFAR_BATCHES[-1:]
    return *_cifar_images(batches, train, path), *_cifar_images(batches, test, path)


def _cifar_images(
    batches: dict[str, bytes], names: Sequence[str], path: Path
) -> tuple[Array, Array]:
    """Return images (N, 32, 32, 3) and labels (N,) of records: a label, then red, green, blue."""
    for name in names:
        if len(batches[name]) % CIFAR_RECORD_BYTES:
            raise FileFormatError(
                f"{name} in {path} has {len(batches[name])} bytes; expected records of "
                f"{CIFAR_RECORD_BYTES}"
            )
    records = np.frombuffer(b"".join(batches[name] for name in names), np.uint8).reshape(
        -1, CIFAR_RECORD_BYTES
    )
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, 0]


def _read_digits(_: Contents) -> Splits:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype(np.uint8)
    train, test = split_rows(labels, test_fraction=0.2, seed=0)
    return images[train], labels[train], images[test], labels[test]


def _idx_files(
    unpacked: Sequence[str | None] = (None,) * 4, packed: Sequence[str | None] = (None,) * 4
) -> tuple[DataFile, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        DataFile(f"{name}-ubyte.gz", *sums)
        for name, *sums in zip(names, unpacked, packed, strict=True)
    )


_DIGIT_NAMES = tuple("0123456789")
_FASHION_NAMES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_KMNIST_NAMES = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
_CIFAR_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

DATASETS = {
    record.name: record
    for record in (
        DatasetRecord(
            name="mnist",
            num_rows=(60_000, 10_000),
            sample=(28, 28),
            source="LeCun, Cortes, Burges 1998, yann.lecun.com/exdb/mnist; CC BY-SA 3.0",
            class_names=_DIGIT_NAMES,
            read=_read_idx_files,
            tried=True,
            files=_idx_files(
                unpacked=(
                    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                )
            ),
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            in_root=True,
        ),
        DatasetRecord(
            name="fashion_mnist",
            num_rows=(60_000, 10_000),
            sample=(28, 28),
            source="Xiao, Rasul, Vollgraf 2017, github.com/zalandoresearch/fashion-mnist; MIT",
            class_names=_FASHION_NAMES,
            read=_read_idx_files,
            tried=False,
            files=_idx_files(
                packed=(
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                )
            ),
            mirrors=(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            ),
        ),
        DatasetRecord(
            name="kmnist",
            num_rows=(60_000, 10_000),
            sample=(28, 28),
            source="Clanuwat et al. 2018 (CODH, NIJL), codh.rois.ac.jp/kmnist; CC BY-SA 4.0",
            class_names=_KMNIST_NAMES,
            read=_read_idx_files,
            tried=False,
            files=_idx_files(
                packed=(
                    "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
                    "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
                    "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
                    "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
                )
            ),
            mirrors=(
                "https://codh.rois.ac.jp/kmnist/dataset/kmnist/",
                "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/KMNIST/",
            ),
        ),
        DatasetRecord(
            name="cifar10",
            num_rows=(50_000, 10_000),
            sample=(32, 32, 3),
            source="Krizhevsky 2009, www.cs.toronto.edu/~kriz/cifar.html; no licence stated",
            class_names=_CIFAR_NAMES,
            read=_read_cifar,
            tried=False,
            files=(
                DataFile(
                    "cifar-10-binary.tar.gz",
                    packed="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                ),
            ),
            mirrors=(
                "https://www.cs.toronto.edu/~kriz/",
                "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
            ),
        ),
        DatasetRecord(
            name="digits",
            num_rows=(1438, 359),
            sample=(8, 8),
            source="Alpaydin, Kaynak 1998, UCI repository, through scikit-learn; CC BY 4.0",
            class_names=_DIGIT_NAMES,
            read=_read_digits,
            tried=True,
            top=16,
        ),
    )
}
