"""One run of `make up`: start, supervise, report, stop. It never imports Django, to stay small."""

import contextlib
import os
import selectors
import subprocess
import time
from typing import TYPE_CHECKING

from mirbad.kernel import clock, recovery_mode
from mirbad.kernel.conf import Settings
from mirbad.up import broker, database_files, folder, ports, programs, restore, supervisor
from mirbad.up.errors import CannotStart
from mirbad.up.programs import Layout
from mirbad.up.progress import STARTED, ProgressDisplay
from mirbad.up.shutdown import Shutdown
from mirbad.up.signals import Stops
from mirbad.up.supervisor import Control, NotResponding, ProcessState

if TYPE_CHECKING:
    from mirbad.tasking.heartbeat import Heartbeat

REPORT = "MIRBAD_INTERNAL_REPORT_FD"
"""The descriptor on which the bootstrap process reports its progress: one word per line."""

_LOOK_SECONDS = 1.0
_FATAL_PAUSE_SECONDS = 30.0
_AFTER_CRASH_SECONDS = 6.0


class Session:
    """The state of one `make up`."""

    def __init__(self, settings: Settings, progress: ProgressDisplay, stops: Stops) -> None:
        self._settings = settings
        self._progress = progress
        self._stops = stops
        self._supervisord: subprocess.Popen[bytes] | None = None
        self._bootstrap: subprocess.Popen[bytes] | None = None
        self._bootstrap_failed = False
        self._prepared = False
        self._recovering = False
        self._selector = selectors.DefaultSelector()
        self._unread = b""
        self._seen: dict[str, ProcessState] = {}
        self._pids: dict[str, int] = {}
        self._fatal_since: dict[str, float] = {}
        self._next_look = 0.0
        self._heartbeat: Heartbeat | None = None

    def run(self) -> int:
        """Start, run until asked to stop, stop. Returns the exit code. Raises CannotStart."""
        self._make_ready()
        self._selector.register(self._stops.wakeup, selectors.EVENT_READ)
        self._start_bootstrap()
        while not self._stops.count and not (self._bootstrap_failed and not self._prepared):
            for key, _ in self._selector.select(timeout=0.5):
                if key.fd == self._reader:
                    self._read_reports()
                else:
                    self._stops.drain()
            self._tend()
        return self._go_down()

    def _make_ready(self) -> None:
        data = self._settings.data
        self._lock = folder.Lock(data)
        if restore.is_interrupted(data):
            self._lock.take()
            restore.finish(data)
            self._progress.note("Finished the restore that was interrupted.")
        exposed = folder.prepare(data)
        self._lock.take()
        for sentence in folder.tighten(data, exposed=exposed).sentences():
            self._progress.warn(sentence)
        crashed = folder.read_facts(data) is not None
        ports.require_free(ports.required(self._settings), patience_seconds=_AFTER_CRASH_SECONDS if crashed else 0.0)
        folder.ensure_secret_key(data, self._settings.secret_key, database_is_ours=not self._settings.database_url)
        folder.ensure_admin_password(data, self._settings.admin_password)
        self._settle_database()
        self._layout = Layout(self._settings, folder.runtime_dir(data))
        redis_url = self._settings.redis_url
        if self._layout.embeds_broker:
            redis_url = broker.url(self._layout.runtime)
            broker.socket_path(self._layout.runtime).unlink(missing_ok=True)
            (data / "run" / "broker.conf").write_text(broker.configuration(self._layout.runtime))
        else:
            broker.require_reachable(redis_url)
        self._environ = child_environment(self._settings, redis_url, self._progress.started)
        # another process may be given a password in this URL only by its own environment
        shown_redis = redis_url if self._layout.embeds_broker else ""
        folder.write_facts(
            data,
            folder.RunFacts(
                pid=os.getpid(),
                started_at=clock.now().isoformat(timespec="seconds"),
                runtime_dir=str(self._layout.runtime),
                redis_url=shown_redis,
                web_url=web_url(self._settings),
            ),
        )
        self._progress.done(f"Data folder {data}")
        if crashed:
            self._progress.note("The last run did not stop cleanly; resuming.")

    def _settle_database(self) -> None:
        """Separate the database from files of another one, before anything opens it."""
        if self._settings.database_url:
            return
        if (aside := database_files.settle(self._settings.data)) is not None:
            self._progress.warn(
                "Files of another database were beside mirbad.sqlite3, as after a restore by hand. "
                f"They are in {aside} now."
            )
        database_files.begin_run(self._settings.data)

    def _start_bootstrap(self) -> None:
        command = (self._layout.python, "-m", "mirbad.up.bootstrap")
        self._reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._reader, selectors.EVENT_READ)
        os.set_inheritable(writer, True)
        self._bootstrap = subprocess.Popen(  # noqa: S603  our own interpreter and module
            programs.with_parent_death(self._layout, command),
            cwd=self._layout.root,
            env={**self._environ, REPORT: str(writer)},
            stdin=subprocess.DEVNULL,
            pass_fds=(writer,),
            start_new_session=True,
        )
        os.close(writer)

    def _read_reports(self) -> None:
        data = os.read(self._reader, 4096)
        if not data:  # the other end is closed
            self._selector.unregister(self._reader)
            os.close(self._reader)
            return
        self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            self._reported(line.decode())

    def _reported(self, word: str) -> None:
        if word in {"prepared", "recovering"}:
            self._prepared, self._recovering = True, word == "recovering"
            self._start_supervisord()
        elif word == "joined":
            with Control(self._layout.control_socket) as control:
                control.start("agent")

    def _start_supervisord(self) -> None:
        of = programs.in_recovery(self._layout) if self._recovering else None
        self._supervisord = supervisor.start(self._layout, self._environ, of)

    def _leave_recovery(self, supervisord: subprocess.Popen[bytes]) -> None:
        """Start everything again, as a usual master."""
        self._progress.note("The recovery mode is over. Starting everything.")
        if self._bootstrap is not None:
            self._bootstrap.terminate()
            self._bootstrap.wait()
        Shutdown(self._layout, self._environ, self._progress, self._stops).end(supervisord)
        self._supervisord = None
        self._recovering = self._prepared = False
        self._seen.clear()
        self._pids.clear()
        self._start_bootstrap()

    def _tend(self) -> None:
        if self._bootstrap is not None and (code := self._bootstrap.poll()) is not None:
            self._bootstrap = None
            self._bootstrap_failed = code != 0
        if self._supervisord is None:
            return
        if self._recovering and not recovery_mode.is_on(self._settings):
            self._leave_recovery(self._supervisord)
            return
        if (ended := self._supervisord.poll()) is not None:
            self._progress.warn(f"supervisord exited (code {ended}) with all processes; restarting them.")
            self._seen.clear()
            self._pids.clear()
            self._start_supervisord()
        self._give_sign_of_life()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            # one that does not respond is starting, or has just ended: the next round shows which
            with contextlib.suppress(NotResponding), Control(self._layout.control_socket) as control:
                self._look(control)

    def _give_sign_of_life(self) -> None:
        embedded = self._layout.embeds_broker
        if (
            self._heartbeat is not None
            or self._recovering
            or (embedded and not broker.socket_path(self._layout.runtime).exists())
        ):
            return
        os.environ.update(self._environ)
        from mirbad.kernel import logs
        from mirbad.tasking import heartbeat

        logs.configure("up", console=False)
        self._heartbeat = heartbeat.start("up")

    def _look(self, control: Control) -> None:
        for name, state in control.states().items():
            before, self._seen[name] = self._seen.get(name), state
            if state.state == "BACKOFF" and (before is None or before.state not in {"BACKOFF", "STARTING", "FATAL"}):
                self._progress.warn(f"{name} does not start; retrying. Its output: {self._output(name)}")
            elif state.state == "FATAL":
                self._retry_fatal(control, name)
            if state.state in {"STARTING", "RUNNING"} and state.pid:
                if self._pids.get(name, state.pid) != state.pid:
                    self._progress.warn(f"{name} exited and was restarted (process {state.pid}).")
                self._pids[name] = state.pid
            if state.state == "RUNNING":
                self._fatal_since.pop(name, None)

    def _retry_fatal(self, control: Control, name: str) -> None:
        since = self._fatal_since.get(name)
        if since is None:
            self._progress.warn(
                f"{name} keeps exiting; next attempt in {_FATAL_PAUSE_SECONDS:.0f} s. Its output: {self._output(name)}"
            )
        if since is None or time.monotonic() - since >= _FATAL_PAUSE_SECONDS:
            if since is not None:
                control.start(name)
            self._fatal_since[name] = time.monotonic()

    def _output(self, name: str) -> str:
        return str(self._settings.logs_dir / f"{name}.out")

    def _go_down(self) -> int:
        asked = bool(self._stops.count)
        if asked:
            self._progress.plain("")
            self._progress.note("Stopping. Press Ctrl-C again to hurry.")
        if self._bootstrap is not None:
            self._bootstrap.terminate()
            self._bootstrap.wait()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        clean = Shutdown(self._layout, self._environ, self._progress, self._stops).run(self._supervisord)
        if clean and not self._settings.database_url:
            database_files.end_run(self._settings.data)
        folder.forget_facts(self._settings.data)
        if not asked:
            return 1
        self._progress.done("Stopped cleanly; nothing is lost." if clean else "Stopped in a hurry.")
        return 0 if clean else 130


def web_url(settings: Settings) -> str:
    """Return the address of the pages for a person on this machine."""
    host = settings.local_host
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def child_environment(settings: Settings, redis_url: str, started: float) -> dict[str, str]:
    """Return the environment of every process of the master."""
    dropped = {"MIRBAD_JOIN_TOKEN", "MIRBAD_ENROLL_CA_HASH", "PYTHONPATH", "PYTHONHOME"}
    environ = {name: text for name, text in os.environ.items() if name not in dropped}
    environ |= {
        "MIRBAD_DATA": str(settings.data),
        "MIRBAD_REDIS_URL": redis_url,
        "DJANGO_SETTINGS_MODULE": "mirbad.settings",
        "PYTHONUNBUFFERED": "1",
        STARTED: repr(started),
        "MIRBAD_INTERNAL_PARENT": str(os.getpid()),
    }
    environ.pop("MIRBAD_REDIS_URL_FILE", None)
    return environ


__all__ = ["CannotStart", "Session"]
