"""Arrays in an ``.npz`` file, whose headers are believed only as far as there are bytes."""

from __future__ import annotations

import zipfile
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from warpfit.checks import Array
from warpfit.errors import DataError, FileFormatError

LARGEST_RATIO = 1032  # of deflate, RFC 1951: 258 bytes in two bits
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # NumPy's
READ_HEADER = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def npz_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays in an ``.npz`` file by name; no code in it is run.

    Memory is asked for only in the sizes that the file can hold.

    Raises
    ------
    FileFormatError
        If it is no archive of plain arrays, or a size in it is not that of what is there.
    DataError
        If there is not enough memory for an array.
    """
    if not zipfile.is_zipfile(path):
        raise FileFormatError(
            f"{path} is no .npz file: it is "
            f"{'not a zip archive' if path.stat().st_size else 'empty'}"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            return {
                info.filename.removesuffix(".npy"): _read(archive, info, path)
                for info in archive.infolist()
                if _is_array(archive, info)
            }
    except (FileFormatError, MemoryError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise DataError(
            f"{path} has an array that is too large for this machine's memory: {error}"
        ) from error
    except Exception as error:  # of damaged archives zipfile, zlib and NumPy raise almost anything
        raise FileFormatError(f"{path} is no .npz file of plain arrays: {error}") from error


def _is_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bool:
    with archive.open(info) as member:
        return member.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> Array:
    if info.compress_type not in METHODS or info.file_size > LARGEST_RATIO * (
        info.compress_size + 1
    ):
        raise FileFormatError(
            f"{path}: {info.filename} is not packed as NumPy does it, {info.file_size} bytes in "
            f"{info.compress_size}"
        )
    with archive.open(info) as member:
        found = _announced_bytes(member, info.filename, path)
        if found != info.file_size:
            raise FileFormatError(
                f"{path}: expected {found} bytes in {info.filename}, as its header says, found "
                f"{info.file_size}"
            )
    with archive.open(info) as member:
        return np.asarray(npy.read_array(member, allow_pickle=False))


def _announced_bytes(member: IO[bytes], name: str, path: Path) -> int:
    """Return the size of a ``.npy`` file by its header, the header included."""
    version = npy.read_magic(member)
    if version not in READ_HEADER:
        raise FileFormatError(f"{path}: expected version 1.0 or 2.0 of {name}, found {version}")
    shape, _, dtype = READ_HEADER[version](member)
    if dtype.hasobject:
        raise FileFormatError(
            f"{path} is no .npz file of plain arrays: {name} holds Python objects"
        )
    return member.tell() + prod(shape) * dtype.itemsize
