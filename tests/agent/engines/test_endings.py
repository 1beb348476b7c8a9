"""Reasons for the end of an engine."""

from datetime import datetime, timedelta

import pytest

from agent.deliveries.base import EngineObservation
from agent.deliveries.docker_container import ended_with_docker, in_doubt_seconds
from agent.running.endings import exit_of, signal_of

pytestmark = pytest.mark.unit

STARTED = "2026-05-02T10:00:00.123456789Z"


@pytest.mark.parametrize(
    ("ended", "docker", "with_docker"),
    [
        ("2026-05-02T11:00:00.5Z", "2026-05-02T11:00:02.5Z", True),  # stopped with Docker
        ("2026-05-02T11:00:05.5Z", "2026-05-02T11:00:02.5Z", True),  # ended by a Docker that was killed before
        ("2026-05-02T11:00:00.5Z", "2026-05-02T12:00:00.5Z", True),  # Docker was away for an hour
        ("2026-05-02T12:30:00.5Z", "2026-05-02T12:00:00.5Z", False),  # it survived, and died later
        ("2026-05-02T11:00:00.5Z", "2026-05-02T09:00:00.5Z", False),  # Docker was up before it
        ("2026-05-02T13:00:00.5+02:00", "2026-05-02T11:00:02.123456789Z", True),  # another offset
        ("2026-05-02T11:00:00.5Z", None, False),
        ("2026-05-02T11:00:00.5Z", "yesterday", False),
        (None, "2026-05-02T11:00:02.5Z", False),
    ],
)
def test_a_container_ended_with_docker_or_by_itself(ended: str | None, docker: str | None, with_docker: bool) -> None:
    assert ended_with_docker({"StartedAt": STARTED, "FinishedAt": ended}, docker) is with_docker


@pytest.mark.parametrize(
    ("exit_code", "ago", "left"),
    [
        (143, 1, 14), (0, 5, 10), (137, 1, 2),  # a Docker that is being stopped may have ended it
        (143, 15, 0), (137, 3, 0), (143, -60, 0),  # too long ago, or by another clock
        (1, 1, 0), (139, 1, 0), (134, 1, 0), (None, 1, 0),  # its own death
    ],
)  # fmt: skip
def test_an_end_on_sigterm_is_in_doubt_while_docker_may_be_stopping(exit_code: int, ago: int, left: int) -> None:
    ended = datetime.fromisoformat(STARTED)
    state = {"ExitCode": exit_code, "FinishedAt": STARTED}
    assert in_doubt_seconds(state, ended + timedelta(seconds=ago)) == left


@pytest.mark.parametrize(
    ("exit_code", "name"),
    [(None, None), (0, None), (1, None), (128, None), (137, "SIGKILL"), (139, "SIGSEGV"), (255, None)],
)
def test_the_signal_that_ended_a_process(exit_code: int | None, name: str | None) -> None:
    assert signal_of(exit_code) == name


@pytest.mark.parametrize(
    ("observed", "code", "words"),
    [
        (EngineObservation(running=False, exit_code=1), "engine_exited", "exited (exit code 1)"),
        (EngineObservation(running=False, exit_code=139), "engine_exited", "SIGSEGV (exit code 139)"),
        (EngineObservation(running=False, exit_code=137), "engine_exited", "SIGKILL, exit code 137"),
        (EngineObservation(running=False, exit_code=137, out_of_memory=True), "out_of_memory", "ran out of memory"),
        (EngineObservation(running=False, exit_code=143, with_docker=True), "docker_restarted", "Docker was restarted"),
        (EngineObservation(running=False), "engine_exited", "exit code is unknown"),
    ],
)
def test_an_end_that_nobody_requested(observed: EngineObservation, code: str, words: str) -> None:
    end = exit_of(observed)
    assert (end.code, words in end.reason) == (code, True)
