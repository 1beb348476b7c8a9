"""Stand-ins of `mount.cifs` and `mount.nfs`, which bind a folder instead of a share: few kernels of CI have drivers.

They run in the mount namespace of the errand as the real tools do, and note what they were started with.
"""

import os
import stat
from pathlib import Path

_SCRIPT = """#!/bin/sh
printf '%s\\n' "$@" > {log}/arguments
case "$*" in *credentials=*)
  file=$(printf '%s' "$*" | sed 's/.*credentials=\\([^,]*\\),.*/\\1/')
  stat -c %a "$file" > {log}/mode; cp "$file" {log}/credentials;;
esac
{act}
"""


def install(folder: Path, share: Path, act: str = "") -> Path:
    """Put both tools into `folder`; they mount `share`, or do `act`. Return the folder of their notes."""
    log = folder / "log"
    log.mkdir(parents=True)
    for name in ("mount.cifs", "mount.nfs"):
        tool = folder / name
        tool.write_text(_SCRIPT.format(log=log, act=act or f'exec mount --bind {share} "$2"'))
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    return log


def may_mount() -> bool:
    """Return whether this process may make a mount namespace."""
    return os.geteuid() == 0 and os.system("unshare -m true 2>/dev/null") == 0
