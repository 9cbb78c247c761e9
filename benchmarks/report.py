"""Write the tables and charts of README and docs from the results files.

A table stands between ``<!-- results: NAME -->`` and ``<!-- end -->``; NAME is one of RENDERERS.
charts.py has the charts.

    warpfit bench report            # rewrite the tables and charts whose results changed
    warpfit bench report --check    # exit 1 if one does not match its results file
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any

from accel_costs import table as table_of_accel
from charts import CHARTS, has_results, is_stale, write
from cnn import LABELS as CNN_LABELS
from cnn import STEP_LABELS
from digests import batch_sizes, engines, how_fast, notebook, one_epoch, widths_short
from engine_curves import largest_difference
from harness import RESULTS, ROOT, Options, as_table, run_command
from hops import rows_of_chains, rows_of_hops
from one_launch import PEERS, USUAL_PEERS, elsewhere, network_of
from optuna_trials import table as optuna_trials
from optuna_trials import table_of_values
from report_run import LEAST_SPEED, NUMPY, speed_over_numpy
from scaling_pages import most_of, parts_of, rows_of_launches, rows_of_networks
from table_pages import rows_of_pairs, rows_of_programs, rows_of_ratios, rows_of_variants
from train import label_of
from waits import table as waits
from warpfit.files import atomic_path

PAGES = (
    "README.md",
    *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").glob("**/*.md"))),
)
BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Results = dict[str, Any]


def _source(results: Results) -> str:
    """Return where results come from: the machine, its GPU if they are of one, versions, commit and
    date.
    """
    env = results["environment"]
    packages = [
        f"{name} {version}" for name, version in env["packages"].items() if name != "warpfit"
    ]
    machine = f"{env['cores']} cores of an {env['cpu']}"
    machine = (
        f"{env['gpu']}, driver {env['driver']}, {machine}"
        if "gpu" in env
        else f"{machine} (shared machine)"
    )
    software = ", ".join([f"Python {env['python']}", *packages])
    return f"\n{machine}, {software}; commit {env['commit']}, {env['date']}.\n"


def cpu_epoch(results: Results) -> str:
    rows = [
        [
            case,
            f"{row['warpfit_seconds']['median']:.2f} s",
            f"{row['sklearn_seconds']['median']:.2f} s",
            f"{row['ratio']['median']:.2f}",
            f"{row['ratio']['min']:.2f} to {row['ratio']['max']:.2f}",
            f"{row['peak_bytes'] / 1e6:.0f} MB",
        ]
        for case, row in results["rows"].items()
    ]
    header = [
        "784-256-10, batch 64, one epoch",
        "warpfit",
        "scikit-learn",
        "ratio",
        "spread",
        "warpfit's peak memory",
    ]
    return as_table(header, rows) + _source(results)


INITS = ("kaiming_uniform", "lecun_uniform", "default")


def accuracy_gap(results: Results) -> str:
    rows = []
    for reduction in ("mean", "sum"):
        report, ours = results["report"][reduction], results["rows"][f"{reduction} float32"]
        double = results["rows"][f"{reduction} float64"]
        epochs = report["losses"]
        rows.append(
            [
                report["name"],
                ", ".join(f"{loss:.4f} ({epoch})" for epoch, loss in epochs.items()),
                _percent(report),
            ]
        )
        for name, run in (("float32", ours), ("float64", double)):
            losses = ", ".join(f"{run['losses'][int(epoch) - 1]:.4f} ({epoch})" for epoch in epochs)
            rows.append([f"warpfit, {reduction} over the batch, {name}", losses, _percent(run)])
        for init in INITS:
            run = results["other_inits"][f"{reduction} {init}"]
            losses = ", ".join(f"{run['losses'][int(epoch) - 1]:.4f} ({epoch})" for epoch in epochs)
            rows.append([f"the same in float32, {init} initial values", losses, _percent(run)])
    return as_table(["run", "training loss (after epoch)", "test accuracy"], rows) + _source(
        results
    )


def _percent(run: Results) -> str:
    return f"{run['accuracy']:.2%}"


def _us(measured: Results) -> str:
    return f"{measured['median']:.0f} ({measured['min']:.0f} to {measured['max']:.0f})"


def layerwise(results: Results) -> str:
    rows = [
        [
            batch,
            _us(row["float32"]),
            f"{row['tf32']['median']:.0f}",
            f"{row['float16']['median']:.0f}",
            _us(row["torch_eager"]),
            f"{row['ratio']:.1f}",
            *_epochs(row),
        ]
        for batch, row in results["mlp"].items()
    ]
    header = [
        "batch",
        "warpfit float32, µs a step",
        "tf32",
        "float16",
        "PyTorch eager, µs a step",
        "ratio",
    ]
    header += ["epoch, CUDA", "epoch, NumPy"]
    return as_table(header, rows) + _source(results)


def _epochs(row: Results) -> list[str]:
    """Return what 60,000 rows take on the GPU and with NumPy: the measured step times the number of
    steps.
    """
    programs = [row.get(name) for name in ("float32", "numpy")]
    return [
        f"{run['median'] * row['steps_of_60000'] / 1e6:.2f} s" if run else "-" for run in programs
    ]


def layerwise_cnn(results: Results) -> str:
    names = {
        "float32": "float32",
        "tf32": "tf32",
        "float16": "float16",
        "torch_eager": "PyTorch eager",
    }
    rows = [[name, _us(results["cnn"][key])] for key, name in names.items()]
    return as_table(["MNIST example's CNN, batch 64", "µs a step"], rows) + _source(results)


def first_step(results: Results) -> str:
    names = {"empty_cache": "empty", "warm_cache": "warm"}
    measured = results["first_step"]
    rows = [
        [
            name,
            f"{measured[key]['median']:.2f} s",
            f"{measured[key]['min']:.2f} to {measured[key]['max']:.2f}",
        ]
        for key, name in names.items()
    ]
    return as_table(
        ["kernel cache", "from the call of fit to the first trained step", "spread"], rows
    ) + _source(results)


def gemm(results: Results) -> str:
    rows: dict[str, dict[str, str]] = {}
    for row in results["rows"]:
        cell = (
            f"{row['us']:.1f} µs, {row['tflops']:.1f} TFLOP/s, **{row['speed_over_cublas']:.2f}**"
        )
        rows.setdefault(row["shape"], {})[row["dtype"]] = cell
    dtypes = list(dict.fromkeys(row["dtype"] for row in results["rows"]))
    note = "Time, rate, and cuBLAS's time over ours. TN: A stored (k, m). NT: B stored (n, k).\n\n"
    table = [[shape, *(cells.get(dtype, "-") for dtype in dtypes)] for shape, cells in rows.items()]
    return note + as_table(["m x n x k", *dtypes], table) + _source(results)


def bandwidth(results: Results) -> str:
    rows = [
        [name, f"{row['us']:.0f}", f"{row['gb_per_second']:.0f}", f"{row['of_copy']:.2f}"]
        for name, row in results["rows"].items()
    ]
    note = (
        f"A copy on the device moves {results['copy_gb_per_second']:.0f} GB/s, bytes "
        "read and written.\n\n"
    )
    return (
        note
        + as_table(["256 MiB of float32", "µs", "GB/s", "of the copy"], rows)
        + _source(results)
    )


def curves(results: Results) -> str:
    rows = []
    for part, name in (("mlp", "mlp, 5 epochs"), ("cnn", "cnn, 200 steps")):
        for run, values in results[part].items():
            far = f"{values['largest_difference_of_50_steps']:.4f}"
            rows.append(
                [
                    name,
                    run,
                    _percent({"accuracy": values["test_accuracy"]}),
                    f"{values['train_seconds']:.2f} s",
                    far,
                ]
            )
    for run, values in results["cnn_whole"].items():
        accuracy = _percent({"accuracy": values["test_accuracy"]})
        rows.append(
            [
                f"cnn, {values['epochs']} epochs",
                f"CUDA {run}",
                accuracy,
                f"{values['train_seconds']:.2f} s",
                "",
            ]
        )
    header = [
        "run",
        "backend",
        "test accuracy",
        "training time",
        "largest distance from NumPy's loss, means of 50 steps",
    ]
    return as_table(header, rows) + _source(results)


def one_launch(results: Results) -> str:
    """Return the table of ours and the best peers, what ten epochs take, and the picture."""
    rows = [
        [
            network_of(row),
            str(row["batch"]),
            _quick(row, "warpfit float16"),
            _quick(row, "warpfit bfloat16"),
            _quick(row, row["best_peer"]),
            _peer_label(row["best_peer"]),
            f"**{row['ratio']['float16']:.1f}**" if "float16" in row["ratio"] else "-",
            _quick(row, _best_of(row, "torch_eager")),
        ]
        for row in results["rows"].values()
    ]
    header = [
        "network",
        "batch",
        "warpfit float16, µs a step",
        "bfloat16",
        "best peer, µs a step",
        "which",
    ]
    header += ["speedup", "PyTorch eager, µs a step"]
    text = (
        as_table(header, rows) + _refused(results["rows"]) + _headline(results.get("headline", {}))
    )
    text += _sources(results)
    if "curves" in results:
        text += "\n![Microseconds a step over batch and hidden width](images/one_launch.png)\n"
    return text


def _sources(results: Results) -> str:
    """Return where results come from, and what was measured at another commit or on another day."""
    return _source(results).rstrip() + elsewhere(results) + "\n"


def _ours_of(row: Results) -> str | None:
    return next((name for name in row["programs"] if name.startswith("warpfit ")), None)


def widths(results: Results) -> str:
    """Return the table of networks that no cluster holds."""
    rows = []
    for row in results["rows"].values():
        ours = _ours_of(row)
        us = row["programs"].get(ours, {}).get("us")
        rate = f"{row['flop'] / us['median'] / 1e6:.0f}" if us else "-"
        best = row["best_peer"]
        precision = ours.split()[1] if ours else "-"
        ratio = f"**{row['ratio'][precision]:.1f}**" if precision in row["ratio"] else "-"
        engine = row["plan"].split()[0]
        cells = [
            _quick(row, ours),
            precision,
            engine,
            rate,
            _quick(row, best),
            _peer_label(best),
            ratio,
        ]
        rows.append([network_of(row), str(row["batch"]), *cells])
    header = ["network", "batch", "warpfit, µs a step", "precision", "engine", "TFLOP/s"]
    header += ["best peer, µs a step", "which", "speedup"]
    return as_table(header, rows) + _sources(results)


def levels(results: Results) -> str:
    """Return the table of the products that docs/kernels.md leads through."""
    rows, before = [], None
    for row in results["rows"]:
        gain = f"{before / row['us']:.2f}" if before else "-"
        rows.append(
            [row["level"], f"`{row['config']}`", f"{row['us']:.0f}", f"{row['tflops']:.1f}", gain]
        )
        before = row["us"]
    cublas = results["cublas"]
    rows.append(["cuBLAS, bfloat16", "", f"{cublas['us']:.0f}", f"{cublas['tflops']:.1f}", "-"])
    size = results["size"]
    header = [f"{size} x {size} x {size}", "kernel", "µs", "TFLOP/s", "gain over the line above"]
    return as_table(header, rows) + _source(results)


def cnn(results: Results) -> str:
    """Return the table of the MNIST example, and its accuracies."""
    rows = [
        [batch, *(_quick(row, name) for name in STEP_LABELS), row["plan"].split()[0]]
        for batch, row in results["rows"].items()
    ]
    header = ["batch", *(f"{label}, µs a step" for label in STEP_LABELS.values()), "our engine"]
    text = as_table(header, rows)
    for name, found in results["accuracy"].items():
        label = "warpfit, float16" if name.startswith("warpfit") else "PyTorch eager, float32"
        values = ", ".join(f"{accuracy:.2%}" for accuracy in found)
        text += f"\nTest accuracy after each epoch with Adam at batch 64, {label}: {values}.\n"
    accuracies = _part_of_cnn(results, "accuracy")["environment"]
    text += _source(_part_of_cnn(results, "steps")).rstrip()
    return text + f" Accuracies: commit {accuracies['commit']}, {accuracies['date']}.\n"


def _part_of_cnn(results: Results, part: str) -> Results:
    """Return the environment of a part of cnn.json, each of which is measured when asked for."""
    return {"environment": results.get("environments", {}).get(part, results["environment"])}


def cnn_residual(results: Results) -> str:
    """Return the table of a residual network's step, and of the MNIST example's on the CPU."""
    text = ""
    for part, name in (("residual", "ResNet-18, 32 × 32"), ("cpu", "MNIST example, CPU")):
        if part not in results:
            continue
        row = results[part]
        us = {key: cell["us"]["median"] for key, cell in row["programs"].items() if "us" in cell}
        ours = next(key for key in us if key.startswith("warpfit"))
        theirs = min(us.keys() - {ours}, key=lambda key: us[key])
        ratio = f"**{us[theirs] / us[ours]:.2f}**"
        cells = [name, str(row["batch"]), *(_quick(row, key) for key in (ours, theirs)), ratio]
        header = ["network", "batch", *(f"{CNN_LABELS[key]}, µs a step" for key in (ours, theirs))]
        text += (
            as_table([*header, "speedup"], [cells]) + _source(_part_of_cnn(results, part)) + "\n"
        )
    return text.removesuffix("\n")


def cnn_lenet(results: Results) -> str:
    """Return the table of LeNet-5's step, ours on two engines and PyTorch's."""
    if "lenet" not in results:
        return ""
    names = ("warpfit float16", "warpfit graph float16", "torch_graph float16")
    rows = []
    for batch, row in results["lenet"].items():
        ours, _, theirs = (row["programs"][name]["us"]["median"] for name in names)
        ratio = f"**{theirs / ours:.1f}**"
        rows.append([batch, *(_quick(row, name) for name in names), ratio])
    header = ["batch", *(f"{CNN_LABELS[name]}, µs a step" for name in names), "speedup"]
    return as_table(header, rows) + _source(_part_of_cnn(results, "lenet"))


def airbench(results: Results) -> str:
    """Return the table of a step of airbench94, ours and PyTorch's in modes of torch.compile."""
    us = {key: cell["us"]["median"] for key, cell in results["programs"].items() if "us" in cell}
    ours = next(key for key in us if key.startswith("warpfit"))
    rows = [
        [
            "warpfit, float16" if key == ours else f"PyTorch, {key.removeprefix('torch ')}",
            _quick(results, key),
            "" if key == ours else f"**{us[key] / us[ours]:.2f}**",
        ]
        for key in us
    ]
    header = ["airbench94, 2,000 images a step", "µs a step", "speedup"]
    return as_table(header, rows) + _source(results)


def cnn_convolutions(results: Results) -> str:
    """Return the table of single convolutions beside cuDNN's."""
    if "convolutions" not in results:
        return ""
    rows = [
        [
            row["shape"] if idx == 0 else "",
            name if name == "forward" else f"{name}'s gradient",
            f"{found['warpfit']['us']:.1f} µs, {found['warpfit']['tflops']:.0f} TFLOP/s",
            f"{found['cudnn']['us']:.1f} µs, {found['cudnn']['tflops']:.0f}",
            f"**{found['cudnn']['us'] / found['warpfit']['us']:.2f}**",
            f"{row['bytes'] / 1e6:.0f} MB",
        ]
        for row in results["convolutions"]
        for idx, (name, found) in enumerate(row["passes"].items())
    ]
    header = ["images, kernel", "pass", "warpfit", "cuDNN", "speedup", "at least"]
    return as_table(header, rows) + _source(_part_of_cnn(results, "convolutions"))


def mnist_fast(results: Results) -> str:
    """Return the table of MNIST in an epoch: seconds and accuracies of networks one by one, and of
    all in one call.
    """
    runs, turns = results["runs"], results["together"]
    many = f"{len(runs)} of them in one `fit_many`, each validated on the test set"
    accuracies = [run["accuracy"] for run in runs]
    rows = [
        ["test accuracy", f"{mean(accuracies):.3%} ± {pstdev(accuracies):.3%}"],
        ["`fit`, its model made in that time", _ms([run["fit_s"] for run in runs])],
        ["of it the epoch", _ms([run["epoch_s"] for run in runs])],
        *([[many, _ms([turn["s"] for turn in turns])]] if turns else []),
    ]
    return as_table([f"{len(runs)} seeds, {runs[0]['precision']}", ""], rows) + _source(results)


def _ms(seconds: list[float]) -> str:
    few, middle, most = (1e3 * of(seconds) for of in (min, median, max))
    return f"{middle:.1f} ms ({few:.1f} to {most:.1f})"


def engine_curves(results: Results) -> str:
    """Return the table of distances from the reference's curve."""
    rows = []
    for network, found in results["networks"].items():
        for name, run in found["runs"].items():
            if name == found["reference"]:
                continue
            same = {True: "yes", False: "no"}.get(run.get("has_bits_of_layerwise", ""), "-")
            cells = [run.get("reason", ""), "-", "-"]
            if "reason" not in run:
                far = (run["largest_difference"], run["largest_difference_of_50_steps"])
                cells = [*(f"{distance:.1g}" for distance in far), same]
            rows.append([network, name, found["reference"], *cells])
    header = [
        "network",
        "engine",
        "reference",
        "largest distance of a step's loss",
        "of means of 50 steps",
    ]
    largest, run, network = largest_difference(results)
    note = f"\nThe largest distance of ours is {largest:.2g}: {run}, {network}.\n"
    return as_table([*header, "the bits of `layerwise`"], rows) + note + _source(results)


def train(results: Results) -> str:
    """Return the table of all programs at every batch, and the picture."""
    rows = []
    for row in results["rows"].values():
        for name, cell in row["programs"].items():
            start = [str(row["batch"]), label_of(name)]
            if "us" not in cell:
                rows.append([*start, cell["reason"], *["-"] * 5])
                continue
            parts = "forward_us" in cell
            rows.append(
                [
                    *start,
                    f"{cell['forward_us']['median']:.1f}" if parts else "-",
                    f"{cell['backward_and_update_us']:.1f}" if parts else "-",
                    _quick(row, name),
                    _brief(cell["epoch_seconds"]),
                    f"{cell['samples_per_second']:,.0f}",
                    f"{max(cell['first_call'], 0.0):.1f} s",
                ]
            )
    header = [
        "batch",
        "program",
        "forward, µs",
        "backward and update, µs",
        "step, µs",
        "epoch",
        "rows a second",
    ]
    text = as_table([*header, "first call"], rows) + _source(results)
    return text + "\n![µs a step and rows a second over the batch](images/train.png)\n"


def report_run(results: Results) -> str:
    """Return the table of the report's run, its own figures first, and the picture."""
    rows = []
    for name, run in results["report"].items():
        accuracies = {run["reduction"]: f"{run['accuracy']:.2%}"}
        cells = [name, _brief(run["epoch_seconds"]), _brief(run["run_seconds"]), "-"]
        rows.append([*cells, *(accuracies.get(reduction, "-") for reduction in ("mean", "sum"))])
    for name, runs in results["rows"].items():
        mean = runs["mean"]
        accuracies = {
            key: f"{run['accuracy']:.2%}" for key, run in runs.items() if "accuracy" in run
        }
        cells = [mean.get("reason", ""), "-", "-"]
        if "reason" not in mean:
            seconds, speed = mean["epoch_seconds"], speed_over_numpy(results["rows"], name)
            spread = (
                f"{_brief(seconds['median'])} ({_brief(seconds['min'])} to "
                f"{_brief(seconds['max'])})"
            )
            over = "-" if speed is None or name == NUMPY else f"**{speed:.0f}**"
            cells = [spread, _brief(mean["run_seconds"]["median"]), over]
        rows.append(
            [f"warpfit, {name}", *cells, *(accuracies.get(key, "-") for key in ("mean", "sum"))]
        )
    header = [
        "784-256-10, batch 64, lr 0.01",
        "seconds an epoch",
        f"{results['settings']['epochs']} epochs, whole call",
    ]
    header += [
        "speedup over NumPy here",
        "test accuracy, mean over the batch",
        "sum over the batch",
    ]
    note = f"\nGoal: {LEAST_SPEED} times NumPy on the same machine.\n"
    text = as_table(header, rows) + note + _source(results)
    return text + "\n![Seconds an epoch](images/report_run.png)\n"


def counters(results: Results) -> str:
    """Return the table of Nsight Compute's counters, a column for each kernel, and what has
    none.
    """
    cases = {name: case for name, case in results["cases"].items() if "counters" in case}
    found = dict.fromkeys(counter for case in cases.values() for counter in case["counters"])
    rows = [
        [counter, *(_counter(case["counters"].get(counter)) for case in cases.values())]
        for counter in found
    ]
    launched = ["launched by", *(case["what"] for case in cases.values())]
    text = as_table(["", *(f"`{name}`" for name in cases)], [launched, *rows]) if cases else ""
    for name, case in results["cases"].items():
        if "reason" in case:
            text += f"\nNot counted, `{name}` ({case['what']}): {case['reason']}\n"
    tools = results["tools"]
    return (
        text
        + f"\nNsight Compute: {tools['ncu']}. Nsight Systems: {tools['nsys']}.\n"
        + _source(results)
    )


def _counter(found: Results | None) -> str:
    """Return a counter with its unit; times in microseconds."""
    if found is None:
        return "-"
    value, unit = found["value"], found["unit"]
    if unit in ("ns", "nsecond"):
        value, unit = value / 1e3, "µs"
    elif unit in ("hz", "cycle/second"):
        value, unit = value / 1e9, "GHz"
    number = f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"
    return f"{number} {unit}".strip()


def _refused(rows: Results) -> str:
    """Return the lines on what warpfit did not run, and why; nothing where it ran all."""
    return "".join(
        f"\n{network_of(row)} at batch {row['batch']}: {cell['reason']}\n"
        for row in rows.values()
        if "reason" in (cell := row["programs"].get("warpfit float16", {}))
    )


def _quick(row: Results, program: str | None) -> str:
    """Return the microseconds a step of a program of one_launch's results, with their spread."""
    measured = row["programs"].get(program, {}).get("us")
    if measured is None:
        return "-"
    digits = 0 if measured["median"] >= 100 else 1 if measured["median"] >= 10 else 2
    return f"{{median:.{digits}f}} ({{min:.{digits}f}} to {{max:.{digits}f}})".format(**measured)


def _best_of(row: Results, peer: str) -> str | None:
    """Return the name of a peer with its quickest precision."""
    programs = {
        name: cell["us"]["median"]
        for name, cell in row["programs"].items()
        if name.split()[0] == peer and "us" in cell
    }
    return min(programs, key=lambda name: programs[name], default=None)


def _peer_label(program: str | None) -> str:
    if program is None:
        return "-"
    peer, precision = program.split()
    return f"{PEERS[peer].label}, {precision}"


def _headline(measured: Results) -> str:
    """Return the line on ten epochs, or nothing where they were not measured."""
    parts = [
        f"{run['ms']['median']:.1f} ms ({run['ms']['min']:.1f} to {run['ms']['max']:.1f}) in "
        f"{precision}, and reach {run['accuracy']['median']:.2%} on the test set"
        for precision, run in measured.items()
        if "ms" in run
    ]
    if not parts:
        return ""
    return (
        f"\nThe steps of ten epochs of 784-256-10 over MNIST, batch 64, take {'; '.join(parts)}.\n"
    )


def one_launch_peers(results: Results) -> str:
    """Return the table of all peers, each in its quickest precision, with the seconds of its first
    call.
    """
    measured = {name.split()[0] for row in results["rows"].values() for name in row["programs"]}
    peers = [peer for peer in USUAL_PEERS if peer in measured]
    rows = []
    for row in results["rows"].values():
        best = ["warpfit float16", *(_best_of(row, peer) for peer in peers)]
        cells = [f"{network_of(row)}, {row['batch']}"]
        for program in best:
            first = row["programs"].get(program, {}).get("first_call")
            precision = f" {program.split()[1]}" if program is not None else ""
            cells.append(
                f"{_quick(row, program)}{precision}, {max(first, 0.0):.1f} s"
                if first is not None
                else "-"
            )
        rows.append(cells)
    header = ["network, batch", "warpfit", *(PEERS[peer].label for peer in peers)]
    note = (
        "µs a step (least to largest) in the quickest precision, and what the first "
        "call takes longer.\n\n"
    )
    return note + as_table(header, rows) + _sources(results)


def launch_costs(results: Results) -> str:
    rows = [
        [
            row["case"],
            f"{row['microseconds']['min']:.2f}",
            f"{row['expected']:.2f}",
            f"{row['expected'] / row['microseconds']['min']:.2f}",
            row["layout"]
            .partition(",")[0]
            .replace("share out", "partition"),  # in the words of its day
        ]
        for row in results["rows"]
    ]
    header = ["network, optimizer, batch", "µs a step", "expected", "ratio", "laid out as"]
    return as_table(header, rows) + _source(results)


def hops(results: Results) -> str:
    """Return the table of what messages, barriers and fences take."""
    return as_table(*rows_of_hops(results)) + _source(results)


def hops_chains(results: Results) -> str:
    """Return the table of each network's chain of waits beside its step."""
    return as_table(*rows_of_chains(results)) + _source(results)


def scaling(results: Results) -> str:
    """Return the table of steps on several GPUs beside PyTorch's, and the picture."""
    count = most_of(results)
    picture = f"\n![A step on one and on {count} GPUs, beside PyTorch's](images/scaling.png)\n"
    sources = [
        f"\n{count} GPUs: {_source(part['fast']).lstrip()}" for count, part in parts_of(results)
    ]
    return as_table(*rows_of_networks(results)) + "".join(sources) + picture


def scaling_launch(results: Results) -> str:
    """Return the table of small networks that one launch trains on several GPUs."""
    return as_table(*rows_of_launches(results)) + _source(results["2 devices"]["launch"])


def streaming(results: Results) -> str:
    rows = [
        [
            row["case"],
            str(row["batch"]),
            f"{row['resident']:.2f}",
            f"{row['streamed']:.2f}",
            f"{row['gb_per_second']:.1f}",
        ]
        for row in results["rows"]
    ]
    header = ["network, x", "batch", "µs a step, x on the device", "x on the host", "GB/s"]
    return as_table(header, rows) + _source(results)


def prompt(results: Results) -> str:
    """Return the table of the seconds from the prompt to the next, or, in older files, to a saved
    model, and of the stages that they go to.
    """
    caches, is_whole = results["caches"], "until" in results
    wholes = {
        "the whole process" if is_whole else "until the model is saved": "seconds",
        "the same under clocks": "seconds_under_clocks",
    }
    if is_whole:
        wholes["until the model is saved"] = "seconds_to_model"
    rows = [
        [f"**{label}**", *(f"{_seconds(found[key])} s" for found in caches.values())]
        for label, key in wholes.items()
    ]
    for stage in next(iter(caches.values()))["stages"]:
        rows.append(
            [stage, *(f"{found['stages'][stage]['median']:.3f} s" for found in caches.values())]
        )
    sums = [
        sum(seconds["median"] for seconds in found["stages"].values()) for found in caches.values()
    ]
    rows.append(["all stages", *(f"{total:.3f} s" for total in sums)])
    span = "from prompt to prompt" if is_whole else "from the prompt to a saved model"
    header = [span, *(f"{cache} kernel cache" for cache in caches)]
    accuracy = results["accuracy"]
    note = (
        f"\n`{results['command']}`, by the engine {' and '.join(results['engines'])}: "
        f"{accuracy['min']:.2%} to {accuracy['max']:.2%} on the test set. Medians of "
        f"{results['rounds']} processes (least to largest).\n"
    )
    return as_table(header, rows) + note + _source(results)


def _seconds(measured: Results) -> str:
    return f"{measured['median']:.2f} ({measured['min']:.2f} to {measured['max']:.2f})"


def estimators_cpu(results: Results) -> str:
    """Return the tables of the estimators on the CPU, as shares of scikit-learn's time."""
    header = ["on the CPU", "warpfit", "scikit-learn", "ratio", "spread", "goal"]
    return _estimators(results, ("cpu", "tabular"), header, _share)


def estimators_gpu(results: Results) -> str:
    """Return the tables of the estimators on a GPU, as multiples of speed, and of the stages of a
    fit.
    """
    header = ["warpfit on a GPU", "warpfit", "scikit-learn", "speedup", "spread", "goal"]
    text = _estimators(results, ("gpu", "search"), header, _multiple)
    return text + _fit_stages(results["parts"]["gpu"]) if "gpu" in results["parts"] else text


def _estimators(
    results: Results,
    parts: tuple[str, ...],
    header: list[str],
    compare: Callable[[Results], list[str]],
) -> str:
    """Return a table for each of the parts that are there, with the machine that it was measured
    on.
    """
    text = ""
    for part in (results["parts"][name] for name in parts if name in results["parts"]):
        rows = [
            [
                case,
                *(_brief(row[key]["median"]) for key in ("warpfit_seconds", "sklearn_seconds")),
                *compare(row),
            ]
            for case, row in part["rows"].items()
        ]
        note = (
            f"\nMedians of {part['rounds']} fits of each, in turns; BLAS threads: "
            f"{part['blas_threads']}."
        )
        measured = {
            (row["sklearn_epochs_measured"], row["sklearn_epochs"])
            for row in part["rows"].values()
            if "sklearn_epochs" in row
        }
        for few, all_of_them in measured:
            note += (
                f" Of scikit-learn's {all_of_them} epochs {few} were measured, the time multiplied."
            )
        text += ("\n" if text else "") + as_table(header, rows) + note + "\n" + _source(part)
    return text


def _share(row: Results) -> list[str]:
    measured = row["ratio"]
    goal = f"at most {row['largest_ratio']:.1f}"
    return [f"{measured['median']:.2f}", f"{measured['min']:.2f} to {measured['max']:.2f}", goal]


def _multiple(row: Results) -> list[str]:
    measured = row["speed"]
    goal = f"at least {row['least_speed']:.0f}" if "least_speed" in row else "-"
    return [f"{measured['median']:.1f}", f"{measured['min']:.1f} to {measured['max']:.1f}", goal]


def _brief(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.2f} ms"


def _fit_stages(part: Results) -> str:
    cases = part["rows"]
    rows = [
        [stage, *(f"{row['stages'][stage]['median'] * 1e3:.1f} ms" for row in cases.values())]
        for stage in next(iter(cases.values()))["stages"]
    ]
    return "\n" + as_table(["a fit of ours, under clocks", *cases], rows)


def estimator_scores(results: Results) -> str:
    """Return a table for each device of ours, with the machine that it was measured on."""
    text = ""
    for device, measured in results["devices"].items():
        rows = [
            [
                name,
                f"{row['warpfit_mean']:.4f}",
                f"{row['sklearn_mean']:.4f}",
                f"{row['sklearn_deviation']:.4f}",
                "{:+.4f} ({:+.4f} to {:+.4f})".format(row["difference"], *row["interval"]),
                f"{row['p_t']:.2f}",
                f"{row['p_wilcoxon']:.2f}",
                f"{row['p_equivalence']:.0e}",
            ]
            for name, row in measured["rows"].items()
        ]
        header = [
            f"{measured['seeds']} seeds, ours on {device}",
            "warpfit",
            "scikit-learn",
            "deviation between seeds",
            "mean difference (95 % interval)",
            "p, paired t",
            "p, Wilcoxon",
            f"p, {measured['bound']:g} or more",
        ]
        text += ("\n" if text else "") + as_table(header, rows) + _source(measured)
    return text


def ladder(results: Results) -> str:
    """Return a table for each network, with what there is to say of its rungs."""
    from ladder_peers import PEERS
    from warpfit.apps.ladder import Result
    from warpfit.apps.ladder.rungs import RUNGS
    from warpfit.apps.ladder.table import milliseconds, notes, times

    text = ""
    changes = {step.name: step.changes for step in (*RUNGS, *PEERS.values())}
    header = [
        "rung",
        "what it changes",
        "an epoch",
        "the device's part",
        "gain",
        "in all",
        "loss",
        "accuracy",
    ]
    for stored in results["networks"].values():
        result = Result.from_dict(stored)
        rows = [
            [
                f"*{record.title}*" if record.is_peer else record.title,
                changes.get(record.name, record.changes),
                milliseconds(record.ms_per_epoch) + ("*" if record.is_scaled else ""),
                "" if record.device_ms is None else milliseconds(record.device_ms),
                times(record.gain),
                times(record.gain_over_first),
                "" if record.loss is None else f"{record.loss:.4f}",
                "" if record.accuracy is None else f"{record.accuracy:.2%}",
            ]
            for record in result
        ]
        said = "".join(
            f"* {note}\n" for note in (note.replace("*", "\\*") for note in notes(result))
        )
        about = (
            f"**{result.network}, batch {result.batch}**, {result.rows:,} rows of {result.data}, "
        )
        about += (
            f"{result.epochs} epochs, lr {result.lr:g}; {result.seconds:.0f} s for all of it\n\n"
        )
        text += ("\n" if text else "") + about + as_table(header, rows) + f"\n{said}"
    return text + _source(results)


def sweep(results: Results) -> str:
    """Return the tables of many networks at once, and of the search, with the picture over the
    number of networks.
    """
    rows = []
    for row in results["rows"].values():
        best = row["best_peer"]
        ratio = f"**{row['ratio']['float16']:.1f}**" if "float16" in row["ratio"] else "-"
        ours = [_a_network(row, f"warpfit {precision}") for precision in ("float16", "bfloat16")]
        sizes = [row["network"], str(row["batch"]), f"{row['networks']:,}"]
        rows.append(
            [
                *sizes,
                *ours,
                f"{row['floor_us']:.4f}",
                _a_network(row, best),
                _sweep_peer(best),
                ratio,
            ]
        )
    header = [
        "network",
        "batch",
        "networks",
        "warpfit float16, µs per network and step",
        "bfloat16",
    ]
    header += ["floor: tensor cores", "best peer", "which", "speedup"]
    text = as_table(header, rows) if rows else ""
    if "search" in results:
        text += ("\n" if text else "") + _search(results["search"])
    text += _sources(results)
    if (
        results.get("search", {}).get("commit", results["environment"]["commit"])
        != results["environment"]["commit"]
    ):
        text += f"The search: commit {results['search']['commit']}.\n"
    if "curve" in results:
        text += "\n![Seconds an epoch over the number of networks](images/sweep.png)\n"
    return text


def _a_network(row: Results, program: str | None) -> str:
    """Return the microseconds per network and step of a program, with their spread."""
    us = row["programs"].get(program, {}).get("us")
    if not us:
        return "-"
    digits = 3 if us["median"] >= 0.05 else 4
    median, least, most = (f"{us[name]:.{digits}f}" for name in ("median", "min", "max"))
    return f"{median} ({least} to {most})"


def _sweep_peer(program: str | None) -> str:
    from sweep import PEERS

    if program is None:
        return "-"
    name, precision = program.split()
    return f"{PEERS[name].label}, {precision}"


def optuna(results: Results) -> str:
    return optuna_trials(results) + _source(results)


def accel_costs(results: Results) -> str:
    return table_of_accel(results) + _source(results)


def optuna_values(results: Results) -> str:
    return table_of_values(results) + _source(results)


def _search(measured: Results) -> str:
    """Return the table of the seconds that a search takes."""
    rows = []
    for name, cell in measured["programs"].items():
        fits = cell.get("extrapolated_from")
        how = f"extrapolated from {fits} fits" if fits else "measured"
        rows.append(
            [
                name,
                *([f"{cell['seconds']:.1f}", how] if "seconds" in cell else ["-", cell["reason"]]),
            ]
        )
    title = (
        f"{measured['candidates']} candidates × {measured['folds']} folds, "
        f"{measured['epochs']} epochs each"
    )
    return as_table([title, "seconds", ""], rows)


def tables(results: Results) -> str:
    """Return times and errors of programs on tables, and how the times compare."""
    programs = as_table(*rows_of_programs(results))
    text = f"{programs}\n{as_table(*rows_of_ratios(results))}{_source(results).rstrip()}"
    return f"{text} That is the last fit's; others are of other days and H200s.\n"


def tables_equal(results: Results) -> str:
    """Return how equally good networks of two programs are."""
    return as_table(*rows_of_pairs(results))


def tables_variants(results: Results) -> str:
    """Return what RealMLP's parts are worth, and its precisions."""
    return as_table(*rows_of_variants(results))


# By the name of a table, or by the name of its results file where they differ.
RENDERERS: dict[str, Callable[[Results], str]] = {
    "cpu_epoch": cpu_epoch,
    "accuracy_gap": accuracy_gap,
    "layerwise": layerwise,
    "layerwise_cnn": layerwise_cnn,
    "first_step": first_step,
    "gemm": gemm,
    "bandwidth": bandwidth,
    "curves": curves,
    "one_launch": one_launch,
    "one_launch_peers": one_launch_peers,
    "widths": widths,
    "widths_short": widths_short,
    "engines": engines,
    "batch_sizes": batch_sizes,
    "notebook": notebook,
    "how_fast": how_fast,
    "one_epoch": one_epoch,
    "levels": levels,
    "cnn": cnn,
    "cnn_convolutions": cnn_convolutions,
    "cnn_lenet": cnn_lenet,
    "cnn_residual": cnn_residual,
    "airbench": airbench,
    "mnist_fast": mnist_fast,
    "engine_curves": engine_curves,
    "launch_costs": launch_costs,
    "streaming": streaming,
    "prompt": prompt,
    "estimators_cpu": estimators_cpu,
    "estimators_gpu": estimators_gpu,
    "estimator_scores": estimator_scores,
    "ladder": ladder,
    "train": train,
    "report_run": report_run,
    "counters": counters,
    "sweep": sweep,
    "tables": tables,
    "accel_costs": accel_costs,
    "tables_equal": tables_equal,
    "tables_variants": tables_variants,
    "optuna": optuna,
    "optuna_values": optuna_values,
    "waits": waits,
    "hops": hops,
    "hops_chains": hops_chains,
    "scaling": scaling,
    "scaling_launch": scaling_launch,
}
FILES = {
    "hops_chains": "hops",
    "layerwise_cnn": "layerwise",
    "cnn_convolutions": "cnn",
    "cnn_lenet": "cnn",
    "cnn_residual": "cnn",
    "first_step": "layerwise",
    "one_launch_peers": "one_launch",
    "widths_short": "widths",
    "how_fast": "one_launch",
    "one_epoch": "report_run",
    "engines": "one_launch",
    "batch_sizes": "one_launch",
    "estimators_cpu": "estimators",
    "estimators_gpu": "estimators",
    "scaling_launch": "scaling",
    "tables_equal": "tables",
    "tables_variants": "tables",
}


def render(text: str) -> str:
    """Return a page with every table made anew; one whose results are not there yet is left out."""

    def table(match: re.Match[str]) -> str:
        path = RESULTS / f"{FILES.get(match[2], match[2])}.json"
        if not path.exists():
            return f"{match[1]}{match[3]}"
        results = json.loads(path.read_text(encoding="utf-8"))
        return f"{match[1]}{RENDERERS[match[2]](results)}{match[3]}"

    return BLOCK.sub(table, text)


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if anything is stale"
    )
    parser.add_argument("--redraw", action="store_true", help="draw all charts anew")
    arguments = parser.parse_args()
    stale = [*stale_pages(arguments.check), *stale_charts(arguments.check, arguments.redraw)]
    print(f"{'stale' if arguments.check else 'rewritten'}: {', '.join(stale) or 'none'}")
    sys.exit(bool(stale) and arguments.check)


def stale_pages(check: bool) -> list[str]:
    """Return the pages with a table that does not match its results, and rewrite them unless told
    to check only.
    """
    stale = []
    for page in (ROOT / name for name in PAGES):
        text = page.read_text(encoding="utf-8")
        if (fresh := render(text)) != text:
            stale.append(page.name)
            if not check:
                _write(page, fresh)
    return stale


def stale_charts(check: bool, redraw: bool) -> list[str]:
    """Return the charts that do not match their results, and draw them unless told to check
    only.
    """
    stale = [
        chart
        for chart in CHARTS
        if is_stale(chart) or (redraw and not check and has_results(chart))
    ]
    if check or not stale:
        return [chart.path for chart in stale]
    if find_spec("matplotlib") is None:
        print(
            f"not drawn, as matplotlib is not installed: {', '.join(chart.path for chart in stale)}"
        )
        return []
    for chart in stale:
        write(chart)
    return [chart.path for chart in stale]


def _write(page: Path, text: str) -> None:
    with atomic_path(page) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run_command(main)
