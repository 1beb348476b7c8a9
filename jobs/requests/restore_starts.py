"""The starts of a configuration import: one at a time on a node, as models start with the master.

Each start is an ordinary one, with the node's own memory check. A model is released once it is done.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.db import transaction

from jobs import ledger
from jobs.kinds import launch, restore
from jobs.models import Operation
from jobs.queries import busy_nodes
from jobs.requests import model_runs
from jobs.states import SUCCEEDED
from jobs.steps import restoring
from jobs.steps.restoring import RestoreInput, RestorePart, RestoreState
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Conflict, MirbadError
from models_app import holds
from models_app.models import Placement
from nodes import queries as node_queries
from nodes.errors import NodeDraining

_MOST_STARTS = 20
"""Starts that one round opens: the next round follows within a second."""

_WHY = "It ran when the backup was made."


@dataclass(frozen=True, slots=True)
class _PartStart:
    """A part, its node, and its last start."""

    node_id: str
    part: RestorePart
    start: Operation | None


@dataclass
class _Round:
    """The results of one look at the models: those that are done or stay stopped, and lines of the timeline.

    `waited` is since when a node did not take a start, `waits` the same after this look.
    """

    busy: set[str]
    waited: Mapping[str, datetime]
    done: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    waits: dict[str, datetime] = field(default_factory=dict)
    opened: int = 0

    def leave(self, model_id: str, why: str) -> None:
        """Leave a model stopped."""
        self.done.append(model_id)
        self.left.append(model_id)
        self.notes.append(f"Model {model_id} stays stopped: {why}")


def advance(operation_id: str, data: RestoreInput, state: RestoreState, actor: Actor) -> int:
    """Release the models that are done, and start those whose turn it is; return how many starts were opened.

    A number of queries that grows with the starts alone.
    """
    models = _fetched(operation_id, data, state, restoring.held(operation_id))
    if not models:
        return 0
    ids = [one.part.placement for each in models.values() for one in each]
    there = set(Placement.objects.filter(pk__in=ids).values_list("pk", flat=True))
    result = _Round(busy_nodes(), state.start_waits)
    for model_id, each in models.items():
        if model_id in state.left or not any(one.part.start for one in each):
            result.done.append(model_id)
        elif any(one.part.placement not in there for one in each):
            result.leave(model_id, "it was taken off its node meanwhile.")
        else:
            _one(operation_id, model_id, each, result, actor)
    _write(operation_id, state, result)
    return result.opened


def _fetched(
    operation_id: str, data: RestoreInput, state: RestoreState, held: frozenset[str]
) -> dict[str, list[_PartStart]]:
    """Return the models that are held and whose weights are settled on every node."""
    found: dict[str, list[_PartStart]] = defaultdict(list)
    waiting: set[str] = set()
    starts = _starts(operation_id) if held else {}
    for node_id, parts in data.nodes.items():
        for number, part in enumerate(parts):
            if part.model in held:
                found[part.model].append(_PartStart(node_id, part, starts.get(str(part.placement))))
                if number >= state.fetched.get(node_id, 0):
                    waiting.add(part.model)
    return {model_id: each for model_id, each in found.items() if model_id not in waiting}


def _starts(operation_id: str) -> dict[str, Operation]:
    """Return the newest start of each placement since the import: nobody else starts a model that is held by it."""
    rows = Operation.objects.filter(kind=launch.NAME, target_kind="placement", pk__gt=operation_id).order_by("pk")
    return {row.target_id: row for row in rows.only("target_id", "outcome", "error", "finished_at", "node_id_text")}


def _one(operation_id: str, model_id: str, each: Sequence[_PartStart], result: _Round, actor: Actor) -> None:
    """Follow the starts of one model, and open that of its next replica."""
    if any(one.start is not None and one.start.finished_at is None for one in each):
        return
    replicas: dict[UUID, list[_PartStart]] = defaultdict(list)
    for one in each:
        replicas[one.part.replica].append(one)
    for replica, shards in replicas.items():
        if all(one.start is None for one in shards):
            nodes = {one.node_id for one in shards}
            if nodes.isdisjoint(result.busy) and result.opened < _MOST_STARTS:
                _start(operation_id, model_id, replica, nodes, result, actor)
            return
    failed = [one.start for one in each if one.start is not None and one.start.outcome != SUCCEEDED]
    if failed:
        detail = str(failed[0].error.get("detail") or "its start was cancelled.")
        result.leave(model_id, f"on node {failed[0].node_id_text}: {detail}")
    else:
        result.done.append(model_id)


def _start(operation_id: str, model_id: str, replica: UUID, nodes: set[str], result: _Round, actor: Actor) -> None:
    node_id = ""
    try:
        for node_id in sorted(nodes):
            node_queries.require_placeable(node_id)
        with transaction.atomic():
            row = restoring.locked(operation_id)
            holder = restoring.holder_id(operation_id, model_id)
            if row is None or not holds.release(model_id, holder):
                return
            # One transaction: nobody gets between the release and the hold that follows.
            made = model_runs.start_all(model_id, actor, replica=replica, text=_WHY)
            holds.take(model_id, restoring.RESTORE, holder, restoring.WORDS)
            ledger.note(row, [f"Starting {model_id} on {', '.join(sorted(nodes))}."])
    except MirbadError as error:
        _refused(model_id, node_id, error, result)
    else:
        result.busy |= nodes
        result.opened += len(made.operations)


def _refused(model_id: str, node_id: str, error: MirbadError, result: _Round) -> None:
    """Wait for a node that is away, as long as a start may take; leave the model for any other reason."""
    passing = error.retryable or error.code in restoring.PASSING or isinstance(error, Conflict)
    # A drain is what somebody wants, and may last.
    passing = passing and not isinstance(error, NodeDraining)
    since = result.waited.get(node_id) or clock.now()
    if passing and clock.now() - since <= settings().launch_timeout:
        result.waits[node_id] = since
        result.busy.add(node_id)
    else:
        result.leave(model_id, error.detail)


def _write(operation_id: str, before: RestoreState, result: _Round) -> None:
    """Write what is done and what is waited for, in one transaction."""
    if not result.done and result.waits.keys() == before.start_waits.keys():
        return
    with transaction.atomic():
        row = restoring.locked(operation_id)
        if row is None:
            return
        holds.release_each(result.done, restoring.RESTORE, restoring.prefix(operation_id))
        ledger.note(row, result.notes)
        state = restore.KIND.step(row).state
        left = tuple(dict.fromkeys((*state.left, *result.left)))
        if left != state.left or result.waits.keys() != state.start_waits.keys():
            waits = f" Waiting for {', '.join(sorted(result.waits))}." if result.waits else ""
            text = f"{len(left)} models stay stopped so far.{waits}"
            ledger.steer(row, state.changed(left=left, start_waits=result.waits), text)
