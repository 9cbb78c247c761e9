"""What the C library does with memory that arrays leave."""

from __future__ import annotations

from functools import cache

import numpy as np

# The most that glibc's threshold rises to.
LARGEST_BYTES = (32 << 20) - (64 << 10)


@cache
def keep_freed_memory() -> None:
    """Let the C library keep up to 64 MB that arrays leave, for those that follow.

    glibc returns larger amounts to the system than twice the largest array that was freed so far,
    up to 32 MB. A training step that frees its arrays one by one then begins each time with pages
    that the system has to fill with zeros. The limit stays for the process, so that one array does.
    To other libraries it is an array like any other.
    """
    np.empty(LARGEST_BYTES, np.uint8)
