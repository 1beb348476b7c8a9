"""Move every model off a draining node, one after another: moving → done.

It watches; `jobs.evacuation` opens the moves, each of which brings the replacement up before the original stops. A
model that has nowhere to go pauses it, and it goes on by itself once there is a place. It ends when the node holds no
model, when someone cancels it, and when the node is to take work again.
"""

from django.db import transaction

from audit import log as audit_log
from jobs import ledger
from jobs.base import Cancelled, Done, Kind, Outcome, Step, Wait
from jobs.errors import StepFailed
from jobs.offload import Survey, survey
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from mirbad.kernel.actor import Actor
from mirbad.kernel.conf import settings
from mirbad.tasking.tasks import Bell
from nodes import registry
from nodes.models import Node
from nodes.states import APPROVED

NAME = "evacuate"
MOVING = "moving"
OPEN_NEXT = Bell("jobs.evacuate")
"""Rung when the next move can be opened; a tick does the same for rings that were lost."""

_PAUSED_SECONDS = 5.0


def _moving(step: Step) -> Outcome:
    node = Node.objects.filter(pk=step.target_id).first()
    if node is None or node.lifecycle != APPROVED:
        raise StepFailed("node_revoked", f"Node {step.target_id} is no member of the fleet any more.", final=True)
    found = survey(step.target_id, step.operation_id, step.state)
    if not found.left and not found.moving:
        return Done("No model stands on the node.", {"moved": _moved(step, found)})
    if step.cancel_requested or not node.draining:
        return _ending(step, found, asked=step.cancel_requested)
    if found.moving:
        return Wait(settings().moves_poll_interval.total_seconds(), _progress(step, found))
    if found.next is not None:
        OPEN_NEXT.ring(step.operation_id)
        text = f"{_count(step, found)} {found.next.model_id} goes to {found.next.node_id} next."
        return Wait(settings().moves_poll_interval.total_seconds(), {"text": text})
    why = " ".join(found.stuck.values())
    return Wait(_PAUSED_SECONDS, {"text": f"{_count(step, found)} Paused. {why}", "paused": True})


def _ending(step: Step, found: Survey, *, asked: bool) -> Outcome:
    """The move that is under way is asked to end; one that has no way back goes through. Nothing is left half-way."""
    own = [move for move in found.moving if move.input.get("onBehalfOf") == step.operation_id]
    if own:
        for move in own:
            with transaction.atomic():
                ledger.ask_to_cancel(move)
        text = f"Waiting for the move of {', '.join(move.model_id_text for move in own)} to end."
        return Wait(settings().moves_poll_interval.total_seconds(), {"text": text})
    why = "Asked to end." if asked else "The node is to take work again."
    return Cancelled(f"{why} {_count(step, found)} What was moved stays where it is.")


def _progress(step: Step, found: Survey) -> dict[str, object]:
    move = found.moving[0]
    told = str(move.progress.get("text") or "")
    doing = (
        f"Moving {move.model_id_text} to {move.node_id_text}" if move.kind == "move" else f"{move.model_id_text} leaves"
    )
    text = f"{_count(step, found)} {doing} ({move.stage}). {told}".rstrip()
    shown = {"text": text, "doneBytes": move.progress.get("doneBytes"), "totalBytes": move.progress.get("totalBytes")}
    return {name: value for name, value in shown.items() if value is not None}


def _count(step: Step, found: Survey) -> str:
    moved, total = len(_moved(step, found)), len(step.input.get("models", []))
    return f"{moved} of {max(total, moved + len(found.left))} models are off."


def _moved(step: Step, found: Survey) -> list[str]:
    return [model_id for model_id in step.input.get("models", []) if model_id not in found.left]


def _ended(step: Step, outcome: str, code: str) -> None:
    if outcome != SUCCEEDED and not step.input.get("wasDraining"):
        registry.let_work_in(step.target_id)
    results = {SUCCEEDED: "succeeded", FAILED: "failed", CANCELLED: "failed"}
    audit_log.record(
        "node.drain",
        Actor(step.actor),
        node_id=step.target_id,
        operation_id=step.operation_id,
        result=results[outcome],
        error_code=code or ("cancelled" if outcome == CANCELLED else ""),
        detail="evacuation",
    )


KIND = Kind(name=NAME, lane="placement", stages={MOVING: _moving}, ended=_ended)
