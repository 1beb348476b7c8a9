"""Renews the certificates of nodes in time, and raises an alarm for those that will expire."""

import structlog

from jobs.kinds import rotate_cert
from jobs.models import Operation
from jobs.requests import identity
from jobs.states import FAILED
from mirbad.kernel import clock
from mirbad.kernel.actor import system
from mirbad.kernel.errors import MirbadError
from nodes import conditions, fencing
from nodes.models import Node, NodeCondition, NodePin
from nodes.pki import renewal
from nodes.states import APPROVED

log = structlog.get_logger(__name__)

PKI = system("pki")
AT_ONCE = 20
"""Renewals begun in one run: a fleet that was set up in one day is not renewed in one minute."""


def renew_once() -> int:
    """Request a renewal of every due certificate on nodes that serve, and return how many."""
    if fencing.is_fenced():
        return 0
    _note_late()
    due = renewal.due(clock.now())
    waiting = _not_before(due)
    serving = set(Node.objects.serving().filter(pk__in=due).values_list("pk", flat=True))
    requested = 0
    for node_id in due:
        if node_id not in serving or node_id in waiting or requested >= AT_ONCE:
            continue
        try:
            identity.rotate(node_id, PKI)
        except MirbadError as error:
            log.info("a certificate cannot be renewed now", node=node_id, code=error.code, reason=error.detail)
            continue
        requested += 1
    return requested


def _not_before(node_ids: list[str]) -> set[str]:
    """Return the nodes with an open identity operation, or a renewal that failed recently. One statement."""
    rows = Operation.objects.filter(concurrency_group="identity", target_kind="node", target_id__in=node_ids)
    recent = clock.now() - renewal.retry_after()
    return {
        row.target_id
        for row in rows.filter(finished_at=None)
        | rows.filter(kind=rotate_cert.NAME, outcome=FAILED, finished_at__gt=recent)
    }


def _note_late() -> None:
    """Keep the alarm of each approved node in step with its certificate, also of offline nodes."""
    alarmed = set(NodeCondition.objects.filter(source="certificate").values_list("node_id", flat=True))
    pins = NodePin.objects.filter(slot=NodePin.CURRENT, node__lifecycle=APPROVED)
    alarming = conditions.certificate_alarm_at(clock.now())
    for node_id, not_after in pins.filter(cert_not_after__lte=alarming).values_list("node_id", "cert_not_after"):
        alarmed.discard(node_id)
        conditions.note_certificate(node_id, not_after)
    for node_id in alarmed:
        conditions.note_certificate(node_id, None)
