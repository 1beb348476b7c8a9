"""Reasons for the end of an engine."""

import logging
import signal
from typing import Any

from agent import clock
from agent.deliveries.base import DeliveryFailed, EngineObservation
from agent.running import last_words
from agent.running.record import InstanceRecord
from agent.wire.capability import Delivery
from agent.wire.instances import BrokenRequest, InstanceState

_log = logging.getLogger("mirbad.agent.instances")

LOST_CODES = frozenset({"lost", "docker_restarted"})
"""Codes of ends that are not the engine's own: the machine, or what ran the engine, was restarted."""

_SIGNAL_BASE = 128


class EngineEnded(Exception):
    """The engine has ended or must end; `reason` is a sentence."""

    def __init__(self, code: str, reason: str, observed: EngineObservation | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.observed = observed


def exit_of(observed: EngineObservation) -> EngineEnded:
    """Return the end of an engine that was not asked to end."""
    if observed.with_docker:
        return EngineEnded(
            "docker_restarted", "Docker was restarted on this node, which ended its containers.", observed
        )
    code = "out_of_memory" if observed.out_of_memory else "engine_exited"
    return EngineEnded(code, describe_exit(observed), observed)


def signal_of(exit_code: int | None) -> str | None:
    """Return the name of the signal that ended a process with this exit code, None for an ordinary exit."""
    if exit_code is None or exit_code <= _SIGNAL_BASE:
        return None
    try:
        return signal.Signals(exit_code - _SIGNAL_BASE).name
    except ValueError:
        return None


def describe_exit(observed: EngineObservation) -> str:
    """Return a sentence about an engine that exited by itself."""
    if observed.out_of_memory:
        return "The system killed the engine because it ran out of memory (exit code 137)."
    if observed.exit_code is None:
        return (
            "The engine exited. The exit code is unknown (an earlier agent started it, or its container was removed)."
        )
    if observed.exit_code == 137:
        return "The engine was killed (SIGKILL, exit code 137), often a sign that the system ran out of memory."
    if (name := signal_of(observed.exit_code)) is not None:
        return f"The engine was ended by {name} (exit code {observed.exit_code})."
    return f"The engine exited (exit code {observed.exit_code})."


def closing(
    record: InstanceRecord,
    end: EngineEnded,
    observed: EngineObservation | None,
    requests: tuple[BrokenRequest, ...],
    lines: tuple[str, ...],
) -> dict[str, Any]:
    """Return the last changes of a record; an end that nobody requested is logged, with the requests it interrupted."""
    exit_code = observed.exit_code if observed else None
    in_container = record.spec.delivery is Delivery.CONTAINER
    known = last_words.meaning(lines, in_container=in_container) if end.code == "engine_exited" else ""
    reason = f"{end.reason} {known}".rstrip()
    if end.code == "stopped":
        requests = ()
    else:
        ids = ", ".join(request.request_id for request in requests) or "none"
        name, model = record.instance_id, record.spec.model_id
        _log.warning("instance %s of model %s: %s Requests in progress: %s", name, model, reason, ids)
    return {
        "state": InstanceState.LOST if end.code in LOST_CODES else InstanceState.EXITED,
        "reason": reason,
        "last_lines": lines,
        "reason_code": end.code,
        "exited_at": clock.now_text(),
        "exit_code": exit_code,
        "exit_signal": signal_of(exit_code),
        "broken_requests": requests,
        "spec": record.spec.model_copy(update={"secret_env": {}}),
    }


def state_unwritable(error: OSError) -> DeliveryFailed:
    """Return the failure of a start whose record cannot be written: it could not be found again."""
    return DeliveryFailed(
        f"The agent cannot write to its state folder ({error.strerror}). Free disk space, or make the folder writable.",
        code="state_unwritable",
    )
