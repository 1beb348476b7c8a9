"""Engines as processes of this machine, each in its own session, outliving the agent that started them."""

import asyncio
import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from agent import clock
from agent.deliveries.base import (
    INSTANCE_VARIABLE,
    LAUNCH_VARIABLE,
    OOM_SCORE,
    DeliveryFailed,
    Found,
    Handle,
    Order,
    Progress,
    Seen,
)

_PROC = Path("/proc")
_INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME",
    "CUDA_PATH", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR",
)  # fmt: skip
"""What an engine gets of the agent's own environment; a join token or a proxy's password is not among it."""

_POLL_SECONDS = 0.1
_KILL_SECONDS = 10.0


@dataclass(frozen=True)
class _Stat:
    """The fields of /proc/PID/stat that tell processes apart."""

    pid: int
    state: str
    session: int
    start_ticks: int


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return _Stat(pid=pid, state=fields[0], session=int(fields[3]), start_ticks=int(fields[19]))


def _carries(pid: int, launch_id: str) -> bool:
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\x00")
    except OSError:
        return False
    return f"{LAUNCH_VARIABLE}={launch_id}".encode() in variables


def _living() -> list[_Stat]:
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]
    stats = [stat for pid in pids if (stat := _read_stat(pid)) is not None]
    return [stat for stat in stats if stat.state not in "ZX"]


def _members(launch_id: str, handle: Handle | None) -> list[_Stat]:
    """Every living process of a launch: those that carry its mark, and those of its leader's session.

    The session is needed because a process may write over its environment (setproctitle does). A session's number is
    not given away while one of its processes lives, so it is trusted unless another process has taken the leader's pid.
    """
    living = _living()
    session = None
    if handle is not None and handle.pid is not None and handle.boot_id == clock.boot_id():
        leader = next((stat for stat in living if stat.pid == handle.pid), None)
        if leader is None or leader.start_ticks == handle.start_ticks:
            session = handle.pid
    own_session = os.getsid(0)
    found = []
    for stat in living:
        in_session = session is not None and stat.session == session != own_session
        late_enough = in_session and stat.start_ticks >= (handle.start_ticks or 0 if handle else 0)
        if (late_enough or _carries(stat.pid, launch_id)) and stat.pid != os.getpid():
            found.append(stat)
    return found


def _signal(members: list[_Stat], number: signal.Signals) -> None:
    for stat in members:
        again = _read_stat(stat.pid)
        if again is None or again.start_ticks != stat.start_ticks:
            continue
        try:
            os.kill(stat.pid, number)
        except ProcessLookupError:
            continue
        except PermissionError as error:
            raise DeliveryFailed(f"The engine's process {stat.pid} belongs to another user; end it by hand.") from error


def _offer_to_the_oom_killer(pid: int) -> None:
    """When memory runs out the engine goes, not the agent or what else a person runs on the machine."""
    with contextlib.suppress(OSError):
        (_PROC / str(pid) / "oom_score_adj").write_text(str(OOM_SCORE))


class ProcessDelivery:
    """Starts, finds and ends engine processes."""

    reads_log_again = False

    def __init__(self) -> None:
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    async def problem(self) -> str | None:
        """Processes can always be run."""
        return None

    async def prepare(self, order: Order, progress: Progress) -> None:
        """Nothing takes long here."""

    async def start(self, order: Order) -> Handle:
        """Spawn it in its own session, writing to its own file."""
        return await asyncio.to_thread(self._spawn, order)

    def _spawn(self, order: Order) -> Handle:
        env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        env |= {"PYTHONUNBUFFERED": "1"} | dict(order.env)
        env |= {LAUNCH_VARIABLE: order.launch_id, INSTANCE_VARIABLE: order.instance_id}
        descriptor = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            child = subprocess.Popen(  # noqa: S603  the program is chosen by the runtime, arguments go as a list
                order.argv,
                env=env,
                cwd=order.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                close_fds=True,
            )
        except OSError as error:
            raise DeliveryFailed(f"The program {order.argv[0]} cannot be run: {error.strerror}.") from error
        finally:
            os.close(descriptor)
        self._children[order.launch_id] = child
        _offer_to_the_oom_killer(child.pid)
        stat = _read_stat(child.pid)
        return Handle(
            launch_id=order.launch_id,
            pid=child.pid,
            start_ticks=stat.start_ticks if stat else None,
            boot_id=clock.boot_id(),
        )

    async def recover(self, launch_id: str, handle: Handle | None) -> Handle | None:
        """By pid, start time and boot when the start was recorded, else by the mark in the environment."""
        return await asyncio.to_thread(self._find, launch_id, handle)

    async def others(self, known: frozenset[str]) -> tuple[Found, ...]:
        """A process carries no record: without one it is not taken up, and not ended either."""
        return ()

    def _find(self, launch_id: str, handle: Handle | None) -> Handle | None:
        if handle is not None and self._is_alive(handle):
            return handle
        marked = [stat for stat in _living() if _carries(stat.pid, launch_id) and stat.session == stat.pid]
        if not marked:
            return None
        leader = min(marked, key=lambda stat: stat.start_ticks)
        return Handle(launch_id=launch_id, pid=leader.pid, start_ticks=leader.start_ticks, boot_id=clock.boot_id())

    def _is_alive(self, handle: Handle) -> bool:
        if handle.pid is None or handle.boot_id != clock.boot_id():
            return False
        stat = _read_stat(handle.pid)
        return stat is not None and stat.state not in "ZX" and stat.start_ticks == handle.start_ticks

    async def seen(self, handle: Handle) -> Seen:
        """A child of ours tells its exit code; an adopted one does not."""
        child = self._children.get(handle.launch_id)
        if child is not None:
            code = child.poll()
            if code is None:
                return Seen(running=True)
            # a shell says 128 + signal, and so does a container: one way to tell it
            return Seen(running=False, exit_code=code if code >= 0 else 128 - code)
        return Seen(running=self._is_alive(handle))

    async def owns_port(self, handle: Handle, port: int) -> bool | None:
        """Looks for the listening socket among the launch's processes."""
        return await asyncio.to_thread(self._owns, handle, port)

    def _owns(self, handle: Handle, port: int) -> bool | None:
        asked = False
        for stat in _members(handle.launch_id, handle):
            try:
                connections = psutil.Process(stat.pid).net_connections(kind="tcp")
            except psutil.Error:
                continue
            asked = True
            if any(item.status == psutil.CONN_LISTEN and item.laddr.port == port for item in connections):
                return True
        return False if asked else None

    async def memory_bytes(self, handle: Handle) -> int | None:
        """The sum of resident memory of its processes."""
        return await asyncio.to_thread(self._memory, handle)

    def _memory(self, handle: Handle) -> int | None:
        total = 0
        for stat in _members(handle.launch_id, handle):
            try:
                total += psutil.Process(stat.pid).memory_info().rss
            except psutil.Error:
                continue
        return total or None

    async def follow(self, handle: Handle, log: Path) -> None:
        """It writes to the file by itself."""

    async def stop(self, handle: Handle, grace_seconds: float) -> Seen:
        """SIGTERM to all of its processes, then SIGKILL to those that are left."""
        members = await asyncio.to_thread(_members, handle.launch_id, handle)
        _signal(members, signal.SIGTERM)
        if members and not await self._gone(handle, grace_seconds):
            await self._kill(handle)
        return await self.seen(handle)

    async def _gone(self, handle: Handle, seconds: float) -> bool:
        deadline = clock.monotonic() + seconds
        while True:
            await self.seen(handle)  # reaps a child, which else stays a zombie in its group
            if not await asyncio.to_thread(_members, handle.launch_id, handle):
                return True
            if clock.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)

    async def _kill(self, handle: Handle) -> None:
        deadline = clock.monotonic() + _KILL_SECONDS
        while clock.monotonic() < deadline:
            _signal(await asyncio.to_thread(_members, handle.launch_id, handle), signal.SIGKILL)
            if await self._gone(handle, 0.5):
                return
        raise DeliveryFailed(
            f"The engine's process {handle.pid} does not end, even by SIGKILL; it waits for a device or disk. "
            "Reboot the machine if it stays."
        )

    async def clean(self, handle: Handle) -> None:
        """End workers that outlived their engine; they may hold GPU memory."""
        if await asyncio.to_thread(_members, handle.launch_id, handle):
            await self._kill(handle)

    async def close(self) -> None:
        """Forget the children without waiting for them."""
        for child in self._children.values():
            # else Popen's finaliser warns that a child still runs, which is what is meant
            if child.returncode is None and child.poll() is None:
                child.returncode = 0
        self._children.clear()
