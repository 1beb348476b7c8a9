"""supervisord: started as our child, controlled over its Unix socket, restarted when it is killed."""

import http.client
import os
import subprocess
import xmlrpc.client
from dataclasses import dataclass
from typing import Any, Self

from mirbad.up import programs
from mirbad.up.programs import Layout, Program

_STOPPED = frozenset({"STOPPED", "EXITED", "FATAL", "UNKNOWN"})


class NotResponding(Exception):
    """supervisord does not respond."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of one process in supervisord. `state` is RUNNING, STARTING, BACKOFF, FATAL and so on."""

    name: str
    state: str
    pid: int | None
    seconds: float | None
    problem: str

    @property
    def stopped(self) -> bool:
        """True when the process is not running and supervisord will not start it."""
        return self.state in _STOPPED


class Control:
    """The socket of supervisord, for use in a ``with``. Every method raises NotResponding when there is no response."""

    def __init__(self, socket: os.PathLike[str]) -> None:
        from supervisor.xmlrpc import SupervisorTransport

        transport = SupervisorTransport(None, None, f"unix://{os.fspath(socket)}")
        self._proxy = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy("close")()

    def states(self) -> dict[str, ProcessState]:
        """Return every process by name."""
        rows = self._call("getAllProcessInfo")
        return {row["name"]: _state(row) for row in rows}

    def start(self, name: str) -> None:
        """Start a process without waiting; a running one is left as it is."""
        self._call("startProcess", name, False, ignore=("ALREADY_STARTED",))

    def stop(self, name: str) -> None:
        """Stop a process without waiting; a stopped one is left as it is."""
        self._call("stopProcess", name, False, ignore=("NOT_RUNNING",))

    def shutdown(self) -> None:
        """Stop all processes and supervisord itself, without waiting."""
        self._call("shutdown")

    def _call(self, method: str, *arguments: Any, ignore: tuple[str, ...] = ()) -> Any:
        try:
            return getattr(self._proxy.supervisor, method)(*arguments)
        except xmlrpc.client.Fault as fault:
            if fault.faultString.partition(":")[0] in ignore:
                return None
            raise NotResponding(fault.faultString) from fault
        except (OSError, http.client.HTTPException, xmlrpc.client.Error) as error:
            self._proxy("close")()
            raise NotResponding(str(error)) from error


def _state(row: dict[str, Any]) -> ProcessState:
    running = row["statename"] == "RUNNING"
    return ProcessState(
        name=row["name"],
        state=row["statename"],
        pid=row["pid"] or None,
        seconds=float(row["now"] - row["start"]) if running else None,
        problem=row["spawnerr"] or ("" if running else row["description"]),
    )


def start(layout: Layout, environ: dict[str, str], of: tuple[Program, ...] | None = None) -> subprocess.Popen[bytes]:
    """Write the configuration and start supervisord, in a session of its own (Ctrl-C reaches only us).

    `of` are its processes, all of a usual master if it is None.
    """
    text = programs.configuration(layout, programs.programs(layout) if of is None else of)
    layout.configuration.write_text(text)
    layout.configuration.chmod(0o600)
    layout.control_socket.unlink(missing_ok=True)
    command = (layout.python, "-m", "supervisor.supervisord", "--configuration", str(layout.configuration))
    return subprocess.Popen(  # noqa: S603  our own interpreter and file
        programs.with_parent_death(layout, command),
        cwd=layout.root,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
