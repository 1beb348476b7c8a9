"""Placing without being told where: the best place of the ranking, judged again by the same rule as it is written."""

from django.db import transaction

from mirbad.kernel.actor import Actor
from models_app import queries
from models_app.artifacts import shapes
from models_app.errors import NoPlace, PlacementInvalid
from models_app.fit import ModelShape
from models_app.fit.verdict import State
from models_app.models import ModelDefinition, Placement
from models_app.placement import apply, fitting, planner, planning, snapshot
from models_app.placement.wanted import Wanted, of_model

_TRIES = 5


def place(model_id: str, actor: Actor) -> tuple[Placement, planner.Choice]:
    """Place a model that stands nowhere on the best node. Returns the placement, and why it went there.

    Raises NoPlace (with what every node lacks, or that it is not known whether it fits), NotFound, ModelBusy,
    ModelPlaced, MasterFenced.
    """
    model = queries.one_model(model_id)
    wanted = of_model(model)
    fleet = snapshot.take()
    shape = shapes.find(wanted.source, fleet.keepers)
    ranking = planner.plan(planning.wish_of(wanted, shape), fleet.with_weights(wanted.source))
    late: list[planner.Refusal] = []
    for choice in ranking.choices[:_TRIES]:
        with transaction.atomic():
            # Under the lock of the definition others may have placed what this plan did not see.
            ModelDefinition.objects.select_for_update().get(pk=model_id)
            if (refusal := _changed(wanted, choice, shape)) is None:
                try:
                    return apply.place(model_id, choice.node_id, choice.gpu_uuids, actor), choice
                except PlacementInvalid as error:
                    refusal = planner.Refusal(choice.node_id, "placement_invalid", error.detail)
        late.append(refusal)
    raise no_place(model_id, (*late, *ranking.refusals))


def _changed(wanted: Wanted, choice: planner.Choice, shape: ModelShape) -> planner.Refusal | None:
    """What speaks against `choice` now, by the rule that it was chosen by."""
    machines = snapshot.take([choice.node_id]).machines
    if not machines or machines[0].away:
        return planner.Refusal(choice.node_id, "node_offline", f"Node {choice.node_id!r} serves no more.")
    found = fitting.judged(wanted, machines[0], choice.gpu_uuids, shape, None)
    if found.state in (State.FITS, State.TIGHT):
        return None
    return planner.Refusal(choice.node_id, "memory_short", found.verdict.reasons[0])


def no_place(model_id: str, refusals: tuple[planner.Refusal, ...]) -> NoPlace:
    """The error that tells of every node why it is none."""
    if not refusals:
        return NoPlace("The fleet has no node yet; add one first.")
    unknown = [refusal for refusal in refusals if refusal.code == "fit_unknown"]
    problems = [
        {"code": refusal.code, "message": refusal.message, "field": refusal.node_id} for refusal in refusals[:50]
    ]
    if unknown:
        return NoPlace(f"Model {model_id!r} cannot be placed by itself. {unknown[0].message}", problems=problems)
    text = f"Model {model_id!r} fits on no node now: {refusals[0].message}"
    return NoPlace(text, problems=problems)
