"""Files of warpfit whose content a test changes: with the checksum of what they hold then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import save_file

from warpfit.training.storage import HEADER, sealed, unsealed

Arrays = dict[str, npt.NDArray[Any]]


def write_sealed(path: Path, text: str, arrays: Arrays) -> None:
    """Write a JSON text and arrays as a file, with their checksum."""
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    save_file(arrays, path, {HEADER: sealed(text, arrays)})


def rewrite(path: Path, change: Callable[[dict[str, Any], Arrays], object]) -> None:
    """Change a file's header and arrays, and its checksum with them."""
    with safe_open(path, framework="numpy") as file:
        header = json.loads(unsealed(file.metadata()[HEADER])[0])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header, arrays)
    write_sealed(path, json.dumps(header), arrays)
