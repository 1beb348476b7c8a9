"""The rows of this master that an import compares with a backup. The number of queries does not grow with the rows."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent.common.engine_settings.check import Allowed
from jobs.backup import schedule, storage
from jobs.backup.destinations import settings as kinds
from jobs.backup.importing.content import BackupContent
from jobs.backup.importing.definitions import COLUMNS, SOURCE_COLUMNS, source_values, values_of
from jobs.backup.importing.nodes import SETTINGS, same_machines
from jobs.backup.importing.present import FleetHere, KeyHere, ModelHere, NodeHere, PlacementHere
from jobs.backup.records import ModelRecord, NodeRecord
from jobs.models import BackupDestination
from mirbad.kernel import clock
from mirbad.kernel.errors import InvalidRequest
from models_app import registry
from models_app.models import ApiKey, ModelDefinition
from models_app.placement import snapshot
from models_app.registry import specs
from nodes.models import Gpu, Node
from nodes.registry import read_settings


def read(content: BackupContent) -> FleetHere:
    """Return this master beside `content`. Raises SealBroken when secrets are to be compared and cannot be opened."""
    nodes = _nodes()
    found = FleetHere(
        now=clock.now(),
        models=_models(content),
        nodes=nodes,
        keys=_keys(content),
        invalid_models=_invalid_models(content),
        invalid_nodes={},
        destinations=frozenset(BackupDestination.objects.values_list("name", flat=True)),
        invalid_destinations=_invalid_destinations(content),
    )
    bad = {
        node_id: why
        for node_id in same_machines(content, found)
        if (why := _why_settings_invalid(content.nodes[node_id]))
    }
    return replace(found, invalid_nodes=bad)


def _nodes() -> dict[str, NodeHere]:
    machines = {machine.node_id: machine for machine in snapshot.take().machines}
    reserves: dict[str, dict[str, int | None]] = defaultdict(dict)
    for node_id, uuid, reserve in Gpu.objects.values_list("node_id", "uuid", "reserve_bytes"):
        reserves[node_id][uuid] = reserve
    rows = Node.objects.filter(pk__in=machines).order_by("pk").values("id", "uid", "address", *SETTINGS)
    return {
        row["id"]: NodeHere(
            id=row["id"],
            uid=row["uid"],
            address=row["address"],
            machine=machines[row["id"]],
            settings={name: row[name] for name in SETTINGS},
            reserves=reserves[row["id"]],
        )
        for row in rows
    }


def _models(content: BackupContent) -> dict[str, ModelHere]:
    rows = ModelDefinition.objects.select_related("hold").prefetch_related("sources", "placements").order_by("pk")
    in_backup = {record.id for record in content.models}
    return {row.pk: _model(row, with_secrets=content.env is not None and row.pk in in_backup) for row in rows}


def _model(row: ModelDefinition, *, with_secrets: bool) -> ModelHere:
    sources = sorted(row.sources.all(), key=lambda source: source.position)
    return ModelHere(
        id=row.pk,
        values={name: getattr(row, name) for name in COLUMNS},
        sources=tuple({name: getattr(source, name) for name in SOURCE_COLUMNS} for source in sources),
        names=row.names,
        placements=tuple(
            PlacementHere(one.pk, one.node_id_text, one.start_seconds)
            for one in sorted(row.placements.all(), key=lambda one: (not one.routed, str(one.pk)))
        ),
        secret_names=tuple(row.secret_env_names),
        secret_env=specs.unseal_env(row) if with_secrets else None,
        holder=row.hold.words if hasattr(row, "hold") else "",
    )


def _keys(content: BackupContent) -> tuple[KeyHere, ...]:
    if content.keys is None:
        return ()
    rows = ApiKey.objects.order_by("pk").values_list("name", "digest", "previous_digest", "created_at", "revoked_at")
    return tuple(
        KeyHere(name, digest, previous, created, revoked is not None)
        for name, digest, previous, created, revoked in rows
    )


def _invalid_models(content: BackupContent) -> dict[str, str]:
    """Return why a definition is not allowed today, by the rules of a model that a person saves."""
    allowed = registry.of_fleet()
    return {record.id: why for record in content.models if (why := _why_invalid(record, content, allowed))}


def _why_invalid(record: ModelRecord, content: BackupContent, allowed: Allowed) -> str:
    known: Mapping[str, str] = (content.env or {}).get(record.id, {})
    data: dict[str, Any] = {
        **values_of(record),
        "id": record.id,
        "sources": list(source_values(record)),
        "secret_env": {name: known.get(name) for name in record.secret_env_names},
    }
    try:
        registry.parse(data, lambda: allowed)
    except InvalidRequest as error:
        return error.problems[0]["message"] if error.problems else error.detail
    return ""


def _invalid_destinations(content: BackupContent) -> dict[str, str]:
    found = {}
    for record in content.destinations:
        try:
            storage.require_outside(kinds.parse(record.destination_kind, record.settings))
            if record.schedule:
                schedule.check(record.schedule)
        except InvalidRequest as error:
            found[record.name] = error.detail
    return found


def _why_settings_invalid(record: NodeRecord) -> str:
    values = record.model_dump(mode="json")
    reserves = {gpu.uuid: gpu.reserve_bytes for gpu in record.gpus}
    try:
        read_settings({**{name: values[name] for name in SETTINGS}, "gpu_reserves": reserves})
    except InvalidRequest as error:
        return error.detail
    return ""
