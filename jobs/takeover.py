"""Requests of a takeover and of its continuation for one node. One transaction each: guard, change, audit, announce."""

from collections.abc import Mapping
from typing import Any

import structlog
from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import ledger
from jobs.base import Kind
from jobs.kinds import takeover
from jobs.models import Operation
from jobs.queries import open_operation
from mirbad.kernel.actor import CONFIG, Actor
from mirbad.kernel.errors import Conflict, NotFound
from nodes import fencing, queries
from nodes.errors import ConfirmationRequired
from nodes.models import Node

log = structlog.get_logger(__name__)

PHRASE = "the previous master is stopped"
_TARGET_KIND, _TARGET = "fencing", "claim"


def request(confirm: str, actor: Actor, source: str = "") -> Operation:
    """Take the fleet over, whatever the nodes' states; while a takeover is open it is that one.

    Raises ConfirmationRequired (`confirm` is not `PHRASE`), Conflict (a continuation is open), Unavailable.
    """
    with audit_log.refusals_recorded("fencing.takeover", actor), transaction.atomic():
        if confirm.strip() != PHRASE:
            raise ConfirmationRequired(f"Stop the other master first. Then type “{PHRASE}” to confirm that it is.")
        return _take_over(actor, {"source": source})


def request_by_configuration(source: str, key: str, one_time_id: str = "") -> Operation:
    """Take the fleet over because a flag file or an option says so, which is the confirmation.

    `key` tells one such wish from another; `one_time_id` is remembered once it has completed. Raises as `request`.
    """
    with audit_log.refusals_recorded("fencing.takeover", CONFIG), transaction.atomic():
        return _take_over(CONFIG, {"source": source, "key": key, "oneTimeId": one_time_id})


def resume(node_id: str, takeover_id: str, agent_epoch: int, confirm: str, actor: Actor) -> Operation:
    """Continue a takeover for a node that came back under another master: the epoch rises above that master's.

    The values are those that ``GET /api/fencing`` shows; they name what the person looked at. Raises NotFound,
    ConfirmationRequired, Conflict (the node waits for no continuation, or something changed since).
    """
    with audit_log.refusals_recorded("fencing.continue", actor, node_id=node_id), transaction.atomic():
        node = Node.objects.select_for_update().filter(pk=node_id).first()
        if node is None:
            raise NotFound(f"There is no node {node_id}.")
        if confirm.strip() != node_id:
            raise ConfirmationRequired(f"Stop every other master first. Then type {node_id} to confirm.")
        _require_waiting(node, takeover_id, agent_epoch)
        frozen = {"takeoverId": takeover_id, "agentEpoch": agent_epoch, "installation": fencing.bound_to()}
        opened = _opened_here()
        if opened is not None:
            if opened.kind == takeover.CONTINUE and opened.node_id_text == node_id and opened.input == frozen:
                return opened
            raise _busy(opened)
        text = f"Continuation of {takeover_id} requested for {node_id}."
        return _create(takeover.CONTINUATION, actor, frozen, text, node_id)


def _require_waiting(node: Node, takeover_id: str, agent_epoch: int) -> None:
    if not queries.waits_for_continuation(node):
        raise Conflict(f"Node {node.pk} waits for no continuation. Look at its state again.")
    if (node.takeover_id, node.held_epoch) != (takeover_id, agent_epoch):
        raise Conflict(
            f"Node {node.pk} holds epoch {node.held_epoch} since takeover {node.takeover_id}, which is not what you "
            "confirmed. Look again."
        )


def _take_over(actor: Actor, frozen: dict[str, Any]) -> Operation:
    fencing.present()
    opened = _opened_here()
    if opened is not None:
        if opened.kind == takeover.NAME and opened.cancel_requested_at is None:
            return opened
        raise _busy(opened)
    source = frozen["source"] or "a person"
    log.warning("takeover requested", source=source, actor=actor.name)
    asked = {**frozen, "installation": fencing.bound_to()}
    return _create(takeover.KIND, actor, asked, f"Takeover requested ({source}).")


def _opened_here() -> Operation | None:
    """The takeover or continuation that is open. One that was asked of the installation that this data was copied
    from is nobody's wish here, and ends.
    """
    opened = open_operation(takeover.KIND.lane, _TARGET_KIND, _TARGET)
    if opened is not None and opened.input.get("installation") != fencing.bound_to():
        ledger.abandon(opened, "It was asked of the installation that this data was copied from.")
        return None
    return opened


def _busy(opened: Operation) -> Conflict:
    text = f"A {opened.kind} is at work; wait for it to end."
    return Conflict(text, fields={"operationId": opened.pk})


def _create(kind: Kind, actor: Actor, frozen: Mapping[str, Any], text: str, node_id: str = "") -> Operation:
    subject = ledger.Subject(_TARGET_KIND, _TARGET, node_id)
    try:
        with transaction.atomic():
            operation = ledger.create(kind, takeover.PROBING, subject, actor, text, frozen)
    except IntegrityError as error:
        raise Conflict("Another takeover began just now; look again.") from error
    audit_log.record(
        "fencing.takeover" if kind.name == takeover.NAME else "fencing.continue",
        actor,
        node_id=node_id,
        operation_id=operation.pk,
        result="accepted",
        detail=f"Asked by the {frozen['source']}." if frozen.get("source") else "",
    )
    return operation
