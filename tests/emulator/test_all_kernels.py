"""Every kernel with threads and blocks from the last to the first, and under sanitizers, through
the operations' tests.

The tests run in another process, which says what it launched: no kernel may be missing in any of
its dtypes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import on_emulator
from emulator.build import gxx_missing
from emulator.sanitized import run_sanitized, sanitizer_missing
from support.kernels import MODULES, variants_of

TESTS = Path(__file__).parents[1]


class Family(NamedTuple):
    """Modules whose kernels are all launched by a choice of tests: their files, and which of
    them.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    selection: str
    takes_slow: bool = False


FAMILIES = {
    "elements": Family(
        ("arrays", "elementwise", "indexing", "reduction"),
        (
            "backends/test_casts.py",
            "backends/test_arrays.py",
            "backends/cuda/test_elementwise_kernels.py",
        ),
        "emulator and (test_casts or gather or test_copy or all_finite or record or epoch_order "
        "or the_rest_in_half or half_precision_adds or any_dtype_can or special_values and "
        "(maximum or exp) or in_half_precision and (exp or maximum) or every_conversion or "
        "every_dtype or transposed_integers)",
        takes_slow=True,
    ),
    "rows": Family(
        ("activation", "loss", "loss_steps", "columns"),
        (
            "backends/test_contract.py",
            "backends/test_loss_steps.py",
            "backends/test_linear_loss_step.py",
            "backends/cuda/test_targets_in_place.py",
        ),
        "emulator and (is_for_devices or agrees_with_float64 and 5 or test_cross_entropy and 6-4 "
        "or test_element_losses and shape2) and not linear and not matmul and not any_shape "
        "or forward and targets_in_place or emulator and linear_loss_step and 6-64-4",
        takes_slow=True,
    ),
    "layers": Family(
        ("norm", "dropout", "pool", "optim"),
        ("backends/cuda/test_layer_kernels.py",),
        "forward and (half_precision or any_alignment) or forward and every_update",
        takes_slow=True,
    ),
    "members": Family(
        ("members", "member_layers", "piecewise_linear"),
        (
            "backends/test_members.py",
            "backends/test_piecewise_linear.py",
            "backends/cuda/test_member_layers.py",
        ),
        "emulator or forward",
        takes_slow=True,
    ),
    "windows": Family(("image_windows",), ("backends/test_image_windows.py",), "emulator"),
    "matrices": Family(
        ("matrices",), ("backends/test_matrix_updates.py",), "emulator", takes_slow=True
    ),
    "training": Family(
        (
            "one_launch",
            "one_launch_card",
            "one_launch_images",
            "one_launch_layers",
            "one_launch_small_sm90",
            "next_batch",
        ),
        (
            "engines/test_one_launch.py",
            "engines/test_one_launch_adaptive.py",
            "engines/test_one_launch_card.py",
            "engines/test_one_launch_images.py",
            "engines/test_one_launch_layers.py",
            "engines/test_one_launch_cards.py",
            "engines/test_one_launch_small.py",
            "backends/cuda/test_gather_batches.py",
            "backends/cuda/test_gram_batches.py",
            "backends/cuda/test_next_batch.py",
        ),
        "emulator and (test_bfloat16 or shared_memory and most or test_clusters and sizes0 or "
        "looking_ahead and 17-33 or it_follows_numpy and (17-33-20 or 20-40-70 or 20-40-3 or "
        "20-70-3 or pooled) or the_state_lies and 16) or forward and (gather_batches or "
        "gram_batches or next_batch) or cards_have_the_numbers",
        takes_slow=True,
    ),
    "tables": Family(
        ("table_networks",),
        ("tabular/test_launched.py",),
        "emulator and (test_in_bfloat16 or steps_are_those or has_the_bits)",
    ),
    "many": Family(
        ("initial_values", "many_networks", "many_networks_sm90", "many_small_networks_sm90"),
        (
            "backends/cuda/test_initial_values.py",
            "engines/test_many_networks.py",
            "sweep/test_together.py",
        ),
        "emulator and (tabular or hidden or ragged or two and tiles and not parts or halves and "
        "blocks and accuracy) or every_bit_is_numpys",
        takes_slow=True,
    ),
    "products": Family(
        (
            *("conv_boxes_sm90", "conv_depthwise", "conv_few", "conv_grouped", "conv_grouped_mma"),
            *("conv_launch", "conv_sm90", "conv_weights_sm90", "dense", "joined_updates"),
            "narrow_step",
        ),
        (
            "backends/test_contract.py",
            "backends/cuda/test_conv_boxes.py",
            "backends/cuda/test_conv_kernels.py",
            "backends/cuda/test_conv_sm90.py",
            "backends/cuda/test_grouped_kernels.py",
            "backends/cuda/test_matmul_mma.py",
            "backends/cuda/test_gemm_sm90.py",
            "backends/cuda/test_joined_updates.py",
            "backends/cuda/test_narrow_step.py",
            "backends/cuda/test_older_architectures.py",
        ),
        "joined_updates and (tiles or thin) or narrow_step and (ragged or several or blocks) or "
        "before_sm80 or forward and (many_tiles or masks_by or squares or gray "
        "or halved or one_tap_strided or in_groups) or emulator and (linear or matmul) "
        "and (is_for_devices or agrees_with_float64 and 5) and not any_shape",
        takes_slow=True,
    ),
}
# The others take seconds each.
QUICK = {"windows"}
needs_sanitizer = pytest.mark.skipif(
    gxx_missing() is not None or sanitizer_missing() is not None, reason="no g++ with libasan"
)
# Building every kernel once more for the sanitizers takes minutes.
MODES = ["reversed", pytest.param("sanitized", marks=[needs_sanitizer, pytest.mark.slow])]

pytestmark = on_emulator


def launched(
    mode: str, family: Family, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> set[tuple[str, str]]:
    """Run tests in the mode, which have to pass; return the kernels that they launched, each with
    its dtype.
    """
    found = folder / "launches.json"
    monkeypatch.setenv("WARPFIT_LAUNCHES", str(found))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    command = [
        "-m",
        "pytest",
        "-q",
        "-x",
        "-s",
        "-p",
        "emulator.launches",
        "-p",
        "no:cacheprovider",
    ]
    command += [
        "-m",
        "not gpu" if family.takes_slow else "not gpu and not slow",
        "-k",
        family.selection,
        *(str(TESTS / test) for test in family.tests),
    ]
    if mode == "sanitized":
        result = run_sanitized(command)
    else:
        monkeypatch.setenv("WARPFIT_EMULATE_REVERSED", "1")
        result = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False
        )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-6000:]
    return {(name, defines.get("DTYPE", "")) for name, defines in json.loads(found.read_text())}


def test_every_module_belongs_to_a_family() -> None:
    assert {module for family in FAMILIES.values() for module in family.modules} == {*MODULES}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES],
)
def test_every_kernel_in_every_dtype(
    name: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES[name]
    expected = {
        (kernel, defines.get("DTYPE", ""))
        for module in family.modules
        for kernel, defines in variants_of(module)
    }
    assert expected <= (found := launched(mode, family, tmp_path, monkeypatch)), sorted(
        expected - found
    )


@pytest.mark.slow
@needs_sanitizer
def test_some_kernels_under_sanitizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = Family((), ("backends/test_casts.py",), "emulator and (all_finite or epoch_order)")
    found = launched("sanitized", some, tmp_path, monkeypatch)
    assert found == {("all_finite", "float32"), ("all_finite", "float64"), ("epoch_order", "")}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_all_tests_of_operations(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = Family((), ("backends",), "(emulator or forward) and not compile")
    assert launched(mode, everything, tmp_path, monkeypatch)
