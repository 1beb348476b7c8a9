"""Ends of engines that nobody requested: recorded once, with the requests that they interrupted, and named in the log.

A request may end an engine. A key that had requests at two ends is named.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from agent.common.redaction import redact
from agent.wire.instances import InstanceState, InstanceView
from audit import log as audit_log
from mirbad.kernel import clock
from mirbad.kernel.actor import system
from models_app.models import ApiKey, EngineExit, Placement

log = structlog.get_logger(__name__)

ENGINE = system("engine")
LOST = frozenset({"lost", "docker_restarted"})
"""Codes of ends that are not the engine's own."""
KEPT = 100
"""Ends that are kept of each model."""
REPEAT_WITHIN = timedelta(hours=24)
REPEATS = 2
"""Ends within `REPEAT_WITHIN` at which a key had requests before it is named."""
_SHOWN_REQUESTS = 5
_EXIT_CODES = range(-(2**31), 2**31)


def is_end(view: InstanceView) -> bool:
    """Return whether `view` is an engine that was started and ended without a request."""
    ended = view.state in (InstanceState.EXITED, InstanceState.LOST)
    return ended and not view.stop_requested and view.started_at is not None


def record(placement: Placement, view: InstanceView) -> bool:
    """Record the end of a placement's engine in the caller's transaction; False for one that is recorded already.

    A node reports the same end until the next start. The caller holds the lock of the placement's row.
    """
    run = f"{view.operation_id[:150]} {(view.started_at or '')[:40]}"
    if EngineExit.objects.filter(placement_id_text=str(placement.pk), run=run).exists():
        return False
    row = EngineExit.objects.create(
        placement_id_text=str(placement.pk),
        run=run,
        model_id_text=placement.model_id,
        node_id_text=placement.node_id_text,
        at=clock.now(),
        exited_at=(view.exited_at or "")[:40],
        code=(view.reason_code or "")[:60],
        reason=redact(view.reason or "The engine ended.")[:2000],
        exit_code=_storable(view.exit_code),
        signal=view.exit_signal or "",
        was_ready=view.ready_at is not None,
        last_lines=[redact(line) for line in view.last_lines],
        requests=[request.to_wire() for request in view.broken_requests],
    )
    _announce(row)
    _prune(placement.model_id)
    return True


def _storable(exit_code: int | None) -> int | None:
    """Return `exit_code` if the column takes it. None is not looked for in the range: that would count through it."""
    return None if exit_code is None or exit_code not in _EXIT_CODES else exit_code


def _announce(row: EngineExit) -> None:
    described = describe([row])[0]
    detail = " ".join(part for part in (row.reason, described.requests, described.repeated) if part)
    audit_log.record(
        "model.engine-exit",
        ENGINE,
        node_id=row.node_id_text,
        model_id=row.model_id_text,
        result="failed",
        error_code=row.code,
        detail=detail,
    )
    log.warning(
        "an engine ended",
        model=row.model_id_text,
        node=row.node_id_text,
        code=row.code,
        exit_code=row.exit_code,
        signal=row.signal,
        reason=row.reason,
        requests=[str(request["requestId"]) for request in row.requests],
        keys=sorted(_keys_of(row)),
        repeated=described.repeated,
        last_lines=row.last_lines[-3:],
    )


def _prune(model_id: str) -> None:
    rows = EngineExit.objects.filter(model_id_text=model_id).order_by("-at", "-pk")
    if old := list(rows.values_list("pk", flat=True)[KEPT : 2 * KEPT]):
        EngineExit.objects.filter(pk__in=old).delete()


@dataclass(frozen=True, slots=True)
class DescribedExit:
    """An end in words. `requests` and `repeated` are sentences, empty when there is nothing to say."""

    row: EngineExit
    requests: str
    repeated: str

    @property
    def at(self) -> datetime:
        """Return the time of the end, by the master's clock."""
        return self.row.at


def describe(rows: Sequence[EngineExit]) -> tuple[DescribedExit, ...]:
    """Return `rows` with the keys named. Two queries for any number of rows."""
    models = {row.model_id_text for row in rows}
    since = min((row.at for row in rows), default=clock.now()) - REPEAT_WITHIN
    near = list(EngineExit.objects.filter(model_id_text__in=models, at__gte=since)) if any(map(_keys_of, rows)) else []
    names = _names(key for row in (*rows, *near) for key in _keys_of(row))
    return tuple(DescribedExit(row, _requests(row, names), _repeated(row, near, names)) for row in rows)


def of_model(model_id: str, limit: int) -> tuple[DescribedExit, ...]:
    """Return the last ends of a model's engines, newest first."""
    return describe(list(EngineExit.objects.filter(model_id_text=model_id).order_by("-at", "-pk")[:limit]))


def _keys_of(row: EngineExit) -> set[int]:
    return {request["keyId"] for request in row.requests if request.get("keyId") is not None}


def _names(keys: Iterable[int]) -> dict[int, str]:
    found = set(keys)
    return dict(ApiKey.objects.filter(pk__in=found).values_list("pk", "name")) if found else {}


def _named(key: int, names: Mapping[int, str]) -> str:
    return f"key {names[key]!r} (id {key})" if key in names else f"key id {key}"


def _requests(row: EngineExit, names: Mapping[int, str]) -> str:
    if not row.requests:
        return ""

    def one(request: dict[str, Any]) -> str:
        key = request.get("keyId")
        whose = "an unknown key" if key is None else _named(key, names)
        return f"{request.get('requestId') or 'one without an id'} of {whose}"

    shown = ", ".join(one(request) for request in row.requests[:_SHOWN_REQUESTS])
    more = len(row.requests) - _SHOWN_REQUESTS
    return f"Requests in progress: {shown}{f', and {more} more' if more > 0 else ''}."


def _repeated(row: EngineExit, near: Sequence[EngineExit], names: Mapping[int, str]) -> str:
    """Return the keys of `row` that had requests at earlier ends of the model, too, as a sentence."""
    within = [
        one
        for one in near
        if one.model_id_text == row.model_id_text
        and one.code not in LOST
        and row.at - REPEAT_WITHIN <= one.at <= row.at
        and one.requests
    ]
    counts = Counter(key for one in within for key in _keys_of(one))
    found = sorted(key for key in _keys_of(row) if counts[key] >= REPEATS)
    each = [
        f"{_named(key, names)} had requests in progress at {counts[key]} of {len(within)} ends within 24 hours"
        for key in found
    ]
    text = "; ".join(each)
    return f"{text[0].upper()}{text[1:]}." if text else ""
