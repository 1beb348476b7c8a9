"""Writing of audit lines."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from django.db import transaction

from agent.common.redaction import redact
from audit.actions import ACTIONS, RESULTS
from audit.models import AuditLine
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import MirbadError
from mirbad.live import invalidations

_COLUMNS = {"node_id": "node_id_text", "model_id": "model_id_text", "operation_id": "operation_id_text"}


def record(
    action: str,
    actor: Actor,
    *,
    node_id: str = "",
    model_id: str = "",
    operation_id: str = "",
    target: str = "",
    result: str = "succeeded",
    error_code: str = "",
    detail: str = "",
) -> None:
    """Write one line in the caller's transaction: the line is kept exactly when the change is.

    Every text is redacted, then cut to its column. ValueError for an action or result that is not in `audit.actions`.
    """
    if action not in ACTIONS:
        raise ValueError(f"{action!r} is not an audited action; add it to audit/actions.py")
    if result not in RESULTS:
        raise ValueError(f"{result!r} is not a result of an audit line")
    texts = {
        "actor": actor.name,
        "person": actor.person,
        "role": actor.role,
        "address": actor.address,
        "node_id_text": node_id,
        "model_id_text": model_id,
        "operation_id_text": operation_id,
        "target": target,
        "error_code": error_code,
        "detail": detail,
    }
    AuditLine.objects.create(
        time=clock.now(),
        action=action,
        result=result,
        **{column: _fitting(column, text) for column, text in texts.items()},
    )
    transaction.on_commit(_invalidate, robust=True)


def record_many(action: str, actor: Actor, lines: Iterable[Mapping[str, str]], *, result: str = "succeeded") -> None:
    """Write a line for each of `lines` in a few statements, as `record` does. Each names some of ``node_id``,
    ``model_id``, ``operation_id``, ``target``, ``detail``.
    """
    if action not in ACTIONS or result not in RESULTS:
        raise ValueError(f"{action!r} or {result!r} is not of an audit line; see audit/actions.py")
    same = {"actor": actor.name, "person": actor.person, "role": actor.role, "address": actor.address}
    same = {column: _fitting(column, text) for column, text in same.items()}
    now = clock.now()
    rows = []
    for line in lines:
        texts = {_COLUMNS.get(name, name): text for name, text in line.items()}
        cut = {column: _fitting(column, text) for column, text in texts.items()} | same
        rows.append(AuditLine(time=now, action=action, result=result, **cut))
    if rows:
        AuditLine.objects.bulk_create(rows, batch_size=200)
        transaction.on_commit(_invalidate, robust=True)


def record_refusal(
    action: str,
    actor: Actor,
    error: MirbadError,
    *,
    node_id: str = "",
    model_id: str = "",
    operation_id: str = "",
    target: str = "",
) -> None:
    """Record that `error` refused an action. Call it outside the transaction that failed: it opens its own.

    The same error object is written once: page, API and domain may all call this on its way out.
    """
    if getattr(error, "audited", False):
        return
    error.audited = True  # type: ignore[attr-defined] # our own mark, read here only
    with transaction.atomic():
        record(
            action,
            actor,
            node_id=node_id,
            model_id=model_id,
            operation_id=operation_id,
            target=target,
            result="refused" if error.http_status < 500 else "failed",
            error_code=error.code,
            detail=error.detail,
        )


@contextmanager
def refusals_recorded(
    action: str,
    actor: Actor,
    *,
    node_id: str = "",
    model_id: str = "",
    operation_id: str = "",
    target: str = "",
) -> Iterator[None]:
    """Record a MirbadError that leaves the block, once however many of these blocks it passes. Not inside a
    transaction.
    """
    try:
        yield
    except MirbadError as error:
        record_refusal(
            action, actor, error, node_id=node_id, model_id=model_id, operation_id=operation_id, target=target
        )
        raise


def _invalidate() -> None:
    invalidations.changed("audit")


def _fitting(column: str, text: str) -> str:
    limit: int = getattr(AuditLine._meta.get_field(column), "max_length")  # noqa: SLF001, B009  Django's documented API; a relation has none
    # PostgreSQL accepts neither NUL nor lone surrogates; a hostile name must not undo the change that it belongs to.
    clean = text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
    return redact(clean)[:limit]
