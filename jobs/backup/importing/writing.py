"""The rows of a confirmed plan, written in the caller's transaction by a number of statements that does not grow.

Placements get new ids: engines that run on a node under other ids are none of the import's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction

from audit import log as audit_log
from jobs.backup import restored_destinations
from jobs.backup.importing.content import BackupContent
from jobs.backup.importing.definitions import COLUMNS, source_values, values_of
from jobs.backup.importing.plan import PlannedAction, PlannedModel, PlannedNode, RestorePlan
from jobs.backup.records import ApiKeyRecord, ModelRecord
from mirbad.kernel import bulk, clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.ids import new_uid
from mirbad.live import invalidations
from models_app.models import ApiKey, ModelDefinition, ModelSource, Placement
from models_app.registry import specs
from models_app.states import STOPPED
from nodes import registry as node_registry

_AT_ONCE = 200
_ROWS = ("placement", "start time")
_SECRETS = "secret variables"


@dataclass(frozen=True, slots=True)
class WrittenPlacement:
    """A placement that was written; `start` is whether its model is to be started."""

    id: UUID
    model_id: str
    node_id: str
    replica: UUID
    start: bool


def write(plan: RestorePlan, content: BackupContent, actor: Actor) -> tuple[WrittenPlacement, ...]:
    """Write all of `plan` and its audit lines; return the new placements, in the order of the backup."""
    records = {record.id: record for record in content.models}
    created = [one for one in plan.models if one.action == PlannedAction.CREATED]
    changed = [one for one in plan.models if one.action == PlannedAction.CHANGED]
    _create(created, records, content)
    _change([one for one in changed if set(one.changes) - set(_ROWS)], records, content)
    made = _place([*created, *changed])
    times = [(UUID(pk), [seconds]) for one in changed for pk, seconds in one.start_seconds]
    bulk.update_each(Placement, ["start_seconds"], times)
    audit_log.record_many("model.create", actor, [{"model_id": one.id, "detail": _detail(one)} for one in created])
    audit_log.record_many("model.update", actor, [{"model_id": one.id, "detail": _detail(one)} for one in changed])
    _write_keys(plan, content.keys or (), actor)
    _write_destinations(plan, content, actor)
    node_registry.update_many({node.node_id: _patch(node) for node in plan.nodes if node.settings}, actor)
    ids = [one.id for one in (*created, *changed)]
    transaction.on_commit(lambda: invalidations.changed_many("models", ids), robust=True)
    return made


def _detail(one: PlannedModel) -> str:
    parts = [f"imported{': ' + ', '.join(one.changes) if one.changes else ''}"]
    parts += [f"placed on {', '.join(place.node_id for place in one.places)}"] if one.places else []
    return "; ".join(parts)


def _create(planned: Sequence[PlannedModel], records: dict[str, ModelRecord], content: BackupContent) -> None:
    rows = []
    for one in planned:
        record = records[one.id]
        env = _known(record, content)
        rows.append(
            ModelDefinition(
                pk=one.id,
                **values_of(record),
                secret_env_names=list(record.secret_env_names),
                secret_env_sealed=specs.seal_env(one.id, env),
            )
        )
    ModelDefinition.objects.bulk_create(rows, batch_size=_AT_ONCE)
    _write_sources(records[one.id] for one in planned)


def _known(record: ModelRecord, content: BackupContent) -> dict[str, str]:
    env = (content.env or {}).get(record.id, {})
    return {name: env[name] for name in record.secret_env_names if name in env}


def _change(planned: Sequence[PlannedModel], records: dict[str, ModelRecord], content: BackupContent) -> None:
    rows = ModelDefinition.objects.in_bulk([one.id for one in planned])
    now = clock.now()
    for one in planned:
        row, record = rows[one.id], records[one.id]
        for name, value in values_of(record).items():
            setattr(row, name, value)
        row.updated_at = now
        if _SECRETS in one.changes:
            stored = specs.unseal_env(row)
            if content.env is not None:
                env = _known(record, content)
            else:
                env = {name: stored[name] for name in record.secret_env_names if name in stored}
            # Sealing uses a new nonce, which would count as a changed configuration: seal again only changed values.
            if env != stored:
                row.secret_env_sealed = specs.seal_env(one.id, env)
            row.secret_env_names = list(record.secret_env_names)
    columns = [*COLUMNS, "updated_at", "secret_env_names", "secret_env_sealed"]
    ModelDefinition.objects.bulk_update(rows.values(), columns, batch_size=_AT_ONCE // 4)
    moved = [one.id for one in planned if "sources" in one.changes]
    ModelSource.objects.filter(model_id__in=moved).delete()
    _write_sources(records[model_id] for model_id in moved)


def _write_sources(records: Iterable[ModelRecord]) -> None:
    ModelSource.objects.bulk_create(
        (
            ModelSource(model_id=record.id, position=position, **values)
            for record in records
            for position, values in enumerate(source_values(record))
        ),
        batch_size=_AT_ONCE,
    )


def _place(planned: Sequence[PlannedModel]) -> tuple[WrittenPlacement, ...]:
    rows, starts = [], {}
    for one in planned:
        replicas = {place.replica: new_uid() for place in one.places}
        starts[one.id] = one.start
        # No engine was ever launched under these new instance ids, so "stopped" is a fact.
        rows += [
            Placement(
                model_id=one.id,
                node_id_text=place.node_id,
                gpu_uuids=list(place.gpu_uuids),
                replica=replicas[place.replica],
                shard=place.shard,
                shards=place.shards,
                start_seconds=place.start_seconds,
                desired=STOPPED,
                observed=STOPPED,
            )
            for place in one.places
        ]
    Placement.objects.bulk_create(rows, batch_size=_AT_ONCE)
    return tuple(
        WrittenPlacement(row.pk, row.model_id, row.node_id_text, row.replica, starts[row.model_id]) for row in rows
    )


def _write_keys(plan: RestorePlan, keys: Sequence[ApiKeyRecord], actor: Actor) -> None:
    made = [one for one in plan.keys if one.action == PlannedAction.CREATED]
    rows = []
    for one in made:
        values = keys[one.number].model_dump(exclude={"kind", "name", "allowed_models"})
        rows.append(ApiKey(**values, name=one.name, allowed_models=list(keys[one.number].allowed_models)))
    rows = ApiKey.objects.bulk_create(rows, batch_size=_AT_ONCE)
    # Django writes the present moment into it.
    dates = [(row.pk, [keys[one.number].created_at]) for row, one in zip(rows, made, strict=True)]
    bulk.update_each(ApiKey, ["created_at"], dates)
    lines = [{"target": f"{row.name} ({row.pk})", "detail": "imported"} for row in rows]
    audit_log.record_many("api-key", actor, lines)
    ids = [str(row.pk) for row in rows]
    transaction.on_commit(lambda: invalidations.changed_many("keys", ids), robust=True)


def _write_destinations(plan: RestorePlan, content: BackupContent, actor: Actor) -> None:
    made = {one.name: one for one in plan.destinations if one.action == PlannedAction.CREATED}
    found = [
        record.model_copy(update={"schedule": ""}) if made[record.name].schedule_off else record
        for record in content.destinations
        if record.name in made
    ]
    restored_destinations.write(found, content.destination_secrets or {})
    lines = [{"target": record.name, "detail": f"imported: {record.destination_kind}"} for record in found]
    audit_log.record_many("backup-destination", actor, lines)


def _patch(node: PlannedNode) -> dict[str, object]:
    reserves = {one.gpu_uuid: one.after for one in node.settings if one.gpu_uuid}
    patch = {one.name: one.after for one in node.settings if not one.gpu_uuid}
    return {**patch, "gpu_reserves": reserves} if reserves else patch
