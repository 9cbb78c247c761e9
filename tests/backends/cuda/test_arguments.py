"""A kernel's one parameter: where C has each member, and what compiler and host refuse."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from conftest import on_emulator
from emulator.build import build
from warpfit.backends.cuda import DeviceArray, arguments, jit
from warpfit.backends.cuda.arguments import Arguments, Float, Int, Place
from warpfit.backends.cuda.launch import Kernel
from warpfit.backends.cuda.resident_arguments import ARGUMENTS
from warpfit.backends.launch_structs import STRUCTS
from warpfit.errors import CompileError, ShapeError

C_TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "float": ctypes.c_float,
    "LayerArrays": ctypes.c_void_p * 6,
    "LossNumbers": ctypes.c_double * 3,
    "LossSettings": ctypes.c_float * 3,
    "RuleSettings": ctypes.c_float * 4,
}


@dataclass(frozen=True, kw_only=True)
class Probe(Arguments):
    """Has what needs padding before it, in it and behind it."""

    count: Int
    place: Annotated[Place, "const float*"]
    factor: Float
    loss: Annotated[tuple[float, float, float], "LossNumbers"]
    last: Int


EXPECTED = {
    "CardArguments": {"Dropout", "StepSettings", "StoppingMemory"},
    "ImagesArguments": {"StepSettings"},
    "LayersArguments": {"StepSettings", "Dropout", "LayerScales", "Progress", "StoppingMemory"},
    "ManyArguments": {"Network", "NetworkDropout"},
    "ManyClustersArguments": {"Network", "NetworkDropout"},
    "ManySmallArguments": {"Network"},
    "OneLaunchArguments": set(),
    "SmallArguments": {"StepSettings"},
    "TableArguments": {"TableNetwork", "TableStep"},
}
VALUES = {"count": 3, "place": None, "factor": 0.5, "loss": (1.0, 2.0, 3.0), "last": -1}
SOURCE = """#include <arguments>  // struct Arguments
extern "C" __global__ void probe(const __grid_constant__ Arguments arguments) {}
"""
STRUCT = "struct LossNumbers {\n    double setting, of_term, of_derivative;\n};\n"


@pytest.mark.parametrize("kind", [*ARGUMENTS.values(), Probe], ids=lambda kind: kind.__name__)
def test_members_are_where_c_has_them(kind: type[Arguments]) -> None:
    members = kind.members()
    of_c = type(
        "OfC",
        (ctypes.Structure,),
        {
            "_fields_": [
                (name, C_TYPES.get(kind, ctypes.c_void_p)) for name, kind in members.items()
            ]
        },
    )
    assert kind.layout().size == ctypes.sizeof(of_c)
    for name in members:
        offset = getattr(of_c, name).offset
        assert f"static_assert(OFFSET_OF(Arguments, {name}) == {offset}, " in kind.declaration()


def test_compilers_without_offsetof_for_constants_check_it_too() -> None:
    text = ARGUMENTS["one_launch"].declaration()
    of_nvrtc = text.split("#ifdef __CUDACC_RTC__\n")[1].split("#else")[0]
    assert "offsetof" not in of_nvrtc + text.split("#endif")[1]


def test_arrays_are_addresses_and_structs_are_their_numbers() -> None:
    array = DeviceArray(None, None, 4096, (3,), np.dtype("float32"))
    own = Probe(**{**VALUES, "place": array})
    assert own.values() == [3, 4096, 0.5, 1.0, 2.0, 3.0, -1]
    assert Probe(**VALUES).values()[1] == 0
    assert len(own.layout().pack(*own.values())) == own.layout().size


def test_a_type_that_nobody_knows_is_refused() -> None:
    with pytest.raises(CompileError, match=r"expected a type of C among .*, got half2"):
        arguments.format_of("half2")


@on_emulator
@pytest.mark.parametrize(
    ("before", "kind"),
    [(STRUCT, None), (STRUCT.replace("double", "float"), "loss is elsewhere|another size")],
    ids=["as the host packs it", "another struct"],
)
def test_the_compiler_holds_the_kernel_to_the_layout(
    before: str, kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARGUMENTS, "probe", Probe)
    source = tmp_path / "probe.cu"
    source.write_text(before + SOURCE)
    if kind is None:
        assert build(source, "probe", {}).exists()
    else:
        with pytest.raises(CompileError, match=kind):
            build(source, "probe", {})


def test_lines_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARGUMENTS, "probe", Probe)
    unit = jit.unit_of("probe", SOURCE)
    assert "#line 2\n" + SOURCE.splitlines()[1] in unit
    assert jit.unit_of("probe", unit) == unit


@pytest.mark.parametrize("given", [(), (1,), (Probe(**VALUES), 1)], ids=str)
def test_a_kernel_takes_one_struct_of_its_own(given: tuple[Any, ...]) -> None:
    class Device:
        watcher = launch = None

        def load(self, name: str, defines: jit.Defines) -> str:
            return name

    with pytest.raises(ShapeError, match=r"^one_launch_card: expected one CardArguments, got "):
        Kernel(Device(), "one_launch_card", ())(1, 1, *given)


def test_all_fields_are_asked_for_by_name() -> None:
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'last'"):
        Probe(**{name: value for name, value in VALUES.items() if name != "last"})
    with pytest.raises(TypeError, match="unexpected keyword argument 'more'"):
        Probe(**VALUES, more=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", ARGUMENTS.values(), ids=lambda kind: kind.__name__)
def test_structs_that_addresses_lead_to_are_checked(kind: type[Arguments]) -> None:
    declaration = kind.declaration()
    found = {kind.removeprefix("const ").rstrip("*") for kind in kind.members().values()} & {
        *STRUCTS
    }
    for name in found:
        for struct, fields_of in STRUCTS[name].items():
            assert f"static_assert(sizeof({struct}) == {fields_of.itemsize}, " in declaration
            assert declaration.count(f"OFFSET_OF({struct}, ") == len(fields_of.names or ())
    assert found == EXPECTED[kind.__name__]
