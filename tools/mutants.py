"""Plants bugs in copies of the tree, one at a time, and reports which of them the tests catch:
`make mutants`.

The list is tools/mutants.toml: each bug is a piece of source, which occurs once, what stands in its
place, and the tests that have to notice. What is known of a tree stays in build/mutants, so that a
run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "mutants.toml"
CAUGHT_AT_LEAST = 0.95
SECONDS = 900
PYTEST = ("-m", "pytest", "-q", "-x", "-m", "not slow and not gpu")
FAILED_BEFORE = ("--last-failed", "--last-failed-no-failures=none")
PASSED, NO_TESTS, WRONG_CALL = 0, 5, (3, 4)
# What tests of every kind stand on.
SHARED = ("src/", "tests/support/", "tests/emulator/")


@dataclass(frozen=True)
class Mutant:
    """A bug: a file's text, which occurs once, what is planted in its place, and the tests to
    run.
    """

    name: str
    file: str
    text: str
    planted: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> str:
        """Plant it in a tree, and return what the file was before."""
        path = root / self.file
        source = path.read_text(encoding="utf-8")
        if source.count(self.text) != 1 or self.text == self.planted:
            raise SystemExit(
                f"{self.name}: expected its text once in {self.file}, got {source.count(self.text)}"
            )
        path.write_text(source.replace(self.text, self.planted), encoding="utf-8")
        return source


def read_list(path: Path = LIST) -> list[Mutant]:
    """Return all mutants."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**each, "tests": tuple(each["tests"])}) for each in found]


def committed_or_not(root: Path) -> list[Path]:
    """Return the files of a checkout, those that are new too, by their paths in it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(
        command, cwd=root, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [Path(name) for name in sorted(names) if (root / name).is_file()]


def copy_tree(root: Path, target: Path) -> None:
    """Let a folder hold the files of a checkout, and no others."""
    shutil.rmtree(target, ignore_errors=True)
    for name in committed_or_not(root):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target / name)


def digest_of(root: Path, names: Iterable[Path], mutant: Mutant) -> str:
    """Return a digest over a mutant and what decides whether it is caught: sources, and its
    tests.
    """
    digest = hashlib.sha256(str(mutant).encode())
    for name in names:
        if name.name == "conftest.py" or str(name).startswith((*SHARED, *mutant.tests)):
            digest.update(f"{name}\0".encode() + (root / name).read_bytes())
    return digest.hexdigest()[:16]


def run_tests(tree: Path, *arguments: str) -> int | None:
    """Return pytest's exit code in a tree; None if it hung, and less than 0 if it crashed."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *PYTEST, *arguments],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode in WRONG_CALL:
        raise SystemExit(
            f"pytest {' '.join(arguments)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.returncode


def outcome_of(mutant: Mutant, tree: Path) -> str:
    """Return what became of a mutant that is planted in a tree, which is left as it was.

    A test that fails without it, too, has not caught it: that ends everything.
    """
    shutil.rmtree(tree / ".pytest_cache", ignore_errors=True)
    before = mutant.apply(tree)
    try:
        code = run_tests(tree, *mutant.tests)
    finally:
        (tree / mutant.file).write_text(before, encoding="utf-8")
    if code == PASSED:
        return "survived"
    if code == NO_TESTS or run_tests(tree, *FAILED_BEFORE, *mutant.tests) not in (PASSED, NO_TESTS):
        raise SystemExit(
            f"{mutant.name}: its tests are none, or fail without it: {' '.join(mutant.tests)}"
        )
    return "caught"


class Outcomes:
    """What is known of mutants, in a file of lines of JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.known = {line["key"]: line["outcome"] for line in map(json.loads, lines)}

    def add(self, key: str, mutant: Mutant, outcome: str) -> None:
        """Keep an outcome."""
        self.known[key] = outcome
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "name": mutant.name, "outcome": outcome}) + "\n")


def run_all(mutants: Sequence[Mutant], folder: Path, jobs: int) -> dict[str, str]:
    """Return every mutant's outcome, by its name."""
    outcomes, names = Outcomes(folder / "outcomes.jsonl"), committed_or_not(ROOT)
    keys = {mutant: digest_of(ROOT, names, mutant) for mutant in mutants}
    missing = [mutant for mutant in mutants if keys[mutant] not in outcomes.known]
    trees: SimpleQueue[Path] = SimpleQueue()
    for number in range(min(jobs, len(missing))):
        copy_tree(ROOT, folder / f"tree-{number}")
        trees.put(folder / f"tree-{number}")

    def run(mutant: Mutant) -> None:
        tree = trees.get()
        try:
            outcome = outcome_of(mutant, tree)
        finally:
            trees.put(tree)
        outcomes.add(keys[mutant], mutant, outcome)
        print(f"{outcome:8}  {mutant.name}", flush=True)

    if missing:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(run, missing))
    return {mutant.name: outcomes.known[keys[mutant]] for mutant in mutants}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants whose names contain what is asked for; 1 if too many of them survive."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names; all mutants without")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    asked = parser.parse_args(arguments)
    mutants = [
        each
        for each in read_list()
        if not asked.names or any(part in each.name for part in asked.names)
    ]
    folder = ROOT / "build" / "mutants"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SystemExit(
                "expected one run of mutants at a time in this checkout, got another"
            ) from None
        found = run_all(mutants, folder, asked.jobs)
    survivors = [name for name, outcome in found.items() if outcome == "survived"]
    caught = len(found) - len(survivors)
    print(f"{caught} of {len(found)} caught ({caught / max(1, len(found)):.1%})")
    for name in survivors:
        print(f"survived: {name}")
    return int(caught < CAUGHT_AT_LEAST * len(found))


if __name__ == "__main__":
    sys.exit(main())
