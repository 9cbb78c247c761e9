"""Files of data: IDX, plain and gzipped; NPZ; CSV; folders of images."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.harness import Feed, Rng, family, must_work
from fuzzing.mutations import altered_bytes
from warpfit.data import TablePreprocessor, load_user_data, read_idx

# -- IDX
# --------------------------------------------------------------------------------------------------

IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def _idx_file(rng: Rng) -> bytes:
    code = int(rng.choice(list(IDX_DTYPES)))
    shape = rng.integers(0, 7, size=rng.integers(1, 5)).tolist()
    body = rng.bytes(int(np.prod(shape)) * np.dtype(IDX_DTYPES[code]).itemsize)
    if rng.random() < 0.2:  # sizes that only the header claims
        shape = rng.integers(0, 2**32, size=rng.integers(1, 33)).tolist()
    return bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


@family("IDX files")
def idx_files(folder: Path) -> Feed:
    """Feed `read_idx`: what it accepts it reads as the file's bytes say."""
    path = folder / "fuzzed"

    def feed(rng: Rng) -> None:
        content = _idx_file(rng)
        kind = rng.integers(4)
        if kind == 0:
            content = altered_bytes(gzip.compress(content), rng)
        else:
            content = altered_bytes(content, rng) if rng.random() < 0.9 else content
            content = gzip.compress(content) if kind == 1 else content
        path.write_bytes(content)
        array = read_idx(path)
        plain = content if content[:2] == b"\0\0" else zlib.decompress(content, wbits=31)
        ndim = plain[3]
        assert plain[:2] == b"\0\0"
        assert array.shape == struct.unpack(f">{ndim}I", plain[4 : 4 + 4 * ndim])
        assert array.dtype == np.dtype(IDX_DTYPES[plain[2]]).newbyteorder("=")
        assert array.astype(IDX_DTYPES[plain[2]]).tobytes() == plain[4 + 4 * ndim :]

    return feed


# -- NPZ
# --------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(8, 3))
ARRAYS = (
    {"x": X, "y": np.arange(8) % 2},
    {"X": X.astype("f4"), "y": X[:, 0]},
    {"x": (100 * X).astype("u1").reshape(4, 3, 2, 1), "y": np.array(list("abab"))},
    {"x_train": X, "y_train": np.arange(8) % 2, "x_test": X[:2], "y_test": np.arange(2)},
)
NPY_TEXTS = (
    *(
        "1000000000000",
        "-1",
        "99999999999999999999",
        "3.5",
        "None",
        "'a'",
        "()",
        "[1]",
        "True",
        "",
        "8, 8",
    ),
    *(
        "'<f8'",
        "'>i4'",
        "'|O'",
        "'<U900000000'",
        "'<c16'",
        "'<M8[s]'",
        "'|V0'",
        "[('a', '<f8')]",
        "'f'",
        "'",
    ),
)


def _npy(array: np.ndarray, rng: Rng) -> bytes:
    """Return a .npy file, often with another header than its array's."""
    stream = io.BytesIO()
    np.save(stream, array)
    content = stream.getvalue()
    if rng.random() < 0.3:
        return altered_bytes(content, rng, head=128)
    header = {"descr": repr(array.dtype.str), "fortran_order": "False", "shape": repr(array.shape)}
    if rng.random() < 0.7:
        header[list(header)[rng.integers(3)]] = NPY_TEXTS[rng.integers(len(NPY_TEXTS))]
    text = ", ".join(f"{name!r}: {value}" for name, value in header.items()).join("{}").encode()
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + array.tobytes()


@family("NPZ files")
def npz_files(folder: Path) -> Feed:
    """Feed `load_user_data`."""
    path = folder / "fuzzed.npz"

    def feed(rng: Rng) -> None:
        arrays = ARRAYS[rng.integers(len(ARRAYS))]
        forged = list(arrays)[rng.integers(len(arrays))] if rng.random() < 0.6 else None
        with zipfile.ZipFile(
            path, "w", (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[rng.integers(2)]
        ) as archive:
            for name, array in arrays.items():
                stream = io.BytesIO()
                np.save(stream, array)
                archive.writestr(
                    f"{name}.npy", _npy(array, rng) if name == forged else stream.getvalue()
                )
        if forged is None:
            path.write_bytes(altered_bytes(path.read_bytes(), rng, head=1500))
        _use_data(path)

    return feed


def _use_data(path: Path, **settings: Any) -> None:
    """Load data and prepare what is a table, and look whether it is what every data set is."""
    data = load_user_data(path, **settings)
    table = TablePreprocessor().fit(data.x_train, data.y_train)
    with must_work():
        again = TablePreprocessor.from_dict(json.loads(json.dumps(table.to_dict())))
        for rows, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
            x = table.transform(rows)
            assert len(x) == len(y)
            assert x.dtype == np.float32
            assert np.isfinite(x).all()
            assert np.isfinite(table.transform_targets(y)).all()
            assert np.array_equal(x, again.transform(rows))
        assert len(data.x_train) > 0
        repr(data)


# -- CSV
# --------------------------------------------------------------------------------------------------

CELLS = (
    *(
        "1",
        "2.5",
        "-3e2",
        "0",
        "a",
        "b",
        "",
        " ",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "1_000",
        "0x10",
        "1,5",
    ),
    *(
        "9" * 400,
        "٣",
        "é",
        "\0",
        "\ufeff",
        '"',
        "'",
        "#",
        "=1+1",
        "True",
        "None",
        "1;2",
        "\u2028",
        "NA",
        "2024-01-01",
    ),
)


def _table(rng: Rng) -> str:
    """Return the text of a table, most of it in order."""
    columns = int(rng.integers(1, 6))
    header = [
        ("a", "b", "label", "y", "", "a", "target", "1")[rng.integers(8)] for _ in range(columns)
    ]
    rows = [
        [f"{rng.normal():.3f}" for _ in range(columns - 1)] + ["ab"[rng.integers(2)]]
        for _ in range(9)
    ]
    for _ in range(rng.integers(4)):
        row = rows[rng.integers(len(rows))]
        row[rng.integers(len(row))] = CELLS[rng.integers(len(CELLS))]
    if rng.random() < 0.2:
        rows[rng.integers(len(rows))].append("1")
    separator = (",", ",", ",", ";", "\t")[rng.integers(5)]
    ending = ("\n", "\n", "\r\n", "\r")[rng.integers(4)]
    return ending.join(
        separator.join(row) for row in ([header] if rng.random() < 0.8 else []) + rows
    )


@family("CSV files")
def csv_files(folder: Path) -> Feed:
    """Feed `load_user_data`."""
    path = folder / "fuzzed.csv"

    def feed(rng: Rng) -> None:
        encoding = ("utf-8", "utf-8", "utf-8", "utf-16", "latin-1")[rng.integers(5)]
        content = _table(rng).encode(encoding, errors="replace")
        path.write_bytes(altered_bytes(content, rng) if rng.random() < 0.4 else content)
        settings = {"label_column": "label"} if rng.random() < 0.2 else {}
        _use_data(path, **settings)

    return feed


# -- images
# --------------------------------------------------------------------------------------------------

FORMATS = ("png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm")


@family("image folders")
def image_folders(folder: Path) -> Feed:
    """Feed `load_user_data` a folder with one image that is damaged."""
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    contents = {}
    for name in FORMATS:
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, format=name)
        contents[name] = stream.getvalue()
    for name in ("cat", "dog"):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(2):
            Image.fromarray(pixels).save(folder / "images" / name / f"{number}.png")

    def feed(rng: Rng) -> None:
        name = FORMATS[rng.integers(len(FORMATS))]
        path = folder / "images" / "cat" / "0.png"  # its content, not its name, says what it is
        path.write_bytes(altered_bytes(contents[name], rng, head=64))
        _use_data(folder / "images")

    return feed
