"""The step of a wide network in PyTorch on several cards: DistributedDataParallel over NCCL, in
bfloat16 where autocast takes it, a process for each card.

    python benchmarks/peers/torch_ddp.py SIZES ROWS_OF_A_CARD CARDS [--eager]

Prints the microseconds of a step as JSON. The model is compiled, unless --eager.
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

WARM_UP, STEPS, REPEATS = 10, 40, 3


def work(
    rank: int, sizes: tuple[int, ...], num_rows: int, count: int, is_compiled: bool, times: Any
) -> None:
    """Train as a rank, and leave the microseconds of a step of each repeat in `times`."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=count)
    model: Any = mlp(sizes).cuda()
    if count > 1:
        model = DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
    if is_compiled:
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    x = torch.randn(num_rows, sizes[0], device="cuda")
    y = torch.randint(sizes[-1], (num_rows,), device="cuda")

    def train(num_steps: int) -> float:
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

    train(WARM_UP)
    found = [train(STEPS) for _ in range(REPEATS)]
    if rank == 0:
        times.put(found)
    dist.destroy_process_group()


def main() -> None:
    sizes = tuple(map(int, sys.argv[1].split(",")))
    num_rows, count = int(sys.argv[2]), int(sys.argv[3])
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"})
    context = multiprocessing.get_context("spawn")
    times: Any = context.Queue()
    settings = (sizes, num_rows, count, "--eager" not in sys.argv, times)
    multiprocessing.spawn(work, settings, nprocs=count)
    found = times.get()
    print(json.dumps({"us": min(found), "all": found, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
