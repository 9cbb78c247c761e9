"""Feed malformed input to everything that reads input, and count what comes of it.

python tools/fuzz.py                                    # all families, 2,000 inputs each
python tools/fuzz.py --inputs 10000 --family 'NPZ files'
python tools/fuzz.py --family 'NPZ files' --only 137    # one input again, with its traceback

Each input is accepted, which means that what it describes then works, or refused with an exception
of `warpfit.errors` or another that the family documents. Anything else is a raw error; what takes
longer than ten seconds is a hang. Exits 1 if there is one of either. The input of a number is
always the same one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

from fuzzing import FAMILIES, Counts, Family, failure_of, run_family

SHOWN = 5


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--inputs", type=int, default=2000, metavar="N", help="inputs of each family"
    )
    parser.add_argument(
        "--family", action="append", choices=sorted(FAMILIES), help="may be given again"
    )
    parser.add_argument(
        "--only", type=int, metavar="K", help="feed this one input, and print its traceback"
    )
    arguments = parser.parse_args()
    families = [FAMILIES[name] for name in arguments.family or FAMILIES]
    if arguments.only is not None:
        return _feed_one(families[0], arguments.only)
    print(f"{'family':<24}{'inputs':>8}{'accepted':>10}{'refused':>9}{'raw':>5}{'hangs':>7}")
    found = []
    for family in families:
        with tempfile.TemporaryDirectory() as folder:
            found.append(run_family(family, Path(folder), range(arguments.inputs)))
        print(_line(family.name, found[-1]), flush=True)
    print(_line("all", sum(found, Counts())))
    return _report_failures(list(zip(families, found, strict=True)))


def _line(name: str, counts: Counts) -> str:
    raw, hangs = len(counts.raw), len(counts.hangs)
    numbers = f"{counts.inputs:>8,}{counts.accepted:>10,}{counts.refused:>9,}{raw:>5,}{hangs:>7,}"
    return f"{name:<24}{numbers}"


def _report_failures(results: list[tuple[Family, Counts]]) -> int:
    """Print the first failures of each family; return 1 if there are any."""
    for family, counts in results:
        for number, what in [*counts.hangs.items(), *counts.raw.items()][:SHOWN]:
            print(f"{family.name} {number}: {what}")
    return int(any(counts.raw or counts.hangs for _, counts in results))


def _feed_one(family: Family, number: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        error = failure_of(family, family.prepare(Path(folder)), number)
    if error is None:
        print("accepted")
        return 0
    traceback.print_exception(error)
    return int(not isinstance(error, family.refusals))


if __name__ == "__main__":
    sys.exit(main())
