"""Requests about the fleet's CA: begin, roll back or close a rotation; replace a CA after its key was stolen.

One transaction each: guard, change, audit, announce.
"""

from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import ledger
from jobs.base import STEP
from jobs.kinds import ca_rotation
from jobs.kinds.ca_rotation import CaRotationInput
from jobs.models import Operation
from jobs.queries import open_operation, unfinished
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor, system
from mirbad.kernel.errors import Conflict
from mirbad.live import invalidations
from mirbad.tasking.tasks import enqueue_on_commit
from models_app import routing
from nodes import fencing
from nodes.errors import ConfirmationRequired
from nodes.models import CaRotation
from nodes.pki import authority, outside, rotation
from nodes.states import CA_ROLLING_BACK, CA_STARTED

ACTION = "pki.ca-rotation"
PHRASE = "re-pair every node"


def start(actor: Actor, flag: str = "") -> Operation:
    """Begin a rotation; the new CA is created at once. `flag` names the flag file of the request.

    Raises Conflict (one is open, more than one CA is trusted, the CA comes from outside), MasterFenced, Unavailable.
    """
    with audit_log.refusals_recorded(ACTION, actor, target="start"), transaction.atomic():
        rotation.require_startable()
        operation = _drive(actor, "Rotation of the CA requested.", CaRotationInput(flag=flag) if flag else None)
        rotation.begin(operation.pk)
        routing.bump()
        _accepted(actor, operation, "start")
        return operation


def roll_back(actor: Actor) -> Operation:
    """Roll back to the old CA. Raises Conflict (none is open, or it is closing already), MasterFenced."""
    with audit_log.refusals_recorded(ACTION, actor, target="rollback"), transaction.atomic():
        found = _opened()
        if found.stage not in rotation.CAN_ROLL_BACK and found.stage != CA_ROLLING_BACK:
            raise Conflict(f"CA rotation {found.pk} is {found.stage}: nodes refuse the old CA by now: no way back.")
        if found.stage != CA_ROLLING_BACK:
            rotation.move(found, CA_ROLLING_BACK)
            routing.bump()
        return _poke(found, actor, "rollback")


def close(actor: Actor) -> Operation:
    """Close without nodes that do not answer. Raises Conflict (none is open, or it is too early), MasterFenced."""
    with audit_log.refusals_recorded(ACTION, actor, target="close"), transaction.atomic():
        found = _opened()
        rotation.ask_to_close(found)
        return _poke(found, actor, "close")


def take_up(found: CaRotation) -> Operation | None:
    """Open an operation for an open rotation that has none, as after a failed one; None when it has one."""
    with transaction.atomic():
        if open_operation(ca_rotation.KIND.concurrency_group, ca_rotation.TARGET_KIND, ca_rotation.TARGET) is not None:
            return None
        data = CaRotationInput(rotation_id=found.pk)
        return _drive(system("pki"), "The open CA rotation is taken up again.", data, found.stage)


def replace_stolen(confirm: str, actor: Actor) -> list[str]:
    """Create another CA at once, which no node trusts, and delete the current one; return the nodes to re-pair.

    For a CA key in the wrong hands: no cross certificate, no dual trust. Raises ConfirmationRequired (`confirm` is not
    `PHRASE`), Conflict (the CA comes from outside), MasterFenced.
    """
    with audit_log.refusals_recorded(ACTION, actor, target="replace"), transaction.atomic():
        fencing.require_unfenced()
        if confirm.strip() != PHRASE:
            raise ConfirmationRequired(
                f"Every node must be re-paired and serves nothing until then. Type “{PHRASE}” to confirm."
            )
        if outside.is_configured():
            raise Conflict("The CA comes from outside (MIRBAD_PKI_CA_CERT_FILE): replace those files and restart.")
        left = authority.replace(authority.fresh_issuer(), "the CA was replaced because its key was stolen")
        routing.bump()
        audit_log.record(ACTION, actor, target="replace", detail=f"nodes to re-pair: {', '.join(left) or 'none'}")
        transaction.on_commit(lambda: invalidations.changed("nodes"), robust=True)
        return left


def _opened() -> CaRotation:
    fencing.require_unfenced()
    found = CaRotation.objects.select_for_update().filter(finished_at=None).first()
    if found is None:
        raise Conflict("No CA rotation is open.")
    return found


def _drive(actor: Actor, text: str, data: CaRotationInput | None, stage: str = CA_STARTED) -> Operation:
    subject = ledger.Subject(ca_rotation.TARGET_KIND, ca_rotation.TARGET)
    try:
        with transaction.atomic():
            return ledger.create(ca_rotation.KIND, stage, subject, actor, text, data)
    except IntegrityError as error:
        raise Conflict("A CA rotation was just started; reload.") from error


def _poke(found: CaRotation, actor: Actor, target: str) -> Operation:
    """Make the operation due now, rather than at its next pass."""
    operation = open_operation(ca_rotation.KIND.concurrency_group, ca_rotation.TARGET_KIND, ca_rotation.TARGET)
    if operation is None:
        operation = _drive(
            actor, "The open CA rotation is taken up again.", CaRotationInput(rotation_id=found.pk), found.stage
        )
    unfinished().filter(pk=operation.pk).update(next_run_at=clock.now())
    enqueue_on_commit(STEP, operation.pk)
    _accepted(actor, operation, target)
    return operation


def _accepted(actor: Actor, operation: Operation, target: str) -> None:
    audit_log.record(ACTION, actor, operation_id=operation.pk, target=target, result="accepted")
