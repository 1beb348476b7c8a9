"""Create, save and delete a model definition. Each is one transaction: check, change, audit, announce on commit."""

from django.db import transaction

from audit import log as audit_log
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import InvalidRequest, NotFound
from models_app import events, holds, queries, routing
from models_app.errors import NameTaken, PlacementInvalid, PlacementRequired, UseMove, UseUnplace
from models_app.models import ModelDefinition, ModelSource
from models_app.placement import apply, gpu_conditions, multi_node
from models_app.registry.inputs import ModelInput, PlacementInput
from models_app.registry.specs import seal_env, unseal_env
from nodes import fencing
from nodes.models import Node
from nodes.states import APPROVED

_PLAIN = (
    "display_name",
    "runtime",
    "delivery",
    "image",
    "image_digest",
    "served_names",
    "args",
    "env",
    "context_length",
    "gpu_memory_budget_bytes",
    "host_memory_budget_bytes",
    "start_timeout_seconds",
    "first_byte_timeout_seconds",
    "idle_timeout_seconds",
    "wait_when_starting_seconds",
    "tags",
    "auto_start",
    "restart_policy",
    "keep_serving",
    "allow_pickle",
)


def create(data: ModelInput, actor: Actor) -> ModelDefinition:
    """Create a model, placed as `data` says, or on the only fleet member when there is one.

    Raises NameTaken, InvalidRequest, PlacementRequired, PlacementInvalid.
    """
    with audit_log.refusals_recorded("model.create", actor, model_id=data.id), transaction.atomic():
        fencing.require_unfenced()
        routing.bump()
        _require_names_free(data)
        model = ModelDefinition(pk=data.id)
        _fill(model, data)
        model.save(force_insert=True)
        _write_sources(model, data)
        node_id = _place_first(model, data)
        audit_log.record("model.create", actor, model_id=model.pk, node_id=node_id)
        events.changed(model.pk)
    return model


def update(model_id: str, data: ModelInput, actor: Actor) -> ModelDefinition:
    """Replace a definition; a running engine keeps its configuration until a restart.

    Raises NotFound, InvalidRequest, NameTaken, UseMove, UseUnplace, PlacementChanged, PlacementInvalid, ModelBusy.
    """
    with audit_log.refusals_recorded("model.update", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        if data.id != model_id:
            problem = {"code": "id_fixed", "message": "A model's id can't be changed.", "field": "id"}
            raise InvalidRequest(problem["message"], problems=[problem])
        routing.bump()
        model = _locked(model_id)
        _require_names_free(data)
        _fill(model, data)
        model.save()
        _write_sources(model, data)
        _require_no_new_replicas(data)
        _require_engine_for_shards(model)
        if "placement" in data.model_fields_set:
            _edit_placement(model, data)
        audit_log.record("model.update", actor, model_id=model_id)
        events.changed(model_id)
    return model


def delete(model_id: str, actor: Actor) -> None:
    """Delete a model that runs nowhere and has no hold. Raises NotFound, ModelBusy, ModelPlaced."""
    with audit_log.refusals_recorded("model.delete", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        routing.bump()
        model = _locked(model_id)
        holds.require_free(model_id)
        for placement in model.placements.select_for_update():
            apply.require_not_running(placement, "deleted")
        node_ids = set(model.placements.values_list("node_id_text", flat=True))
        model.placements.all().delete()
        model.delete()
        for node_id in sorted(node_ids):
            gpu_conditions.refresh(node_id)
        audit_log.record("model.delete", actor, model_id=model_id)
        events.changed(model_id)


def _locked(model_id: str) -> ModelDefinition:
    model = ModelDefinition.objects.select_for_update().filter(pk=model_id).first()
    if model is None:
        raise NotFound(f"Model {model_id!r} does not exist.")
    return model


def _require_names_free(data: ModelInput) -> None:
    names = set(data.names)
    for other, served in ModelDefinition.objects.values_list("id", "served_names"):
        if other == data.id:
            continue
        if clash := sorted(names & set(served or [other])):
            raise NameTaken(
                f"The name {clash[0]!r} already belongs to model {other!r}; choose another served name.",
                fields={"modelId": other, "names": clash},
            )


def _fill(model: ModelDefinition, data: ModelInput) -> None:
    if model._state.adding and ModelDefinition.objects.filter(pk=data.id).exists():  # noqa: SLF001 - Django's documented API
        raise NameTaken(f"Model {data.id!r} already exists; choose another id.", fields={"modelId": data.id})
    for name in _PLAIN:
        setattr(model, name, getattr(data, name))
    stored = unseal_env(model)
    if unknown := sorted(name for name, value in data.secret_env.items() if value is None and name not in stored):
        text = f"No value is stored for {', '.join(unknown)}; enter one."
        problem = {"code": "secret_missing", "message": text, "field": "secretEnv"}
        raise InvalidRequest(text, problems=[problem])
    values = {n: stored[n] if v is None else v.get_secret_value() for n, v in data.secret_env.items()}
    # Sealing uses a new nonce, which would count as a changed configuration: seal again only changed values.
    if values != stored or not values:
        model.secret_env_sealed = seal_env(data.id, values)
    model.secret_env_names = sorted(values)


def _write_sources(model: ModelDefinition, data: ModelInput) -> None:
    requested = [source.model_dump() for source in data.sources]
    fields = ("kind", "folder", "file", "projector", "repository", "revision")
    if requested == [{f: getattr(row, f) for f in fields} for row in model.sources.order_by("position")]:
        return
    model.sources.all().delete()
    ModelSource.objects.bulk_create(
        ModelSource(model=model, position=position, **source) for position, source in enumerate(requested)
    )


def _require_no_new_replicas(data: ModelInput) -> None:
    if data.placements:
        text = "An edit cannot add replicas; add them on the model's page or with its replicas route."
        problem = {"code": "use_replicas", "message": text, "field": "placements"}
        raise InvalidRequest(text, problems=[problem])


def _require_engine_for_shards(model: ModelDefinition) -> None:
    """Raise PlacementInvalid if a replica on several nodes cannot run the model's engine."""
    together = model.placements.filter(shards__gt=1).values_list("node_id_text", flat=True).order_by("shard")
    if together and model.runtime not in multi_node.MULTI_NODE_RUNTIMES:
        nodes = ", ".join(together)
        text = (
            f"{model.runtime} cannot run on several nodes, but a replica of this model is on {nodes}; remove it first."
        )
        problem = {"code": "runtime_unavailable", "message": text, "field": "runtime"}
        raise PlacementInvalid(text, problems=[problem])


def _place_first(model: ModelDefinition, data: ModelInput) -> str:
    """Place a new model as `data` says; return the node of its rank 0, empty for none."""
    if data.placements:
        seats = [(seat.node_id, seat.gpu_uuids) for seat in data.placements]
        return apply.add_replica_locked(model, seats).head.node_id_text
    requested = _requested_placement(data)
    if requested is None:
        return ""
    return apply.place_locked(model, requested.node_id, requested.gpu_uuids).node_id_text


def _requested_placement(data: ModelInput) -> PlacementInput | None:
    if data.placement is not None:
        return data.placement
    members = list(Node.objects.filter(lifecycle=APPROVED).values_list("pk", flat=True)[:2])
    if len(members) > 1:
        raise PlacementRequired("Choose a node: the fleet has more than one.")
    return PlacementInput(node_id=members[0]) if members else None


def _edit_placement(model: ModelDefinition, data: ModelInput) -> None:
    placements = list(model.placements.select_for_update())
    replicas = queries.grouped(placements)
    placement = replicas[0].head if replicas else None
    requested = data.placement
    if placement is None:
        if requested is not None:
            holds.require_free(model.pk)
            apply.place_locked(model, requested.node_id, requested.gpu_uuids)
        return
    if requested is None:
        raise UseUnplace("An edit cannot remove a model from its node; use unplace.")
    apply.require_generation(placement, data.placement_generation)
    if requested.node_id != placement.node_id_text:
        if len(placements) > 1:
            nodes = ", ".join(sorted(one.node_id_text for one in placements))
            raise UseMove(f"The model is on several nodes ({nodes}); add or remove replicas on its page.")
        raise UseMove(f"The model is on node {placement.node_id_text!r}; use move to change its node.")
    if list(requested.gpu_uuids) != list(placement.gpu_uuids):
        holds.require_free(model.pk)
        apply.change_gpus(placement, requested.gpu_uuids, data.placement_generation)
        gpu_conditions.refresh(placement.node_id_text)
