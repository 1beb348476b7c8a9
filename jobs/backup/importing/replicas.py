"""The replicas of a model of a backup on this fleet: by the machine, by a choice, or nowhere. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from jobs.backup.importing import places
from jobs.backup.importing.choices import ImportChoices, TargetChoice
from jobs.backup.importing.content import BackupContent
from jobs.backup.importing.nodes import same_machines
from jobs.backup.importing.places import FoundPlace
from jobs.backup.importing.plan import PlannedPlace
from jobs.backup.importing.present import FleetHere, ModelHere
from jobs.backup.records import ModelRecord, PlacementPart
from mirbad.kernel.errors import InvalidRequest
from models_app.placement import multi_node
from models_app.placement.feasible import Problem

_UNPLACED = "It is restored unplaced: {}"


@dataclass(frozen=True, slots=True)
class FoundPlaces:
    """The placements that a model gets, with notes; or it needs a target first."""

    places: tuple[PlannedPlace, ...] = ()
    notes: tuple[str, ...] = ()
    needs_target: bool = False


def routed_parts(record: ModelRecord) -> tuple[PlacementPart, ...]:
    """Return the placements that served; those of an unfinished move only when there are no others."""
    return tuple(part for part in record.placements if part.routed) or record.placements


class Placer:
    """Finds places by the choices of one import."""

    def __init__(self, content: BackupContent, here: FleetHere, choices: ImportChoices) -> None:
        self._content, self._here, self._choices = content, here, choices
        self._same = {node_id: node.id for node_id, node in same_machines(content, here).items()}
        self._by_uid = {node.uid: node.id for node in here.nodes.values()}
        self._of_model = {target.model_id: target for target in choices.targets if target.model_id}
        self._of_node = {target.backup_node_id: target for target in choices.targets if target.backup_node_id}

    def same_node_of(self, part: PlacementPart) -> str:
        """Return the id of the machine of `part` on this master; "" when it is not here."""
        if part.node_uid is not None:
            return self._by_uid.get(part.node_uid, "")
        return ""

    def places_of(self, record: ModelRecord, existing: ModelHere | None) -> FoundPlaces:
        """Return the new placements of one model. One that is placed here stays where it is."""
        choice = self._of_model.get(record.id)
        if existing is not None and existing.placements:
            return FoundPlaces()
        parts = routed_parts(record)
        if choice is not None and choice.unplaced:
            return FoundPlaces(notes=("It is restored unplaced, as chosen.",) if parts else ())
        if choice is not None:
            return self._at(record, choice)
        by_replica: dict[UUID, list[PlacementPart]] = defaultdict(list)
        for part in parts:
            by_replica[part.replica].append(part)
        found = [self._replica(record, sorted(shards, key=lambda part: part.shard)) for shards in by_replica.values()]
        return self._joined(found, existing)

    def _joined(self, found: Sequence[FoundPlaces], existing: ModelHere | None) -> FoundPlaces:
        """Return the replicas together; two on one node are one."""
        placed: list[PlannedPlace] = []
        notes = [note for one in found for note in one.notes]
        for one in found:
            if {place.node_id for place in one.places} & {place.node_id for place in placed}:
                notes.append(f"A second replica on node {one.places[0].node_id} is left out.")
                continue
            placed += one.places
        waits = any(one.needs_target for one in found)
        if waits and (existing is not None or self._choices.others_unplaced or placed):
            # A model that is here already, or has another replica, is whole without this one.
            waits = False
            notes.append("A replica whose node is not here is left out." if placed else "It stays unplaced.")
        return FoundPlaces(tuple(placed), tuple(notes), waits)

    def _at(self, record: ModelRecord, choice: TargetChoice) -> FoundPlaces:
        """Return the one place on the node that was chosen for the model."""
        machine = self._here.nodes[choice.node_id].machine
        parts = routed_parts(record)
        part = next((one for one in parts if self.same_node_of(one) == choice.node_id), parts[0] if parts else None)
        same = part is not None and self.same_node_of(part) == choice.node_id
        notes = [f"Its {len(parts)} placements become one, as chosen."] if len(parts) > 1 else []
        if choice.gpu_uuids:
            found = places.judged(record, machine, choice.gpu_uuids, "")
        else:
            found = places.find(record, part.gpu_uuids if part is not None else (), machine, same=same)
        replica = part.replica if part is not None else UUID(int=0)
        return self._whole([found], replica, record, notes, others=not same)

    def _replica(self, record: ModelRecord, shards: Sequence[PlacementPart]) -> FoundPlaces:
        """Return the places of all shards of one replica, or of none."""
        found: list[FoundPlace] = []
        others = False
        for part in shards:
            node_id = self.same_node_of(part)
            choice = self._of_node.get(part.node_id)
            same = bool(node_id)
            if choice is not None and choice.unplaced:
                return FoundPlaces(notes=("It is restored unplaced, as chosen.",))
            if choice is not None:
                same, node_id = node_id == choice.node_id, choice.node_id
            if not node_id:
                return FoundPlaces(needs_target=True)
            others = others or not same
            found.append(places.find(record, part.gpu_uuids, self._here.nodes[node_id].machine, same=same))
        return self._whole(found, shards[0].replica, record, [], others=others)

    def _whole(
        self, found: Sequence[FoundPlace], replica: UUID, record: ModelRecord, notes: list[str], *, others: bool
    ) -> FoundPlaces:
        problem = next((one.problem for one in found if one.problem), "") or self._together(record, found)
        if problem:
            return FoundPlaces(notes=(*notes, _UNPLACED.format(problem)))
        notes += [one.note for one in found if one.note]
        if others and (folder := _folder_to_copy(record)):
            where = ", ".join(one.node_id for one in found)
            notes.append(f"Its weights have no repository: copy the folder {folder} to {where}.")
        made = tuple(
            PlannedPlace(one.node_id, one.gpu_uuids, replica, rank, len(found)) for rank, one in enumerate(found)
        )
        return FoundPlaces(made, tuple(notes))

    def _together(self, record: ModelRecord, found: Sequence[FoundPlace]) -> str:
        if len(found) == 1:
            return ""
        nodes = [self._here.nodes[one.node_id] for one in found]
        seats = [
            multi_node.ShardNode(node.machine.facts, node.address, len(one.gpu_uuids))
            for node, one in zip(nodes, found, strict=True)
        ]
        problems = multi_node.problems(record.runtime, seats)
        return problems[0].message if problems else ""

    def require_valid(self) -> None:
        """Raise InvalidRequest with a problem for each choice that names what is not there, or breaks a rule."""
        problems: list[Problem] = []
        models: Mapping[str, ModelRecord] = {model.id: model for model in self._content.models}
        nodes = set(self._content.nodes) | {part.node_id for model in models.values() for part in model.placements}
        known: set[tuple[str, str]] = set()
        for at, choice in enumerate(self._choices.targets):
            subject = (choice.model_id, choice.backup_node_id)
            problem = self._problem(choice, models, nodes, f"targets.{at}")
            if problem is None and subject in known:
                text = f"{choice.model_id or choice.backup_node_id} has two targets."
                problem = Problem("target_duplicate", text, f"targets.{at}")
            known.add(subject)
            problems += [problem] if problem is not None else []
        if problems:
            raise InvalidRequest(problems[0].message, problems=[problem.to_json() for problem in problems])

    def _problem(
        self, choice: TargetChoice, models: Mapping[str, ModelRecord], nodes: set[str], field: str
    ) -> Problem | None:
        if bool(choice.model_id) == bool(choice.backup_node_id):
            return Problem("target_invalid", "Name either a model or a node of the backup for each target.", field)
        if bool(choice.node_id) == choice.unplaced:
            return Problem("target_invalid", "Choose either a node or unplaced for each target.", field)
        if choice.gpu_uuids and (choice.backup_node_id or choice.unplaced):
            return Problem("target_invalid", "GPUs can be chosen for a model on a node only.", field)
        if choice.model_id and choice.model_id not in models:
            return Problem("model_unknown", f"The backup has no model {choice.model_id!r}.", field)
        if choice.backup_node_id and choice.backup_node_id not in nodes:
            return Problem("node_unknown", f"The backup has no node {choice.backup_node_id!r}.", field)
        if choice.node_id and choice.node_id not in self._here.nodes:
            return Problem("node_unknown", f"Node {choice.node_id!r} does not exist here, or is revoked.", field)
        return self._against_existing(choice, models, field)

    def _against_existing(self, choice: TargetChoice, models: Mapping[str, ModelRecord], field: str) -> Problem | None:
        existing = self._here.models.get(choice.model_id)
        if existing is not None and existing.placements:
            nodes = [place.node_id for place in existing.placements]
            text = f"Model {existing.id!r} is placed on {', '.join(nodes)} here;"
            if choice.unplaced:
                return Problem("use_unplace", f"{text} unplace it on its page.", field)
            if choice.node_id not in nodes:
                return Problem("use_move", f"{text} move it on its page.", field)
        elif choice.gpu_uuids:
            machine = self._here.nodes[choice.node_id].machine
            found = places.judged(models[choice.model_id], machine, choice.gpu_uuids, "")
            return Problem("placement_invalid", found.problem, field) if found.problem else None
        return None


def _folder_to_copy(record: ModelRecord) -> str:
    first = record.sources[0] if record.sources else None
    return first.folder if first is not None and not first.repository else ""
