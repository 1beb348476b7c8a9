"""Another key and certificate for one node: requesting → settling → installing → verifying → done; or aborting.

Until the node was seen with its new key, or said that it dropped it, both keys are accepted: a crash anywhere locks
nobody out. A node that goes away in the middle is waited for; a rekey or a revoke of it ends the operation.
"""

from datetime import timedelta

from django.db import transaction

from agent.wire.capability import Feature
from agent.wire.errors import AgentCode
from audit import log as audit_log
from jobs import keychange
from jobs.base import Cancelled, Done, Go, Kind, Outcome, Stage, Step, Wait
from jobs.errors import StepFailed
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, MirbadError, NotFound
from models_app import routing
from nodes import queries
from nodes.errors import AgentRefused, NodeOffline, NodeRevoked
from nodes.models import Node
from nodes.pki import renewal
from nodes.pki.keys import BadRequestToSign
from nodes.states import ONLINE

NAME = "rotate-cert"
REQUESTING = "requesting"
SETTLING = "settling"
INSTALLING = "installing"
VERIFYING = "verifying"
ABORTING = "aborting"

SETTLE_SECONDS = 2.0
"""Every process that calls nodes reads within this time that the next key is accepted, before it is ever shown."""
ALLOWED_FOR = timedelta(hours=24)
"""How long a node whose certificate has expired may come back by its key alone, once it was allowed."""
_AWAY_SECONDS = 10.0
_TURNS = 6
_LAST_TURN = 30
_SERVER_ERROR = 500


def _patient(stage: Stage) -> Stage:
    """Ends the operation when the node got another key; waits while the node is away."""

    def run(step: Step) -> Outcome:
        try:
            base = renewal.current_spki(step.target_id)
        except (NotFound, NodeRevoked, Conflict) as error:
            return Cancelled(f"Ended: {error.detail}")
        if base not in (step.input.get("base"), step.state.get("spki")):
            return Cancelled("Ended: the node was re-paired meanwhile.")
        if _at_any_time(step) and "spki" not in step.state and clock.now() - step.created_at > ALLOWED_FOR:
            return Cancelled("The node did not come back in time; allow it again when it is up.")
        if not _may_dial(step):
            return Wait(_AWAY_SECONDS, {"text": f"Node {step.target_id} is away; waiting for it."})
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


def _may_dial(step: Step) -> bool:
    """A node whose certificate expired reads Offline for that very reason, so it is tried."""
    return _at_any_time(step) or Node.objects.filter(pk=step.target_id, reachability=ONLINE).exists()


def _requesting(step: Step) -> Outcome:
    if step.cancel_requested:
        return Go(ABORTING, "Ending the rotation.")
    _require_feature(step)
    answer = keychange.ask_csr(step.target_id, step.operation_id, step.key(_turn(step)), at_any_time=_at_any_time(step))
    try:
        with transaction.atomic():
            routing.bump()
            staged = renewal.stage(step.target_id, answer.csr_pem, str(step.input["base"]))
    except BadRequestToSign as error:
        raise StepFailed("agent_refused", str(error), final=True) from error
    return Go(SETTLING, "The node made a new key; a certificate is issued.", {"spki": staged.spki})


def _settling(step: Step) -> Outcome:
    left = SETTLE_SECONDS - (clock.now() - step.stage_since).total_seconds()
    if left > 0:
        return Wait(left, {"text": "Accepting the new key everywhere."})
    return Go(INSTALLING, "The new key is accepted beside the present one.")


def _installing(step: Step) -> Outcome:
    if step.cancel_requested:
        return Go(ABORTING, "Ending the rotation.")
    staged = renewal.staged(step.target_id)
    if staged is None or staged.spki != step.state.get("spki"):
        return Go(VERIFYING, "Looking which key the node has.")
    view = keychange.install(
        step.target_id, step.operation_id, staged, step.key(_turn(step)), at_any_time=_at_any_time(step)
    )
    words = "The node has the certificate."
    return Go(VERIFYING, words, {"expires": view.cert_not_after})


def _verifying(step: Step) -> Outcome:
    spki = str(step.state["spki"])
    info = keychange.look(step.target_id, at_any_time=_at_any_time(step))
    if info.spki_sha256 == spki:
        with transaction.atomic():
            routing.bump()
            renewal.commit(step.target_id, spki)
        return Done("The node serves with its new certificate.", {"spkiSha256": spki, "notAfter": info.cert_not_after})
    turn = _turn(step) + 1
    if turn >= _TURNS:
        return Go(ABORTING, "The node does not show its new certificate.", {"why": _why_not_shown(step)})
    if info.next_spki_sha256 != spki:
        return Go(REQUESTING, "The node lost the certificate; asking anew.", {"turn": turn})
    return Go(INSTALLING, "The node shows its old certificate again; once more.", {"turn": turn})


def _aborting(step: Step) -> Outcome:
    view = keychange.abort(step.target_id, step.operation_id, step.key(_turn(step)), at_any_time=_at_any_time(step))
    spki = str(step.state.get("spki", ""))
    if spki and view.spki_sha256 == spki:
        return Go(VERIFYING, "The node uses its new certificate already.")
    with transaction.atomic():
        routing.bump()
        renewal.drop(step.target_id, spki)
    why = step.state.get("why")
    if isinstance(why, dict):
        raise StepFailed(str(why["code"]), str(why["detail"]), final=True)
    return Cancelled("The node keeps its former certificate.")


def _refused(step: Step, refusal: AgentRefused) -> Outcome:
    """A refusal that stands ends the rotation, but only once the node has said that it dropped the key."""
    turn = _turn(step) + 1
    if refusal.agent_code == AgentCode.NOT_STAGED and turn < _TURNS:
        return Go(REQUESTING, "The node lost the key; asking anew.", {"turn": turn})
    detail = f"Node {step.target_id!r}: {refusal.detail}"
    if step.stage == ABORTING and turn >= _LAST_TURN:
        # Both keys stay accepted: which one the node has was not to be learnt.
        raise StepFailed(refusal.agent_code, detail, final=True)
    if (refusal.agent_status >= _SERVER_ERROR and turn < _TURNS) or step.stage == ABORTING:
        return Wait(min(60.0, 2.0**turn), {"text": detail}, {"turn": turn})
    return Go(ABORTING, detail, {"why": {"code": refusal.agent_code, "detail": detail}, "turn": turn})


def _why_not_shown(step: Step) -> dict[str, str]:
    text = f"Node {step.target_id!r} took the certificate but shows its old one. Look at its agent's log."
    return {"code": "certificate_not_shown", "detail": text}


def _require_feature(step: Step) -> None:
    capabilities = queries.capabilities(queries.require_known(step.target_id))
    if capabilities is not None and Feature.PKI_ROTATE not in capabilities.features:
        text = f"The agent of node {step.target_id!r} cannot change its key while it serves; upgrade it, or re-pair it."
        raise StepFailed("node_incompatible", text, final=True)


def _turn(step: Step) -> int:
    return int(step.state.get("turn", 0))


def _at_any_time(step: Step) -> bool:
    return bool(step.input.get("atAnyTime"))


def _ended(step: Step, outcome: str, code: str) -> None:
    results = {SUCCEEDED: "succeeded", FAILED: "failed", CANCELLED: "failed"}
    audit_log.record(
        "node.rotate-cert",
        Actor(step.actor),
        node_id=step.node_id,
        operation_id=step.operation_id,
        result=results[outcome],
        error_code=code or ("cancelled" if outcome == CANCELLED else ""),
        detail=f"key {step.state['spki']}" if outcome == SUCCEEDED else "",
    )


KIND = Kind(
    name=NAME,
    lane="identity",
    stages={
        REQUESTING: _patient(_requesting),
        SETTLING: _settling,
        INSTALLING: _patient(_installing),
        VERIFYING: _patient(_verifying),
        ABORTING: _patient(_aborting),
    },
    ended=_ended,
)
