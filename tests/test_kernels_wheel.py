"""The wheel of kernels: what is in it, and that it is found there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from kernel_variants import variants_of
from warpfit.backends.cuda import jit, machine_code

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import kernels_wheel

ARCH = "sm_90a"
KERNEL = ("all_finite", (("DTYPE", "float32"),))

needs_compiler = pytest.mark.skipif(find_spec("cuda") is None, reason="cuda-core is not installed")


@pytest.mark.parametrize("arch", [ARCH, "sm_75"])
def test_it_has_operations_and_usual_networks(arch: str) -> None:
    operations = {name for name, _ in kernels_wheel.operations(arch)}
    networks = {name for name, _ in kernels_wheel.usual_networks(arch)}
    assert {"reduce", "update_parameters", "conv2d_forward", "matmul_register"} <= operations
    assert ("gemm_sm90" in operations) == (arch == ARCH)
    assert {"one_launch_layers", "gather_batches"} <= networks
    shared = {"all_finite", "gather_batches", "gram_batches", "initial_values"}
    assert not networks & operations - shared


@pytest.mark.parametrize(("arch", "has_some"), [(ARCH, True), ("sm_75", False)])
def test_it_has_what_fits_to_tables_ask_for(arch: str, has_some: bool) -> None:
    found = set(kernels_wheel.usual_tables(arch))
    assert bool(found) == has_some
    of_magic, *_ = (defines for _, defines in variants_of("table_networks"))
    assert (("table_networks", tuple(of_magic.items())) in found) == has_some


def test_products_are_those_that_layers_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_wheel, "BATCHES", (64,))
    monkeypatch.setattr(kernels_wheel, "WIDTHS", (784,))
    found = [dict(defines)["EPILOGUE"] for _, defines in kernels_wheel.usual_products(ARCH)]
    assert {"epilogue_activation", "epilogue_mask", "epilogue_store"} == set(found)


@needs_compiler
def test_a_kernel_of_the_wheel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package" / kernels_wheel.PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    assert kernels_wheel.fill(package, [KERNEL], ARCH) > 0
    monkeypatch.setenv("WARPFIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(jit, "compile_kernel", None)
    machine_code.packaged_folder.cache_clear()
    try:
        assert jit.cubin(*KERNEL, ARCH).startswith(b"\x7fELF")
    finally:
        machine_code.packaged_folder.cache_clear()


@pytest.mark.slow
@needs_compiler
def test_the_wheel_installs(tmp_path: Path) -> None:
    pytest.importorskip("build", reason="build is not installed; make lint installs it")
    package = tmp_path / "package" / kernels_wheel.PACKAGE
    package.mkdir(parents=True)
    kernels_wheel.fill(package, [KERNEL], ARCH)
    kernels_wheel.build(package.parent, tmp_path / "dist")
    (wheel,) = (tmp_path / "dist").glob("warpfit_kernels_cu*.whl")
    entry = f"{kernels_wheel.PACKAGE}/{jit.package_entry(*KERNEL, ARCH)}"
    with zipfile.ZipFile(wheel) as archive:
        assert entry in archive.namelist()
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", tmp_path / "site"]
    subprocess.run([*install, wheel], check=True, capture_output=True)
    assert (tmp_path / "site" / entry).is_file()
