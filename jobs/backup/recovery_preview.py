"""The content of a backup before it is installed: what will be there, and what is left to do for each node."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jobs.backup import container, records, verification
from jobs.backup.container import BackupManifest
from mirbad.kernel import clock
from nodes.states import APPROVED, PENDING, REVOKED

MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class RecoveryNode:
    """A node of a backup. `state` is what it will need: ``ready``, ``pending``, ``expired`` or ``revoked``."""

    id: str
    address: str
    state: str
    models: int

    @property
    def next_step(self) -> str:
        """Return what is left to do for the node, as a sentence; empty when it is taken over by itself."""
        return {
            "pending": "Never enrolled. Approve it, or have it join with a new token.",
            "expired": "Its certificate has expired. Re-pair it after the recovery.",
        }.get(self.state, "")


@dataclass(frozen=True, slots=True)
class RecoveryModel:
    """A model of a backup, with the nodes it is placed on; `runs` says that it will run."""

    id: str
    nodes: tuple[str, ...]
    runs: bool
    lacks_secrets: bool


@dataclass(frozen=True, slots=True)
class RecoveryPreview:
    """All that a recovery would install. The lists may be cut at `MOST_SHOWN`; the counts are whole."""

    manifest: BackupManifest
    epoch: int
    nodes: tuple[RecoveryNode, ...]
    models: tuple[RecoveryModel, ...]
    people: tuple[str, ...]
    keys: tuple[str, ...]
    counts: dict[str, int]

    @property
    def more_nodes(self) -> int:
        """Return how many nodes are not in the list."""
        return self.counts["nodes"] - len(self.nodes)

    @property
    def more_models(self) -> int:
        """Return how many models are not in the list."""
        return self.counts["models"] - len(self.models)


def read(path: Path, passphrase: str) -> RecoveryPreview:
    """Read the preview of a backup. Raises BackupUnsuitable, OSError."""
    with container.opened(path) as backup:
        configuration = list(verification.configuration(backup))
        sealed = list(verification.secrets(backup, passphrase))
    secret_env = {one.model_id for one in sealed if isinstance(one, records.ModelSecretsRecord)}
    models = [one for one in configuration if isinstance(one, records.ModelRecord)]
    nodes = list(_nodes(sealed, models))
    people = [one.username for one in sealed if isinstance(one, records.PersonRecord)]
    keys = [one.name for one in sealed if isinstance(one, records.ApiKeyRecord) and one.revoked_at is None]
    shown = [_model(one, one.id in secret_env) for one in models]
    running = sum(one.runs for one in shown)
    return RecoveryPreview(
        manifest=backup.manifest,
        epoch=next((one.epoch for one in sealed if isinstance(one, records.MasterRecord)), 0),
        nodes=tuple(sorted(nodes, key=lambda node: (node.state == "ready", node.id))[:MOST_SHOWN]),
        models=tuple(sorted(shown, key=lambda model: (not model.runs, model.id))[:MOST_SHOWN]),
        people=tuple(people),
        keys=tuple(keys),
        counts={
            "nodes": len(nodes),
            "models": len(models),
            "running": running,
            "people": len(people),
            "keys": len(keys),
            "tokens": sum(isinstance(one, records.AdminTokenRecord) and one.revoked_at is None for one in sealed),
        },
    )


def _nodes(sealed: list[records.SecretRecord], models: list[records.ModelRecord]) -> Iterator[RecoveryNode]:
    for member in sealed:
        if isinstance(member, records.MemberRecord) and member.lifecycle != REVOKED:
            placed = sum(any(part.node_id == member.id for part in model.placements) for model in models)
            yield RecoveryNode(member.id, f"{member.address}:{member.port}", _state(member), placed)


def _state(member: records.MemberRecord) -> str:
    if member.lifecycle == PENDING:
        return "pending"
    ends = [pin.cert_not_after for pin in member.pins if pin.cert_not_after is not None]
    return "expired" if member.lifecycle == APPROVED and ends and max(ends) < clock.now() else "ready"


def _model(record: records.ModelRecord, has_secrets: bool) -> RecoveryModel:
    return RecoveryModel(
        id=record.id,
        nodes=tuple(dict.fromkeys(part.node_id for part in record.placements)),
        runs=any(part.running for part in record.placements),
        lacks_secrets=bool(record.secret_env_names) and not has_secrets,
    )
