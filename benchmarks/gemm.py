"""How fast are the matrix products, beside cuBLAS?

For each dtype and shape: our product is checked against float64 on random operands, then ours and
cuBLAS's (by torch.matmul) are timed in turns, each as a CUDA graph that repeats the call over
several sets of operands, so that neither pays for launches. `tf32` is float32 with products in
tf32, in both. Prints a table and writes results/gemm.json.

    python benchmarks/gemm.py [--dtypes float32,float16] [--only 64x256x784] [--quick] [--sweep
    [16]]

--sweep also times the candidates of each shape, what `configure` chose among them, and prints the
best; with a number, so many of them, and all. Only a whole run, of all dtypes and shapes, writes
the file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from harness import Options, names, run_command, write_results
from warpfit.backends.base import HALF_DTYPES
from warpfit.backends.cuda import jit
from warpfit.backends.cuda.launch import Kernels
from warpfit.backends.cuda.layouts import copy_plan
from warpfit.backends.cuda.matmul import candidates, configure
from warpfit.backends.cuda.matmul_config import BYTES
from warpfit.backends.cuda.matmul_wgmma_config import WgmmaConfig
from warpfit.backends.cuda.runtime import Runtime
from warpfit.errors import CompileError

# name: (dtype of the operands, precision, largest norm of the error over the norm of the product)
DTYPES = {
    "float32": ("float32", "float32", 1e-5),
    "tf32": ("float32", "tf32", 1e-3),
    "float16": ("float16", "float32", 2e-3),
    "bfloat16": ("bfloat16", "float32", 1e-2),
    "float64": ("float64", "float32", 1e-13),
}
SQUARES = (256, 512, 1024, 2048, 4096, 8192)
WIDTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
QUICK = (
    "256",
    "1024",
    "4096",
    "4096 TN",
    "64x256x784",
    "784x256x64 TN",
    "64x784x256 NT",
    "32x1024x1024",
)
TRANSPOSITIONS = ("NN", "NT", "TN")  # of training: y = x w, dx = dz wᵀ, dw = xᵀ dz
BATCHES = (32, 64)
CHECKED_ROWS = 64
SECONDS_OF_A_GRAPH = 1e-3
SMALL_FLOP = 1e9
MAX_CANDIDATES = (48, 12)  # of a small and of a large product


@dataclass(frozen=True)
class Product:
    """op(A) (m, k) @ op(B) (k, n) of one dtype; `transposition` is NN, TN (A stored (k, m)) or
    NT.
    """

    m: int
    n: int
    k: int
    dtype: str
    transposition: str = "NN"

    @property
    def shape(self) -> str:
        suffix = "" if self.transposition == "NN" else f" {self.transposition}"
        is_square = self.m == self.n == self.k
        return f"{self.m}{suffix}" if is_square else f"{self.m}x{self.n}x{self.k}{suffix}"

    @property
    def flop(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def transposes(self) -> tuple[bool, bool]:
        return self.transposition[0] == "T", self.transposition[1] == "T"


def products(dtypes: Iterable[str], only: Iterable[str] | None) -> list[Product]:
    """Return the products to measure."""
    found = []
    for dtype in dtypes:
        # On tensor cores, that a square is transposed may matter.
        transpositions = TRANSPOSITIONS if dtype in ("tf32", *HALF_DTYPES) else TRANSPOSITIONS[:1]
        found += [
            Product(size, size, size, dtype, which) for size in SQUARES for which in transpositions
        ]
        # A layer 784-256 on 64 rows: y = x w, dw = xᵀ dz, dx = dz wᵀ.
        found += [
            Product(64, 256, 784, dtype),
            Product(784, 256, 64, dtype, "TN"),
            Product(64, 784, 256, dtype, "NT"),
        ]
        found += [Product(batch, width, width, dtype) for batch in BATCHES for width in WIDTHS]
    return [product for product in found if only is None or product.shape in only]


# -- operands
# ------------------------------------------------------------------------------------------------


class Operands:
    """Some sets of A, B and C of one product, on the device."""

    def __init__(self, product: Product) -> None:
        self.product = product
        dtype = getattr(torch, DTYPES[product.dtype][0])
        transpose_a, transpose_b = product.transposes
        m, n, k = product.m, product.n, product.k
        self.sets = []
        for _ in range(2 if product.flop > SMALL_FLOP else 4):
            a = torch.randn(
                (k, m) if transpose_a else (m, k), device="cuda", dtype=torch.float32
            ).to(dtype)
            b = torch.randn(
                (n, k) if transpose_b else (k, n), device="cuda", dtype=torch.float32
            ).to(dtype)
            self.sets.append((a, b, torch.empty((m, n), device="cuda", dtype=dtype)))

    def error(self) -> float:
        """Return the largest error norm of some rows of the sets' C, relative to the norm of those
        rows.
        """
        transpose_a, transpose_b = self.product.transposes
        largest = 0.0
        for a, b, c in self.sets:
            rows = torch.randperm(self.product.m, device="cuda")[:CHECKED_ROWS]
            exact = (a.T if transpose_a else a)[rows].double() @ (
                b.T if transpose_b else b
            ).double()
            error = float(torch.linalg.norm(c[rows].double() - exact) / torch.linalg.norm(exact))
            largest = max(largest, error if math.isfinite(error) else math.inf)
            c.fill_(math.nan)
        return largest


# -- the two programs
# ----------------------------------------------------------------------------------------


class Bench:
    """The device, with its kernels and one stream for both programs."""

    def __init__(self) -> None:
        self.runtime = Runtime(0)
        self.kernels = Kernels(self.runtime)
        self.stream = torch.cuda.ExternalStream(int(self.runtime.stream.handle))

    def choose(self, product: Product, chooser: Callable[..., Any]) -> Any:
        """Return what `configure` or `candidates` says of a product."""
        dtype, precision, _ = DTYPES[product.dtype]
        transpose_a, transpose_b = product.transposes
        lengths = (
            product.m if transpose_a else product.k,
            product.k if transpose_b else product.n,
            product.n,
        )
        return chooser(
            product.m,
            product.n,
            product.k,
            dtype,
            precision=precision,
            transpose_a=transpose_a,
            transpose_b=transpose_b,
            num_multiprocessors=self.runtime.num_multiprocessors,
            arch=self.runtime.arch,
            # PyTorch aligns arrays to 512 bytes.
            vector=not any(length * BYTES[dtype] & 15 for length in lengths),
        )

    def ours(self, config: Any, operands: Operands) -> Callable[[int], None]:
        """Return a function that starts our product of set i."""
        m, n, k = operands.product.m, operands.product.n, operands.product.k
        kernel = self.kernels.get(config.kernel, **config.defines())
        sums = torch.float64 if operands.product.dtype == "float64" else torch.float32
        partials = torch.empty(config.partials(m, n), device="cuda", dtype=sums)
        arrivals = torch.zeros(config.tiles(m, n), device="cuda", dtype=torch.int32)
        grid, block, shared_bytes = config.grid(m, n), config.block, config.shared_bytes
        workspace = (partials.data_ptr(), arrivals.data_ptr())
        turns = [self.turn(config, *arrays) for arrays in operands.sets]
        places = [
            self.places(config, *arrays, turned)
            for arrays, (turned, _) in zip(operands.sets, turns, strict=True)
        ]

        def start(i: int) -> None:
            a, b, c = operands.sets[i % len(operands.sets)]
            turns[i % len(turns)][1]()
            sizes = config.sizes(m, n, k, a.shape[1], b.shape[1])
            kernel(grid, block, *places[i % len(places)], c.data_ptr(), None, None, None, 1.0, 0.0,
                   *workspace,
                   *sizes, shared_bytes=shared_bytes, cluster=config.cluster)  # fmt: skip

        start.workspace = partials, arrivals  # type: ignore[attr-defined]  # as long as it may be called
        return start

    def turn(self, config: Any, a: Any, b: Any, c: Any) -> tuple[Any, Callable[[], None]]:
        """Return room for the operand that a kernel wants turned, if any, and a function that turns
        it.
        """
        if not isinstance(config, WgmmaConfig) or not config.turns_b:
            return None, lambda: None
        stored = a if config.swapped else b
        turned = torch.empty(stored.shape[::-1], device="cuda", dtype=stored.dtype)
        (rows, columns), size = turned.shape, stored.element_size()
        plan = copy_plan((rows, columns), (size, rows * size), size, (columns * size, size), size)
        kernel = self.kernels.get("copy_strided", SOURCE=config.dtype, DTYPE=config.dtype)
        copies = stored.data_ptr(), plan.x_layout, turned.data_ptr(), plan.y_layout
        return turned, lambda: kernel(plan.num_blocks, 256, *copies, plan.is_tiled, stored.numel())

    def places(self, config: Any, a: Any, b: Any, c: Any, turned: Any = None) -> tuple[Any, ...]:
        """Return how a kernel finds its operands: by tensor maps, or by their addresses."""
        if not isinstance(config, WgmmaConfig):
            return a.data_ptr(), b.data_ptr()
        first, second = (b, a) if config.swapped else (a, b)
        arrays = first, second if turned is None else turned, c
        names = config.map_dtype, config.map_dtype, config.out
        maps = [
            self.runtime.tensor_map(array.data_ptr(), name, *array.shape, array.shape[1], *box)
            for array, name, box in zip(arrays, names, config.boxes, strict=True)
        ]
        return *maps, maps[-1]

    def cublas(self, operands: Operands) -> Callable[[int], None]:
        """Return a function that starts cuBLAS's product of set i."""
        torch.backends.cuda.matmul.allow_tf32 = operands.product.dtype == "tf32"
        transpose_a, transpose_b = operands.product.transposes

        def start(i: int) -> None:
            a, b, c = operands.sets[i % len(operands.sets)]
            torch.matmul(a.T if transpose_a else a, b.T if transpose_b else b, out=c)

        return start

    def run_all(self, start: Callable[[int], None], operands: Operands) -> None:
        """Run a program on every set, and wait."""
        self.stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(self.stream):
            for i in range(len(operands.sets)):
                start(i)
        self.stream.synchronize()

    def calls_of(self, operands: Operands) -> int:
        """Return how many calls a graph has, a multiple of the number of sets."""
        sets = len(operands.sets)
        calls = int(SECONDS_OF_A_GRAPH / max(operands.product.flop / 40e12, 3e-6))
        return min(max(calls, sets), 200) // sets * sets

    def our_graph(
        self, start: Callable[[int], None], operands: Operands
    ) -> tuple[Callable[[], None], int]:
        """Return a function that runs a graph of some of our calls, as engines capture it, and
        their number.
        """
        calls = self.calls_of(operands)
        with self.runtime.capture() as graph:
            for i in range(calls):
                start(i)
        graph.holds.append(start)
        return graph.launch, calls

    def their_graph(
        self, start: Callable[[int], None], operands: Operands
    ) -> tuple[Callable[[], None], int]:
        """Return the same of cuBLAS's."""
        calls = self.calls_of(operands)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            for i in range(calls):
                start(i)
        return graph.replay, calls

    def time(self, graphs: list[tuple[Callable[[], None], int]], rounds: int) -> list[list[float]]:
        """Return the microseconds of a call in each round, for each graph; the graphs take
        turns.
        """
        times: list[list[float]] = [[] for _ in graphs]
        with torch.cuda.stream(self.stream):
            for idx in range(rounds + 2):
                for (run, calls), own in zip(graphs, times, strict=True):
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    begin.record(self.stream)
                    run()
                    end.record(self.stream)
                    end.synchronize()
                    if idx >= 2:
                        own.append(begin.elapsed_time(end) * 1e3 / calls)
        return times


# -- measurements
# --------------------------------------------------------------------------------------------


def compile_all(bench: Bench, configs: Iterable[Any]) -> set[Any]:
    """Compile kernels into the cache, in threads, and return the configurations that cannot be
    compiled.
    """

    def compiles(config: Any) -> bool:
        try:
            jit.cubin(
                config.kernel,
                tuple((key, str(value)) for key, value in config.defines().items()),
                bench.runtime.arch,
            )
        except CompileError as error:
            print(f"{config}: {error}")
            return False
        return True

    unique = list(dict.fromkeys(configs))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return {
            config for config, ok in zip(unique, pool.map(compiles, unique), strict=True) if not ok
        }


def measure(bench: Bench, product: Product, operands: Operands, rounds: int) -> dict[str, Any]:
    """Check our product, and time it beside cuBLAS's."""
    config = bench.choose(product, configure)
    start = bench.ours(config, operands)
    bench.run_all(start, operands)
    error = operands.error()
    tolerance = DTYPES[product.dtype][2]
    row = {"dtype": product.dtype, "shape": product.shape, "config": str(config), "error": error}
    if not error <= tolerance:
        return {**row, "wrong": f"expected an error of at most {tolerance}"}
    theirs = bench.cublas(operands)
    bench.run_all(theirs, operands)
    cublas_error = operands.error()
    ours_us, cublas_us = bench.time(
        [bench.our_graph(start, operands), bench.their_graph(theirs, operands)], rounds
    )
    return {
        **row,
        "cublas_error": cublas_error,
        "us": median(ours_us),
        "cublas_us": median(cublas_us),
        "tflops": product.flop / median(ours_us) / 1e6,
        "cublas_tflops": product.flop / median(cublas_us) / 1e6,
        # Above 1: we are faster.
        "speed_over_cublas": median([b / a for a, b in zip(ours_us, cublas_us, strict=True)]),
    }


def print_row(row: dict[str, Any]) -> None:
    head = f"{row['dtype']:9} {row['shape']:>16}"
    if "wrong" in row:
        print(
            f"{head} WRONG: error {row['error']:.1e}, {row['wrong']}; {row['config']}", flush=True
        )
        return
    print(
        f"{head} {row['us']:9.2f} {row['tflops']:8.2f} {row['cublas_us']:9.2f} "
        f"{row['cublas_tflops']:8.2f} "
        f"{row['speed_over_cublas']:6.2f} {row['error']:8.1e}  {row['config']}",
        flush=True,
    )


def sweep(
    bench: Bench, product: Product, operands: Operands, configs: list[Any]
) -> list[dict[str, Any]]:
    """Time configurations of one product and return them, the fastest first; wrong ones come last,
    as infinite.
    """
    rows = []
    for config in configs:
        start = bench.ours(config, operands)
        bench.run_all(start, operands)
        error = operands.error()
        right = error <= DTYPES[product.dtype][2]
        us = min(bench.time([bench.our_graph(start, operands)], 3)[0]) if right else math.inf
        rows.append({"config": str(config), "us": us, "error": error})
    return sorted(rows, key=lambda row: row["us"])


def sweep_candidates(bench: Bench, product: Product, most: int) -> list[Any]:
    """Return the candidates that promise most; 0: as many as there is time for."""
    found = bench.choose(product, candidates)
    return list(found[: most or MAX_CANDIDATES[product.flop > SMALL_FLOP]])


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--dtypes", type=names(DTYPES), default=list(DTYPES))
    shapes = dict.fromkeys(product.shape for product in products(DTYPES, None))
    parser.add_argument("--only", type=names(shapes), help="shapes as the table names them")
    parser.add_argument("--quick", action="store_true", help="a few shapes, few rounds")
    parser.add_argument(
        "--sweep", nargs="?", type=int, const=0, help="time the candidates too, so many"
    )
    arguments = parser.parse_args()
    dtypes, only = arguments.dtypes, arguments.only or (QUICK if arguments.quick else None)
    bench = Bench()
    wanted = products(dtypes, only)
    rounds = 5 if arguments.quick else 20
    shapes = f"{'m x n x k':>16}"
    print(
        f"{'dtype':9} {shapes} {'us':>9} {'TFLOP/s':>8} {'cuBLAS us':>9} {'TFLOP/s':>8} "
        f"{'ratio':>6} {'error':>8}"
    )
    rows = run(bench, wanted, rounds, arguments.sweep)
    if arguments.sweep is None and not only and set(dtypes) == set(DTYPES):
        settings = {
            "rounds": rounds,
            "operands": "normal; small products alternate four sets, large ones two",
            "timing": "median of rounds; each a CUDA graph of calls, ours and cuBLAS's in turns",
            "multiprocessors": bench.runtime.num_multiprocessors,
        }
        print(f"written to {write_results('gemm', {'settings': settings, 'rows': rows})}")
    if any("wrong" in row for row in rows):
        raise SystemExit("some products are wrong")


def run(
    bench: Bench, wanted: list[Product], rounds: int, swept: int | None
) -> list[dict[str, Any]]:
    """Measure all products and print a line for each; with as many of its candidates as are to be
    swept.
    """
    chosen: dict[Product, list[Any]] = {}
    for product in wanted:
        chosen[product] = [
            bench.choose(product, configure),
            *(() if swept is None else sweep_candidates(bench, product, swept)),
        ]
    broken = compile_all(bench, (config for configs in chosen.values() for config in configs))
    rows = []
    for product in wanted:
        operands = Operands(product)
        rows.append(measure(bench, product, operands, rounds))
        print_row(rows[-1])
        if swept is not None:
            configs = [config for config in dict.fromkeys(chosen[product]) if config not in broken]
            for row in sweep(bench, product, operands, configs)[: swept or 5]:
                print(f"{'':26} {row['us']:9.2f}  {row['config']}", flush=True)
        del operands
    return rows


if __name__ == "__main__":
    run_command(main)
