"""supervisord: started as our child, asked and told over its Unix socket, started again when it is killed."""

import http.client
import os
import subprocess
import xmlrpc.client
from dataclasses import dataclass
from typing import Any, Self

from mirbad.up import programs
from mirbad.up.programs import Layout

_STOPPED = frozenset({"STOPPED", "EXITED", "FATAL", "UNKNOWN"})


class NotAnswering(Exception):
    """supervisord cannot be asked now."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What supervisord says of one process. `state` is its word: RUNNING, STARTING, BACKOFF, FATAL and so on."""

    name: str
    state: str
    pid: int | None
    seconds: float | None
    problem: str

    @property
    def stopped(self) -> bool:
        """Whether nothing of it runs and nothing will start it again."""
        return self.state in _STOPPED


class Control:
    """The socket of a supervisord, to be used in a ``with``. Every method raises NotAnswering when there is nobody."""

    def __init__(self, socket: os.PathLike[str]) -> None:
        from supervisor.xmlrpc import SupervisorTransport

        transport = SupervisorTransport(None, None, f"unix://{os.fspath(socket)}")
        self._proxy = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy("close")()

    def states(self) -> dict[str, ProcessState]:
        """Every process by name."""
        rows = self._ask("getAllProcessInfo")
        return {row["name"]: _state(row) for row in rows}

    def start(self, name: str) -> None:
        """Start a process, without waiting; one that runs already is left alone."""
        self._ask("startProcess", name, False, ignore=("ALREADY_STARTED",))

    def stop(self, name: str) -> None:
        """Ask a process to end, without waiting; one that has ended is left alone."""
        self._ask("stopProcess", name, False, ignore=("NOT_RUNNING",))

    def shutdown(self) -> None:
        """End everything and supervisord itself, without waiting."""
        self._ask("shutdown")

    def _ask(self, method: str, *arguments: Any, ignore: tuple[str, ...] = ()) -> Any:
        try:
            return getattr(self._proxy.supervisor, method)(*arguments)
        except xmlrpc.client.Fault as fault:
            if fault.faultString.partition(":")[0] in ignore:
                return None
            raise NotAnswering(fault.faultString) from fault
        except (OSError, http.client.HTTPException, xmlrpc.client.Error) as error:
            self._proxy("close")()
            raise NotAnswering(str(error)) from error


def _state(row: dict[str, Any]) -> ProcessState:
    running = row["statename"] == "RUNNING"
    return ProcessState(
        name=row["name"],
        state=row["statename"],
        pid=row["pid"] or None,
        seconds=float(row["now"] - row["start"]) if running else None,
        problem=row["spawnerr"] or ("" if running else row["description"]),
    )


def start(layout: Layout, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Write the configuration and start supervisord, in a session of its own (Ctrl-C reaches only us)."""
    text = programs.configuration(layout, programs.programs(layout))
    layout.configuration.write_text(text)
    layout.configuration.chmod(0o600)
    layout.control_socket.unlink(missing_ok=True)
    command = (layout.python, "-m", "supervisor.supervisord", "--configuration", str(layout.configuration))
    return subprocess.Popen(  # noqa: S603  our own interpreter and file
        programs.tethered(layout, command),
        cwd=layout.root,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
