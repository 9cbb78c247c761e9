"""Files of data: IDX, plain and gzipped."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from fuzzing.harness import Feed, Rng, family
from fuzzing.mutations import altered_bytes
from warpfit.data import read_idx

# -- IDX -----------------------------------------------------------------------------------------------------

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
