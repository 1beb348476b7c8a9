"""The choices of a person for an import."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """A target of one model, or of everything that was on a node of the backup; or none (`unplaced`).

    `gpu_uuids` are of a model alone; without them the import chooses.
    """

    model_id: str = ""
    backup_node_id: str = ""
    node_id: str = ""
    gpu_uuids: tuple[str, ...] = ()
    unplaced: bool = False


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The parts of an import that can be left out; each is on when the backup has something for it."""

    start_models: bool = True
    node_settings: bool = True
    start_times: bool = True
    destinations: bool = True


OPTION_NAMES = ("start_models", "node_settings", "start_times", "destinations")


@dataclass(frozen=True, slots=True)
class ImportChoices:
    """All choices of one import. `others_unplaced` leaves unplaced what would need a target and has none."""

    targets: tuple[TargetChoice, ...] = ()
    options: ImportOptions = field(default_factory=ImportOptions)
    others_unplaced: bool = False
