"""What does each step from the textbook's matrix product to Hopper's fastest gain?

C = A @ B, 4096 x 4096 x 4096, by the kernels that docs/kernels.md leads through: in float32 as far
as registers go, then in bfloat16 on tensor cores, and the levels of `gemm_sm90` one by one, each
with all that stands above it. Every product is checked, then timed as a CUDA graph, median of some
rounds, all in turns. Prints a table and writes results/levels.json.

    python benchmarks/levels.py
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from gemm import DTYPES, Bench, Operands, Product
from harness import Options, run_command, write_results
from warpfit.backends.cuda.matmul import candidates
from warpfit.backends.cuda.matmul_config import MatmulConfig
from warpfit.backends.cuda.matmul_wgmma_config import WgmmaConfig

SIZE, ROUNDS = 4096, 7


@dataclass(frozen=True)
class InSwaths(WgmmaConfig):
    """Stores from registers to their addresses."""

    stores_tensor = False  # type: ignore[assignment]


@dataclass(frozen=True)
class RowByRow(InSwaths):
    """Tiles row after row of C, too."""

    swath_rows = 1  # type: ignore[assignment]


def wgmma(
    kind: type[WgmmaConfig], consumers: int, mma_rows: int, block_n: int, **settings: Any
) -> WgmmaConfig:
    """Return a configuration with tiles of this size."""
    return kind(
        "gemm_sm90",
        "bfloat16",
        vector=True,
        block_m=64 * mma_rows * consumers,
        block_n=block_n,
        block_k=64,
        out="bfloat16",
        consumers=consumers,
        mma_rows=mma_rows,
        **settings,
    )


def levels(num_multiprocessors: int) -> list[tuple[str, MatmulConfig]]:
    """Return the levels, each with what it adds in words."""
    sizes = (SIZE, SIZE, SIZE)
    registers = candidates(*sizes, "float32", vector=True, num_multiprocessors=num_multiprocessors)[
        0
    ]
    in_warps = next(
        config
        for config in candidates(
            *sizes, "bfloat16", vector=True, num_multiprocessors=num_multiprocessors
        )
        if config.kernel == "matmul_mma"
    )
    few = {"num_multiprocessors": num_multiprocessors}
    return [
        ("a thread for every number of C", MatmulConfig("matmul_naive", "float32")),
        ("tiles in shared memory", MatmulConfig("matmul_tiled", "float32")),
        ("tiles in registers, copies that run ahead", registers),
        ("tensor cores, a warp's products (`mma.sync`), bfloat16", in_warps),
        (
            "a warpgroup's products (`wgmma`), tensor copies: 64 x 64, 2 stages",
            wgmma(RowByRow, 1, 1, 64, stages=2, **few),
        ),
        ("a ring of 6 stages", wgmma(RowByRow, 1, 1, 64, stages=6, **few)),
        ("two warpgroups that multiply: 128 x 128", wgmma(RowByRow, 2, 1, 128, stages=6, **few)),
        ("wider tiles: 128 x 256, 4 stages", wgmma(RowByRow, 2, 1, 256, stages=4, **few)),
        ("tiles in swaths of 16 rows, which share L2", wgmma(InSwaths, 2, 1, 256, stages=4, **few)),
        ("stores by tensor copies", wgmma(WgmmaConfig, 2, 1, 256, stages=4, **few)),
        (
            "clusters of two blocks that share tiles of B",
            wgmma(WgmmaConfig, 2, 1, 256, stages=4, cluster=2, **few),
        ),
    ]


def main() -> None:
    Options(__doc__).parse_args()
    bench = Bench()
    operands = {
        dtype: Operands(Product(SIZE, SIZE, SIZE, dtype)) for dtype in ("float32", "bfloat16")
    }
    found, graphs = [], []
    for name, config in levels(bench.runtime.num_multiprocessors):
        own = operands[config.dtype]
        start = bench.ours(config, own)
        bench.run_all(start, own)
        error = own.error()
        if not error <= DTYPES[config.dtype][2]:
            raise SystemExit(f"{name}: error {error:.1e}")
        found.append({"level": name, "dtype": config.dtype, "config": str(config)})
        graphs.append(bench.our_graph(start, own))
    theirs = bench.cublas(operands["bfloat16"])
    bench.run_all(theirs, operands["bfloat16"])
    graphs.append(bench.their_graph(theirs, operands["bfloat16"]))
    *ours, cublas = [median(times) for times in bench.time(graphs, ROUNDS)]
    flop = 2 * SIZE**3
    rows = [
        {**row, "us": us, "tflops": flop / us / 1e6} for row, us in zip(found, ours, strict=True)
    ]
    for row in rows:
        print(
            f"{row['us']:10.1f} us {row['tflops']:8.1f} TFLOP/s  {row['level']}; {row['config']}",
            flush=True,
        )
    print(f"{cublas:10.1f} us {flop / cublas / 1e6:8.1f} TFLOP/s  cuBLAS, bfloat16")
    write_results(
        "levels",
        {"size": SIZE, "rows": rows, "cublas": {"us": cublas, "tflops": flop / cublas / 1e6}},
    )


if __name__ == "__main__":
    run_command(main)
