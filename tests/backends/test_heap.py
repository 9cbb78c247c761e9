"""The heap keeps what a training step frees."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Arrays of a step, all of them there before the first is freed.
STEPS = """
import resource
import numpy as np
from warpfit.backends.numpy.heap import keep_freed_memory

def step():
    return [np.ones(1 << 16, np.float32) for _ in range(60)]

def faults_of_steps():
    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults_of_steps()
keep_freed_memory()
print(before, faults_of_steps())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="says how glibc frees memory")
def test_steps_find_the_memory_that_the_last_one_left() -> None:
    run = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True, check=True, timeout=60
    )
    before, after = map(int, run.stdout.split())
    assert before > 1000
    assert after < before / 10
