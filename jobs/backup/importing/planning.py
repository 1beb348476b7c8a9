"""The plan of an import: a backup compared with this master, by the choices of a person. Pure.

Whatever cannot be done as the backup has it is done less, never differently: a model without a place is restored
unplaced, one whose name is taken is left out, and each says why.
"""

from jobs.backup.importing import nodes as node_plans
from jobs.backup.importing.choices import ImportChoices, ImportOptions
from jobs.backup.importing.content import BackupContent
from jobs.backup.importing.definitions import differences, digest_of, missing_secrets
from jobs.backup.importing.destinations import planned_destinations
from jobs.backup.importing.keys import planned_keys
from jobs.backup.importing.nodes import same_machines
from jobs.backup.importing.plan import PlannedAction, PlannedModel, PlannedPlace, RestorePlan
from jobs.backup.importing.present import FleetHere, ModelHere
from jobs.backup.importing.replicas import Placer, routed_parts
from jobs.backup.records import ModelRecord

_READ_WITHOUT = (
    "Read without the passphrase. API keys and the values of secret variables are not imported. "
    "Import again with the passphrase to have them."
)
_LONGEST_START = 7 * 24 * 3600.0
_MADE_WITHOUT = "This backup was made without secrets: it has no API keys and no values of secret variables."


def make(content: BackupContent, here: FleetHere, choices: ImportChoices) -> RestorePlan:
    """Return the plan. Raises InvalidRequest (problems) for choices that name what is not there."""
    placer = Placer(content, here, choices)
    placer.require_valid()
    available = _available(content, here)
    options = _chosen(available, choices.options)
    taken = {name: model.id for model in here.models.values() for name in model.names}
    models = []
    for record in content.models:
        planned = _model(record, content, here, placer, options, taken)
        if planned.action != PlannedAction.LEFT_OUT:
            taken.update(dict.fromkeys(record.served_names or (record.id,), record.id))
        models.append(planned)
    keys, key_notes = planned_keys(content.keys or (), here)
    return RestorePlan(
        backup=content.name,
        instance_id=content.manifest.instance_id,
        content_digest=content.digest,
        with_secrets=content.env is not None,
        available=available,
        options=options,
        models=tuple(models),
        keys=keys,
        nodes=node_plans.planned_nodes(content, here, models, with_settings=options.node_settings),
        destinations=planned_destinations(content, here, chosen=options.destinations),
        notes=(*_notes(content), *key_notes),
    )


def _notes(content: BackupContent) -> tuple[str, ...]:
    if content.env is not None:
        return ()
    return (_READ_WITHOUT,) if content.manifest.has_secrets else (_MADE_WITHOUT,)


def _available(content: BackupContent, here: FleetHere) -> ImportOptions:
    parts = [part for model in content.models for part in model.placements]
    return ImportOptions(
        start_models=any(part.running for part in parts),
        node_settings=bool(same_machines(content, here)),
        start_times=any(part.start_seconds is not None for part in parts),
        destinations=bool(content.destinations),
    )


def _chosen(available: ImportOptions, asked: ImportOptions) -> ImportOptions:
    return ImportOptions(
        start_models=available.start_models and asked.start_models,
        node_settings=available.node_settings and asked.node_settings,
        start_times=available.start_times and asked.start_times,
        destinations=available.destinations and asked.destinations,
    )


def _model(
    record: ModelRecord,
    content: BackupContent,
    here: FleetHere,
    placer: Placer,
    options: ImportOptions,
    taken: dict[str, str],
) -> PlannedModel:
    existing = here.models.get(record.id)
    node_ids = tuple(dict.fromkeys(part.node_id for part in routed_parts(record)))
    if why := _why_left_out(record, existing, here, taken):
        return PlannedModel(record.id, PlannedAction.LEFT_OUT, reason=why, backup_node_ids=node_ids)
    found = placer.places_of(record, existing)
    places = tuple(_with_start_time(place, record, placer, options) for place in found.places)
    missing = missing_secrets(record, content, existing)
    changes = differences(record, content, existing) if existing is not None else ()
    if existing is not None and places:
        changes = (*changes, "placement")
    times = _start_times(record, existing, placer) if options.start_times else ()
    if times:
        changes = (*changes, "start time")
    was_running = any(part.running for part in routed_parts(record))
    start = bool(options.start_models and was_running and places and not missing)
    notes = [*found.notes]
    if missing:
        notes.append(f"Enter the values of {', '.join(missing)} again: they are not in what was read.")
        if options.start_models and was_running and places:
            notes.append("It is not started without them.")
    if existing is not None and changes and existing.placements:
        notes.append("It stays where it is placed; restart it if it runs, to apply the changes.")
    action = PlannedAction.CREATED if existing is None else PlannedAction.CHANGED if changes else PlannedAction.KEPT
    return PlannedModel(
        id=record.id,
        action=action,
        reason="" if action != PlannedAction.KEPT else "It is the same here.",
        changes=changes,
        notes=tuple(notes),
        backup_node_ids=node_ids,
        places=places,
        placed_on=tuple(place.node_id for place in existing.placements) if existing is not None else (),
        needs_target=found.needs_target,
        start=start,
        missing_secrets=missing,
        start_seconds=times,
        before=digest_of(existing) if existing is not None and changes else "",
    )


def _why_left_out(record: ModelRecord, existing: ModelHere | None, here: FleetHere, taken: dict[str, str]) -> str:
    if existing is not None and existing.holder:
        return f"It is busy here: {existing.holder} holds it. Import again once that is over."
    if why := here.invalid_models.get(record.id):
        return f"Its definition is not allowed here: {why}"
    for name in record.served_names or (record.id,):
        if taken.get(name, record.id) != record.id:
            return f"The name {name!r} belongs to model {taken[name]!r} here. Change one of them, then import again."
    return ""


def _with_start_time(place: PlannedPlace, record: ModelRecord, placer: Placer, options: ImportOptions) -> PlannedPlace:
    seconds = _measured(record, placer).get(place.node_id)
    if not options.start_times or seconds is None:
        return place
    return PlannedPlace(place.node_id, place.gpu_uuids, place.replica, place.shard, place.shards, seconds)


def _start_times(record: ModelRecord, existing: ModelHere | None, placer: Placer) -> tuple[tuple[str, float], ...]:
    """Return the start times that placements of this master lack; measured ones stay."""
    if existing is None:
        return ()
    known = _measured(record, placer)
    return tuple(
        (str(row.id), known[row.node_id])
        for row in existing.placements
        if row.start_seconds is None and row.node_id in known
    )


def _measured(record: ModelRecord, placer: Placer) -> dict[str, float]:
    """Return the start times of a model by the node here that is the same machine: another one starts otherwise."""
    found = {placer.same_node_of(part): part.start_seconds for part in record.placements}
    return {
        node_id: seconds
        for node_id, seconds in found.items()
        if node_id and seconds is not None and 0 <= seconds < _LONGEST_START
    }
