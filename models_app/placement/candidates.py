"""Candidates and rejections for one model over the fleet as it is now. Reads a snapshot; `apply` alone writes."""

from collections.abc import Collection

from models_app import queries
from models_app.artifacts import shapes
from models_app.fit import ModelShape
from models_app.models import ModelDefinition
from models_app.placement import planner, snapshot
from models_app.placement.workload import Definition, Workload, of_input, of_model


def rank(what: str | Definition, *, ask: bool = True) -> planner.Ranking:
    """Rank the nodes for a model by its id, a `ModelDefinition` or a `ModelInput`. Queries do not grow with the fleet.

    Nodes where the model is placed already are rejected. Without `ask` no node and no hub is called for the shape of
    the weights. Raises NotFound.
    """
    if isinstance(what, str):
        what = queries.one_model(what)
    if isinstance(what, ModelDefinition):
        return rank_workload(of_model(what), placed_on=_nodes_of(what), ask=ask)
    return rank_workload(of_input(what), ask=ask)


def rank_workload(workload: Workload, *, placed_on: Collection[str] = (), ask: bool = True) -> planner.Ranking:
    """Rank the nodes for `workload`; `placed_on` are the nodes where it is placed."""
    fleet = snapshot.take()
    shape = shapes.find(workload.source, fleet.reports, ask=ask)
    request = plan_request(workload, shape, placed_on)
    return planner.plan(request, fleet.with_weights(workload.source))


def rejections(model: ModelDefinition) -> dict[str, planner.Rejection]:
    """Return the planner's reason against each node that cannot take one more placement of `model`, by node id.

    Nodes that are missing here can take it, as far as is known without judging memory. Four queries.
    """
    request = plan_request(of_model(model), ModelShape(), _nodes_of(model))
    found = (planner.reject(request, machine) for machine in snapshot.take().machines)
    return {rejection.node_id: rejection for rejection in found if rejection is not None}


def plan_request(workload: Workload, shape: ModelShape, placed_on: Collection[str] = ()) -> planner.PlanRequest:
    """Return the planner's input for weights of `shape`; `placed_on` are the nodes where the model is placed."""
    return planner.PlanRequest(
        runtime=workload.runtime,
        delivery=workload.delivery,
        shape=shape,
        plan=workload.plan,
        avoid={node_id: f"The model is already placed on node {node_id!r}." for node_id in placed_on},
        image=workload.image,
        image_digest=workload.image_digest,
    )


def _nodes_of(model: ModelDefinition) -> frozenset[str]:
    return frozenset(placement.node_id_text for placement in queries.placements_of(model))
