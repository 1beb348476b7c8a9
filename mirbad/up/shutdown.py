"""The orderly stop: the master's processes, then the agent, then its engines, then the broker."""

import contextlib
import subprocess
import time

from mirbad.up import programs
from mirbad.up.programs import SERVICES, Layout
from mirbad.up.progress import ProgressDisplay
from mirbad.up.signals import Stops
from mirbad.up.supervisor import Control, NotResponding

_SERVICES_SECONDS = 14.0
_AGENT_SECONDS = 12.0
_ENGINES_SECONDS = 45.0
_ENGINE_GRACE_SECONDS = 10
_POLL_SECONDS = 0.1


class Shutdown:
    """Stops all processes of one run. The desired states of models stay, so the next run resumes them."""

    def __init__(self, layout: Layout, environ: dict[str, str], progress: ProgressDisplay, stops: Stops) -> None:
        self._layout = layout
        self._environ = environ
        self._progress = progress
        self._stops = stops

    def run(self, supervisord: subprocess.Popen[bytes] | None) -> bool:
        """Stop everything; False when it was hurried and processes were killed."""
        if supervisord is not None and supervisord.poll() is None:
            with Control(self._layout.control_socket) as control:
                self._in_order(control)
        clean = not self._stops.hurried
        if clean:
            self._progress.now("stopping the engines of this machine")
        engines_ended = self._stop_engines()
        if supervisord is not None:
            self.end(supervisord)
        return clean and engines_ended and not self._stops.hurried

    def _in_order(self, control: Control) -> None:
        with contextlib.suppress(NotResponding):
            self._stop(control, SERVICES, _SERVICES_SECONDS, "stopping web, enroll, watcher, worker, beat")
            # only when nobody watches any more: an engine that ends now must not count as failed
            self._stop(control, ("agent",), _AGENT_SECONDS, "stopping the agent")

    def _stop(self, control: Control, names: tuple[str, ...], seconds: float, text: str) -> None:
        names = tuple(name for name in names if name in control.states())  # of a recovery mode there is web alone
        for name in names:
            control.stop(name)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._stops.hurried:
            states = control.states()
            left = [name for name in names if not states[name].stopped]
            if not left:
                return
            self._progress.now(f"{text} ({', '.join(left)} still running)")
            time.sleep(_POLL_SECONDS)

    def _stop_engines(self) -> bool:
        if not self._layout.agent_joined:
            return True
        grace = 0 if self._stops.hurried else _ENGINE_GRACE_SECONDS
        command = programs.agent(self._layout, "stop-all", "--grace", str(grace))
        ending = subprocess.Popen(  # noqa: S603  our own interpreter and module
            programs.with_parent_death(self._layout, command, scrubbed=True),
            cwd=self._layout.root,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self._wait_for_engines(ending, hurried_at_start=self._stops.hurried)

    def _wait_for_engines(self, ending: subprocess.Popen[bytes], *, hurried_at_start: bool) -> bool:
        deadline = time.monotonic() + _ENGINES_SECONDS
        while ending.poll() is None:
            if time.monotonic() > deadline:
                ending.kill()
                self._progress.warn("This machine's engines did not stop in time. Run: python -m agent stop-all")
                return False
            if self._stops.hurried and not hurried_at_start:
                ending.kill()
                ending.wait()
                return self._stop_engines()
            time.sleep(_POLL_SECONDS)
        if ending.returncode:
            output = ending.stdout.read().decode(errors="replace").strip() if ending.stdout else ""
            last = output.splitlines()[-1] if output else f"exit code {ending.returncode}"
            self._progress.warn(f"Not all of this machine's engines were stopped: {last}")
        return ending.returncode == 0

    def end(self, supervisord: subprocess.Popen[bytes]) -> None:
        """End supervisord with all of its processes."""
        if not self._stops.hurried:
            with contextlib.suppress(NotResponding), Control(self._layout.control_socket) as control:
                control.shutdown()
            with contextlib.suppress(subprocess.TimeoutExpired):
                supervisord.wait(timeout=8)
        # every child of supervisord dies with it (parent-death signal)
        supervisord.kill()
        supervisord.wait()
