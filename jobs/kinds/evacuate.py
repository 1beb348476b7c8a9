"""Move every model off a draining node, one after another: moving → done.

It watches; `jobs.requests.evacuation` opens the moves, each of which starts the replacement before the original stops.
A model without a possible target pauses it, and it continues by itself once there is one. It ends when no model is
placed on the node, when someone cancels it, and when the node is undrained.
"""

from django.db import transaction

from jobs import ledger
from jobs.base import Audit, Cancelled, Display, Done, Kind, OperationData, Outcome, Stage, Step, Wait
from jobs.errors import StepFailed
from jobs.states import SUCCEEDED
from jobs.steps.moving import MOVE, input_of
from jobs.steps.offload import EvacuationState, Survey, survey
from mirbad.kernel.conf import settings
from mirbad.tasking.tasks import TaskSignal
from nodes import registry
from nodes.models import Node
from nodes.states import APPROVED

NAME = "evacuate"
MOVING = "moving"
OPEN_NEXT = TaskSignal("jobs.evacuate")
"""Enqueued when the next move can be opened; a tick does the same for signals that were lost."""

_PAUSED_SECONDS = 5.0


class EvacuateInput(OperationData):
    """`models` were placed on the node at the request; `was_draining` is whether the node was draining before it."""

    was_draining: bool = False
    models: tuple[str, ...] = ()


EvacuateStep = Step[EvacuateInput, EvacuationState]


def _moving(step: EvacuateStep) -> Outcome:
    node = Node.objects.filter(pk=step.target_id).first()
    if node is None or node.lifecycle != APPROVED:
        raise StepFailed("node_revoked", f"Node {step.target_id} is no longer in the fleet.", final=True)
    found = survey(step.target_id, step.operation_id, step.state)
    if not found.left and not found.moving:
        return Done("No model is placed on the node.", {"moved": _moved(step, found)})
    if step.cancel_requested or not node.draining:
        return _ending(step, found)
    if found.moving:
        return Wait(settings().moves_poll_interval.total_seconds(), _progress(step, found))
    if found.next is not None:
        OPEN_NEXT.enqueue(step.operation_id)
        text = f"{_count(step, found)} Next: {found.next.model_id} to {found.next.node_id}."
        return Wait(settings().moves_poll_interval.total_seconds(), {"text": text})
    why = " ".join(found.stuck.values())
    return Wait(_PAUSED_SECONDS, {"text": f"{_count(step, found)} Paused. {why}", "paused": True})


def _ending(step: EvacuateStep, found: Survey) -> Outcome:
    """Cancel the open move; one that has no way back runs to its end. Nothing is left half-way."""
    own = [move for move in found.moving if move.kind == MOVE and input_of(move).on_behalf_of == step.operation_id]
    if own:
        for move in own:
            with transaction.atomic():
                ledger.ask_to_cancel(move)
        text = f"Waiting for the move of {', '.join(move.model_id_text for move in own)} to end."
        return Wait(settings().moves_poll_interval.total_seconds(), {"text": text})
    why = "Cancelled." if step.cancel_requested else "The node was undrained."
    return Cancelled(f"{why} {_count(step, found)} Moved models stay where they are.")


def _progress(step: EvacuateStep, found: Survey) -> dict[str, object]:
    move = found.moving[0]
    status = str(move.progress.get("text") or "")
    doing = (
        f"Moving {move.model_id_text} to {move.node_id_text}"
        if move.kind == MOVE
        else f"Unplacing {move.model_id_text}"
    )
    text = f"{_count(step, found)} {doing} ({move.stage}). {status}".rstrip()
    shown = {"text": text, "doneBytes": move.progress.get("doneBytes"), "totalBytes": move.progress.get("totalBytes")}
    return {name: value for name, value in shown.items() if value is not None}


def _count(step: EvacuateStep, found: Survey) -> str:
    moved, total = len(_moved(step, found)), len(step.input.models)
    return f"{moved} of {max(total, moved + len(found.left))} models moved."


def _moved(step: EvacuateStep, found: Survey) -> list[str]:
    return [model_id for model_id in step.input.models if model_id not in found.left]


def _undrain(step: EvacuateStep, outcome: str, _: str) -> None:
    if outcome != SUCCEEDED and not step.input.was_draining:
        registry.allow_new_models(step.target_id)


KIND = Kind(
    name=NAME,
    title="Evacuation",
    concurrency_group="placement",
    Input=EvacuateInput,
    State=EvacuationState,
    stages=(Stage(MOVING, "Move the models", _moving),),
    audit=Audit("node.drain", detail=lambda *_: "evacuation"),
    on_end=_undrain,
    display=Display(heading="Evacuation of", chip=True, cancelling="Models that were moved stay where they are."),
)
