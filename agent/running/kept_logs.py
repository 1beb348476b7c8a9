"""The logs of earlier runs of an instance, kept beside its log: an end can be explained after the next start."""

import contextlib
import logging
from pathlib import Path

from agent.logs import LogFile

_log = logging.getLogger("mirbad.agent.instances")

EARLIER_RUNS = 2
"""Runs before the present one whose logs are kept."""


def path_of(log: Path, run: int) -> Path:
    """Return the path of the log of the `run`-th run before the present one, whose log is at `log`."""
    return log.with_name(f"{log.stem}~{run}.log") if run else log


def begin_run(log: LogFile) -> None:
    """Keep `log` as that of the last run, unless it is empty, and remove it.

    Each step may be the last one of a killed agent: a repeat completes the rest.
    """
    newest = log.path.with_name(f"{log.path.stem}~new.log")
    try:
        kept = log.keep_as(newest)
    except OSError as error:
        # A full disk costs the old log, not the start.
        _log.warning("the log of the last run cannot be kept: %s", error)
        kept = False
    log.remove()
    if not kept and not newest.exists():
        return
    for run in range(EARLIER_RUNS, 1, -1):
        with contextlib.suppress(FileNotFoundError):
            path_of(log.path, run - 1).replace(path_of(log.path, run))
    newest.replace(path_of(log.path, 1))


def remove_all(log: Path) -> None:
    """Delete the log and those of earlier runs."""
    LogFile(log).remove()
    for run in range(1, EARLIER_RUNS + 1):
        path_of(log, run).unlink(missing_ok=True)
