"""Steps of networks in PyTorch on several cards: DistributedDataParallel over NCCL, in bfloat16
where autocast takes it, a process for each card.

    python benchmarks/peers/torch_ddp.py CARDS STEPS NETWORK/ROWS_OF_A_CARD ...

A network is ``cnn``, ``resnet``, or the widths of linear layers, with commas. Prints a line of JSON
with the microseconds of a step, the mean of so many after as many, as each is known: on all cards,
on one, and on all compiled.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_eager import mlp, mnist_cnn

sys.path.append(str(Path(__file__).parents[1]))
from residual import their_resnet

IMAGES = {"cnn": (1, 28, 28), "resnet": (3, 32, 32)}


def work(rank: int, count: int, num_steps: int, networks: Sequence[str]) -> None:
    """Train as a rank; the first tells how long steps take."""
    torch.cuda.set_device(rank)
    torch.backends.cudnn.benchmark = True
    dist.init_process_group("nccl", rank=rank, world_size=count)
    for kind in ("eager", "one", "compile"):
        for network in networks:
            if kind != "one":
                model: Any = DistributedDataParallel(
                    made(network), device_ids=[rank], gradient_as_bucket_view=True
                )
                trained = torch.compile(model) if kind == "compile" else model
                us = mean_of(trained, *rows_of(network), num_steps)
            elif rank == 0:
                us = mean_of(made(network), *rows_of(network), num_steps)
            if rank == 0:
                tell(network, kind, us)
        dist.barrier()
    dist.destroy_process_group()


def tell(network: str, kind: str, us: float) -> None:
    print(json.dumps({"network": network, "kind": kind, "us": us}), flush=True)


def made(network: str) -> Any:
    """Return a network on this rank's card."""
    name = network.split("/")[0]
    if name not in IMAGES:
        return mlp(tuple(map(int, name.split(",")))).cuda()
    model = mnist_cnn() if name == "cnn" else their_resnet()
    return model.cuda().to(memory_format=torch.channels_last)


def rows_of(network: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a card's rows of a batch, and labels."""
    name, rows = network.split("/")
    sizes = IMAGES.get(name) or (int(name.split(",")[0]),)
    num_classes = 10 if name in IMAGES else int(name.split(",")[-1])
    x = torch.randn(int(rows), *sizes, device="cuda")
    if name in IMAGES:
        x = x.contiguous(memory_format=torch.channels_last)
    return x, torch.randint(num_classes, (int(rows),), device="cuda")


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
    multiprocessing.spawn(work, (count, num_steps, networks), nprocs=count)


if __name__ == "__main__":
    main()
