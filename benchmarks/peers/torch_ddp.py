"""Steps of wide networks in PyTorch on several cards: DistributedDataParallel over NCCL, in
bfloat16 where autocast takes it, a process for each card.

    python benchmarks/peers/torch_ddp.py CARDS STEPS SIZES/ROWS_OF_A_CARD ...

Prints as JSON for each network the microseconds of a step, the mean of so many after as many: on
one card, on all eager, and on all compiled.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_eager import mlp


def work(rank: int, count: int, num_steps: int, networks: Sequence[str], times: Any) -> None:
    """Train as a rank, and leave the microseconds of a step of each network in `times`."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=count)
    for network in networks:
        widths, rows = network.split("/")
        sizes, num_rows = tuple(map(int, widths.split(","))), int(rows)
        x = torch.randn(num_rows, sizes[0], device="cuda")
        y = torch.randint(sizes[-1], (num_rows,), device="cuda")
        found = {} if rank else {"one": mean_of(mlp(sizes).cuda(), x, y, num_steps)}
        dist.barrier()
        for kind in ("eager", "compile"):
            model: Any = DistributedDataParallel(
                mlp(sizes).cuda(), device_ids=[rank], gradient_as_bucket_view=True
            )
            found[kind] = mean_of(
                torch.compile(model) if kind == "compile" else model, x, y, num_steps
            )
        if rank == 0:
            times.put((network, found))
    dist.destroy_process_group()


def mean_of(model: Any, x: torch.Tensor, y: torch.Tensor, num_steps: int) -> float:
    """Return the microseconds of a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    seconds = 0.0
    for _ in range(2):
        torch.cuda.synchronize()
        begin = perf_counter()
        for _ in range(num_steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                outputs = model(x)
            cross_entropy(outputs.float(), y).backward()
            optimizer.step()
        torch.cuda.synchronize()
        seconds = perf_counter() - begin
    return seconds / num_steps * 1e6


def main() -> None:
    count, num_steps, networks = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"})
    times: Any = multiprocessing.get_context("spawn").Queue()
    multiprocessing.spawn(work, (count, num_steps, networks, times), nprocs=count)
    print(json.dumps({"us": dict(times.get() for _ in networks), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
