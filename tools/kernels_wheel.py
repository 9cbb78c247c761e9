"""Builds the wheel of kernels, whose machines need no compiler for what is usual: `make kernels`.

It holds machine code, for each architecture, of the operations that any network is made of, as
`layerwise`, `graph`, predictions and data take them, and of what trains the usual networks in one
launch, and RealMLP on tables of numbers. A kernel that it lacks is compiled as ever. One wheel
serves one release of warpfit and one major version of CUDA, whose compiler built it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory

from kernel_variants import all_variants, is_supported, texts
from kernel_variants.products import product_variant
from warpfit.backends.base import Activation
from warpfit.backends.cuda import jit, machine_code
from warpfit.backends.cuda.cards import CARDS
from warpfit.backends.cuda.resident_config import CONFIGS
from warpfit.backends.cuda.table_networks import TableShape, choose_table
from warpfit.cores import num_cores
from warpfit.errors import ConfigError, Obstacle
from warpfit.training.paper import USUAL_FORMS, kernels_on_paper

PACKAGE = "warpfit_kernels"
PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "warpfit-kernels-cu{major}"
version = "{version}"
description = "Machine code of warpfit's kernels, for CUDA {major}"
license = "MIT"
dependencies = ["warpfit[cu{major}]=={version}"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""
# Of what linear layers usually are; outputs take no activation.
BATCHES = (32, 64, 128, 200, 256, 512, 4096)
WIDTHS, OUTPUTS = (16, 32, 50, 64, 100, 128, 256, 512, 784, 1024), (1, 10)
DTYPES, ACTIVATIONS = ("float32", "float16"), ("relu", "tanh")
# Of tables for RealMLP: columns, all of numbers; and networks that train together.
COLUMNS, TOGETHER = range(1, 33), (1, 8)
Kernel = tuple[str, jit.Defines]


def operations(arch: str) -> Iterator[Kernel]:
    """Yield the kernels of single operations, which know no network's sizes."""
    for name, found in all_variants().items():
        if name not in CONFIGS:
            for defines in found:
                if is_supported(name, defines, arch):
                    yield name, tuple(defines.items())


def usual_products(arch: str) -> Iterator[Kernel]:
    """Yield the kernels of the three products of usual linear layers."""
    for dtype, batch, fan_in, fan_out in product(DTYPES, BATCHES, WIDTHS, (*WIDTHS, *OUTPUTS)):
        mode = (dtype, "float32")
        forward = (mode, (batch, fan_out, fan_in), arch, (False, False), dtype)
        backward = (mode, (batch, fan_in, fan_out), arch, (False, True), dtype)
        found = [product_variant(mode, (fan_in, fan_out, batch), arch, (True, False), "float32")]
        for activation in ("identity",) if fan_out in OUTPUTS else ACTIVATIONS:
            found.append(
                product_variant(*forward, "epilogue_activation", activation, has_bias=True)
            )
        for activation in ACTIVATIONS:
            found.append(product_variant(*backward, "epilogue_mask", activation))
        for name, given in found:
            defines = texts(given)
            if is_supported(name, defines, arch):
                yield name, tuple(defines.items())


def usual_networks(arch: str) -> list[Kernel]:
    """Return the kernels that train the usual networks in one launch, if warpfit knows a card of
    the architecture.
    """
    try:
        return kernels_on_paper(USUAL_FORMS, arch)[1]
    except ConfigError:
        return []


def usual_tables(arch: str) -> list[Kernel]:
    """Return the kernels that train RealMLP as it is on tables of numbers alone, with two classes
    or one number to predict.
    """
    cards = [card for card in CARDS.values() if card.arch == arch]
    found: dict[Kernel, None] = {}
    for card, columns, networks in product(cards, COLUMNS, TOGETHER):
        classes = TableShape(columns, 0, (), 256, 3, 2, Activation("selu"), 0.1, 256, networks)
        numbers = replace(classes, outputs=1, activation=Activation("mish"), smoothing=None)
        for shape in (classes, numbers):
            launch = choose_table(shape, arch, card.max_shared_bytes, card.num_multiprocessors)
            if not isinstance(launch, Obstacle):
                found[launch.kernel, tuple(launch.config.settings().items())] = None
    return list(found)


def fill(folder: Path, kernels: Iterable[Kernel], arch: str) -> int:
    """Compile kernels into the package's folder, as many at once as there are cores, and return how
    many bytes they take.
    """

    def add(kernel: Kernel) -> int:
        code, _ = jit.compile_kernel(*kernel, arch)
        machine_code.write_entry(folder / jit.package_entry(*kernel, arch), code)
        return len(code)

    with ThreadPoolExecutor(num_cores()) as threads:
        return sum(threads.map(add, kernels))


def build(folder: Path, out: Path) -> None:
    """Build the wheel of a folder that has the package."""
    (folder / PACKAGE / "__init__.py").touch()
    major = version("nvidia-cuda-nvrtc").split(".")[0]
    project = PROJECT.format(major=major, version=version("warpfit"), package=PACKAGE)
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", out, folder], check=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the wheel that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), help="the wheel's folder")
    parser.add_argument("--arch", nargs="+", default=jit.ARCHITECTURES, choices=jit.ARCHITECTURES)
    options = parser.parse_args(arguments)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / PACKAGE).mkdir()
        for arch in options.arch:
            found = operations, usual_products, usual_networks, usual_tables
            kernels = list(dict.fromkeys(chain.from_iterable(each(arch) for each in found)))
            num_bytes = fill(folder / PACKAGE, kernels, arch)
            print(f"{arch}: {len(kernels)} kernels, {num_bytes / 2**20:.1f} MiB", flush=True)
        build(folder, options.out)


if __name__ == "__main__":
    main()
