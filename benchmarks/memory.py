"""Peak memory of a process. Linux with glibc only."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.workers import child_environment


def reset_peak() -> float:
    """Resets the peak and frees unused heap memory. Returns the resident memory in MB."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _megabytes("VmRSS")


def peak() -> float:
    """Returns the peak since `reset_peak` in MB. (getrusage would include the parent's peak.)"""
    return _megabytes("VmHWM")


def peak_increase(step) -> float:
    """Returns the peak of two calls of `step` in MB, minus the memory resident before them."""
    before = reset_peak()
    step()
    step()
    return peak() - before


def measure_in_new_process(module: str, case, settings: dict) -> float:
    """Returns the number that `python -m MODULE --memory_of=CASE` prints on its last line.

    Args:
        module: a benchmark with the flag `--memory_of`.
        case: values of that flag.
        settings: other flags by name.
    """
    command = [sys.executable, "-m", module, f"--memory_of={','.join(map(str, case))}"]
    command += [f"--{name}={value}" for name, value in settings.items()]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=child_environment()
    )
    return float(done.stdout.strip().splitlines()[-1])


def _megabytes(field):
    return int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
