"""A kernel's settings: what the host declares of them, and what the kernel makes of that."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

from conftest import on_emulator
from emulator.build import build
from support.kernels import VARIANTS
from warpfit.backends.cuda import jit
from warpfit.backends.cuda.config import (
    ActivationNames,
    Config,
    Flag,
    Flags,
    Floats,
    Ints,
    Number,
    Real,
    Rule,
    TypeName,
)
from warpfit.backends.cuda.resident_config import CONFIGS
from warpfit.errors import CompileError


@dataclass(frozen=True, kw_only=True)
class Probe(Config):
    """Has a setting of each type."""

    dtype: TypeName
    optimizer: Rule
    count: Number
    is_there: Flag
    slope: Real
    widths: Ints
    far: Flags
    slopes: Floats
    activations: ActivationNames


PROBE = Probe(
    dtype="float16",
    optimizer="AdamRule",
    count=3,
    is_there=True,
    slope=0.25,
    widths=(4, 5),
    far=(True, False),
    slopes=(0.5, 1e-7),
    activations=("relu", "tanh"),
)
DECLARED = """\
using DTYPE = float16;
template <class Options> using OPTIMIZER = AdamRule<Options>;
constexpr int COUNT = 3;
constexpr bool IS_THERE = true;
constexpr float SLOPE = 0.25f;
[[maybe_unused]] constexpr int WIDTHS[] = {4, 5};
[[maybe_unused]] constexpr bool FAR[] = {true, false};
[[maybe_unused]] constexpr float SLOPES[] = {0.5f, 1e-07f};
[[maybe_unused]] constexpr Activation ACTIVATIONS[] = {Activation::relu, Activation::tanh};"""
SOURCE = """#include "base/types.cuh"
#include "ops/optim/update_rules.cuh"
namespace config {
#include <config>
}
static_assert(config::COUNT == 3 && config::WIDTHS[1] == 5 && !config::FAR[1], "as declared");
static_assert(config::ACTIVATIONS[1] == Activation::tanh && config::SLOPES[1] < 1, "as declared");
extern "C" __global__ void probe(config::DTYPE* numbers) {}
"""


def test_settings_are_constants_of_their_types() -> None:
    assert Probe.declaration(PROBE.settings()) == DECLARED
    bounded = ("BOUNDED_WAITS", "0")
    assert jit.macros_of("one_launch", (("BATCH", "1"),)) == (bounded,)
    assert jit.macros_of("binary", (("BATCH", "1"),)) == (bounded, ("BATCH", "1"))


@pytest.mark.parametrize("change", [{"COUNT": None}, {"MORE": "1"}], ids=["missing", "unknown"])
def test_settings_are_all_of_a_kernels_and_no_others(change: dict[str, str | None]) -> None:
    changed = {**PROBE.settings(), **change}
    settings = {name: text for name, text in changed.items() if text is not None}
    (name,) = change
    with pytest.raises(CompileError, match=rf"expected the settings of Probe, .*: {name}$"):
        Probe.declaration(settings)


@on_emulator
def test_the_compiler_takes_what_the_host_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONFIGS, "probe", Probe)
    source = tmp_path / "probe.cu"
    source.write_text(SOURCE)
    assert build(source, "probe", PROBE.settings()).exists()
    with pytest.raises(CompileError, match="as declared"):
        build(source, "probe", replace(PROBE, count=4).settings())


def test_lines_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONFIGS, "probe", Probe)
    unit = jit.unit_of("probe", SOURCE, tuple(PROBE.settings().items()))
    assert f"{DECLARED}\n#line 5\n}}\n" in unit
    assert jit.unit_of("probe", SOURCE) == SOURCE


@pytest.mark.parametrize("name", CONFIGS)
def test_a_kernel_reads_all_of_its_settings_and_none_by_the_preprocessor(name: str) -> None:
    text = re.sub(r"//[^\n]*", "", jit.flattened(name, ()))
    settings = {field.name.upper() for field in fields(CONFIGS[name])}
    assert settings - set(re.findall(r"\w+", text)) == set()
    directives = " ".join(re.findall(r"^\s*#(?!include)(.*)$", text, flags=re.MULTILINE))
    conditions = re.sub(r"\bpragma unroll\S*", "", directives)
    assert settings & set(re.findall(r"\w+", conditions)) == set()


@pytest.mark.parametrize("name", CONFIGS)
def test_variants_have_the_settings_of_their_kernel(name: str) -> None:
    for settings in VARIANTS[name]:
        assert CONFIGS[name].declaration(settings)
