"""A configuration import that was written: its input, its state, and what is left of it."""

from collections.abc import Mapping
from uuid import UUID

from jobs.base import Moment, OperationData
from jobs.models import Operation
from jobs.queries import unfinished
from models_app import holds
from models_app.models import Hold

RESTORE = "restore"
DOWNLOAD = "download"
LAUNCH = "launch"
PASSING = frozenset({"model_busy", "master_fenced", "node_offline", "node_incompatible", "node_pending_takeover"})
"""Refusals that pass by themselves, or by an action on the node."""

ACTOR = "system:restore"
WORDS = "a restore (configuration import)"
"""The holder of a model, as the sentence "… holds it" names it."""


class RestorePart(OperationData):
    """A placement that the import made. `start` is whether its model ran when the backup was made, and is to again."""

    placement: UUID
    model: str
    replica: UUID
    start: bool = False


class RestoreInput(OperationData):
    """The placements by node, in the order of their downloads; `digest` is that of the confirmed plan."""

    backup: str = ""
    digest: str = ""
    asked_by: str = ""
    summary: str = ""
    nodes: Mapping[str, tuple[RestorePart, ...]] = {}

    @property
    def models(self) -> tuple[str, ...]:
        """Return the models with new placements."""
        return tuple(dict.fromkeys(part.model for parts in self.nodes.values() for part in parts))


class RestoreState(OperationData):
    """The progress. `fetched` counts the parts of each node whose weights are settled.

    `fetching` is the present download of a node, `away` and `start_waits` are since when downloads and starts wait for
    it, and `left` are models that stay stopped.
    """

    fetched: Mapping[str, int] = {}
    fetching: Mapping[str, str] = {}
    away: Mapping[str, Moment] = {}
    start_waits: Mapping[str, Moment] = {}
    left: tuple[str, ...] = ()


def prefix(operation_id: str) -> str:
    """Return the beginning of the ids under which a restore holds its models."""
    return f"{RESTORE}-{operation_id}-"


def holder_id(operation_id: str, model_id: str) -> str:
    """Return the id under which a restore holds one model."""
    return f"{prefix(operation_id)}{model_id}"


def held(operation_id: str) -> frozenset[str]:
    """Return the models that are not done yet. One query."""
    rows = Hold.objects.filter(holder_kind=RESTORE, holder_id__startswith=prefix(operation_id))
    return frozenset(rows.values_list("model_id", flat=True))


def release_all(operation_id: str) -> None:
    """Release every model that the restore still holds, in the caller's transaction."""
    holds.release_each(held(operation_id), RESTORE, prefix(operation_id))


def locked(operation_id: str) -> Operation | None:
    """Return the row of an import that goes on, locked in the caller's transaction; None once it is over or ending."""
    rows = unfinished().select_for_update().filter(pk=operation_id, kind=RESTORE)
    return rows.filter(cancel_requested_at__isnull=True).first()


def unfetched(data: RestoreInput, state: RestoreState) -> tuple[str, ...]:
    """Return the nodes with parts whose weights are not settled."""
    return tuple(node_id for node_id, parts in data.nodes.items() if state.fetched.get(node_id, 0) < len(parts))


def starting(model_ids: frozenset[str]) -> frozenset[str]:
    """Return those of the models that have an open start. One query."""
    return frozenset(
        unfinished().filter(kind=LAUNCH, model_id_text__in=model_ids).values_list("model_id_text", flat=True)
    )


def open_downloads() -> list[Operation]:
    """Return the open downloads that a restore requested. One query."""
    return list(unfinished().filter(kind=DOWNLOAD, actor=ACTOR).order_by("pk"))
