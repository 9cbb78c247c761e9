"""What every kernel file promises its readers: a header that says all, one entry, PTX in one
place.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from warpfit.backends.base import ACTIVATIONS, BINARY, COMPARISONS, ELEMENT_LOSSES, UNARY
from warpfit.backends.cuda.dtypes import class_name
from warpfit.backends.cuda.jit import KERNELS
from warpfit.backends.cuda.resident_arguments import ARGUMENTS
from warpfit.backends.cuda.resident_config import CONFIGS
from warpfit.backends.update_rules import UPDATE_RULES

LABELS = ["Computes:", "Layout:", "Launch:", "Numerics:", "Cost:", "Reference:"]

SOURCES = sorted(KERNELS.rglob("*.cu"))
HEADERS = sorted(KERNELS.rglob("*.cuh"))
PTX = [KERNELS / "ptx" / name for name in ("ptx.cuh", "packed_halves.cuh", "ptx_sm90a.cuh")]
TWINS = [
    Path(__file__).parents[2] / "emulator" / name
    for name in ("ptx_twins.h", "ptx_sm90a_twins.h", "fragments.h")
]
FUNCTION = re.compile(r"\b__device__\s[\w:<>,\s&*]*?\b(\w+)\(")
ENTRY = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\s*\('
)


def relative(path: Path) -> str:
    return str(path.relative_to(KERNELS))


def each(paths: list[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Let a test look at every file, and name those that fail: a thousand tests take seconds."""

    def of_all(test: Callable[[Path], None]) -> Callable[[], None]:
        def looks_at_all() -> None:
            assert paths
            failed = {
                relative(path): failure for path in paths if (failure := failure_of(test, path))
            }
            assert failed == {}

        looks_at_all.__name__, looks_at_all.__doc__ = test.__name__, test.__doc__
        return looks_at_all

    return of_all


def failure_of(test: Callable[[Path], None], path: Path) -> str | None:
    try:
        test(path)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def opening_comment(path: Path) -> list[str]:
    """Return the lines of the comment that a file begins with, without their slashes."""
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("//"):
            break
        lines.append(line[2:].strip())
    return lines


@functools.cache
def code(path: Path) -> str:
    """Return the text of a file without its comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


# Launched alone, or where nothing runs before them.
TAKE_NO_TURNS = {
    "one_launch",
    "one_launch_card",
    "one_launch_images",
    "one_launch_layers",
    "one_launch_small_sm90",
    "table_networks",
    "gather_batches",
    "gram_batches",
    "write_number",
}


@each([path for path in SOURCES if path.stem not in TAKE_NO_TURNS])
def test_kernels_take_turns_before_they_touch_memory(path: Path) -> None:
    text = code(path)
    body = text[ENTRY.search(text).end() :]  # type: ignore[union-attr]
    before, found, _ = body.partition("take_turn();")
    assert found
    body = before.partition("{")[2]
    # Those for Hopper first make barriers in shared memory.
    assert not body.strip() or path.stem.endswith("_sm90")


def test_there_are_kernels() -> None:
    assert SOURCES
    assert HEADERS
    here = {path for path in KERNELS.rglob("*") if path.is_file()}
    assert here == {*SOURCES, *HEADERS}
    assert len({path.name for path in here}) == len(here)


@each([*SOURCES, *HEADERS])
def test_a_file_has_less_than_500_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 500


def test_the_page_on_kernels_names_all_parts_of_resident_kernels() -> None:
    page = (Path(__file__).parents[3] / "docs" / "kernels.md").read_text(encoding="utf-8")
    parts = [path for path in HEADERS if "resident" in path.parts]
    table = page.partition("## How a resident kernel is put together")[2].partition(
        "**The parts.**"
    )[0]
    named = set(re.findall(r"`(?:[a-z]+/)?(\w+)`", table)) | {"sizes"}
    assert {path.stem for path in parts} <= named


def test_folders_are_named_for_concepts_and_small() -> None:
    of_folder = Counter(path.parent for path in (*SOURCES, *HEADERS))
    assert max(of_folder.values()) <= 15
    assert KERNELS not in of_folder


@each(SOURCES)
def test_a_kernel_opens_with_every_labelled_part(path: Path) -> None:
    lines = opening_comment(path)
    labels = [label for line in lines for label in LABELS if line.startswith(label)]
    assert labels == LABELS
    text = " ".join(lines)
    for label, following in zip(LABELS, [*LABELS[1:], None], strict=True):
        part = text.partition(label)[2]
        assert (part.partition(following)[0] if following else part).strip(), label


def included_by(path: Path) -> set[Path]:
    """Return the parts that a file includes, and those that these do."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        for name in re.findall(r'#include "([^"]+)"', waiting.pop().read_text(encoding="utf-8")):
            if KERNELS / name not in found:
                found.add(KERNELS / name)
                waiting.append(KERNELS / name)
    return found


INCLUDED = {path: included_by(path) for path in (*SOURCES, *HEADERS)}


@each(HEADERS)
def test_a_header_says_what_it_holds_and_is_included_once(path: Path) -> None:
    assert opening_comment(path)
    assert any(path in included for included in INCLUDED.values())
    assert re.search(r"#pragma once|#ifndef WARPFIT_", code(path))


@each([*SOURCES, *HEADERS])
def test_lines_have_at_most_100_characters(path: Path) -> None:
    assert max(map(len, path.read_text(encoding="utf-8").splitlines())) <= 100


@each(SOURCES)
def test_a_kernel_has_one_entry_of_its_own_name(path: Path) -> None:
    assert ENTRY.findall(code(path)) == [path.stem]


@each(SOURCES)
def test_tensor_maps_stay_where_copies_may_read_them(path: Path) -> None:
    """A copy of a parameter on a thread's stack would not do."""
    found = ENTRY.search(code(path))
    assert found is not None
    parameters = code(path)[found.end() :].partition(")")[0].split(",")
    for parameter in parameters:
        assert "TensorMap" not in parameter or "const __grid_constant__ TensorMap " in parameter, (
            parameter
        )


@each(HEADERS)
def test_a_header_has_no_entry(path: Path) -> None:
    assert "__global__" not in code(path)


@each([path for path in (*SOURCES, *HEADERS) if path not in PTX])
def test_ptx_is_in_one_place(path: Path) -> None:
    assert not re.search(r"\basm\b", code(path))


@each([*SOURCES, *HEADERS])
def test_only_our_own_headers_are_included(path: Path) -> None:
    for name in re.findall(r"#include\s*(\S+)", code(path)):
        if name in ("<arguments>", "<config>"):  # which the host writes
            assert path.stem in (ARGUMENTS if name == "<arguments>" else CONFIGS)
        else:
            assert name.startswith('"'), name
            assert KERNELS / name.strip('"') in HEADERS, name


@each([*SOURCES, *HEADERS])
def test_only_counters_are_atomic(path: Path) -> None:
    """Sums have a fixed order, so that every run has the same bits."""
    for call in re.findall(r"\batomic\w+[^;]*?\)", code(path)):
        assert re.fullmatch(r"atomicAdd\([^;]*, 1u\)", call), call


# What tells other threads that something lies in memory, and what waits for it. Other counters only
# hand out numbers; a mark within the word that it marks needs no fence.
TOLD = re.compile(
    r"atomicAdd\((arrivals|&returned|turn), 1u\)|store_relaxed\(&(?:place\.epoch|published),"
)
HEARD = re.compile(
    r"atomicAdd\((?:arrivals|&returned), 1u\)|load_relaxed\((?:&place\.epoch|&published|turn)\)"
)
HANDED_OUT = {"&taken", "&end", "counter"}
FENCE = re.compile(r"(?:__threadfence(?:_block|_system)?|fence_of_grid)\(\);")


def test_fences_stand_before_what_is_told_and_behind_what_is_heard() -> None:
    """The emulator's threads see all that is written at once: it would not notice one that is
    missing.
    """
    bodies = [
        part for path in HEADERS if path not in PTX for part in code(path).split("__device__")
    ]
    told = [(body, found) for body in bodies for found in TOLD.finditer(body)]
    heard = [(body, found) for body in bodies for found in HEARD.finditer(body)]
    assert (len(told), len(heard)) >= (7, 7)
    for body, found in told:
        assert FENCE.search(body[: found.start()]), body
    for body, found in heard:
        assert FENCE.search(body[found.end() :]), body


def test_every_counter_is_known() -> None:
    everything = "\n".join(map(code, (*SOURCES, *HEADERS)))
    assert set(re.findall(r"atomicAdd\(([^,]+),", everything)) == HANDED_OUT | {
        "arrivals",
        "&returned",
        "turn",
    }


def chosen_by_define() -> set[str]:
    """Return the functions that a kernel names by a define: FUNCTION, ACTIVATION or EPILOGUE."""
    elementwise = {f"{name}_of" for name in (*UNARY, *BINARY, *COMPARISONS)}
    activations = {f"{name}_{way}" for name in ACTIVATIONS for way in ("forward", "derivative")}
    epilogues = {f"epilogue_{name}" for name in ("store", "activation", "mask")}
    return elementwise | activations | epilogues


def test_kernels_have_a_class_for_each_rule_and_loss() -> None:
    everything = "\n".join(map(code, HEADERS))
    names = [f"{name}_{part}" for name in UPDATE_RULES for part in ("rule", "step")]
    for name in (*names, *ELEMENT_LOSSES, "cross_entropy"):
        assert re.search(rf"struct {class_name(name)}\b", everything), name


def test_every_function_has_a_caller() -> None:
    everything = "\n".join(map(code, (*SOURCES, *HEADERS)))
    functions = FUNCTION.findall(everything)
    assert {"load_vec", "is_last_block", "ldmatrix_x4", "short_rows"} <= set(functions)
    words, defined = Counter(re.findall(r"\w+", everything)), Counter(functions)
    idle = {name for name in functions if words[name] == defined[name]}
    assert idle - chosen_by_define() == set()


def test_the_emulator_has_a_twin_of_every_ptx_function() -> None:
    text = "\n".join(map(code, PTX))
    # Those of macros, which give a name and text: an instruction, a shape, a scope.
    defined = set(re.findall(r"DEFINE_\w+\(\s*(\w+), \"", text))
    assert len(defined) == 6 + 6 + 4 + 6 + 4
    functions = set(FUNCTION.findall(text)) - {"NAME"} | defined
    whole = "\n".join(path.read_text("utf-8") for path in TWINS)
    twins = re.sub(r"namespace emulator \{.*?// namespace emulator", "", whole, flags=re.DOTALL)
    declared = r"^(?:inline .*?|float |unsigned short )(\w+)\("
    assert functions == set(re.findall(declared, twins, flags=re.MULTILINE))
