"""The step of a wide network in PyTorch on several cards: DistributedDataParallel over NCCL, in
bfloat16 where autocast takes it, a process for each card.

    python benchmarks/peers/torch_ddp.py SIZES ROWS_OF_A_CARD CARDS [STEPS]

Prints as JSON the microseconds of a step, eager and compiled: the mean of so many, after as many.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_eager import mlp

STEPS = 48


def work(
    rank: int, sizes: tuple[int, ...], num_rows: int, count: int, num_steps: int, times: Any
) -> None:
    """Train as a rank, and leave the microseconds of a step in `times`."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=count)
    x = torch.randn(num_rows, sizes[0], device="cuda")
    y = torch.randint(sizes[-1], (num_rows,), device="cuda")
    found = {}
    for kind in ("eager", "compile"):
        model: Any = mlp(sizes).cuda()
        if count > 1:
            model = DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
        if kind == "compile":
            model = torch.compile(model)
        train(model, x, y, num_steps)
        found[kind] = train(model, x, y, num_steps)
    if rank == 0:
        times.put(found)
    dist.destroy_process_group()


def train(model: Any, x: torch.Tensor, y: torch.Tensor, num_steps: int) -> float:
    """Return the microseconds of a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    torch.cuda.synchronize()
    begin = perf_counter()
    for _ in range(num_steps):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            outputs = model(x)
        cross_entropy(outputs.float(), y).backward()
        optimizer.step()
    torch.cuda.synchronize()
    return (perf_counter() - begin) / num_steps * 1e6


def main() -> None:
    sizes = tuple(map(int, sys.argv[1].split(",")))
    num_rows, count, num_steps = (int(word) for word in (*sys.argv[2:], STEPS)[:3])
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"})
    times: Any = multiprocessing.get_context("spawn").Queue()
    multiprocessing.spawn(work, (sizes, num_rows, count, num_steps, times), nprocs=count)
    print(json.dumps({"us": times.get(), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
