"""Freed memory goes back to the system."""

import ctypes

import psutil

from agent.common import heap

MIB = 1024 * 1024


def test_memory_that_was_freed_below_memory_in_use_goes_back_to_the_system():
    library = ctypes.CDLL(None)
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    process = psutil.Process()
    # Below the size that malloc maps by itself, so that the block on top keeps those beneath it in the heap.
    blocks = [library.malloc(64 * 1024) for _ in range(1024)]
    for block in blocks:
        ctypes.memset(block, 1, 64 * 1024)
    full = process.memory_info().rss
    for block in blocks[:-1]:
        library.free(block)
    kept = process.memory_info().rss
    assert heap.trim()
    assert full - process.memory_info().rss > 48 * MIB
    assert kept >= full - 8 * MIB, "without the trim it stays"
    library.free(blocks[-1])


def test_another_c_library_has_nothing_to_trim(monkeypatch):
    monkeypatch.setattr(heap, "_malloc_trim", lambda: None)
    assert not heap.trim()
