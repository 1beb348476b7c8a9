"""What people ask for: a model on no node, or one replica fewer. Its folder stays where it is."""

import contextlib
import time

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
from nodes import fencing
from nodes import queries as node_queries
from nodes.errors import NodeOffline, NodeRevoked

_TARGET = "model"
_LOOK_SECONDS = 0.25
_MARGIN_SECONDS = 5.0


class StopTimeout(MirbadError):
    """The engine did not end in time; the model stands where it stood."""

    code = "stop_timeout"
    http_status = 504


def request(model_id: str, actor: Actor, *, node_id: str = "") -> Operation:
    """Stop a model and take it off its node, or off `node_id` alone; asked twice, it is the same operation.

    A replica of several nodes goes as a whole, and a start that is open is ended. Raises NotFound, ModelBusy, Conflict
    (it stands nowhere, or not there), NodeOffline and the other states of a node that does not serve, MasterFenced.
    """
    with audit_log.refusals_recorded("model.unplace", actor, model_id=model_id, node_id=node_id):
        standing = open_operation(unplace.KIND.lane, _TARGET, model_id)
        if standing is not None and standing.kind == unplace.NAME and standing.input["nodeId"] == node_id:
            return standing
        return _open(model_id, actor, node_id)


def _open(model_id: str, actor: Actor, node_id: str) -> Operation:
    try:
        with transaction.atomic():
            fencing.require_unfenced()
            holds.require_free(model_id)
            placements = _wanted(model_id, node_id)
            nodes = sorted({placement.node_id_text for placement in placements})
            words = f"an unplace from node {', '.join(nodes)}"
            frozen = {"placements": [str(placement.pk) for placement in placements], "nodeId": node_id}
            subject = ledger.Subject(_TARGET, model_id, nodes[0], model_id)
            made = ledger.create(unplace.KIND, unplace.STOPPING, subject, actor, "Unplace requested.", frozen)
            holds.take(model_id, "unplace", unplace.hold_id(made.pk), words[:200])
            audit_log.record(
                "model.unplace", actor, node_id=nodes[0], model_id=model_id, operation_id=made.pk, result="accepted"
            )
            return made
    except IntegrityError as error:
        raise Conflict(f"Something else began on model {model_id!r} just now; look again.") from error


def _wanted(model_id: str, node_id: str) -> list[Placement]:
    model = ModelDefinition.objects.prefetch_related("placements").get(pk=model_id)
    replicas = [one for one in queries.replicas_of(model) if not node_id or node_id in one.node_ids]
    found = [placement for replica in replicas for placement in replica.placements]
    if not found:
        where = f"node {node_id!r}" if node_id else "any node"
        raise Conflict(f"Model {model_id!r} does not stand on {where}.")
    for placement in found:
        with contextlib.suppress(NodeRevoked, NotFound):
            node_queries.require_serving(placement.node_id_text)
    return found


def wait(operation: Operation) -> Operation:
    """Wait for the end of an unplace. Raises StopTimeout when the engine does not end, and what else it failed with.

    Not inside a transaction.
    """
    deadline = clock.monotonic() + settings().moves_stop_timeout.total_seconds() + _MARGIN_SECONDS
    while operation.finished_at is None and clock.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        operation.refresh_from_db()
    if operation.finished_at is None:
        seconds = settings().moves_stop_timeout.total_seconds()
        text = f"The model did not stop within {seconds:.0f} s; the unplace goes on. See operation {operation.pk}."
        raise StopTimeout(text, fields={"operationId": operation.pk})
    if operation.outcome == FAILED:
        raise _told(operation)
    return operation


def _told(operation: Operation) -> MirbadError:
    code, detail, fields = operation.error.get("code"), operation.error.get("detail", ""), {"operationId": operation.pk}
    if code == StopTimeout.code:
        return StopTimeout(detail, fields=fields)
    return NodeOffline(detail, fields=fields) if code == NodeOffline.code else Conflict(detail, fields=fields)
