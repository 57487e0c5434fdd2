"""Tests that freed memory is kept, unless the environment configures the allocator."""

import os
import subprocess
import sys

import pytest

# Arrays of 16 MB are allocated and freed. Each page that the system provides is a page fault.
COUNT_FAULTS = """
import resource, sys
import numpy as np
from trainer.allocator import keep_freed_memory
kept = keep_freed_memory() if "keep" in sys.argv else False
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    one, other = np.ones(2**21), np.ones(2**21 + 1)
use()
before = faults()
for _ in range(20):
    use()
print(kept, faults() - before)
"""


def count_faults(*arguments, **environment):
    command = [sys.executable, "-c", COUNT_FAULTS, *arguments]
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))
    }
    printed = subprocess.run(
        command, env=clean | environment, capture_output=True, text=True, check=True
    ).stdout
    kept, faults = printed.split()
    return kept == "True", int(faults)


def test_freed_pages_are_kept():
    kept, faults = count_faults("keep")
    if not kept:
        pytest.skip("this C library has no mallopt")
    assert faults < 100
    # Without it, the system provides 8,192 pages of 4 KB, or 16 huge pages of 2 MB, 20 times.
    assert count_faults()[1] > 10 * max(faults, 1)


def test_environment_variables_take_precedence():
    assert not count_faults("keep", MALLOC_TRIM_THRESHOLD_="131072")[0]
    assert not count_faults("keep", GLIBC_TUNABLES="glibc.malloc.trim_threshold=131072")[0]
