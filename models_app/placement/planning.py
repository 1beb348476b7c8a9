"""Where a model may go in the fleet as it is now: facts read once and ranked by `planner`; `apply` alone writes."""

from collections.abc import Mapping

from models_app import queries
from models_app.artifacts import shapes
from models_app.fit import ModelShape
from models_app.models import ModelDefinition
from models_app.placement import planner, snapshot
from models_app.placement.wanted import Definition, Wanted, of_input, of_model


def rank(what: str | Definition, *, ask: bool = True) -> planner.Ranking:
    """The places for a model by its id, a `ModelDefinition` or a `ModelInput`; statements do not grow with the fleet.

    Nodes where it stands already are refused. Without `ask` no node and no hub is asked for the shape of the weights.
    Raises NotFound.
    """
    if isinstance(what, str):
        what = queries.one_model(what)
    if isinstance(what, ModelDefinition):
        standing = {placement.node_id_text for placement in queries.placements_of(what)}
        return rank_wanted(of_model(what), standing=standing, ask=ask)
    return rank_wanted(of_input(what), ask=ask)


def rank_wanted(wanted: Wanted, *, standing: set[str] | None = None, ask: bool = True) -> planner.Ranking:
    """`rank` of what was read already; `standing` are nodes where it stands."""
    fleet = snapshot.take()
    shape = shapes.find(wanted.source, fleet.keepers, ask=ask)
    avoid = {node_id: f"It stands on node {node_id!r} already." for node_id in standing or ()}
    return planner.plan(wish_of(wanted, shape, avoid), fleet.with_weights(wanted.source))


def wish_of(wanted: Wanted, shape: ModelShape, avoid: Mapping[str, str] | None = None) -> planner.Wish:
    """What the planner is asked, once the shape of the weights was found; `avoid` are nodes with their sentences."""
    image, digest = wanted.image, wanted.image_digest
    return planner.Wish(wanted.runtime, wanted.delivery, shape, wanted.plan, dict(avoid or {}), image, digest)
