"""Engine processes whose records were lost: found by their environment, and by a part of the record beside them.

The part is in a file of its own, next to the engine's scratch folder, where the engine cannot write.
"""

import logging
import os
from pathlib import Path

from agent import clock
from agent.common.files import write_text
from agent.deliveries.base import LAUNCH_VARIABLE, FoundEngine, Handle
from agent.deliveries.proc import ProcessStat, living, read_environ

_log = logging.getLogger("mirbad.agent.instances")

ENGINES = "engines"
"""The folder of the scratch folders, below the agent's state folder."""


def keep(scratch: Path, portable: str) -> None:
    """Keep a part of the record beside `scratch`. A disk that refuses it stops no start: there is the record."""
    try:
        write_text(kept_path(scratch), portable)
    except OSError as error:
        _log.warning("a part of the record cannot be kept in %s: %s", kept_path(scratch), error)


def kept_path(scratch: Path) -> Path:
    """Return the file beside a scratch folder with the part of the record."""
    return scratch.with_name(f"{scratch.name}.json")


def find(state_dir: Path, known: frozenset[str]) -> tuple[FoundEngine, ...]:
    """Return the engines that run with a scratch folder below `state_dir` and whose launch is not in `known`.

    Blocking. Of an engine whose first process is gone, a worker that lives on stands for it.
    """
    folder = os.path.realpath(state_dir / ENGINES)
    launches: dict[str, list[tuple[ProcessStat, dict[str, str]]]] = {}
    for stat in living():
        env = read_environ(stat.pid)
        launch_id, home = env.get(LAUNCH_VARIABLE, ""), env.get("HOME", "")
        if launch_id and launch_id not in known and os.path.realpath(Path(home).parent) == folder:
            launches.setdefault(launch_id, []).append((stat, env))
    return tuple(_found(launch_id, members, Path(folder)) for launch_id, members in launches.items())


def _found(launch_id: str, members: list[tuple[ProcessStat, dict[str, str]]], folder: Path) -> FoundEngine:
    leader, env = min(members, key=lambda member: (member[0].session != member[0].pid, member[0].start_ticks))
    handle = Handle(launch_id=launch_id, pid=leader.pid, start_ticks=leader.start_ticks, boot_id=clock.boot_id())
    kept = kept_path(folder / Path(env["HOME"]).name)
    try:
        record = kept.read_text()
    except (OSError, UnicodeDecodeError):
        record = ""
    return FoundEngine(handle=handle, record=record, env=env)
