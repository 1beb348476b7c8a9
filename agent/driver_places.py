"""Places of the GPU driver: under WSL they are the Windows driver's, and the kernel has no devices of NVIDIA."""

import os
import shutil
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"
WSL = Path("/usr/lib/wsl/lib")
"""The folder of the Windows driver's libraries and programs; they are not always in the loader's cache."""


def program(name: str) -> str | None:
    """Return the path of the driver's program `name`, None when there is none."""
    found = shutil.which(name)
    return found if found or "/" in name else shutil.which(name, path=str(WSL))


def has_wsl_library() -> bool:
    """Return whether WSL gives this machine NVIDIA's library."""
    return (WSL / LIBRARY).exists()


def library_path(before: str | None) -> str | None:
    """Return the value of LD_LIBRARY_PATH with which the driver's libraries are found, None for no variable."""
    found = [part for part in (before, str(WSL) if has_wsl_library() else None) if part]
    return os.pathsep.join(found) or None
