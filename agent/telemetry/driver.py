"""The process that reads the GPU driver, as the agent uses it: started on demand, given up when it hangs."""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import agent
from agent import driver_places
from agent.telemetry.cards import Cards, NoDriver, from_json

LIMIT_SECONDS = 60.0
"""A machine with many cards and no persistence daemon takes tens of seconds for its first answer."""

_ROOT = Path(agent.__file__).resolve().parent.parent
_COMMAND = (sys.executable, "-P", "-m", "agent.telemetry.reader")
_ENDING_SECONDS = 1.0
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


class DriverProcess:
    """One request at a time, each with a limit. A process that does not answer is killed and not used again.

    A process that hangs in the kernel cannot be killed: while it exists, no second one is started to hang as well.
    """

    def __init__(self, limit_seconds: float = LIMIT_SECONDS, command: tuple[str, ...] = _COMMAND) -> None:
        self._limit = limit_seconds
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stuck: subprocess.Popen[bytes] | None = None

    @property
    def is_open(self) -> bool:
        """True while there is a process that may hold the driver."""
        return self._process is not None

    def cards(self, nvidia_smi: str, devices: Path) -> Cards:
        """Read every GPU; blocks for the limit at most. NoDriver with the reason."""
        with self._lock:
            if self._stuck is not None:
                if self._stuck.poll() is None:
                    raise NoDriver("the GPU driver hangs, and so does the process that reads it", installed=True)
                self._stuck = None
            question = {"nvidiaSmi": nvidia_smi, "devices": str(devices), "version": str(_DRIVER_FILE)}
            value = json.loads(self._ask(json.dumps(question).encode() + b"\n"))
            if "problem" in value:
                self._end()  # without a driver there is nothing to keep open
                raise NoDriver(value["problem"], installed=bool(value["installed"]))
            return from_json(value)

    def close(self) -> None:
        """End the process, and with it a waiting request. One that hangs is left to the system."""
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()

    def _ask(self, question: bytes) -> bytes:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - pipes were asked for
        try:
            process.stdin.write(question)
            process.stdin.flush()
            response = self._line(process.stdout.fileno())
        except BrokenPipeError:
            response = b""
        except TimeoutError:
            self._end()
            raise NoDriver(f"the GPU driver did not answer in {self._limit:.0f} s", installed=True) from None
        if not response.endswith(b"\n"):
            self._end()
            raise NoDriver("the GPU driver crashed the process that reads it", installed=True)
        return response

    def _line(self, descriptor: int) -> bytes:
        deadline = time.monotonic() + self._limit
        response = b""
        while not response.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            part = os.read(descriptor, 65536)
            if not part:
                return response
            response += part
        return response

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if libraries := driver_places.library_path(os.environ.get("LD_LIBRARY_PATH")):
            environment["LD_LIBRARY_PATH"] = libraries
        self._process = subprocess.Popen(  # noqa: S603 - this Python and a module of ours
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._stuck = process
