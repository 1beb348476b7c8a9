"""Placement on the best node: the ranking's first candidate, judged again by the same rule when it is written."""

from django.db import transaction

from mirbad.kernel.actor import Actor
from models_app import queries
from models_app.artifacts import shapes
from models_app.errors import NoPlace, PlacementInvalid
from models_app.fit import ModelShape
from models_app.fit.verdict import FitState
from models_app.models import ModelDefinition, Placement
from models_app.placement import apply, candidates, fit_preview, planner, snapshot
from models_app.placement.workload import Workload, of_model

_TRIES = 5


def place(model_id: str, actor: Actor) -> tuple[Placement, planner.Candidate]:
    """Place a model that has no placement on the best node. Return the placement and the candidate with its reasons.

    Raises NoPlace (the rejection of each node, or that the fit is unknown), NotFound, ModelBusy, ModelPlaced,
    MasterFenced.
    """
    model = queries.one_model(model_id)
    workload = of_model(model)
    fleet = snapshot.take()
    shape = shapes.find(workload.source, fleet.reports)
    ranking = planner.plan(candidates.plan_request(workload, shape), fleet.with_weights(workload.source))
    late: list[planner.Rejection] = []
    for candidate in ranking.candidates[:_TRIES]:
        with transaction.atomic():
            # Before the definition was locked, others may have placed models that this plan did not include.
            ModelDefinition.objects.select_for_update().get(pk=model_id)
            if (rejection := _changed(workload, candidate, shape)) is None:
                try:
                    return apply.place(model_id, candidate.node_id, candidate.gpu_uuids, actor), candidate
                except PlacementInvalid as error:
                    rejection = planner.Rejection(candidate.node_id, "placement_invalid", error.detail)
        late.append(rejection)
    raise no_place(model_id, (*late, *ranking.rejections))


def _changed(workload: Workload, candidate: planner.Candidate, shape: ModelShape) -> planner.Rejection | None:
    """Return the reason against `candidate` now, by the rule that it was chosen by."""
    machines = snapshot.take([candidate.node_id]).machines
    if not machines:
        return planner.Rejection(candidate.node_id, "node_unknown", f"Node {candidate.node_id!r} no longer exists.")
    if rejection := planner.reject_node(machines[0]):
        return rejection
    found = fit_preview.judged(workload, machines[0], candidate.gpu_uuids, shape, None)
    if found.state in (FitState.FITS, FitState.TIGHT):
        return None
    return planner.Rejection(candidate.node_id, "memory_short", found.verdict.reasons[0])


def no_place(model_id: str, rejections: tuple[planner.Rejection, ...]) -> NoPlace:
    """Return the error that carries the rejection of every node."""
    if not rejections:
        return NoPlace("The fleet has no nodes; add one first.")
    unknown = [rejection for rejection in rejections if rejection.code == "fit_unknown"]
    problems = [
        {"code": rejection.code, "message": rejection.message, "field": rejection.node_id}
        for rejection in rejections[:50]
    ]
    if unknown:
        return NoPlace(f"Model {model_id!r} cannot be placed automatically. {unknown[0].message}", problems=problems)
    text = f"Model {model_id!r} fits on no node: {rejections[0].message}"
    return NoPlace(text, problems=problems)
