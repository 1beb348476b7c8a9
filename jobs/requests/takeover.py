"""Requests of a takeover and of its continuation for one node. One transaction each: guard, change, audit, announce."""

import structlog
from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import ledger
from jobs.base import Kind
from jobs.kinds import takeover
from jobs.kinds.takeover import TakeoverInput, TakeoverState
from jobs.models import Operation
from jobs.queries import open_operation
from mirbad.kernel.actor import CONFIG, Actor
from mirbad.kernel.errors import Conflict
from mirbad.kernel.roles import OWNER
from nodes import fencing, queries
from nodes.errors import ConfirmationRequired, MasterFenced, no_such_node
from nodes.models import Node

log = structlog.get_logger(__name__)

PHRASE = "the previous master is stopped"
_TARGET_KIND, _TARGET = "fencing", "claim"


def request(confirm: str, actor: Actor, source: str = "") -> Operation:
    """Take the fleet over, in any state of the nodes; while a takeover is open, return that one.

    Raises ConfirmationRequired (`confirm` is not `PHRASE`), Conflict (a continuation is open), MasterFenced (it stands
    down), Unavailable.
    """
    with audit_log.refusals_recorded("fencing.takeover", actor), transaction.atomic():
        if confirm.strip() != PHRASE:
            raise ConfirmationRequired(f"Stop the other master first. Then type “{PHRASE}” to confirm.")
        return _take_over(actor, TakeoverInput(source=source))


def request_by_configuration(source: str, key: str, one_time_id: str = "") -> Operation:
    """Take the fleet over for a flag file or an option, which is the confirmation.

    `key` tells one such request from another; `one_time_id` is remembered once it has succeeded. Raises as `request`.
    """
    with audit_log.refusals_recorded("fencing.takeover", CONFIG), transaction.atomic():
        return _take_over(CONFIG, TakeoverInput(source=source, key=key, one_time_id=one_time_id))


def resume(node_id: str, takeover_id: str, agent_epoch: int, confirm: str, actor: Actor) -> Operation:
    """Continue a takeover for a node that returned under another master: the epoch rises above that master's.

    The values are those of ``GET /api/fencing``: the claim that the person confirmed. Raises NotFound,
    ConfirmationRequired, Conflict (the node waits for no continuation, or something changed since), MasterFenced.
    """
    with audit_log.refusals_recorded("fencing.continue", actor, node_id=node_id), transaction.atomic():
        _require_owner_after_stand_down(actor)
        node = Node.objects.select_for_update().filter(pk=node_id).first()
        if node is None:
            raise no_such_node(node_id)
        if confirm.strip() != node_id:
            raise ConfirmationRequired(f"Stop every other master first. Then type {node_id} to confirm.")
        _require_waiting(node, takeover_id, agent_epoch)
        data = TakeoverInput(takeover_id=takeover_id, agent_epoch=agent_epoch, installation=fencing.bound_to())
        opened = opened_here()
        if opened is not None:
            if opened.kind == takeover.CONTINUE and opened.node_id_text == node_id and _input_of(opened) == data:
                return opened
            raise _busy(opened)
        text = f"Continuation of {takeover_id} requested for {node_id}."
        return _create(takeover.CONTINUATION, actor, data, text, node_id)


def _require_waiting(node: Node, takeover_id: str, agent_epoch: int) -> None:
    if not queries.waits_for_continuation(node):
        raise Conflict(f"Node {node.pk} waits for no continuation. Reload and check its state.")
    if (node.takeover_id, node.held_epoch) != (takeover_id, agent_epoch):
        raise Conflict(
            f"Node {node.pk} holds epoch {node.held_epoch} since takeover {node.takeover_id}, not the claim that you "
            "confirmed. Reload and check."
        )


def _input_of(operation: Operation) -> TakeoverInput:
    return TakeoverInput.model_validate(operation.input)


def _take_over(actor: Actor, data: TakeoverInput) -> Operation:
    fencing.present()
    _require_owner_after_stand_down(actor)
    opened = opened_here()
    if opened is not None:
        if opened.kind == takeover.NAME and opened.cancel_requested_at is None:
            return opened
        raise _busy(opened)
    source = data.source or "a person"
    log.warning("takeover requested", source=source, actor=actor.name)
    data = data.changed(installation=fencing.bound_to())
    return _create(takeover.KIND, actor, data, f"Takeover requested ({source}).")


def _require_owner_after_stand_down(actor: Actor) -> None:
    """Pass unless this master stands down: then neither a setting nor a flag file, nor a lower role, undoes it."""
    # Until this transaction ends nobody has it stand down, who would not find the operation that it is about to open.
    fencing.lock()
    if actor.role != OWNER and fencing.stands_down():
        text = "An owner had this master stand down. Only an owner takes over again: on the pages, or with a token."
        raise MasterFenced(text)


def opened_here() -> Operation | None:
    """Return the open takeover or continuation. One of the installation that this data was copied from was not
    requested here, and ends.
    """
    opened = open_operation(takeover.KIND.concurrency_group, _TARGET_KIND, _TARGET)
    if opened is not None and _input_of(opened).installation != fencing.bound_to():
        ledger.abandon(opened, "It was requested of the installation that this data was copied from.")
        return None
    return opened


def _busy(opened: Operation) -> Conflict:
    text = f"A {opened.kind} is open; wait for its end."
    return Conflict(text, fields={"operationId": opened.pk})


def _create(
    kind: Kind[TakeoverInput, TakeoverState], actor: Actor, data: TakeoverInput, text: str, node_id: str = ""
) -> Operation:
    subject = ledger.Subject(_TARGET_KIND, _TARGET, node_id)
    try:
        with transaction.atomic():
            operation = ledger.create(kind, takeover.PROBING, subject, actor, text, data)
    except IntegrityError as error:
        raise Conflict("Another takeover was just started; reload.") from error
    audit_log.record(
        "fencing.takeover" if kind.name == takeover.NAME else "fencing.continue",
        actor,
        node_id=node_id,
        operation_id=operation.pk,
        result="accepted",
        detail=f"Requested by the {data.source}." if data.source else "",
    )
    return operation
