"""Which configuration of a kernel is fastest, measured once and cached, where WARPFIT_AUTOTUNE=1
asks for it.

What was found lies beside the cache of compiled kernels, a file for each question, and serves all
later runs of this user on a card of this name. Without the variable, or with 0, nothing is measured
and nothing of that is read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from warpfit.backends.cuda import machine_code
from warpfit.errors import CompileError, ConfigError
from warpfit.files import atomic_path, make_folder

WARPFIT_AUTOTUNE = "WARPFIT_AUTOTUNE"

Config = TypeVar("Config")


def is_asked_for() -> bool:
    """Return whether configurations are to be measured.

    Raises
    ------
    ConfigError
        If the variable is neither 0 nor 1.
    """
    given = os.environ.get(WARPFIT_AUTOTUNE, "")
    if given not in ("", "0", "1"):
        raise ConfigError(f"expected {WARPFIT_AUTOTUNE} to be 0 or 1, got {given!r}")
    return given == "1"


def tuned_folder() -> Path:
    """Return where it lies what was found: ``tuned`` beside the folder of compiled kernels."""
    return machine_code.cache_folder().parent / "tuned"


def forget() -> int:
    """Remove what was found, and return to how many questions."""
    paths = list(tuned_folder().glob("*.json"))
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)


def fastest(
    question: str, configs: Sequence[Config], seconds_of: Callable[[Config], float]
) -> Config:
    """Return the configuration that takes least time.

    Parameters
    ----------
    question : str
        All that the times depend on, but for the configuration.
    configs : sequence
        At least one. Their ``repr`` tells them apart.
    seconds_of : function
        Measures one; it may raise CompileError, and the configuration is passed over then.

    Raises
    ------
    CompileError
        If none compiles.
    """
    path = tuned_folder() / f"{hashlib.sha256(question.encode()).hexdigest()[:32]}.json"
    remembered = _read(path, question)
    for config in configs:
        if repr(config) == remembered:
            return config
    times: dict[str, float] = {}
    failed: CompileError | None = None
    for config in configs:
        try:
            times[repr(config)] = seconds_of(config)
        except CompileError as error:
            failed = error
    if not times:
        raise failed or ValueError("expected at least one configuration, got none")
    best = min(times, key=times.__getitem__)
    _write(path, {"question": question, "fastest": best, "seconds": times})
    return next(config for config in configs if repr(config) == best)


def _read(path: Path, question: str) -> str | None:
    """Return the cached answer to a question, or None."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("question") != question:
        return None
    return str(found.get("fastest"))


def _write(path: Path, found: dict[str, object]) -> None:
    """Remember what was found, if the folder can be written to."""
    with suppress(ConfigError, OSError):
        make_folder(path.parent)
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(found, indent=1), encoding="utf-8")
