"""The ladder's rungs, in order: what each changes in the one before, and what that should save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from warpfit.apps.ladder.batches import Pinned, Preloaded
from warpfit.apps.ladder.by_engine import ByEngine
from warpfit.apps.ladder.results import Step
from warpfit.apps.ladder.task import Task
from warpfit.apps.ladder.trainer import Epoch, Recipe, StepByStep
from warpfit.backends.base import HALF_DTYPES
from warpfit.errors import DeviceError

# In a recipe: the half precision that is asked for.
HALF = "half"


class Program(Protocol):
    """Something that trains a task."""

    def prepare(self) -> tuple[float, int]:
        """Do what is done once, compile above all; return seconds of some steps, and how many."""

    def run(self, rows: int, epochs: int) -> Iterator[Epoch]:
        """Train from the initial values on the first rows, and yield each epoch."""

    def device_seconds(self) -> float | None:
        """Return how long the device works on a step, if that is known."""


@dataclass(frozen=True)
class Rung(Step):
    """A rung of the ladder."""

    source: tuple[str, ...]  # where to read it, below ``src/warpfit``
    recipe: Recipe | None = None  # of a step that the ladder writes out
    engine: str = ""  # where there is no recipe
    needs_gpu: bool = True


_KERNELS = "backends/cuda/kernels/"
_TEXTBOOK = Recipe("matmul_naive", reads_every_step=True)
_NO_READ_BACK = replace(_TEXTBOOK, reads_every_step=False)
_FEWER_REPORTS = replace(_NO_READ_BACK, report_every=10)
_FUSED = Recipe("matmul_naive", is_fused=True)
_TILED = replace(_FUSED, product_kernel="matmul_tiled")
_REGISTER = replace(_FUSED, product_kernel="matmul_register")
_TENSOR_CORES = replace(_FUSED, product_kernel="matmul_mma", precision=HALF)
_PINNED = replace(_TENSOR_CORES, feeding=Pinned)
_PRELOADED = replace(_TENSOR_CORES, feeding=Preloaded)

RUNGS = (
    Rung(
        "numpy",
        "NumPy",
        "the CPU, one NumPy operation after the other",
        "nothing: the others are measured by it",
        "it is the first",
        ("backends/numpy/", "engines/layerwise.py"),
        engine="layerwise",
        needs_gpu=False,
    ),
    Rung(
        "textbook",
        "textbook kernels",
        "a kernel for every operation, a thread for every number of a product; batches go up, "
        "loss and accuracy come back, at every step",
        "time: thousands of threads compute at once",
        "the network is small, and the host spends longer on starting kernels than the device on "
        "running them",
        (
            "apps/ladder/trainer.py",
            f"{_KERNELS}gemm/matmul_naive.cu",
            f"{_KERNELS}ops/softmax/softmax_forward.cu",
        ),
        _TEXTBOOK,
    ),
    Rung(
        "no-readback",
        "no read-back",
        "loss and accuracy stay on the device until the epoch ends",
        "two waits a step: the host starts the next step while the device runs this one",
        "the host takes longer to start a step than the device to run it, and hardly had to wait",
        ("apps/ladder/trainer.py", f"{_KERNELS}ops/batches/record_step.cu"),
        _NO_READ_BACK,
    ),
    Rung(
        "fewer-reports",
        "fewer reports",
        "loss and accuracy are computed in every tenth epoch only, and the last",
        "three kernels a step: loss, count, record",
        "three small kernels are a small part of a step's",
        ("apps/ladder/trainer.py",),
        _FEWER_REPORTS,
    ),
    Rung(
        "fused",
        "fused kernels",
        "bias and ReLU join the product before them; loss, accuracy and gradient are one kernel, "
        "and so are all parameters' updates; every epoch has its loss again",
        "launches, and what lies between two operations need not be written and read again",
        "products take most of the time, and there are as many of them as before",
        (
            "apps/ladder/trainer.py",
            f"{_KERNELS}gemm/epilogue.cuh",
            f"{_KERNELS}ops/loss/softmax_cross_entropy_step.cu",
        ),
        _FUSED,
    ),
    Rung(
        "tiled",
        "tiled products",
        "products take tiles of 16 by 16 through shared memory",
        "reads of global memory: 16 threads share each number",
        "operands as small as these come from the caches anyway, or the host is what a step "
        "waits for",
        (f"{_KERNELS}gemm/matmul_tiled.cu",),
        _TILED,
    ),
    Rung(
        "register",
        "register tiles",
        "each thread computes a tile of its own in registers, from copies that run ahead; blocks "
        "partition k",
        "reads of shared memory, and waits; more blocks are at work on a small product",
        "the host is what a step waits for",
        (f"{_KERNELS}gemm/matmul_register.cu",),
        _REGISTER,
    ),
    Rung(
        "tensor-cores",
        "tensor cores",
        "activations and gradients in half precision, products on tensor cores; parameters and "
        "sums stay float32",
        "multiplications: a warp does 16 x 8 x 16 at once; and half of the bytes",
        "the host is what a step waits for, and casting rows and parameters is two kernels more",
        (
            f"{_KERNELS}gemm/matmul_mma.cu",
            f"{_KERNELS}mma/mma.cuh",
            f"{_KERNELS}ops/arrays/cast_into.cu",
        ),
        _TENSOR_CORES,
    ),
    Rung(
        "pinned",
        "pinned memory",
        "rows are gathered straight into pinned memory, in two buffers in turns, and go up on a "
        "stream of their own",
        "a copy on the host, and the device's wait for the bus",
        "the host still gathers each batch, and that is what takes its time",
        ("apps/ladder/batches.py", "backends/cuda/transfers.py"),
        _PINNED,
    ),
    Rung(
        "preloaded",
        "preloaded data",
        "all rows go up once, and are put in the order of each epoch on the device",
        "the host's gathering and all uploads",
        "the host is what a step waits for: it starts as many kernels as before",
        (
            "apps/ladder/batches.py",
            f"{_KERNELS}ops/batches/epoch_order.cu",
            f"{_KERNELS}ops/batches/gather_rows.cu",
        ),
        _PRELOADED,
    ),
    Rung(
        "chosen",
        "kernels by shape",
        "engine layerwise: each product by the kernel and tiles that suit its shape; where "
        "Hopper's can, updates join the products of the gradients",
        "time in products; launches of updates and casts",
        "the host is what a step waits for, and this engine does more for each kernel it starts",
        (
            "engines/layerwise.py",
            "backends/cuda/matmul.py",
            f"{_KERNELS}gemm/linear_update_sm90.cu",
        ),
        engine="layerwise",
    ),
    Rung(
        "graph",
        "CUDA graph",
        "engine graph: the same kernels and bits, many steps as one CUDA graph",
        "the host's time for each kernel: it starts a graph every few dozen steps",
        "kernels are so long that the host kept ahead of the device before",
        ("engines/graph.py", f"{_KERNELS}ops/batches/next_batch.cu"),
        engine="graph",
    ),
    Rung(
        "one-launch",
        "one launch",
        "engine one_launch: all steps of many epochs are one kernel, whose blocks keep the "
        "weights in registers",
        "every launch, and the round trip of weights and gradients to memory",
        "the network is so large that products take most of the time",
        (
            "engines/one_launch.py",
            f"{_KERNELS}resident/one_launch.cu",
            f"{_KERNELS}resident/one_launch_layers.cu",
        ),
        engine="one_launch",
    ),
)


def program_of(rung: Rung, task: Task, device: str, half: str = "float16") -> Program:
    """Return the program of a rung: on the device if it needs a GPU, else on the CPU; from
    ``tensor-cores`` on in half precision.

    Raises
    ------
    DeviceError
        If the rung needs a GPU and the device is none, or its tensor cores do not take `half`.
    """
    if rung.needs_gpu and device == "cpu":
        raise DeviceError("it needs a CUDA device")
    if rung.recipe is not None:
        recipe = (
            replace(rung.recipe, precision=half) if rung.recipe.precision == HALF else rung.recipe
        )
        if recipe.precision in HALF_DTYPES:
            _check_tensor_cores(device, half)
        return StepByStep(task, device, recipe)
    if not rung.needs_gpu:
        return ByEngine(task, "cpu", rung.engine)
    return ByEngine(task, device, rung.engine, half)


def _check_tensor_cores(device: str, half: str) -> None:
    from warpfit import backends
    from warpfit.backends.cuda.matmul_mma_config import supports

    arch = backends.get(device).runtime.arch  # type: ignore[attr-defined]
    if not supports(arch, half):
        raise DeviceError(f"expected tensor cores that multiply {half}, got {arch}")
