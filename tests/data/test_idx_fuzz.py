"""Altered IDX files: each one reads as its header says, or raises FileFormatError, and memory stays small."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpfit.data import read_idx
from warpfit.errors import FileFormatError

DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
NUM_CASES = 1500
MAX_BYTES = 4_000_000  # the files have at most a few thousand; a gzip stream unpacks to 1032 times its size


def make_file(rng: np.random.Generator) -> bytes:
    code = int(rng.choice(list(DTYPES)))
    shape = rng.integers(0, 7, size=rng.integers(1, 5)).tolist()
    body = rng.bytes(int(np.prod(shape)) * np.dtype(DTYPES[code]).itemsize)
    return bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


def alter(content: bytes, rng: np.random.Generator) -> bytes:
    """Cut, flip bytes (every second time in the header), insert, remove or append."""
    place = int(rng.integers(0, len(content) if rng.random() < 0.5 else min(24, len(content))))
    kind = rng.integers(0, 5)
    if kind == 0:
        return content[:place]
    if kind == 1:
        flips = bytes([content[place] ^ int(rng.integers(1, 256))])
        return content[:place] + flips + content[place + 1 :]
    if kind == 2:
        return content[:place] + rng.bytes(int(rng.integers(1, 9))) + content[place:]
    if kind == 3:
        return content[:place] + content[place + int(rng.integers(1, 9)) :]
    return content + rng.bytes(int(rng.integers(1, 9)))


def check(path: Path, content: bytes) -> bool:
    """Return whether the file was read; fail if it was read as something else than it is."""
    path.write_bytes(content)
    try:
        array = read_idx(path)
    except FileFormatError:
        return False
    plain = content if content[:2] == b"\0\0" else gzip.decompress(content)
    ndim = plain[3]
    assert plain[:2] == b"\0\0"
    assert array.shape == struct.unpack(f">{ndim}I", plain[4 : 4 + 4 * ndim])
    assert array.dtype == np.dtype(DTYPES[plain[2]]).newbyteorder("=")
    assert array.astype(DTYPES[plain[2]]).tobytes() == plain[4 + 4 * ndim :]
    return True


def test_altered_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(20240607)
    num_read = 0
    tracemalloc.start()
    try:
        for case in range(NUM_CASES):
            content = make_file(rng)
            if case % 3 == 1:  # altered inside, then packed
                content = gzip.compress(alter(content, rng))
            elif case % 3 == 2:  # packed, then altered
                content = alter(gzip.compress(content), rng)
            else:
                content = alter(content, rng)
            num_read += check(tmp_path / "fuzzed", content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0 < num_read < NUM_CASES / 2
    assert peak < MAX_BYTES


@settings(max_examples=200, deadline=None)
@given(header=st.binary(max_size=40), body=st.binary(max_size=64), packed=st.booleans())
def test_arbitrary_bytes_after_a_plausible_start(
    tmp_path_factory: pytest.TempPathFactory, header: bytes, body: bytes, packed: bool
) -> None:
    content = b"\0\0" + header + body
    check(tmp_path_factory.getbasetemp() / "fuzzed", gzip.compress(content) if packed else content)


@settings(max_examples=200, deadline=None)
@given(sizes=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=32), code=st.sampled_from([*DTYPES]))
def test_sizes_that_only_the_header_claims(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], code: int
) -> None:
    content = bytes([0, 0, code, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + b"some bytes"
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    tracemalloc.start()
    try:
        for stored in (content, zlib.compress(content, wbits=31)):
            check(path, stored)
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()
