"""Headers of safetensors files, the long ones in a process of their own: in this one they would hold up all requests.

All of it blocks.
"""

import json
import os
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

from agent.common.formats import safetensors
from agent.common.formats.safetensors import BadSafetensors, SafetensorsHeader

_SHORT_BYTES = 512 * 1024
"""A header up to this length is read here, within some ten milliseconds of a thread that yields."""

_LIMIT_SECONDS = 60.0
_KNOWN = 1024
_one_at_a_time = threading.Lock()
_reading: set[Path] = set()


def sums_of(path: Path) -> SafetensorsHeader:
    """Return the sums over the header of the file at `path`. BadSafetensors, OSError."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        length = safetensors.header_length(file.read(8))
        if length <= _SHORT_BYTES:
            file.seek(0)
            return safetensors.parse(file)
    return _long(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


def indexed_files(path: Path, data: bytes) -> tuple[str, ...]:
    """Return the files that the index at `path` names, whose content is `data`. ValueError, OSError."""
    if len(data) <= _SHORT_BYTES:
        return safetensors.indexed_files(data)
    found = _child("index", path)
    if not isinstance(found, list):
        raise ValueError("no index of weights")
    return tuple(found)


def are_read_below(folder: Path) -> bool:
    """Return whether a long header below `folder` is being read now."""
    return any(path.is_relative_to(folder) for path in tuple(_reading))


@lru_cache(_KNOWN)
def _long(path: Path, identity: tuple[int, ...]) -> SafetensorsHeader:
    """Return the sums over the long header of one file, which `identity` tells from a later one."""
    found = _child("sums", path)
    if "problem" in found:
        raise BadSafetensors(found["problem"])
    return SafetensorsHeader(**found)


def _child(verb: str, path: Path) -> Any:
    """Return the result of `safetensors` as a program. OSError; BadSafetensors when it fails or takes too long."""
    _reading.add(path)
    try:
        with _one_at_a_time:
            command = (sys.executable, "-I", safetensors.__file__, verb, str(path))
            ended = subprocess.run(  # noqa: S603 - this Python and a module of ours
                command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_LIMIT_SECONDS
            )
        found = json.loads(ended.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        raise BadSafetensors(f"Its long header could not be read ({type(error).__name__}).") from error
    finally:
        _reading.discard(path)
    if isinstance(found, dict) and (number := found.get("errno")) is not None:
        raise OSError(number, os.strerror(number), str(path))
    return found
