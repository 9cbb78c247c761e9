"""How long is a hop: between warps, between blocks of a cluster, between clusters?

A message goes to and fro between two warps or blocks (`hops.cu`) a thousand times; a hop is half of
a turn. Barriers, fences, loads and single instructions are repeated as often. Medians over rounds
and, in a cluster, over the blocks that block 0 talks to. Prints a line for each, beside the chain
of waits of each kernel that trains a network in one launch, and writes results/hops.json.

    python benchmarks/hops.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctypes

import numpy as np

from harness import run_command, spread, take_no_options, write_results
from warpfit.backends.cuda import CudaBackend
from warpfit.backends.cuda.jit import KERNELS
from warpfit.backends.cuda.runtime import open_device

SOURCE = Path(__file__).with_suffix(".cu")
TURNS, ROUNDS = 1000, 5
MEMORY_BYTES = 1 << 16
CLUSTERS = (2, 4, 8, 16)
# In the order of `enum Kind`.
KINDS = (
    "store_async_8 store_async_16 store_async_warp store_remote bulk_peer bulk_load mbarrier "
    "block_barrier group_barrier cluster_barrier memory fence_cluster fence_gpu fence_system "
    "fence_async shuffle matrix_load product"
).split()
# A turn is two hops.
TO_AND_FRO = (
    "store_async_8",
    "store_async_16",
    "store_async_warp",
    "store_remote",
    "bulk_peer",
    "mbarrier",
    "memory",
)


@dataclass(frozen=True)
class Case:
    """What is measured, among so many blocks and threads."""

    kind: str
    cluster: int = 1
    clusters: int = 1
    threads: int = 32
    nbytes: int = 512

    @property
    def blocks(self) -> int:
        return self.cluster * self.clusters

    @property
    def peers(self) -> range:
        """The blocks that block 0 talks to, one after the other."""
        if self.clusters > 1:
            return range(self.cluster, self.blocks)
        return range(1, max(2, self.blocks)) if self.kind in TO_AND_FRO else range(1)

    @property
    def defines(self) -> dict[str, int]:
        return {
            "KIND": KINDS.index(self.kind),
            "CLUSTER": self.cluster,
            "THREADS": self.threads,
            "BYTES": self.nbytes,
            "TURNS": TURNS,
            "BOUNDED_WAITS": 0,
        }


IN_CLUSTERS = ("store_async_8", "store_async_16", "store_async_warp", "store_remote")
CASES = (
    *(Case(kind, cluster) for kind in IN_CLUSTERS for cluster in CLUSTERS),
    *(Case("bulk_peer", cluster, nbytes=n) for n in (16, 512, 1024, 4096) for cluster in CLUSTERS),
    *(Case("cluster_barrier", cluster, threads=512) for cluster in (1, *CLUSTERS)),
    *(Case("memory", cluster, 2) for cluster in (1, *CLUSTERS)),
    *(Case("bulk_load", nbytes=nbytes) for nbytes in (16, 1584, 25344)),
    Case("mbarrier", threads=64),
    *(Case("block_barrier", threads=threads) for threads in (32, 128, 256, 512, 1024)),
    *(Case("group_barrier", threads=threads) for threads in (64, 128, 256)),
    *(
        Case(kind, cluster)
        for kind in ("fence_cluster", "fence_gpu", "fence_system")
        for cluster in (1, 16)
    ),
    *(Case(kind) for kind in ("fence_async", "shuffle", "matrix_load", "product")),
)


def compiled(case: Case, arch: str) -> Any:
    """Return the kernel's machine code."""
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        name=SOURCE.name,
        arch=arch,
        std="c++17",
        include_path=str(KERNELS),
        define_macro=[(name, str(value)) for name, value in case.defines.items()],
    )
    return Program(SOURCE.read_text(encoding="utf-8"), "c++", options).compile("cubin")


class Bench:
    """The device, and what kernels take."""

    def __init__(self) -> None:
        self.runtime = open_device(0)
        self.ops = CudaBackend(self.runtime)
        self.found = self.ops.zeros((2,), "int64")
        self.memory = self.ops.zeros((MEMORY_BYTES,), "uint8")

    def measured(self, case: Case, code: Any) -> dict[str, Any]:
        """Return cycles and nanoseconds of a hop, or of what is repeated."""
        kernel = code.get_kernel("hops")
        error, handle = self.runtime._driver.cuKernelGetFunction(kernel.handle)
        self.runtime._check(error, "loading hops")
        function = SimpleNamespace(name="hops", handle=handle, takes_turn=False)
        turns = np.concatenate(
            [
                [self._turns(case, function, peer) for _ in range(ROUNDS + 1)][1:]
                for peer in case.peers
            ]
        )
        hops = turns / TURNS / (2 if case.kind in TO_AND_FRO else 1)
        return {"cycles": spread(hops[:, 0].tolist()), "ns": spread(hops[:, 1].tolist())}

    def _turns(self, case: Case, function: Any, peer: int) -> Any:
        self.runtime.fill(self.memory.pointer, MEMORY_BYTES)
        arguments = (
            ctypes.c_uint64(self.found.pointer),
            ctypes.c_uint64(self.memory.pointer),
            ctypes.c_int(peer),
        )
        places = (ctypes.c_void_p * 3)(*(ctypes.addressof(each) for each in arguments))
        grid, block = (case.blocks, 1, 1), (case.threads, 1, 1)
        is_together = case.clusters > 1
        self.runtime.launch_cluster(
            function, grid, block, 0, ctypes.addressof(places), case.cluster, is_together
        )
        return self.found.numpy()


def main() -> None:
    take_no_options(__doc__)
    bench, rows = Bench(), []
    with ThreadPoolExecutor() as pool:
        codes = list(pool.map(lambda case: compiled(case, bench.runtime.arch), CASES))
    for case, code in zip(CASES, codes, strict=True):
        row = {**case.__dict__, **bench.measured(case, code)}
        rows.append(row)
        print(
            f"{case.kind:18s} cluster {case.cluster:2d} x{case.clusters} threads {case.threads:4d} bytes "
            f"{case.nbytes:5d} {row['cycles']['median']:8.0f} cycles ({row['cycles']['min']:.0f} to "
            f"{row['cycles']['max']:.0f}) {row['ns']['median']:8.0f} ns",
            flush=True,
        )
    write_results("hops", {"rows": rows})


if __name__ == "__main__":
    run_command(main)
