"""Configuration of the C library's memory allocator."""

import ctypes
import os

# Constants from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
# Largest value that glibc accepts.
_LARGEST_MMAP_THRESHOLD = 32 << 20
_TOP_PAD = 64 << 20
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory instead of returning large blocks to the system.

    TensorFlow frees and allocates the same megabytes in every step, and the system zeroes each page
    again. Call this function at the start of a program. It does nothing with other C libraries, or
    if the environment has variables `MALLOC_*` or `GLIBC_TUNABLES`.

    Returns:
        Whether the allocator was configured.
    """
    if "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {
        _M_MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD,
        _M_TRIM_THRESHOLD: _NEVER,
        _M_TOP_PAD: _TOP_PAD,
    }
    return all(mallopt(name, value) == 1 for name, value in settings.items())
