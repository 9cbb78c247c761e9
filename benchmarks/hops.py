"""How long is a hop: between warps, between blocks of a cluster, between clusters?

A message goes to and fro between two warps or blocks (`hops.cu`) a thousand times; a hop is half of
a turn. Barriers, fences, loads and single instructions are repeated as often. Medians over rounds
and, in a cluster, over the blocks that block 0 talks to. Then steps of some networks, beside their
chain of waits: what a step would take if nothing were computed between them, by who waits for whom
in their kernel. Prints a line for each, and writes results/hops.json.

    python benchmarks/hops.py
"""

from __future__ import annotations

import ctypes
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

import one_launch
from harness import Options, run_command, spread, write_results
from warpfit.backends.cuda import CudaBackend
from warpfit.backends.cuda.jit import KERNELS
from warpfit.backends.cuda.runtime import open_device
from warpfit.backends.cuda.waits import MEMORY, Arrive, Place, Protocol, Wait
from warpfit.backends.cuda.waits_by_layers import protocol_by_layers, protocol_on_card
from warpfit.backends.cuda.waits_in_groups import protocol_in_groups
from warpfit.backends.cuda.waits_specialized import specialized_protocol

SOURCE = Path(__file__).with_suffix(".cu")
TURNS, ROUNDS = 1000, 5
MEMORY_BYTES = 1 << 16
CLUSTERS = (2, 4, 8, 16)
# In the order of `enum Kind`: what goes to and fro, so that a turn is two hops, and all else.
TO_AND_FRO = [
    "store_async_8",
    "store_async_16",
    "store_async_warp",
    "store_remote",
    "bulk_peer",
    "mbarrier",
    "memory",
]
KINDS = [
    *TO_AND_FRO,
    "bulk_load",
    "block_barrier",
    "group_barrier",
    "cluster_barrier",
    "fence_cluster",
    "fence_gpu",
    "fence_system",
    "fence_async",
    "shuffle",
    "matrix_load",
    "product",
]


@dataclass(frozen=True)
class Case:
    """What is measured, among so many blocks and threads."""

    kind: str
    cluster: int = 1
    clusters: int = 1
    threads: int = 32
    nbytes: int = 512

    @property
    def name(self) -> str:
        nbytes = f" {self.nbytes}" if self.kind.startswith("bulk") else ""
        threads = (
            f" {self.threads}" if self.kind.endswith(("block_barrier", "group_barrier")) else ""
        )
        return f"{self.kind}{nbytes}{threads}"

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


FENCES = ("fence_cluster", "fence_gpu", "fence_system")
TILE_BYTES = 25344  # 16 rows of 784 features
CASES = (
    *(Case(kind, cluster) for kind in TO_AND_FRO[:4] for cluster in CLUSTERS),
    *(Case("bulk_peer", cluster, nbytes=n) for n in (16, 512, 4096) for cluster in CLUSTERS),
    *(Case("cluster_barrier", cluster, threads=512) for cluster in (1, *CLUSTERS)),
    *(Case("memory", cluster, 2) for cluster in (1, *CLUSTERS)),
    *(Case(kind, cluster) for kind in FENCES for cluster in (1, *CLUSTERS)),
    *(Case("bulk_load", nbytes=nbytes) for nbytes in (16, TILE_BYTES)),
    Case("mbarrier", threads=64),
    *(Case("block_barrier", threads=threads) for threads in (32, 128, 256, 512, 1024)),
    *(Case("group_barrier", threads=threads) for threads in (64, 128, 256)),
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
        turns = [
            self._turns(case, function, peer) for peer in case.peers for _ in range(ROUNDS + 1)
        ]
        hops = np.array(turns) / TURNS / (2 if case.kind in TO_AND_FRO else 1)
        kept = hops.reshape(-1, ROUNDS + 1, 2)[:, 1:].reshape(-1, 2)  # but each peer's first
        return {"cycles": spread(kept[:, 0].tolist()), "ns": spread(kept[:, 1].tolist())}

    def _turns(self, case: Case, function: Any, peer: int) -> Any:
        self.runtime.fill(self.memory.pointer, MEMORY_BYTES)
        arguments = (
            ctypes.c_uint64(self.found.pointer),
            ctypes.c_uint64(self.memory.pointer),
            ctypes.c_int(peer),
        )
        places = (ctypes.c_void_p * 3)(*(ctypes.addressof(each) for each in arguments))
        grid, block = (case.blocks, 1, 1), (case.threads, 1, 1)
        self.runtime.launch_cluster(
            function, grid, block, 0, ctypes.addressof(places), case.cluster, case.clusters > 1
        )
        return self.found.numpy()


# -- tables
# ------------------------------------------------------------------------------------------------

LABELS = {
    "mbarrier": "a warp arrives at an `mbarrier`, another waits",
    "store_async_8": "`st.async` of 8 bytes by one thread, and the wait for it",
    "store_async_16": "of 16 bytes",
    "store_async_warp": "of 16 bytes by each thread of a warp",
    "store_remote": "plain store to another block, release and acquire of its `mbarrier`",
    "bulk_peer 16": "bulk copy from shared memory to another block's, 16 bytes",
    "bulk_peer 512": "512 bytes",
    "bulk_peer 4096": "4,096 bytes",
    "memory": "512 bytes through memory to another cluster, each number marked",
    "bulk_load 16": "bulk copy from the L2 cache, 16 bytes",
    f"bulk_load {TILE_BYTES}": "a tile of 16 rows of 784 features, 25 KB",
    "cluster_barrier": "barrier of the cluster, 512 threads a block",
    "block_barrier 32": "barrier of the block, 32 threads",
    "block_barrier 128": "128 threads",
    "block_barrier 256": "256 threads",
    "block_barrier 512": "512 threads",
    "block_barrier 1024": "1,024 threads",
    "group_barrier 128": "`bar.sync` of 128 threads",
    "group_barrier 256": "256 threads",
    "fence_cluster": "a store to memory and `fence.acq_rel.cluster`",
    "fence_gpu": "`.gpu`",
    "fence_system": "`.sys`",
    "fence_async": "`fence.proxy.async`",
    "shuffle": "shuffle",
    "matrix_load": "`ldmatrix`",
    "product": "`mma.m16n8k16`",
}


def rows_of_hops(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and lines of the table of hops, over sizes of clusters."""
    found = {(row["name"], row["cluster"]): row for row in results["rows"]}
    sizes = (1, *CLUSTERS)

    def cell(name: str, size: int) -> str:
        row = found.get((name, size))
        return f"{row['cycles']['median']:.0f}, {row['ns']['median']:.0f} ns" if row else "-"

    lines = [[label, *(cell(name, size) for size in sizes)] for name, label in LABELS.items()]
    return ["cycles, in clusters of", *(f"{size}" for size in sizes)], lines


def rows_of_chains(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and lines of the table of chains beside steps."""
    ghz = median(row["cycles"]["median"] / row["ns"]["median"] for row in results["rows"])
    lines = []
    for row in results["chains"]:
        us, step = row["cycles"] / ghz / 1e3, row["us"]["median"]
        hops = [
            ("" if hop["times"] == 1 else f"{hop['times']:g} × ") + f"{name} {hop['cycles']:.0f}"
            for name, hop in row["hops"].items()
        ]
        cells = [f"{us:.2f}", f"{step:.2f}", f"{step - us:.2f}", f"{us / step:.0%}"]
        lines.append([row["case"], f"`{row['kernel']}`", " + ".join(hops), *cells])
    header = ["network/batch", "kernel", "a step's chain, cycles", "chain, µs", "step, µs"]
    return [*header, "work between, µs", "chain's share"], lines


# -- chains of waits
# ------------------------------------------------------------------------------------------------

NETWORKS = (
    one_launch.Case((784, 256, 10), 8),
    one_launch.Case((784, 256, 10), 64),
    one_launch.Case((784, 256, 10), 128),
    one_launch.Case((784, 256, 10), 64, "adam"),
    one_launch.Case((784, 10), 128),
    one_launch.Case((37, 53, 17, 3), 48, "adam"),
    one_launch.Case((64, 64, 64, 64, 1), 256, "adamw"),
    one_launch.Case((784, 128, 128, 128, 10), 32),
    one_launch.Case((784, 512, 512, 512, 10), 32),
)
# What a hop is: an arrival, a barrier of the block, `st.async`, numbers that are marked, or a copy.
WITHIN, MET, ACROSS, THROUGH = "mbarrier", "block_barrier 512", "store_async_warp", "memory"
LOADED = "bulk_load"
FEW_STEPS, MORE_STEPS = 8, 16


def protocol_of(launch: Any, steps: int) -> Protocol:
    """Return who waits for whom in so many steps of one epoch."""
    config = launch.config
    if launch.kernel == "one_launch":
        return specialized_protocol(config, steps, 1, 1)
    if launch.kernel == "one_launch_layers":
        return protocol_by_layers(config, steps, 0, 1)
    if launch.kernel == "one_launch_small_sm90":
        return protocol_in_groups(config, steps)
    return protocol_on_card(config, [True] * steps)


def kind_of(role: tuple[int, str], event: Arrive) -> str | None:
    """Return how what a role does comes to who waits for it; None at once, as a mere count."""
    if event.place.name.startswith("meeting of block"):
        return MET
    if event.place.block == MEMORY:
        return THROUGH
    if event.place.block != role[0] or (event.owed < 0 and not event.arrivals):
        return ACROSS
    if event.place.name == "x_full":
        return LOADED
    return None if event.owed > 0 else WITHIN


@dataclass
class _Clock:
    """When something is, in cycles, and over which hops it came."""

    cycles: float = 0
    hops: Counter[tuple[str, str]] = field(default_factory=Counter)

    def later(self, other: _Clock) -> _Clock:
        return self if self.cycles >= other.cycles else other


def end_of(protocol: Protocol, cycles: dict[str, float]) -> _Clock:
    """Return when the last role is done if only hops take time, and which ones that takes."""
    clocks = {role: _Clock() for role in protocol.roles}
    phases: dict[Place, list[_Clock]] = {place: [] for place in protocol.counts}
    under_way = {place: [0, 0, _Clock()] for place in protocol.counts}
    at, ready = dict.fromkeys(protocol.roles, 0), list(protocol.roles)
    waiting: dict[Place, list[tuple[int, str]]] = {}
    while ready:
        role = ready.pop(0)
        events = protocol.roles[role]
        while at[role] < len(events):
            event = events[at[role]]
            place = event.place
            if isinstance(event, Wait):
                if event.phase >= len(phases[place]):
                    waiting.setdefault(place, []).append(role)
                    break
                if event.phase >= 0:
                    clocks[role] = clocks[role].later(phases[place][event.phase])
            else:
                kind, own = kind_of(role, event), clocks[role]
                if kind is not None:
                    hops = own.hops + Counter([(place.name, kind)])
                    own = _Clock(own.cycles + cycles[kind], hops)
                state = under_way[place]
                state[0] += event.arrivals
                state[1] += event.owed
                state[2] = state[2].later(own)
                if state[0] == protocol.counts[place] and state[1] == 0:
                    phases[place].append(state[2])
                    under_way[place] = [0, 0, _Clock()]
                    ready += waiting.pop(place, [])
            at[role] += 1
    return max(clocks.values(), key=lambda clock: clock.cycles)


def chain_of(launch: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the hops of a step that follow from each other, and their cycles."""

    known = {(row["name"], row["cluster"]): row["cycles"]["median"] for row in rows}
    cycles = {
        **{name: known[name, 1] for name in (WITHIN, MET)},
        THROUGH: known["memory", launch.cluster],
        LOADED: known[f"bulk_load {TILE_BYTES}", 1],
    }
    if launch.cluster > 1:
        cycles[ACROSS] = known["store_async_warp", launch.cluster]
    few, more = (end_of(protocol_of(launch, s), cycles) for s in (FEW_STEPS, MORE_STEPS))
    steps = MORE_STEPS - FEW_STEPS
    hops = {
        name: {
            "what": kind,
            "times": (more.hops[name, kind] - few.hops[name, kind]) / steps,
            "cycles": cycles[kind],
        }
        for name, kind in more.hops
        if more.hops[name, kind] - few.hops[name, kind] >= steps / 4
    }
    return {"hops": hops, "cycles": (more.cycles - few.cycles) / steps}


def chains(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the chain of each network beside what a step takes."""
    found = []
    for case in NETWORKS:
        program = one_launch.Ours(case, "float16", *one_launch.rows_of(case))
        program.start()
        us = [seconds / program.steps * 1e6 for _ in range(ROUNDS) for seconds in program.turn()]
        launch = program.launch
        chain = chain_of(launch, rows)
        found.append({"case": case.name, "kernel": launch.kernel, "us": spread(us), **chain})
        print(f"{case.name:24s} {spread(us)['median']:6.2f} us  {chain}", flush=True)
    return found


def main() -> None:
    Options(__doc__).parse_args()
    bench, rows = Bench(), []
    with ThreadPoolExecutor() as pool:
        codes = list(pool.map(lambda case: compiled(case, bench.runtime.arch), CASES))
    for case, code in zip(CASES, codes, strict=True):
        row = {"name": case.name, **asdict(case), **bench.measured(case, code)}
        rows.append(row)
        cycles, ns = row["cycles"], row["ns"]
        print(
            f"{case.name:24s} in clusters of {case.cluster:2d}: {cycles['median']:6.0f} cycles "
            f"({cycles['min']:.0f} to {cycles['max']:.0f}), {ns['median']:.0f} ns",
            flush=True,
        )
    write_results("hops", {"rows": rows, "chains": chains(rows)})


if __name__ == "__main__":
    run_command(main)
