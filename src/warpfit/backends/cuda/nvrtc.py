"""NVIDIA's compiler, by its bindings alone: another thread imports cuda.core meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from warpfit.errors import CompileError


def compiled(source: str, name: str, options: Sequence[str]) -> tuple[bytes, str]:
    """Return the machine code of a source, and the compiler's log.

    Parameters
    ----------
    source : str
    name : str
        Of its file, in messages.
    options : sequence of str

    Raises
    ------
    CompileError
        With the log.
    """
    from cuda.bindings import nvrtc

    error, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    if int(error):
        raise CompileError(f"expected a program of {name}, got {error.name}")

    def part(kind: str) -> bytes:
        _, size = getattr(nvrtc, f"nvrtcGet{kind}Size")(program)
        found = bytearray(size)  # bytes of length 1 are shared by all of Python
        getattr(nvrtc, f"nvrtcGet{kind}")(program, found)
        return bytes(found)

    try:
        encoded = [option.encode() for option in options]
        (error,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = part("ProgramLog").decode(errors="replace").rstrip("\0\n")
        if int(error):
            raise CompileError(f"{error.name}\n{log}")
        return part("CUBIN"), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)
