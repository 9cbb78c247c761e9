"""What pages show of results/scaling.json: tables of steps on several GPUs, and their chart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Results = dict[str, Any]
Table = tuple[list[str], list[list[str]]]

NAMES = {
    "4x4096/8192": "4×4096",
    "784-8192x3-10/8192": "784-8192³-10",
    "4x1024/8192": "4×1024",
    "cnn/512": "the MNIST example's CNN",
    "resnet/512": "ResNet-18-like",
}


def rows_of_networks(results: Results) -> Table:
    """Return the table of steps with as many rows on every GPU, beside PyTorch's."""
    header = ["network, rows a GPU", "GPUs", "warpfit, µs a step", "on one", "efficiency"]
    header += ["expected / measured", "PyTorch's, eager, compiled", "on one"]
    rows = []
    for case, name in NAMES.items():
        for count, part in parts_of(results):
            found = part.get("fast", {}).get(case, {})
            if count not in found:
                continue
            of_count = found[count]
            peer = part.get("peers", {}).get(f"{case} on {count}", {})
            ratio = of_count.get("expected", {}).get("ratio")
            theirs = ", ".join(_us(peer[kind]) for kind in ("eager", "compile") if kind in peer)
            rows.append(
                [
                    f"{name}, {int(case.partition('/')[2]):,}",
                    count,
                    f"**{_us(of_count)}**",
                    _us(found["1"]),
                    f"{of_count['efficiency']:.0%}",
                    f"{ratio:.2f}" if ratio else "-",
                    theirs or "-",
                    _us(peer["one"]) if "one" in peer else "-",
                ]
            )
    return header, rows


def rows_of_launches(results: Results) -> Table:
    """Return the table of small networks that one launch trains on several GPUs."""
    header = ["network, rows of all GPUs", "one launch on 2, µs a step", "expected / measured"]
    header += ["on 1", "graphs on 1", "on 2"]
    rows = []
    for name, found in results["2 devices"]["launch"].items():
        if "one_launch on 2" not in found:
            continue
        on_two, (network, _, batch) = found["one_launch on 2"], name.partition("/")
        others = [found[each] for each in ("one_launch on 1", "graph on 1", "graph on 2")]
        rows.append(
            [
                f"{network}, {int(batch):,}",
                f"**{on_two['us']:.1f}**",
                f"{on_two['expected']['ratio']:.2f}",
                *("no room" if isinstance(each, str) else f"{each['us']:.1f}" for each in others),
            ]
        )
    return header, rows


def most_of(results: Results) -> str:
    """Return the largest number of GPUs that there are figures of."""
    return [count for count, _ in parts_of(results)][-1]


def step_on(results: Results, count: str, case: str) -> tuple[float, float]:
    """Return the microseconds of a step on so many GPUs, ours and PyTorch's quickest."""
    part = results[f"{count} devices"]
    peers = part["peers"][f"{case} on {count}"]
    best = min(peers[kind]["us"] for kind in ("eager", "compile") if kind in peers)
    return part["fast"][case][count]["us"], best


def draw(results: Results) -> Any:
    """Return the figure of a step's time on the most GPUs, as a multiple of ours on one."""
    from matplotlib.figure import Figure

    count = most_of(results)
    part = results[f"{count} devices"]
    cases = [case for case in NAMES if f"{case} on {count}" in part["peers"]]
    figure = Figure(figsize=(8, 3.8), layout="constrained")
    axes = figure.subplots()
    bars: dict[str, list[float]] = {"warpfit, 1 GPU": [], f"warpfit, {count} GPUs": []}
    bars |= {"PyTorch, 1 GPU": [], f"PyTorch DDP, {count} GPUs": []}
    for case in cases:
        ours, alone = step_on(results, count, case), part["fast"][case]["1"]["us"]
        peer = part["peers"][f"{case} on {count}"]["one"]["us"]
        for values, us in zip(bars.values(), (alone, ours[0], peer, ours[1]), strict=True):
            values.append(us / alone)
    colours = ("#9ecae1", "#08519c", "#fdae6b", "#a63603")
    for idx, ((label, values), colour) in enumerate(zip(bars.items(), colours, strict=True)):
        places = [place + 0.2 * (idx - 1.5) for place in range(len(cases))]
        drawn = axes.bar(places, values, 0.19, label=label, color=colour)
        axes.bar_label(drawn, [f"{value:.1f}" for value in values], fontsize=7, padding=1)
    axes.set_xticks(range(len(cases)), [NAMES[case] for case in cases], fontsize=8)
    axes.set(ylabel="time of a step, as many rows a GPU")
    gpu = part["fast"]["environment"]["gpu"]
    axes.set_title(f"A step on one and on {count} {gpu}, warpfit on one = 1", fontsize=10)
    axes.legend(fontsize=8)
    return figure


def parts_of(results: Results) -> Iterator[tuple[str, Results]]:
    """Yield the number of GPUs and their figures, fewest first."""
    counts = sorted(int(key.split()[0]) for key in results if key.endswith(" devices"))
    yield from ((str(count), results[f"{count} devices"]) for count in counts)


def _us(found: Results) -> str:
    return f"{found['us']:,.0f}"
