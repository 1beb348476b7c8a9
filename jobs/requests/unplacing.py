"""Requests to unplace a model, or one of its replicas. Its folder stays on the node."""

import contextlib
import time
from collections.abc import Iterable

from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import ledger
from jobs.kinds import unplace
from jobs.models import Operation
from jobs.queries import open_operation
from jobs.states import FAILED
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Conflict, MirbadError, NotFound
from models_app import holds, queries
from models_app.models import ModelDefinition, Placement
from models_app.states import STOPPED
from nodes import fencing
from nodes import queries as node_queries
from nodes.errors import ConfirmationRequired, NodeOffline, NodeRevoked

_TARGET = "model"
_LOOK_SECONDS = 0.25
_MARGIN_SECONDS = 5.0


class StopTimeout(MirbadError):
    """The engine did not stop in time; the model stays placed."""

    code = "stop_timeout"
    http_status = 504


def needs_confirmation(placements: Iterable[Placement]) -> bool:
    """Check whether an engine of `placements` may be running, so that an unplace needs the model's id typed."""
    return any(placement.observed != STOPPED for placement in placements)


def request(model_id: str, actor: Actor, *, node_id: str = "", confirm: str = "") -> Operation:
    """Stop a model and unplace it, or its replica on `node_id` only; repeated, it returns the same operation.

    A replica over several nodes is unplaced as a whole, and an open start is cancelled. Raises NotFound, ModelBusy,
    Conflict (it is not placed, or not there), NodeOffline and the other states of a node without service,
    ConfirmationRequired (an engine may be running and `confirm` is not the model's id), MasterFenced.
    """
    with audit_log.refusals_recorded("model.unplace", actor, model_id=model_id, node_id=node_id):
        existing = open_operation(unplace.KIND.concurrency_group, _TARGET, model_id)
        if existing is not None and existing.kind == unplace.NAME and _is_same(existing, node_id):
            return existing
        return _open(model_id, actor, node_id, confirm)


def _is_same(operation: Operation, node_id: str) -> bool:
    return unplace.KIND.step(operation).input.node_id == node_id


def _open(model_id: str, actor: Actor, node_id: str, confirm: str) -> Operation:
    try:
        with transaction.atomic():
            fencing.require_unfenced()
            holds.require_free(model_id)
            placements = _to_unplace(model_id, node_id)
            if needs_confirmation(placements) and confirm.strip() != model_id:
                raise ConfirmationRequired(f"Type {model_id} to confirm that it is stopped and removed from its node.")
            nodes = sorted({placement.node_id_text for placement in placements})
            words = f"an unplace from node {', '.join(nodes)}"
            data = unplace.UnplaceInput(placements=[placement.pk for placement in placements], node_id=node_id)
            subject = ledger.Subject(_TARGET, model_id, nodes[0], model_id)
            made = ledger.create(unplace.KIND, unplace.STOPPING, subject, actor, "Unplace requested.", data)
            holds.take(model_id, "unplace", unplace.hold_id(made.pk), words[:200])
            audit_log.record(
                "model.unplace", actor, node_id=nodes[0], model_id=model_id, operation_id=made.pk, result="accepted"
            )
            return made
    except IntegrityError as error:
        raise Conflict(f"Another operation on model {model_id!r} was just started; reload.") from error


def _to_unplace(model_id: str, node_id: str) -> list[Placement]:
    model = ModelDefinition.objects.prefetch_related("placements").get(pk=model_id)
    replicas = [one for one in queries.replicas_of(model) if not node_id or node_id in one.node_ids]
    found = [placement for replica in replicas for placement in replica.placements]
    if not found:
        where = f"node {node_id!r}" if node_id else "any node"
        raise Conflict(f"Model {model_id!r} is not placed on {where}.")
    for placement in found:
        with contextlib.suppress(NodeRevoked, NotFound):
            node_queries.require_serving(placement.node_id_text)
    return found


def wait(operation: Operation) -> Operation:
    """Wait for the end of an unplace. Raises StopTimeout when the engine does not stop, and its other failures.

    Not inside a transaction.
    """
    deadline = clock.monotonic() + settings().moves_stop_timeout.total_seconds() + _MARGIN_SECONDS
    while operation.finished_at is None and clock.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        operation.refresh_from_db()
    if operation.finished_at is None:
        seconds = settings().moves_stop_timeout.total_seconds()
        text = f"The model did not stop within {seconds:.0f} s; the unplace continues. See operation {operation.pk}."
        raise StopTimeout(text, fields={"operationId": operation.pk})
    if operation.outcome == FAILED:
        raise _failure(operation)
    return operation


def _failure(operation: Operation) -> MirbadError:
    code, detail, fields = operation.error.get("code"), operation.error.get("detail", ""), {"operationId": operation.pk}
    if code == StopTimeout.code:
        return StopTimeout(detail, fields=fields)
    return NodeOffline(detail, fields=fields) if code == NodeOffline.code else Conflict(detail, fields=fields)
