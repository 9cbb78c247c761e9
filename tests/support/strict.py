"""Which warnings are errors: ours, and not what a dependency's next release says of its future."""

from __future__ import annotations

from warpfit import errors

__all__ = ["FILTERS", "STRICT"]

OURS = "(warpfit|tests|support|emulator)([.]|$)"
OF_THE_FUTURE = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
CATEGORIES = [
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, Warning)
]

# Pytest's filters; the last that fits decides. We raise none "of the future": whoever does names
# our frames at most.
FILTERS = (
    "default",
    f"error:::{OURS}",
    "error::ResourceWarning",
    "error::pytest.PytestUnraisableExceptionWarning",
    "error::pytest.PytestUnhandledThreadExceptionWarning",
    *(f"default::{name}" for name in OF_THE_FUTURE),
    *(f"error::warpfit.errors.{name}" for name in CATEGORIES),
    # What tests mean: there is no GPU for 'auto', and rows that no kernel can hold.
    "ignore:device 'auto' is the CPU:UserWarning",
    "ignore:x has columns of very different or large scale",
    "ignore:It looks like `register_random` was passed",  # of frozen objects it finds no referrers
)

# The same, as near as Python's own filters come to it, for processes that tests start.
STRICT = (
    "-W",
    "error",
    *(option for name in OF_THE_FUTURE for option in ("-W", f"ignore::{name}")),
)
