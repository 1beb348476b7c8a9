"""The processes of a master and its own node, and the supervisord configuration that runs them."""

import json
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from agent.common import listening
from mirbad.kernel import recovery_mode
from mirbad.kernel.conf import Settings
from mirbad.up import broker

ROOT = Path(__file__).resolve().parents[2]
_PARENT_DEATH = Path(__file__).with_name("parent_death.py")
_OUTPUT_BYTES = 4 * 1024 * 1024
SERVICES = ("web", "enroll", "watcher", "worker", "beat")
"""The master's own processes, each with a heartbeat."""


@dataclass(frozen=True, slots=True)
class Program:
    """One process under supervisord. `scrubbed` ones get none of the master's settings and secrets."""

    name: str
    command: tuple[str, ...]
    priority: int
    stop_seconds: int
    autostart: bool = True
    scrubbed: bool = False
    ends_with: int | None = None
    """The exit code of an end that is meant; on any other end it is started again."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one run."""

    settings: Settings
    runtime: Path
    python: str = sys.executable
    root: Path = field(default=ROOT)

    @property
    def control_socket(self) -> Path:
        """The socket on which supervisord responds."""
        return self.runtime / "supervisord.sock"

    @property
    def configuration(self) -> Path:
        """The generated supervisord configuration."""
        return self.settings.data / "run" / "supervisord.conf"

    @property
    def agent_config(self) -> Path:
        """``agent.json`` of this machine's own agent."""
        return self.settings.data / "agent" / "agent.json"

    @property
    def agent_state(self) -> Path:
        """The state folder of this machine's own agent."""
        return self.settings.data / "agent" / "state"

    @property
    def agent_joined(self) -> bool:
        """Return whether this machine's own agent has an identity."""
        return (self.agent_state / "identity" / "current").exists()

    @property
    def models_root(self) -> Path:
        """The folder with the models of this machine's own agent, one folder each."""
        return models_root(self.settings.data)

    @property
    def embeds_broker(self) -> bool:
        """Return whether Mirbad runs the broker itself."""
        return not self.settings.redis_url


def models_root(data: Path) -> Path:
    """Return the models folder of this machine's own agent: that of ``agent.json``, else the one it is made with."""
    config = data / "agent" / "agent.json"
    try:
        given = json.loads(config.read_text())["models_root"]
    except (OSError, ValueError, KeyError, TypeError):
        given = None
    return config.parent / (given if isinstance(given, str) and given else "models")


def _manage(layout: Layout, *arguments: str) -> tuple[str, ...]:
    return (layout.python, str(layout.root / "manage.py"), *arguments)


def web(layout: Layout) -> tuple[str, ...]:
    """Return the command of the web process. Only a listed proxy's forwarding headers are trusted."""
    settings = layout.settings
    fast = settings.v1_door == "fast"
    server = f"models_app.gateway.protocol:{'connection' if fast else 'page_connection'}"
    proxies = ("--forwarded-allow-ips", ",".join(settings.trusted_proxies)) if settings.trusted_proxies else ()
    return (
        *(layout.python, "-m", "uvicorn", "mirbad.asgi:application"),
        *("--host", listening.host_of(settings.bind), "--port", str(settings.port)),
        *("--lifespan", "on", "--timeout-graceful-shutdown", "5", "--no-access-log", "--no-server-header"),
        *("--ws", "websockets-sansio", "--log-level", settings.log_level),
        *("--ws-max-size", "1024", "--ws-per-message-deflate", "false"),  # pages send a ping, and get short texts
        *("--http", server, "--timeout-keep-alive", str(round(settings.keep_alive.total_seconds()))),
        *(proxies or ("--no-proxy-headers",)),
    )


def worker(layout: Layout) -> tuple[str, ...]:
    """Return the command of the worker: threads, because its work waits for the network."""
    return (
        *(layout.python, "-m", "celery", "-A", "mirbad.celery", "worker", "--pool", "threads", "--concurrency", "8"),
        *("--without-gossip", "--without-mingle", "--loglevel", layout.settings.log_level),
    )


def beat(layout: Layout) -> tuple[str, ...]:
    """Return the command of beat. Its table is in code and its schedule in memory: nothing is kept on disk."""
    return (
        *(layout.python, "-m", "celery", "-A", "mirbad.celery", "beat"),
        *("--scheduler", "celery.beat:Scheduler", "--pidfile", "", "--loglevel", layout.settings.log_level),
    )


def agent(layout: Layout, *arguments: str) -> tuple[str, ...]:
    """Return a command of this machine's own agent."""
    return (layout.python, "-m", "agent", *arguments, "--config", str(layout.agent_config))


def in_recovery(layout: Layout) -> tuple[Program, ...]:
    """Return the processes of the recovery mode: web alone. It ends when the mode is over."""
    return (Program("web", web(layout), 20, 10, ends_with=recovery_mode.START_AGAIN),)


def programs(layout: Layout) -> tuple[Program, ...]:
    """Return all processes in the order in which they start. The agent waits until it has an identity."""
    own = [
        Program("web", web(layout), 20, 10),
        Program("enroll", _manage(layout, "enroll_listener"), 20, 8),
        Program("watcher", _manage(layout, "watch"), 30, 8),
        Program("worker", worker(layout), 30, 12),
        Program("beat", beat(layout), 40, 8),
        Program("agent", agent(layout, "serve"), 10, 10, autostart=layout.agent_joined, scrubbed=True),
    ]
    if layout.embeds_broker:
        command = (str(broker.binary()), str(layout.settings.data / "run" / "broker.conf"))
        own.insert(0, Program("broker", command, 1, 5, scrubbed=True))
    return tuple(own)


def with_parent_death(layout: Layout, command: tuple[str, ...], *, scrubbed: bool = False) -> tuple[str, ...]:
    """Return `command` as a process that ends with its parent."""
    return (layout.python, "-I", "-S", str(_PARENT_DEATH), *(("--scrub",) if scrubbed else ()), "--", *command)


def configuration(layout: Layout, of: tuple[Program, ...]) -> str:
    """Return the text of supervisord.conf. It contains no secret: those are passed by environment and files."""
    logs = layout.settings.logs_dir
    sections: list[tuple[str, dict[str, object]]] = [
        ("unix_http_server", {"file": layout.control_socket, "chmod": "0600"}),
        (
            "supervisord",
            {
                "nodaemon": "true",
                "silent": "true",
                "directory": layout.root,
                "logfile": logs / "supervisord.log",
                "logfile_maxbytes": _OUTPUT_BYTES,
                "logfile_backups": 3,
                "pidfile": layout.runtime / "supervisord.pid",
                "childlogdir": logs,
                "umask": "077",
                "strip_ansi": "true",
            },
        ),
        (
            "rpcinterface:supervisor",
            {"supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"},
        ),
    ]
    sections += [(f"program:{program.name}", _section(layout, program)) for program in of]
    return "".join(f"[{name}]\n{_lines(values)}\n" for name, values in sections)


def _section(layout: Layout, program: Program) -> dict[str, object]:
    return {
        "command": shlex.join(with_parent_death(layout, program.command, scrubbed=program.scrubbed)),
        "priority": program.priority,
        "autostart": str(program.autostart).lower(),
        "autorestart": "true" if program.ends_with is None else "unexpected",
        "exitcodes": 0 if program.ends_with is None else program.ends_with,
        "startsecs": 2,
        "startretries": 6,
        "stopsignal": "TERM",
        "stopwaitsecs": program.stop_seconds,
        "redirect_stderr": "true",
        # supervisord expands this one twice
        "stdout_logfile": str(layout.settings.logs_dir / f"{program.name}.out").replace("%", "%%"),
        "stdout_logfile_maxbytes": _OUTPUT_BYTES,
        "stdout_logfile_backups": 1,
    }


def _lines(values: dict[str, object]) -> str:
    # a percent sign starts an expansion, in paths and commands alike
    return "".join(f"{key} = {str(value).replace('%', '%%')}\n" for key, value in values.items())
