"""The IDX format, in which MNIST and its kin are stored: read and written, plain or gzipped.

A file is four bytes ``0 0 dtype ndim``, then `ndim` sizes as big-endian uint32, then the elements
in C order, big-endian.

References
----------
LeCun, Cortes, Burges: The MNIST database of handwritten digits (1998), section "File formats".
RFC 1952: GZIP file format specification version 4.3.
"""

from __future__ import annotations

import gzip
import math
import sys
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.checks import as_array
from warpfit.errors import DataError, DTypeError, FileFormatError, ShapeError
from warpfit.files import PathLike, as_path, atomic_path

DTYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype(">u1"),
    0x09: np.dtype(">i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}
CODES = {dtype.newbyteorder("="): code for code, dtype in DTYPES.items()}
MAX_NDIM = 32  # what every NumPy that we accept can hold
MAX_HEADER_BYTES = 4 + 4 * MAX_NDIM
MAX_UNPACKED_BYTES = 1 << 31  # several times what any set of images has that is published this way


@dataclass(frozen=True)
class _Header:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return 4 + 4 * len(self.shape)

    @property
    def body_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_idx(path: PathLike) -> npt.NDArray[Any]:
    """Read an IDX file, plain or gzipped; which of the two is seen from its bytes, not from its
    name.

    Returns
    -------
    ndarray
        In the file's shape and dtype (uint8, int8, int16, int32, float32, float64), in native byte
        order.

    Raises
    ------
    DataError
        If the file is missing or cannot be read.
    FileFormatError
        If it is empty, no IDX file, cut short, longer than its header says, or a corrupt gzip
        stream. Memory is never allocated for sizes that only the header claims.

    Examples
    --------
    >>> data.write_idx("labels.idx.gz", np.arange(3, dtype=np.uint8))
    >>> data.read_idx("labels.idx.gz")
    array([0, 1, 2], dtype=uint8)
    """
    content = read_bytes(path)
    return parse_idx(_unpacked_idx(content, path) if is_gzip(content) else content, path)


def unpacked(stored: bytes, path: PathLike) -> bytes:
    """Return the bytes of a file, unpacked if it is a gzip stream; `path` is for the messages only.

    Of an IDX file no more is unpacked than its header announces, and a byte that tells that there
    is more.

    Raises
    ------
    FileFormatError
        If the stream is corrupt or cut short, or there is more in it than 2 GiB.
    """
    if not is_gzip(stored):
        return stored
    if gunzip(stored, path, limit=2) == b"\0\0":
        return _unpacked_idx(stored, path)
    content = gunzip(stored, path, limit=MAX_UNPACKED_BYTES + 1)
    _check_unpacked_bytes(len(content), path, "more")
    return content


def _unpacked_idx(packed: bytes, path: PathLike) -> bytes:
    header = _parse_header(gunzip(packed, path, limit=MAX_HEADER_BYTES), path)
    num_bytes = header.num_bytes + header.body_bytes
    _check_unpacked_bytes(num_bytes, path, f"an IDX header that announces {num_bytes} bytes")
    return gunzip(packed, path, limit=num_bytes + 1)


def _check_unpacked_bytes(num_bytes: int, path: PathLike, found: str) -> None:
    if num_bytes > MAX_UNPACKED_BYTES:
        raise FileFormatError(
            f"{path}: expected at most {MAX_UNPACKED_BYTES} bytes in a gzip stream, found {found}; "
            "if that is meant, unpack the file first"
        )


def parse_idx(content: bytes, path: PathLike, *, copy: bool = True) -> npt.NDArray[Any]:
    """Return the array in the unpacked bytes of an IDX file; `path` is for the messages only.

    Without `copy` it may be the bytes themselves, which nobody can write to.
    """
    header = _parse_header(content, path)
    body_bytes = len(content) - header.num_bytes
    if body_bytes != header.body_bytes:
        is_short = body_bytes < header.body_bytes
        fault, found = ("is cut short", body_bytes) if is_short else ("is too long", "more")
        raise FileFormatError(
            f"{path} {fault}: expected {header.body_bytes} bytes after the header for "
            f"{header.dtype.name} of shape {header.shape}, found {found}"
        )
    stored = np.ndarray(header.shape, header.dtype, buffer=content, offset=header.num_bytes)
    return stored.astype(header.dtype.newbyteorder("="), copy=copy)


def write_idx(path: PathLike, array: npt.ArrayLike) -> None:
    """Write an array as an IDX file, gzipped if the name ends in ``.gz``.

    Equal arrays give equal files: the gzip header carries no time and no name. The file appears
    whole or not at all.

    Raises
    ------
    DTypeError
        If the dtype is none of uint8, int8, int16, int32, float32, float64.
    ShapeError
        If the array has no dimension, more than 32, or one of 2**32 or more.
    ConfigError
        If the file cannot be written.

    Examples
    --------
    >>> data.write_idx("labels.idx.gz", np.arange(3, dtype=np.uint8))
    """
    path, array = as_path("path", path), as_array(array, "array")
    code = CODES.get(array.dtype.newbyteorder("="))
    if code is None:
        known = ", ".join(dtype.name for dtype in CODES)
        raise DTypeError(f"an IDX file holds {known}; got an array of {array.dtype}")
    if not 1 <= array.ndim <= MAX_NDIM or max(array.shape) >= 2**32:
        raise ShapeError(
            f"an IDX file holds 1 to {MAX_NDIM} dimensions below 2**32; got shape {array.shape}"
        )
    header = bytes([0, 0, code, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    content = header + array.astype(DTYPES[code]).tobytes()
    if path.suffix == ".gz":  # of level 9 it would be 2 % smaller, and take 14 times as long
        content = gzip.compress(content, compresslevel=6, mtime=0)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def read_bytes(path: PathLike) -> bytes:
    """Return the bytes of a file, or raise DataError naming the file and the reason."""
    try:
        return as_path("path", path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def is_gzip(content: bytes) -> bool:
    """Tell whether the bytes begin as a gzip stream does."""
    return content.startswith(b"\x1f\x8b")


def gunzip(packed: bytes, path: PathLike, limit: int) -> bytes:
    """Unpack the first `limit` bytes of a gzip stream; `path` is for the messages only.

    Members may follow each other, and zeros may follow the last, as in the gzip program.

    Raises
    ------
    FileFormatError
        If the stream is corrupt or cut short (as far as it was unpacked).
    """
    members, room = [], limit
    while packed and room:
        member = zlib.decompressobj(wbits=31)
        try:
            members.append(member.decompress(packed, min(room, sys.maxsize)))
        except zlib.error as error:
            raise FileFormatError(f"{path} has a corrupt gzip stream: {error}") from None
        room -= len(members[-1])
        if room and not member.eof:
            raise FileFormatError(f"{path} has a gzip stream that is cut short")
        packed = member.unused_data.lstrip(b"\0")
    return b"".join(members)


def _parse_header(content: bytes, path: PathLike) -> _Header:
    if not content:
        raise FileFormatError(f"{path} is empty; expected an IDX file")
    if len(content) < 4:
        raise FileFormatError(
            f"{path} is cut short: an IDX header has at least 4 bytes, found {len(content)}"
        )
    zeros, code, ndim = content[:2], content[2], content[3]
    if zeros != b"\0\0":
        raise FileFormatError(
            f"{path} is no IDX file: expected the first bytes 00 00, found {zeros.hex(' ')}"
        )
    if code not in DTYPES:
        known = ", ".join(f"{code:#04x}" for code in DTYPES)
        raise FileFormatError(
            f"{path} has the unknown IDX dtype code {code:#04x}; expected one of {known}"
        )
    if not 1 <= ndim <= MAX_NDIM:
        raise FileFormatError(
            f"{path} has {ndim} dimensions in its IDX header; expected 1 to {MAX_NDIM}"
        )
    if len(content) < 4 + 4 * ndim:
        raise FileFormatError(
            f"{path} is cut short: expected an IDX header of {4 + 4 * ndim} bytes, found "
            f"{len(content)}"
        )
    shape = tuple(int(size) for size in np.frombuffer(content, dtype=">u4", count=ndim, offset=4))
    header = _Header(DTYPES[code], shape)
    # Zero rows of an impossible size would pass every later comparison, and NumPy cannot hold the
    # shape.
    if math.prod(size for size in shape if size) * header.dtype.itemsize > sys.maxsize:
        raise FileFormatError(f"{path} has implausible sizes in its IDX header: {shape}")
    return header
