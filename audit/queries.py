"""Reading of audit lines."""

from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from audit.models import AuditLine

DEFAULT_MAX = 50
MAX = 1000


def lines(*, node_id: str = "", model_id: str = "", since: datetime | None = None) -> QuerySet[AuditLine]:
    """Lines, newest first, of one node or model, from `since` (inclusive) on. Slice it: there may be many."""
    found = AuditLine.objects.order_by("-id")
    if node_id:
        found = found.filter(node_id_text=node_id)
    if model_id:
        found = found.filter(model_id_text=model_id)
    if since is not None:
        found = found.filter(time__gte=since)
    return found


def document(line: AuditLine) -> dict[str, Any]:
    """A line as the JSONL files and the chain know it; absent texts are None. Times in UTC with microseconds."""
    return {
        "seq": line.seq,
        "time": line.time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "actor": line.actor,
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
