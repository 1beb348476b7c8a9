"""Freed memory that the C library keeps, returned to the system.

A process that answers for months with a few threads leaves holes in glibc's heaps; without a trim it grows for hours,
though Python holds no more objects than before.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache

TRIM_EVERY_SECONDS = 60.0


@lru_cache(maxsize=1)
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None  # another C library than glibc
    found.argtypes, found.restype = (ctypes.c_size_t,), ctypes.c_int
    return found


def trim() -> bool:
    """Return freed pages of all heaps to the system; takes milliseconds, without the GIL. True when there were any."""
    function = _malloc_trim()
    return function is not None and function(0) == 1
