"""Queries over audit lines."""

from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from audit.models import AuditLine

DEFAULT_MAX = 50
MAX = 1000


def lines(*, node_id: str = "", model_id: str = "", since: datetime | None = None) -> QuerySet[AuditLine]:
    """Return lines, newest first, of one node or model, from `since` (inclusive) on. Slice it: there may be many."""
    found = AuditLine.objects.order_by("-id")
    if node_id:
        found = found.filter(node_id_text=node_id)
    if model_id:
        found = found.filter(model_id_text=model_id)
    if since is not None:
        found = found.filter(time__gte=since)
    return found


def document(line: AuditLine) -> dict[str, Any]:
    """Return a line in the form of the JSONL files and the chain; absent texts are None. Times in UTC with
    microseconds.
    """
    # Left out when empty: older lines have none, and their hashes stay as they are.
    who = {"person": line.person, "role": line.role, "address": line.address}
    return {
        "seq": line.seq,
        "time": line.time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "actor": line.actor,
        **{name: text for name, text in who.items() if text},
        "action": line.action,
        "nodeId": line.node_id_text or None,
        "modelId": line.model_id_text or None,
        "operationId": line.operation_id_text or None,
        "target": line.target or None,
        "result": line.result,
        "errorCode": line.error_code or None,
        "detail": line.detail or None,
        "hash": line.digest,
    }
