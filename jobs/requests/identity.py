"""Requests about the identity of a node: rotation of its certificate, return with an expired one, revoke.

One transaction each: guard, change, audit, announce.
"""

from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import ledger
from jobs.base import I, Kind, S
from jobs.kinds import revoke as revoking
from jobs.kinds import rotate_cert
from jobs.models import Operation
from jobs.queries import open_operation
from jobs.steps.keychange import RotateCertInput
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict
from models_app import holds
from models_app.errors import ModelPlaced
from models_app.models import Placement
from models_app.placement import apply
from nodes import fencing, queries, registry
from nodes.errors import ConfirmationRequired, NodeRevoked, no_such_node
from nodes.models import Node, NodePin
from nodes.pki import renewal
from nodes.states import REVOKED

_GROUP, _TARGET = "identity", "node"


class ModelsPlaced(ModelPlaced):
    """Models are placed on the node that is to be revoked."""

    code = "models_placed"


def rotate(node_id: str, actor: Actor) -> Operation:
    """Give a serving node another key and certificate; while that is open, it returns the same operation.

    Raises NotFound, NodeRevoked, Conflict (not approved, another identity operation is open), NodeOffline and the
    other states of a node that does not serve, MasterFenced.
    """
    with audit_log.refusals_recorded("node.rotate-cert", actor, node_id=node_id), transaction.atomic():
        fencing.require_unfenced()
        queries.require_serving(node_id)
        return _rotate(node_id, actor, at_any_time=False)


def readmit(node_id: str, actor: Actor) -> Operation:
    """Allow a node with an expired certificate to return once, by its key alone, and renew its certificate then.

    Raises NotFound, NodeRevoked, Conflict (not approved, no key, not expired), MasterFenced.
    """
    with audit_log.refusals_recorded("node.rotate-cert", actor, node_id=node_id), transaction.atomic():
        fencing.require_unfenced()
        queries.require_known(node_id)
        pin = NodePin.objects.filter(node_id=node_id, slot=NodePin.CURRENT).first()
        if pin is not None and (pin.cert_not_after is None or pin.cert_not_after > clock.now()):
            raise Conflict(f"The certificate of node {node_id} has not expired. Rotate it while the node serves.")
        return _rotate(node_id, actor, at_any_time=True)


def revoke(node_id: str, confirm: str, actor: Actor, *, unplace_models: bool = False) -> Operation:
    """Remove a node for good, once its models are stopped and unplaced.

    Ends an open rotation of its key. A fenced master does it too, without a call to the node: the way to get rid of
    nodes whose refusals fence it. Raises NotFound, NodeRevoked, ConfirmationRequired (`confirm` is not its id),
    ModelsPlaced, ModelBusy; then nothing was changed.
    """
    with audit_log.refusals_recorded("node.revoke", actor, node_id=node_id), transaction.atomic():
        node = _locked(node_id)
        if confirm.strip() != node_id:
            raise ConfirmationRequired(f"Type {node_id} to confirm the revoke.")
        opened = open_operation(_GROUP, _TARGET, node_id)
        if opened is not None and opened.kind == revoking.NAME:
            return opened
        placements = list(Placement.objects.filter(node_id_text=node_id).order_by("model_id"))
        if placements and not unplace_models:
            names = ", ".join(placement.model_id for placement in placements)
            raise ModelsPlaced(
                f"Models are placed on node {node_id}: {names}. Move them, or have the revoke stop and unplace them.",
                fields={"modelIds": [placement.model_id for placement in placements]},
            )
        for placement in placements:
            holds.require_free(placement.model_id)
        if opened is not None:
            ledger.supersede(opened, f"Node {node_id} is being revoked.")
        was_draining = registry.block_new_models(node_id)
        data = revoking.RevokeInput(unplace_models=unplace_models, was_draining=was_draining or node.draining)
        operation = _create(revoking.KIND, revoking.STOPPING, node_id, actor, "Revoke requested.", data)
        for placement in placements:
            holds.take(placement.model_id, "revoke", operation.pk, f"the revoke of node {node_id}")
            apply.set_desired_stopped(placement)
        return operation


def _rotate(node_id: str, actor: Actor, *, at_any_time: bool) -> Operation:
    base = renewal.current_spki(node_id)
    opened = open_operation(_GROUP, _TARGET, node_id)
    if opened is not None:
        same = opened.kind == rotate_cert.NAME and _at_any_time(opened) == at_any_time
        if same and opened.cancel_requested_at is None:
            return opened
        raise Conflict(
            f"Another operation on node {node_id} is open ({opened.kind}); wait for it to end.",
            fields={"operationId": opened.pk},
        )
    data = RotateCertInput(base=base, at_any_time=at_any_time)
    text = "Return of a node with an expired certificate allowed." if at_any_time else "Rotation requested."
    return _create(rotate_cert.KIND, rotate_cert.REQUESTING, node_id, actor, text, data)


def _at_any_time(operation: Operation) -> bool:
    return rotate_cert.KIND.step(operation).input.at_any_time


def _locked(node_id: str) -> Node:
    node = Node.objects.select_for_update().filter(pk=node_id).first()
    if node is None:
        raise no_such_node(node_id)
    if node.lifecycle == REVOKED:
        raise NodeRevoked(f"Node {node_id} is revoked.")
    return node


def _create(kind: Kind[I, S], stage: str, node_id: str, actor: Actor, text: str, data: I) -> Operation:
    try:
        with transaction.atomic():
            operation = ledger.create(kind, stage, ledger.Subject(_TARGET, node_id, node_id), actor, text, data)
    except IntegrityError as error:
        raise Conflict(f"Another operation on node {node_id} was just started; reload.") from error
    action = "node.revoke" if kind.name == revoking.NAME else "node.rotate-cert"
    audit_log.record(action, actor, node_id=node_id, operation_id=operation.pk, result="accepted")
    return operation
