"""The process that asks the GPU driver, seen from the agent: started when needed, given up when it hangs."""

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
from agent.telemetry.cards import Cards, NoDriver, from_json

LIMIT_SECONDS = 15.0
_ROOT = Path(agent.__file__).resolve().parent.parent
_COMMAND = (sys.executable, "-P", "-m", "agent.telemetry.reader")
_ENDING_SECONDS = 1.0
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


class Driver:
    """One question at a time, each with a limit. A process that does not answer is killed and asked no more.

    A process that hangs inside the kernel cannot be killed: while it is there, no other is started to hang beside it.
    """

    def __init__(self, limit_seconds: float = LIMIT_SECONDS, command: tuple[str, ...] = _COMMAND) -> None:
        self._limit = limit_seconds
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stuck: subprocess.Popen[bytes] | None = None

    def cards(self, nvidia_smi: str, devices: Path) -> Cards:
        """Every GPU now; blocks for the limit at most. NoDriver when there is no answer, and with what was answered."""
        with self._lock:
            if self._stuck is not None:
                if self._stuck.poll() is None:
                    raise NoDriver("the GPU driver hangs, and so does what asked it", installed=True)
                self._stuck = None
            question = {"nvidiaSmi": nvidia_smi, "devices": str(devices), "version": str(_DRIVER_FILE)}
            value = json.loads(self._ask(json.dumps(question).encode() + b"\n"))
            if "problem" in value:
                self._end()  # nothing to keep ready for
                raise NoDriver(value["problem"], installed=bool(value["installed"]))
            return from_json(value)

    def close(self) -> None:
        """End the process, and with it a question that waits. One that hangs is left to the system."""
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
            answer = self._line(process.stdout.fileno())
        except BrokenPipeError:
            answer = b""
        except TimeoutError:
            self._end()
            raise NoDriver(f"the GPU driver did not answer in {self._limit:.0f} s", installed=True) from None
        if not answer.endswith(b"\n"):
            self._end()
            raise NoDriver("the GPU driver took down the process that asked it", installed=True)
        return answer

    def _line(self, descriptor: int) -> bytes:
        deadline = time.monotonic() + self._limit
        answer = b""
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            part = os.read(descriptor, 65536)
            if not part:
                return answer
            answer += part
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(  # noqa: S603 - this Python and a module of ours
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
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
