"""Peak memory of a process. Linux with glibc only."""

import ctypes
import re
from pathlib import Path


def reset_peak() -> float:
    """Resets the peak and frees unused heap memory. Returns the resident memory in MB."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _megabytes("VmRSS")


def peak() -> float:
    """Returns the peak since `reset_peak` in MB. (getrusage would include the parent's peak.)"""
    return _megabytes("VmHWM")


def _megabytes(field):
    return int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
