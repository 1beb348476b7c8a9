"""Values of ``GET /api/status``: processes, nodes, models. A constant number of statements."""

from typing import Any

import mirbad
from jobs.backup import freshness
from jobs.queries import open_by_model, unfinished
from mirbad.kernel.errors import Unavailable
from mirbad.tasking import heartbeat
from models_app import queries as model_queries
from nodes import queries as node_queries


def status() -> dict[str, Any]:
    """Return the values of `StatusSerializer`."""
    problem, processes = _processes()
    return {
        "version": mirbad.__version__,
        "broker_problem": problem,
        "processes": processes,
        "nodes": _nodes(),
        "models": _models(),
        "open_operations": unfinished().count(),
        "last_backup_at": freshness.last_good_at(),
        "warnings": freshness.warnings(),
    }


def _processes() -> tuple[str | None, list[dict[str, Any]]]:
    try:
        ages = heartbeat.alive()
    except Unavailable as error:
        return error.detail, []
    return None, [{"name": name, "alive": name in ages, "age_seconds": ages.get(name)} for name in heartbeat.PROCESSES]


def _nodes() -> list[dict[str, Any]]:
    found = []
    for node in node_queries.rows():
        shown = node_queries.shown_state(node, node.conditions.all())
        row = {"id": node.pk, "state": shown.name, "draining": shown.draining}
        found.append({**row, "reasons": shown.reasons, "reason_codes": shown.reason_codes})
    return found


def _models() -> list[dict[str, Any]]:
    models = list(model_queries.all_models())
    operations = open_by_model(model.pk for model in models)
    found = []
    for model in models:
        placements = model_queries.placements_of(model)
        shown = model_queries.shown_model_state(model)
        operation = operations.get(model.pk)
        found.append(
            {
                "id": model.pk,
                "state": shown.name,
                "reasons": shown.reasons,
                "serves": shown.serves,
                "node_id": placements[0].node_id_text if placements else None,
                "node_ids": [placement.node_id_text for placement in placements],
                "operation_id": operation.pk if operation else None,
            }
        )
    return found
