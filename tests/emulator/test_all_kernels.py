"""Every kernel with threads and blocks from the last to the first, and under sanitizers, through the operations' tests.

The tests run in another process, which says what it launched: no kernel may be missing in any dtype.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from conftest import on_emulator
from emulator.build import KERNELS
from emulator.sanitized import run_sanitized, sanitizer_missing
from warpfit.backends import cuda

ROOT = Path(__file__).parents[2]
BACKENDS = "tests/backends"

# A choice of tests for each family of kernels; together they launch every kernel in every dtype.
FAMILIES = {
    "activations and losses": (
        f"{BACKENDS}/test_contract.py",
        f"{BACKENDS}/cuda/test_rows.py",
        "-k",
        "half_precision_is_for_devices or (float32_agrees_with_float64 and 5) "
        "or (test_rows and (shape0 or shape8 or shape9))",
    ),
    "layers and optimizers": (
        f"{BACKENDS}/test_norm.py",
        f"{BACKENDS}/test_pool.py",
        f"{BACKENDS}/test_dropout.py",
        f"{BACKENDS}/test_optim.py",
        f"{BACKENDS}/cuda/test_layer_kernels.py",
        "-k",
        "not any_ and not layout",
    ),
    "products and convolutions": (
        f"{BACKENDS}/test_dense.py",
        f"{BACKENDS}/cuda/test_conv_kernels.py",
        f"{BACKENDS}/cuda/test_matmul_kernels.py",
        f"{BACKENDS}/cuda/test_matmul_mma.py",
        "-k",
        "whole_numbers or test_dense or any_shape or by_16_bytes or other_dtypes",
    ),
    "elements and arrays": (
        f"{BACKENDS}/test_arrays.py",
        f"{BACKENDS}/test_casts.py",
        f"{BACKENDS}/test_elementwise.py",
        f"{BACKENDS}/cuda/test_elementwise_kernels.py",
    ),
}
REVERSED = {"WARPFIT_EMULATE_REVERSED": "1"}
EVERYTHING = (BACKENDS,)
SELECTION = "not gpu and not slow"

pytestmark = on_emulator
sanitized = pytest.mark.skipif(
    on_emulator.args[0] or sanitizer_missing() is not None, reason="g++ comes without libasan"
)


def run_tests(args: Sequence[str], tmp_path: Path, *, sanitize: bool) -> set[tuple[str, str]]:
    """Run tests on the emulator, which have to pass; return the kernels launched, each with its dtype."""
    launches = tmp_path / "launches.json"
    options = ["-m", "pytest", "-q", "-x", "-s", "-p", "emulator.launches", "-p", "no:cacheprovider", "-n", "0"]
    command = [*options, "-m", SELECTION, *args]
    environment = {"WARPFIT_LAUNCHES": str(launches), "PYTHONPATH": str(ROOT / "tests")}
    if sanitize:
        result = _with_environment(environment, lambda: run_sanitized(command))
    else:
        result = subprocess.run(
            [sys.executable, *command],
            env={**os.environ, **environment, **REVERSED},
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return {(name, defines.get("DTYPE", "")) for name, defines in json.loads(launches.read_text())}
