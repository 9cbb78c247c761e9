"""The IDX reader and writer, on files made here and on the real MNIST."""

from __future__ import annotations

import gzip
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from warpfit.data import read_idx, write_idx
from warpfit.data.idx import gunzip, parse_idx, unpacked
from warpfit.errors import ConfigError, DataError, DTypeError, FileFormatError, ShapeError

DTYPES = ("uint8", "int8", "int16", "int32", "float32", "float64")


def idx_bytes(code: int, shape: tuple[int, ...], body: bytes, zeros: bytes = b"\0\0") -> bytes:
    return zeros + bytes([code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a-idx2-ubyte"


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("shape", [(7,), (0,), (3, 4), (0, 28, 28), (2, 0, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reads_what_was_written(
    tmp_path: Path, dtype: str, shape: tuple[int, ...], ending: str
) -> None:
    array = (np.arange(np.prod(shape)) * 37 - 50).astype(dtype).reshape(shape)
    write_idx(tmp_path / f"array{ending}", array)
    result = read_idx(tmp_path / f"array{ending}")
    assert result.dtype == array.dtype
    assert result.dtype.isnative
    assert result.flags.writeable
    np.testing.assert_array_equal(result, array)


def test_bytes_on_disk_are_those_of_the_format(path: Path) -> None:
    write_idx(path, np.array([[1, -2, 3]], dtype=np.int16))
    assert path.read_bytes() == bytes.fromhex("00 00 0b 02 00000001 00000003 0001 fffe 0003")


def test_big_endian_and_strided_arrays_are_written_by_value(path: Path) -> None:
    array = np.arange(12, dtype=">i4").reshape(3, 4).T
    write_idx(path, array)
    np.testing.assert_array_equal(read_idx(path), array)


def test_gzip_is_seen_from_the_content_not_from_the_name(tmp_path: Path) -> None:
    write_idx(tmp_path / "packed.gz", np.arange(5, dtype=np.uint8))
    os.rename(tmp_path / "packed.gz", tmp_path / "packed")
    write_idx(tmp_path / "plain", np.arange(5, dtype=np.uint8))
    os.rename(tmp_path / "plain", tmp_path / "plain.gz")
    for name in ("packed", "plain.gz"):
        np.testing.assert_array_equal(read_idx(tmp_path / name), np.arange(5))


def test_equal_arrays_give_equal_gzip_files(tmp_path: Path) -> None:
    for name in ("one.gz", "two.gz"):
        write_idx(tmp_path / name, np.arange(100, dtype=np.uint8))
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()
    assert (tmp_path / "one.gz").read_bytes()[4:8] == b"\0\0\0\0"  # the time stamp


def test_gzip_members_in_a_row_and_zero_padding(path: Path) -> None:
    content = idx_bytes(0x08, (6,), b"abcdef")
    path.write_bytes(gzip.compress(content[:9]) + gzip.compress(content[9:]) + b"\0" * 8)
    assert read_idx(path).tobytes() == b"abcdef"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\0\0\x08", "at least 4 bytes, found 3"),
        (
            idx_bytes(0x08, (1,), b"a", zeros=b"\x89P"),
            "expected the first bytes 00 00, found 89 50",
        ),
        (idx_bytes(0x0A, (1,), b"a"), "unknown IDX dtype code 0x0a; expected one of 0x08, 0x09"),
        (idx_bytes(0x08, (), b"a"), "has 0 dimensions in its IDX header; expected 1 to 32"),
        (idx_bytes(0x08, (1,) * 33, b"a"), "has 33 dimensions"),
        (idx_bytes(0x08, (2, 3), b"")[:-1], "expected an IDX header of 12 bytes, found 11"),
        (idx_bytes(0x08, (2, 3), b"abcde"), "is cut short: expected 6 bytes .* found 5"),
        (idx_bytes(0x0E, (2,), b"abcde"), "expected 16 bytes .* float64 of shape .2,., found 5"),
        (idx_bytes(0x08, (2, 3), b"abcdefg"), "is too long: expected 6 bytes .* found more"),
        (idx_bytes(0x08, (2**32 - 1, 2**31), b"abc"), "expected (9223372034707292160|at most) "),
        (idx_bytes(0x08, (2**32 - 1,) * 3, b"abc"), "implausible sizes"),
        (idx_bytes(0x08, (0, 2**32 - 1, 2**32 - 1), b""), "implausible sizes"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_files_are_named_with_their_fault(
    path: Path, content: bytes, message: str, packed: bool
) -> None:
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(FileFormatError, match=message) as error:
        read_idx(path)
    assert str(path) in str(error.value)


def test_a_gzip_stream_that_is_cut_or_altered(path: Path) -> None:
    packed = gzip.compress(idx_bytes(0x08, (10_000,), os.urandom(10_000)), mtime=0)
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(FileFormatError, match="gzip stream that is cut short"):
        read_idx(path)
    path.write_bytes(packed[:5000] + bytes([packed[5000] ^ 0xFF]) + packed[5001:])
    with pytest.raises(FileFormatError, match="corrupt gzip stream"):
        read_idx(path)
    path.write_bytes(packed + b"no gzip member")
    with pytest.raises(FileFormatError, match="corrupt gzip stream"):
        read_idx(path)


def test_a_gzip_bomb_is_not_unpacked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def recording_gunzip(packed: bytes, where: Path, limit: int) -> bytes:
        sizes.append(len(content := gunzip(packed, where, limit)))
        return content

    monkeypatch.setattr("warpfit.data.idx.gunzip", recording_gunzip)
    path.write_bytes(gzip.compress(idx_bytes(0x08, (1000,), b"\0" * 50_000_000)))
    with pytest.raises(FileFormatError, match="is too long"):
        read_idx(path)
    assert max(sizes) == 8 + 1000 + 1


def test_what_a_gzip_stream_may_unpack_to(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpfit.data.idx.MAX_UNPACKED_BYTES", 1_000_000)
    zeros = bytes(40_000_000)
    bomb = gzip.compress(idx_bytes(0x08, (len(zeros),), zeros), compresslevel=9)
    lying = gzip.compress(idx_bytes(0x08, (1000,), zeros), compresslevel=9)
    foreign = gzip.compress(b"a" + zeros, compresslevel=9)
    path.write_bytes(bomb)
    for read, stored, message in (
        (
            read_idx,
            bomb,
            f"at most 1000000 bytes .* announces {8 + len(zeros)} bytes; if that is meant, unpack",
        ),
        (lambda path: unpacked(path.read_bytes(), path), bomb, "at most 1000000 bytes"),
        (
            lambda path: unpacked(path.read_bytes(), path),
            foreign,
            "at most 1000000 bytes .* found more",
        ),
        (lambda path: parse_idx(unpacked(path.read_bytes(), path), path), lying, "is too long"),
    ):
        path.write_bytes(stored)
        tracemalloc.start()
        try:
            with pytest.raises(FileFormatError, match=message):
                read(path)
            assert tracemalloc.get_traced_memory()[1] < 3_000_000
        finally:
            tracemalloc.stop()


def test_missing_file_and_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*nothing: No such file"):
        read_idx(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"cannot read .*: Is a directory"):
        read_idx(tmp_path)


@pytest.mark.parametrize("dtype", ["int64", "uint16", "bool", "complex64", "U3"])
def test_dtypes_that_the_format_lacks(path: Path, dtype: str) -> None:
    with pytest.raises(DTypeError, match="holds uint8, int8, int16, int32, float32, float64; got"):
        write_idx(path, np.zeros(3, dtype=dtype))
    assert not path.exists()


def test_shapes_that_the_format_lacks(path: Path) -> None:
    for array in (np.uint8(3), np.zeros((1,) * 33, np.uint8)):
        with pytest.raises(ShapeError, match="1 to 32 dimensions"):
            write_idx(path, array)


def test_a_failed_write_leaves_the_file_before_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(path, np.zeros(3, np.uint8))

    def full_disk(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(ConfigError, match=r"cannot write .*: No space left"):
        write_idx(path, np.ones(3, np.uint8))
    np.testing.assert_array_equal(read_idx(path), np.zeros(3))
    assert list(path.parent.iterdir()) == [path]


def test_writing_into_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        write_idx(tmp_path / "no" / "a", np.zeros(3, np.uint8))


def test_real_mnist(mnist_root: Path) -> None:
    images = read_idx(mnist_root / "mnist" / "t10k-images-idx3-ubyte.gz")
    labels = read_idx(mnist_root / "mnist" / "t10k-labels-idx1-ubyte.gz")
    assert images.shape == (10_000, 28, 28)
    assert images.dtype == np.uint8
    assert labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert np.bincount(labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
