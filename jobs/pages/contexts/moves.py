"""View-models of a move: its form, and its progress."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from jobs.kinds.move import STARTING_TARGET, TARGET_READY
from jobs.pages.contexts.rows import OperationRow, row
from jobs.requests import moves
from mirbad.kernel import clock
from mirbad.web.gpu_choices import gpu_choices
from models_app import queries
from models_app.models import ModelDefinition, ModelSource
from models_app.placement import candidates
from models_app.placement.planner import Rejection
from models_app.states import READY, UNHEALTHY
from nodes import queries as node_queries
from nodes.models import Node

MODES = (
    ("auto", "No downtime (if both fit)", "The model starts on the target first. No requests are dropped."),
    ("stop-first", "Stop first", "The model stops before it starts on the target. Use this when both do not fit."),
)
_SHOWN_FOR = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class MoveTarget:
    """A node to move to; `problem` is the reason against it, "" when there is none. `gpus` are (UUID, label)."""

    id: str
    name: str
    problem: str
    gpus: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """A move as its page shows it."""

    record: moves.MoveRecord
    operation: OperationRow
    lines: tuple[str, ...]

    @property
    def starts(self) -> bool:
        """True while an engine is starting on the target, so that its log is worth reading."""
        return self.record.open and self.record.stage in (STARTING_TARGET, TARGET_READY)

    @property
    def memory_refused(self) -> bool:
        """True when the start failed at the target's memory check."""
        return self.record.start.get("code") == "admission_refused"


def is_shown(record: moves.MoveRecord) -> bool:
    """Return whether a move is open, or ended only recently."""
    ended = record.operation.finished_at
    return record.open or (ended is not None and clock.now() - ended < _SHOWN_FOR)


def progress(model: ModelDefinition, record: moves.MoveRecord) -> dict[str, Any]:
    """Return the context of the progress of a move."""
    lines = tuple(record.operation.events.order_by("id").values_list("text", flat=True))
    return {"model": model, "move": MoveProgress(record, row(record.operation), lines)}


def form(model: ModelDefinition, source: str) -> dict[str, Any]:
    """Return the context of the form of a move. `source` is the node of the replica to move, "" for the primary's."""
    if any(one.kind != ModelSource.HUGGING_FACE for one in model.sources.all()):
        return {"model": model, "folder_only": True}
    placements = queries.placements_of(model)
    placed_on = [placement.node_id_text for placement in placements]
    targets = _targets(model, placed_on)
    chosen = next((one for one in placements if one.node_id_text == source), placements[0] if placements else None)
    return {
        "model": model,
        "placements": placements,
        "source": chosen.node_id_text if chosen else "",
        "serves": chosen is not None and chosen.observed in (READY, UNHEALTHY),
        "targets": targets,
        "chosen": next((target.id for target in targets if not target.problem), ""),
        "modes": MODES,
    }


def _targets(model: ModelDefinition, placed_on: list[str]) -> list[MoveTarget]:
    rejections = candidates.rejections(model)
    nodes = Node.objects.approved().exclude(pk__in=placed_on).order_by("pk")
    found = [_target(node, rejections.get(node.pk)) for node in nodes]
    return sorted(found, key=lambda target: bool(target.problem))


def _target(node: Node, rejection: Rejection | None) -> MoveTarget:
    gpus = gpu_choices(node_queries.capabilities(node))
    return MoveTarget(node.pk, node.name, rejection.message if rejection is not None else "", gpus)
