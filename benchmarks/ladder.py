"""What does each rung of `warpfit ladder` gain, and the peers beside it?

Trains the networks once per rung and peer, and writes results/ladder.json. Networks that are not
measured again stay in the file if they come from the same GPU and packages.

    warpfit bench ladder [--networks mlp,softmax-regression,deep] [--no-peers] [--device cuda]
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

from harness import Options, environment, names, read_results, run_command, write_results

DRAWN = "mlp"
# When no more peers are started, in seconds from the beginning of a network.
ALL_SECONDS = 170.0


def kept(again: list[str]) -> dict[str, Any]:
    """Return the networks of the results file that are as good as new, and not to be measured
    again.
    """
    old, now = read_results("ladder"), environment()
    if not old:
        return {}
    same = all(old["environment"].get(key) == now.get(key) for key in ("gpu", "cpu", "packages"))
    return {name: row for name, row in old["networks"].items() if same and name not in again}


def measure(names: list[str], *, peers: bool, data: Any = "mnist", **settings: Any) -> None:
    from ladder_peers import PEERS, beside
    from warpfit.apps import ladder
    from warpfit.apps.ladder.task import make_task

    networks = kept(names)
    for name in names:
        print(f"-- {name}", flush=True)
        start = perf_counter()
        result = ladder.climb(name, data=data, **settings, on_start=_before, on_rung=_after)
        if peers:
            task = make_task(name, data=data, rows=result.rows)
            found = list(PEERS.values())
            result = beside(result, task, found, start + ALL_SECONDS, _before, _after)
        seconds = perf_counter() - start
        print(f"{seconds:.1f} s in all", flush=True)
        networks[name] = replace(result, seconds=seconds).to_dict()
        print(write_results("ladder", {"networks": networks}))  # what comes later may fail


def _before(step: Any) -> None:
    from warpfit.apps.ladder.table import line_before

    print(line_before(step), flush=True)


def _after(record: Any) -> None:
    from warpfit.apps.ladder.table import line_after

    print(line_after(record), flush=True)


def draw(results: dict[str, Any]) -> Any:
    """Return the figure of a results file: of `mlp`, or of the first network if it is missing."""
    from warpfit.apps import ladder

    networks = results["networks"]
    return ladder.draw(
        ladder.Result.from_dict(networks.get(DRAWN) or next(iter(networks.values())))
    )


def main() -> None:
    from warpfit.apps import ladder

    parser = Options(__doc__)
    usual = ["mlp", "softmax-regression", "deep"]
    parser.add_argument("--networks", type=names(ladder.NETWORKS), default=usual)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    settings = {"device": arguments.device, "epochs": arguments.epochs, "rows": arguments.limit}
    measure(arguments.networks, peers=not arguments.no_peers, **settings)


if __name__ == "__main__":
    run_command(main)
