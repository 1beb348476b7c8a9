"""Another key and certificate for one node: requesting → settling → installing → verifying → done; or aborting.

Until the node was observed with its new key, or has reported that it dropped it, both keys are accepted: a crash
anywhere locks no node out. A node that goes offline in the middle is waited for; a re-pair or a revoke ends the
operation.
"""

from datetime import timedelta

from django.db import transaction

from agent.wire.capability import Feature
from agent.wire.errors import AgentCode
from jobs.base import Audit, Cancelled, Done, Go, Kind, OperationData, Outcome, Run, Stage, Step, StoredFailure, Wait
from jobs.errors import StepFailed
from jobs.states import SUCCEEDED
from jobs.steps import keychange
from jobs.steps.keychange import RotateCertInput
from mirbad.kernel import clock
from mirbad.kernel.errors import Conflict, MirbadError, NotFound
from models_app import routing
from nodes import queries
from nodes.errors import AgentRefused, NodeOffline, NodeRevoked
from nodes.models import Node
from nodes.pki import renewal
from nodes.pki.signing_requests import BadRequestToSign
from nodes.states import ONLINE

NAME = "rotate-cert"
REQUESTING = "requesting"
SETTLING = "settling"
INSTALLING = "installing"
VERIFYING = "verifying"
ABORTING = "aborting"

SETTLE_SECONDS = 2.0
"""Within this time every process that calls nodes has read that the next key is accepted, before a node shows it."""
ALLOWED_FOR = timedelta(hours=24)
"""The time for which a node with an expired certificate may return by its key alone, once that was allowed."""
_AWAY_SECONDS = 10.0
_TURNS = 6
_LAST_TURN = 30
_SERVER_ERROR = 500


class RotateCertState(OperationData):
    """`spki` is the new key once there is one, `turn` counts refusals, `why` is the failure for which it aborts."""

    spki: str = ""
    turn: int = 0
    expires: str | None = None
    why: StoredFailure | None = None


RotateCertStep = Step[RotateCertInput, RotateCertState]
RotateCertRun = Run[RotateCertInput, RotateCertState]


def _patient(stage: RotateCertRun) -> RotateCertRun:
    """Return `stage` with an end when the node got another key meanwhile; it waits while the node is away."""

    def run(step: RotateCertStep) -> Outcome:
        try:
            base = renewal.current_spki(step.target_id)
        except (NotFound, NodeRevoked, Conflict) as error:
            return Cancelled(error.detail)
        if base not in (step.input.base, step.state.spki):
            return Cancelled("The node was re-paired meanwhile.")
        if step.input.at_any_time and not step.state.spki and clock.now() - step.created_at > ALLOWED_FOR:
            return Cancelled("The node did not return in time; allow it again when it is up.")
        if not _may_dial(step):
            return Wait(_AWAY_SECONDS, {"text": f"Node {step.target_id} is offline; waiting for it."})
        try:
            return stage(step)
        except AgentRefused as refusal:
            return _refused(step, refusal)
        except MirbadError as error:
            if not error.retryable:
                raise
            if isinstance(error, NodeOffline) and step.stage != VERIFYING:
                return Wait(_AWAY_SECONDS, {"text": f"{error.detail} Waiting for it."})
            raise StepFailed(error.code, error.detail, final=False) from error

    return run


def _may_dial(step: RotateCertStep) -> bool:
    """Return whether to call the node; one with an expired certificate is Offline for that very reason, so try it."""
    return step.input.at_any_time or Node.objects.filter(pk=step.target_id, reachability=ONLINE).exists()


def _requesting(step: RotateCertStep) -> Outcome:
    if step.cancel_requested:
        return Go(ABORTING, "Cancelling the rotation.")
    _require_feature(step)
    answer = keychange.request_csr(
        step.target_id, step.operation_id, step.key(step.state.turn), at_any_time=step.input.at_any_time
    )
    try:
        with transaction.atomic():
            routing.bump()
            staged = renewal.stage(step.target_id, answer.csr_pem, step.input.base)
    except BadRequestToSign as error:
        raise StepFailed("agent_refused", str(error), final=True) from error
    return Go(SETTLING, "The node created a new key; a certificate is issued.", step.state.changed(spki=staged.spki))


def _settling(step: RotateCertStep) -> Outcome:
    left = SETTLE_SECONDS - (clock.now() - step.stage_since).total_seconds()
    if left > 0:
        return Wait(left, {"text": "Accepting the new key everywhere."})
    return Go(INSTALLING, "The new key is accepted beside the current one.")


def _installing(step: RotateCertStep) -> Outcome:
    if step.cancel_requested:
        return Go(ABORTING, "Cancelling the rotation.")
    staged = renewal.staged(step.target_id)
    if staged is None or staged.spki != step.state.spki:
        return Go(VERIFYING, "Checking which key the node has.")
    view = keychange.install(
        step.target_id, step.operation_id, staged, step.key(step.state.turn), at_any_time=step.input.at_any_time
    )
    return Go(VERIFYING, "The node has the certificate.", step.state.changed(expires=view.cert_not_after))


def _verifying(step: RotateCertStep) -> Outcome:
    spki = step.state.spki
    info = keychange.look(step.target_id, at_any_time=step.input.at_any_time)
    if info.spki_sha256 == spki:
        with transaction.atomic():
            routing.bump()
            renewal.commit(step.target_id, spki)
        return Done("The node serves with its new certificate.", {"spkiSha256": spki, "notAfter": info.cert_not_after})
    turn = step.state.turn + 1
    if turn >= _TURNS:
        return Go(ABORTING, "The node does not show its new certificate.", step.state.changed(why=_why_not_shown(step)))
    if info.next_spki_sha256 != spki:
        return Go(REQUESTING, "The node lost the certificate; requesting a new key.", step.state.changed(turn=turn))
    return Go(INSTALLING, "The node shows its old certificate; installing again.", step.state.changed(turn=turn))


def _aborting(step: RotateCertStep) -> Outcome:
    view = keychange.abort(
        step.target_id, step.operation_id, step.key(step.state.turn), at_any_time=step.input.at_any_time
    )
    spki = step.state.spki
    if spki and view.spki_sha256 == spki:
        return Go(VERIFYING, "The node already uses its new certificate.")
    with transaction.atomic():
        routing.bump()
        renewal.drop(step.target_id, spki)
    if step.state.why is not None:
        raise step.state.why.as_error()
    return Cancelled("The node keeps its old certificate.")


def _refused(step: RotateCertStep, refusal: AgentRefused) -> Outcome:
    """Return the outcome of a refusal: a final one ends the rotation, but only once the node has dropped the key."""
    turn = step.state.turn + 1
    if refusal.agent_code == AgentCode.NOT_STAGED and turn < _TURNS:
        return Go(REQUESTING, "The node lost the key; requesting a new one.", step.state.changed(turn=turn))
    detail = f"Node {step.target_id!r}: {refusal.detail}"
    if step.stage == ABORTING and turn >= _LAST_TURN:
        # Both keys stay accepted: it is unknown which one the node has.
        raise StepFailed(refusal.agent_code, detail, final=True)
    if (refusal.agent_status >= _SERVER_ERROR and turn < _TURNS) or step.stage == ABORTING:
        return Wait(min(60.0, 2.0**turn), {"text": detail}, step.state.changed(turn=turn))
    why = StoredFailure(code=refusal.agent_code, detail=detail)
    return Go(ABORTING, detail, step.state.changed(why=why, turn=turn))


def _why_not_shown(step: RotateCertStep) -> StoredFailure:
    text = f"Node {step.target_id!r} accepted the certificate but shows its old one. See its agent's log."
    return StoredFailure(code="certificate_not_shown", detail=text)


def _require_feature(step: RotateCertStep) -> None:
    capabilities = queries.capabilities(queries.require_known(step.target_id))
    if capabilities is not None and Feature.PKI_ROTATE not in capabilities.features:
        text = f"The agent of node {step.target_id!r} cannot change its key while it serves; upgrade it, or re-pair it."
        raise StepFailed("node_incompatible", text, final=True)


def _key(step: RotateCertStep, outcome: str) -> str:
    return f"key {step.state.spki}" if outcome == SUCCEEDED else ""


KIND = Kind(
    name=NAME,
    title="Certificate rotation",
    concurrency_group="identity",
    Input=RotateCertInput,
    State=RotateCertState,
    stages=(
        Stage(REQUESTING, "Create a key on the node", _patient(_requesting)),
        Stage(SETTLING, "Accept the key", _settling),
        Stage(INSTALLING, "Install the certificate", _patient(_installing)),
        Stage(VERIFYING, "Verify its use", _patient(_verifying)),
        Stage(ABORTING, "Undo the rotation", _patient(_aborting), aside=True),
    ),
    audit=Audit("node.rotate-cert", detail=_key),
)
