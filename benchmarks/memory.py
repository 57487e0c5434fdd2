"""The peak of a process's memory."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path


def start_peak() -> float:
    """Forgets earlier peaks; returns the megabytes that the process holds now, without those that are free. Linux with glibc only."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _megabytes("VmRSS")


def peak() -> float:
    """Most megabytes held since `start_peak`. (getrusage's figure would begin with that of the process which started this one.)"""
    return _megabytes("VmHWM")


def rise(step) -> float:
    """By how many megabytes the peak of two calls of a step is above what the process held before."""
    before = start_peak()
    step(), step()
    return peak() - before


def rise_elsewhere(script: str, case, settings: dict) -> float:
    """What a benchmark prints of a case's memory in a process of its own, given the flags --memory_of and `settings`."""
    arguments = [
        f"--memory_of={','.join(map(str, case))}",
        *(f"--{name}={value}" for name, value in settings.items()),
    ]
    run = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=True
    )
    return float(run.stdout.strip().splitlines()[-1])


def _megabytes(field):
    return int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
