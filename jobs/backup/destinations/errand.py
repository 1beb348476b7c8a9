"""One errand at a destination, done by a process of its own within a time limit."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobs.backup.destinations.settings import DestinationSettings
from jobs.errors import BackupDestinationFailed

log = structlog.get_logger(__name__)

_ROOT = Path(__file__).resolve().parents[3]
_PASSED_ON = (
    *("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "LD_LIBRARY_PATH"),
)
SHORT_SECONDS = 60.0
_BYTES_PER_SECOND = 200_000
_LONGEST_SECONDS = 4 * 3600.0
_LOOK_SECONDS = 0.5


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class DestinationErrand(_Message):
    """The work to do. `file` is local, `names` are at the destination; `mount_point` is an empty folder."""

    verb: Literal["put", "remove", "try"]
    settings: DestinationSettings = Field(discriminator="kind")
    secret: str = Field(default="", repr=False)
    mount_point: str = ""
    file: str = ""
    names: tuple[str, ...] = ()
    sha256: str = ""


class DestinationAnswer(_Message):
    """The result; `problem` is a sentence, empty when all was done."""

    problem: str = ""


class ErrandCancelled(Exception):
    """The errand was ended on request; the destination may hold a part of a file, never a half one under its name."""


def put_seconds(size: int) -> float:
    """Return the time limit of a copy of `size` bytes: a minute, and what a slow line needs."""
    return min(SHORT_SECONDS + 3 * size / _BYTES_PER_SECOND, _LONGEST_SECONDS)


def run(
    errand: DestinationErrand, *, seconds: float = SHORT_SECONDS, is_cancelled: Callable[[], bool] = lambda: False
) -> None:
    """Do `errand`. Raises BackupDestinationFailed with what to do, ErrandCancelled."""
    process = subprocess.Popen(
        (sys.executable, "-m", "jobs.backup.destinations"),
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
        start_new_session=True,
    )
    output: list[bytes] = []
    try:
        assert process.stdin is not None  # noqa: S101  it was asked for
        with contextlib.suppress(BrokenPipeError):  # it ended early; its output tells why
            process.stdin.write(errand.model_dump_json().encode() + b"\n")
            process.stdin.flush()
        readers = [threading.Thread(target=_drain, args=(pipe, output), daemon=True) for pipe in _pipes(process)]
        for reader in readers:
            reader.start()
        _wait(process, errand, seconds, is_cancelled)
        for reader in readers:
            reader.join(5)
    finally:
        _end(process)
    _read(b"".join(output), process.returncode, errand)


def _environment() -> dict[str, str]:
    given = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # Keys come from the settings alone: no file and no service of a cloud is asked for others.
    return given | {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def _pipes(process: "subprocess.Popen[bytes]") -> list[IO[bytes]]:
    return [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]


def _drain(pipe: IO[bytes], output: list[bytes]) -> None:
    with contextlib.suppress(ValueError, OSError):
        output.append(pipe.read())


def _wait(
    process: "subprocess.Popen[bytes]", errand: DestinationErrand, seconds: float, is_cancelled: Callable[[], bool]
) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            process.wait(_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if is_cancelled():
                raise ErrandCancelled from None
            if time.monotonic() < end:
                continue
            text = f"{errand.settings.where} did not answer within {seconds:.0f} s. Check that it is on and reachable."
            raise BackupDestinationFailed(text) from None
        return


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.kill()
    # A process that hangs in the kernel dies when the kernel lets it; nobody waits for that.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _read(output: bytes, code: int | None, errand: DestinationErrand) -> None:
    for line in reversed(output.splitlines()):
        try:
            answer = DestinationAnswer.model_validate_json(line)
        except ValidationError:
            continue
        if answer.problem:
            raise BackupDestinationFailed(answer.problem)
        return
    log.error("the process of a destination failed", code=code, where=errand.settings.where, lines=_last(output))
    raise BackupDestinationFailed(f"The work at {errand.settings.where} ended with code {code}; see the master's log.")


def _last(output: bytes) -> list[str]:
    return output.decode(errors="replace").splitlines()[-5:]
