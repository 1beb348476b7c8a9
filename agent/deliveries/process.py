"""Engines as processes of this machine, each in its own session, which outlive the agent that started them."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil

from agent import clock, driver_places
from agent.config import AgentConfig
from agent.deliveries import confinement, unrecorded
from agent.deliveries.base import (
    INSTANCE_VARIABLE,
    LAUNCH_VARIABLE,
    OOM_SCORE,
    DeliveryFailed,
    EngineObservation,
    FoundEngine,
    Handle,
    Progress,
    RunSpec,
)
from agent.deliveries.proc import PROC, ProcessStat, living, read_environ, read_stat

_PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_USER = "mirbad-engine"

_POLL_SECONDS = 0.1
_KILL_SECONDS = 10.0


def _carries(pid: int, launch_id: str) -> bool:
    return read_environ(pid).get(LAUNCH_VARIABLE) == launch_id


def _members(launch_id: str, handle: Handle | None) -> list[ProcessStat]:
    """Return every living process of a launch: those with its mark, and those in its leader's session.

    The session is needed because a process may overwrite its environment (setproctitle does). A session id is not
    reused while one of its processes lives, so it is trusted unless another process has taken the leader's pid.
    """
    alive = living()
    session = None
    if handle is not None and handle.pid is not None and handle.boot_id == clock.boot_id():
        leader = next((stat for stat in alive if stat.pid == handle.pid), None)
        if leader is None or leader.start_ticks == handle.start_ticks:
            session = handle.pid
    own_session = os.getsid(0)
    found = []
    for stat in alive:
        in_session = session is not None and stat.session == session != own_session
        late_enough = in_session and stat.start_ticks >= (handle.start_ticks or 0 if handle else 0)
        if (late_enough or _carries(stat.pid, launch_id)) and stat.pid != os.getpid():
            found.append(stat)
    return found


def _signal(members: list[ProcessStat], number: signal.Signals) -> None:
    for stat in members:
        again = read_stat(stat.pid)
        if again is None or again.start_ticks != stat.start_ticks:
            continue
        try:
            os.kill(stat.pid, number)
        except ProcessLookupError:
            continue
        except PermissionError as error:
            raise DeliveryFailed(
                f"The engine's process {stat.pid} belongs to another user. Kill it by hand."
            ) from error


def _offer_to_the_oom_killer(pid: int) -> None:
    """Raise the OOM score: out of memory, the system kills the engine and not the agent or other programs."""
    with contextlib.suppress(OSError):
        (PROC / str(pid) / "oom_score_adj").write_text(str(OOM_SCORE))


def _environment(run_spec: RunSpec, scratch: Path, config: AgentConfig) -> dict[str, str]:
    """Return the whole environment of an engine; nothing is inherited from the agent."""
    own = str(Path(run_spec.argv[0]).parent)
    base = {
        "PATH": f"{own}:{_PATH}" if own.startswith("/") else _PATH,
        "HOME": str(scratch),
        "TMPDIR": str(scratch / "tmp"),
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "USER": _USER,
        "LOGNAME": _USER,
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
    }
    if libraries := driver_places.library_path(None):
        base["LD_LIBRARY_PATH"] = libraries
    marks = {LAUNCH_VARIABLE: run_spec.launch_id, INSTANCE_VARIABLE: run_spec.instance_id}
    return {**base, **config.engine_env, **run_spec.env, **marks}


def _scratch_of(run_spec: RunSpec) -> Path:
    if run_spec.scratch is None:
        raise DeliveryFailed("A process needs a scratch folder.")
    return run_spec.scratch


def _policy(run_spec: RunSpec, program: str, config: AgentConfig) -> confinement.Policy:
    """Return the policy of this engine."""
    shared = confinement.means(config).policy
    scratch = _scratch_of(run_spec)
    return replace(
        shared,
        programs=(*shared.programs, *confinement.program_folders(program)),
        reads=(*shared.reads, *map(str, run_spec.reads)),
        writes=(*shared.writes, str(scratch)),
        connects=run_spec.connects,
    )


class ProcessDelivery:
    """Starts, finds and stops engine processes."""

    reads_log_again = False

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    async def problem(self) -> str | None:
        """Return None: processes can always be run."""
        return None

    async def prepare(self, run_spec: RunSpec, progress: Progress) -> None:
        """Do nothing: a process has no slow preparation."""

    async def start(self, run_spec: RunSpec) -> Handle:
        """Spawn the engine in its own session, writing to its own log file."""
        return await asyncio.to_thread(self._spawn, run_spec)

    def _spawn(self, run_spec: RunSpec) -> Handle:
        scratch = _scratch_of(run_spec)
        env = _environment(run_spec, scratch, self._config)
        program = shutil.which(run_spec.argv[0], path=env["PATH"])
        if program is None:
            raise DeliveryFailed(f"Cannot run {run_spec.argv[0]}: no such program.")
        policy = _policy(run_spec, program, self._config)
        try:
            confinement.prepare_scratch(scratch, policy)
            unrecorded.keep(scratch, run_spec.portable)
        except OSError as error:
            raise DeliveryFailed(f"Cannot create {scratch}: {error.strerror}.") from error
        descriptor = os.open(run_spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            child = subprocess.Popen(  # noqa: S603  the program is chosen by the runtime, arguments go as a list
                policy.command((program, *run_spec.argv[1:])),
                env=env,
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                close_fds=True,
            )
        except OSError as error:
            raise DeliveryFailed(f"Cannot run {run_spec.argv[0]}: {error.strerror}.") from error
        finally:
            os.close(descriptor)
        self._children[run_spec.launch_id] = child
        _offer_to_the_oom_killer(child.pid)
        stat = read_stat(child.pid)
        return Handle(
            launch_id=run_spec.launch_id,
            pid=child.pid,
            start_ticks=stat.start_ticks if stat else None,
            boot_id=clock.boot_id(),
        )

    async def recover(self, launch_id: str, handle: Handle | None) -> Handle | None:
        """Find the engine by pid, start time and boot if they were recorded, else by the mark in its environment."""
        return await asyncio.to_thread(self._find, launch_id, handle)

    async def find_unrecorded(self, known: frozenset[str]) -> tuple[FoundEngine, ...]:
        """Find processes that were started from this state folder and whose launch is not in `known`."""
        return await asyncio.to_thread(unrecorded.find, self._config.state_dir, known)

    def _find(self, launch_id: str, handle: Handle | None) -> Handle | None:
        if handle is not None and self._is_alive(handle):
            return handle
        marked = [stat for stat in living() if _carries(stat.pid, launch_id) and stat.session == stat.pid]
        if not marked:
            return None
        leader = min(marked, key=lambda stat: stat.start_ticks)
        return Handle(launch_id=launch_id, pid=leader.pid, start_ticks=leader.start_ticks, boot_id=clock.boot_id())

    def _is_alive(self, handle: Handle) -> bool:
        if handle.pid is None or handle.boot_id != clock.boot_id():
            return False
        stat = read_stat(handle.pid)
        return stat is not None and stat.state not in "ZX" and stat.start_ticks == handle.start_ticks

    async def observe(self, handle: Handle) -> EngineObservation:
        """Return the state. Only a child of this agent has an exit code, an adopted engine has none."""
        child = self._children.get(handle.launch_id)
        if child is not None:
            code = child.poll()
            if code is None:
                return EngineObservation(running=True)
            # 128 + signal, as a shell and a container report it
            return EngineObservation(running=False, exit_code=code if code >= 0 else 128 - code)
        return EngineObservation(running=self._is_alive(handle))

    async def owns_port(self, handle: Handle, port: int) -> bool | None:
        """Search for the listening socket among the launch's processes."""
        return await asyncio.to_thread(self._owns, handle, port)

    def _owns(self, handle: Handle, port: int) -> bool | None:
        readable = False
        for stat in _members(handle.launch_id, handle):
            try:
                connections = psutil.Process(stat.pid).net_connections(kind="tcp")
            except psutil.Error:
                continue
            readable = True
            if any(item.status == psutil.CONN_LISTEN and item.laddr.port == port for item in connections):
                return True
        return False if readable else None

    async def memory_bytes(self, handle: Handle) -> int | None:
        """Return the sum of the resident memory of its processes."""
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
        """Do nothing: the engine writes to the file itself."""

    async def stop(self, handle: Handle, grace_seconds: float) -> EngineObservation:
        """Send SIGTERM to all of its processes, then SIGKILL to the remaining ones."""
        members = await asyncio.to_thread(_members, handle.launch_id, handle)
        _signal(members, signal.SIGTERM)
        if members and not await self._gone(handle, grace_seconds):
            await self._kill(handle)
        return await self.observe(handle)

    async def _gone(self, handle: Handle, seconds: float) -> bool:
        deadline = clock.monotonic() + seconds
        while True:
            await self.observe(handle)  # reaps a child, which would otherwise stay a zombie in its session
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
            f"The engine's process {handle.pid} does not exit, even after SIGKILL: it waits for a device or "
            "disk. Reboot the machine if it stays."
        )

    async def clean(self, handle: Handle) -> None:
        """Kill workers that outlived their engine; they may hold GPU memory."""
        if await asyncio.to_thread(_members, handle.launch_id, handle):
            await self._kill(handle)

    async def close(self) -> None:
        """Forget the children without waiting for them."""
        for child in self._children.values():
            # otherwise Popen's finaliser warns that a child still runs, which is intended
            if child.returncode is None and child.poll() is None:
                child.returncode = 0
        self._children.clear()
