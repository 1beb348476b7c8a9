"""Configuration import: its preview, its request, and its downloads and starts, opened one after another."""

from collections import defaultdict
from datetime import timedelta
from typing import Final

from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import ledger
from jobs.backup.importing import planning, reading, writing
from jobs.backup.importing.choices import ImportChoices
from jobs.backup.importing.content import BackupContent
from jobs.backup.importing.plan import RestorePlan
from jobs.errors import RestoreChanged
from jobs.kinds import restore
from jobs.models import Operation
from jobs.queries import open_operation, unfinished
from jobs.requests import restore_downloads, restore_starts
from jobs.steps import restoring
from jobs.steps.restoring import RestoreInput, RestorePart
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict
from mirbad.kernel.ids import new_operation_id
from models_app import holds, routing
from models_app.errors import PlacementRequired
from models_app.models import ModelDefinition
from nodes import fencing, leases
from nodes.models import Node

ACTION: Final = "restore"
_TARGET: Final = ("fleet", "configuration")
_NAMED = 50
_LEASE: Final = "restore"
_LEASE_LIFE: Final = timedelta(seconds=30)
"""A process that was killed keeps others waiting for so long."""


def preview(content: BackupContent, choices: ImportChoices) -> RestorePlan:
    """Return the plan of an import by the present rows. A constant number of queries.

    Raises InvalidRequest (problems of the choices), SealBroken.
    """
    return planning.make(content, reading.read(content), choices)


def request(content: BackupContent, choices: ImportChoices, expected_digest: str, actor: Actor) -> Operation:
    """Write the plan that was previewed, all or nothing, and open the operation that downloads and starts.

    `expected_digest` is the plan's that the person confirmed; repeated while it is open, it returns the same operation.
    Raises RestoreChanged (something else would be written now), PlacementRequired (models without a target), Conflict
    (another import is open), InvalidRequest, MasterFenced.
    """
    with audit_log.refusals_recorded(ACTION, actor, target=content.name):
        fencing.require_unfenced()
        if (existing := _same_open(expected_digest)) is not None:
            return existing
        try:
            with transaction.atomic():
                return _write(content, choices, expected_digest, actor)
        except IntegrityError as error:
            raise Conflict("Another configuration import was just started, or a model was; preview again.") from error


def _same_open(expected_digest: str) -> Operation | None:
    """Return the open import of the same plan, None without any. Raises Conflict for another one."""
    existing = open_operation(restore.KIND.concurrency_group, *_TARGET)
    if existing is not None and restore.KIND.step(existing).input.digest != expected_digest:
        raise _another(existing)
    return existing


def _another(existing: Operation) -> Conflict:
    text = "Another configuration import is in progress; wait for its end, or cancel it."
    return Conflict(text, fields={"operationId": existing.pk})


def _write(content: BackupContent, choices: ImportChoices, expected_digest: str, actor: Actor) -> Operation:
    fencing.require_unfenced()
    # Writers of names, placements and keys wait here; then the rows that are compared stay as they are.
    routing.bump()
    if (existing := _same_open(expected_digest)) is not None:
        return existing
    named = [record.id for record in content.models]
    list(ModelDefinition.objects.select_for_update().filter(pk__in=named).order_by("pk").values_list("pk"))
    list(Node.objects.select_for_update().order_by("pk").values_list("pk"))
    plan = preview(content, choices)
    if plan.digest != expected_digest:
        raise RestoreChanged(
            "Something else would be written now than was previewed: this master changed, or the choices did. Check "
            "the new preview, then confirm it.",
            fields={"digest": plan.digest},
        )
    _require_targets(plan)
    who = Actor(restoring.ACTOR, actor.person, actor.role, actor.address)
    placed = writing.write(plan, content, who)
    operation = _create(plan, placed, who, actor.person or actor.name)
    models = {part.model_id for part in placed}
    holders = {model_id: restoring.holder_id(operation.pk, model_id) for model_id in sorted(models)}
    holds.take_each(holders, restoring.RESTORE, restoring.WORDS)
    return operation


def _require_targets(plan: RestorePlan) -> None:
    if not plan.unresolved:
        return
    problems = [
        {
            "code": "placement_required",
            "message": f"Model {model.id!r} was on {', '.join(model.backup_node_ids)}, which is not here.",
            "field": model.id,
        }
        for model in plan.unresolved[:_NAMED]
    ]
    text = (
        f"{len(plan.unresolved)} models were on machines that are not here. Choose a node for each of them or for "
        "each machine of the backup, or leave them unplaced."
    )
    raise PlacementRequired(text, problems=problems)


def _create(plan: RestorePlan, placed: tuple[writing.WrittenPlacement, ...], who: Actor, asked_by: str) -> Operation:
    nodes: dict[str, list[RestorePart]] = defaultdict(list)
    for one in placed:
        part = RestorePart(placement=one.id, model=one.model_id, replica=one.replica, start=one.start)
        nodes[one.node_id].append(part)
    data = RestoreInput(
        backup=plan.backup,
        digest=plan.digest,
        asked_by=asked_by,
        summary=plan.summary(),
        nodes={node_id: tuple(parts) for node_id, parts in nodes.items()},
    )
    text = f"Import requested by {asked_by} and written. {plan.summary()}"
    subject = ledger.Subject(*_TARGET)
    operation = ledger.create(
        restore.KIND, restore.DOWNLOADING, subject, who, text, data, operation_id=new_operation_id()
    )
    ledger.note(operation, tuple(_notes(plan)))
    detail = f"configuration import of master {plan.instance_id}; asked by {asked_by}. {plan.summary()}"
    audit_log.record(ACTION, who, operation_id=operation.pk, target=plan.backup, result="accepted", detail=detail)
    return operation


def _notes(plan: RestorePlan) -> list[str]:
    found = list(plan.notes)
    for model in plan.models:
        texts = [model.reason] if model.action == "left-out" else []
        found += [f"Model {model.id}: {' '.join([*texts, *model.notes])}"] if texts or model.notes else []
    found += [f"Destination {one.name}: {one.reason}" for one in plan.destinations if one.reason]
    found += [f"API key {key.name}: {key.reason}" for key in plan.keys if key.action == "left-out"]
    found += [f"Node {node.id}: {note}" for node in plan.nodes for note in node.notes]
    return found


def open_all() -> int:
    """Carry on every import, for lost signals, and return how many downloads and starts were opened."""
    ids = list(unfinished().filter(kind=restore.NAME).values_list("pk", flat=True))
    return sum(open_next(operation_id) for operation_id in ids)


def open_next(operation_id: str) -> int:
    """Open the next download of each node and the next starts of an import; return how many were opened.

    One process at a time: signals arrive faster than a large fleet is looked through.
    """
    owner = leases.owner_name()
    if not leases.take(_LEASE, owner, _LEASE_LIFE):
        return 0
    try:
        return _advance(operation_id)
    finally:
        leases.release(_LEASE, owner)


def _advance(operation_id: str) -> int:
    opened = 0
    for advance in (restore_downloads.advance, restore_starts.advance):
        row = unfinished().filter(pk=operation_id, kind=restore.NAME, cancel_requested_at__isnull=True).first()
        if row is None or fencing.is_fenced():
            return opened
        step = restore.KIND.step(row)
        opened += advance(operation_id, step.input, step.state, row.requested_by)
    return opened
