"""A fleet from a backup: an empty master becomes the one that the backup is of.

All rows are written in one transaction. The master gets a new instance id at its next start, since its data is in
another place, and commands no node until a takeover; the file that requests one is there before the rows are.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from django.contrib.auth.models import Group, User
from django.db import connection, transaction

from audit import checkpoints
from audit import log as audit_log
from jobs.backup import container, records, restored_destinations, verification
from jobs.backup.container import BackupManifest
from jobs.errors import BackupUnsuitable, MasterNotEmpty
from mirbad.accounts.models import AdminToken
from mirbad.accounts.roles import ensure_groups
from mirbad.kernel import bulk, clock
from mirbad.kernel.actor import system
from models_app import intents, routing
from models_app.models import ApiKey, ModelDefinition, ModelSource, Placement, RunningIntent
from models_app.registry import specs
from models_app.states import RUNNING, STOPPED
from nodes.models import Authority, Gpu, JoinToken, MasterIdentity, Node, NodePin, RevokedKey
from nodes.pki import outside, store
from nodes.pki.certs import fingerprint
from nodes.states import APPROVED

Sealed = list[records.SecretRecord]
R = TypeVar("R", bound=records.SecretRecord)

_LOCK = 0x6D697262
"""The number of the lock of PostgreSQL that installations hold: "mirb"."""

_LOCK_SECONDS = 60

_UNBOUND = "recovered"
"""The place that the identity of a recovered master is bound to: none, so that its next start binds it."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result: the manifest of the backup, and what an operator has to know or do, a sentence each."""

    manifest: BackupManifest
    notes: tuple[str, ...]


Stage = Callable[[Recovered], None]


def recover(path: Path, passphrase: str, stage: Stage, asked_by: str, *, name: str = "") -> Recovered:
    """Write the rows of the backup `path` on this empty master, whose tables exist. `name` is its name for people.

    The whole backup is read first. `stage` is called before the rows are committed, and prepares the request of a
    takeover. All or nothing: after an error or a crash the master is as empty as before. Raises MasterNotEmpty,
    BackupUnsuitable, OSError.
    """
    name = name or path.name
    manifest = verification.verify(path, passphrase)
    _require_ca(manifest)
    with container.opened(path) as backup, transaction.atomic():
        one_at_a_time()
        require_empty()
        configuration = list(verification.configuration(backup))
        sealed = list(verification.secrets(backup, passphrase))
        _write_master(sealed)
        notes = [*_write_nodes(configuration, sealed), *_write_models(configuration, sealed)]
        notes += _write_destinations(configuration, sealed)
        _write_people(sealed)
        routing.bump()
        made = f"{manifest.created_at:%Y-%m-%d %H:%M:%S} UTC"
        detail = f"fleet recovered from {name} of master {manifest.instance_id}, made {made}; asked by {asked_by}"
        audit_log.record("restore", system("restore"), target=name, detail=detail)
        recovered = Recovered(manifest, tuple(notes))
        stage(recovered)
    return recovered


def one_at_a_time() -> None:
    """Wait for the end of a transaction that installs, also of one whose process was killed. In a transaction."""
    # Transactions of SQLite take the write lock as they begin.
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            cursor.execute("SET LOCAL lock_timeout = DEFAULT")


def require_suitable(manifest: BackupManifest) -> None:
    """Raise BackupUnsuitable for a backup that cannot rebuild a master, whatever is in it."""
    _require_ca(manifest)


def require_empty() -> None:
    """Raise MasterNotEmpty with everything that a recovery would overwrite."""
    found = [
        ("node", Node.objects.exclude(is_bootstrap=True, lifecycle="pending").values_list("pk", flat=True)),
        ("model", ModelDefinition.objects.values_list("pk", flat=True)),
        ("API key", ApiKey.objects.values_list("name", flat=True)),
        ("used join token of", JoinToken.objects.exclude(used_at=None).values_list("node_id_text", flat=True)),
        ("certificate authority", Authority.objects.values_list("sha256", flat=True)),
        ("identity", MasterIdentity.objects.values_list("instance_id", flat=True)),
    ]
    problems = [
        {"code": "master_not_empty", "message": f"{what} {name}"} for what, names in found for name in list(names[:20])
    ]
    if problems:
        text = ", ".join(problem["message"] for problem in problems[:5])
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise MasterNotEmpty(
            f"This master is not empty: it has {text}{more}. Recover on an empty data folder and database.",
            problems=problems,
        )


def _require_ca(manifest: BackupManifest) -> None:
    if not manifest.ca_sha256:
        raise BackupUnsuitable(
            "This backup has no key of the CA: nodes would obey no master that it makes. Use one with secrets that was "
            "made with MIRBAD_BACKUP_INCLUDE_CA=true."
        )
    if outside.is_configured() and fingerprint(outside.certificate()) != manifest.ca_sha256:
        raise BackupUnsuitable("MIRBAD_PKI_CA_CERT_FILE names another CA than the one of this backup.")


def _of(sealed: Sealed, kind: type[R]) -> Iterator[R]:
    return (record for record in sealed if isinstance(record, kind))


def _write_master(sealed: Sealed) -> None:
    master, authority = next(_of(sealed, records.MasterRecord), None), next(_of(sealed, records.AuthorityRecord), None)
    if master is None or authority is None or authority.key_pem is None:
        raise BackupUnsuitable("This backup lacks the identity of its master.")
    own = master.model_dump(exclude={"kind", "client_key_pem", "enroll_key_pem"})
    MasterIdentity.objects.create(
        **own,
        bound_to=_UNBOUND,
        client_key_sealed=store.seal_key(master.client_key_pem.encode(), store.CLIENT_KEY),
        enroll_key_sealed=store.seal_key(master.enroll_key_pem.encode(), store.ENROLL_KEY),
    )
    Authority.objects.create(
        slot=Authority.CURRENT,
        cert_pem=authority.cert_pem,
        sha256=authority.sha256,
        key_sealed=store.seal_key(authority.key_pem.encode(), store.CA_KEY),
    )
    for audit in _of(sealed, records.AuditRecord):
        key = bytes.fromhex(audit.key_hex)
        checkpoints.continue_log(audit.head_seq, audit.head_digest, audit.head_peaks, key)


def _write_nodes(configuration: list[records.ConfigurationRecord], sealed: Sealed) -> list[str]:
    settings = {record.id: record for record in configuration if isinstance(record, records.NodeRecord)}
    notes: list[str] = []
    Node.objects.all().delete()  # at most the bootstrap node, not enrolled
    for member in _of(sealed, records.MemberRecord):
        values = member.model_dump(exclude={"kind", "pins", "cert_not_after"})
        node = Node(**values, cert_not_after=member.cert_not_after)
        if (found := settings.get(member.id)) is not None:
            for name, value in found.model_dump(exclude={"kind", "id", "uid", "gpus"}).items():
                setattr(node, name, value)
        node.save(force_insert=True)
        NodePin.objects.bulk_create(NodePin(node=node, **pin.model_dump()) for pin in member.pins)
        if found is not None:
            Gpu.objects.bulk_create(Gpu(node=node, present=False, **gpu.model_dump()) for gpu in found.gpus)
        notes += _notes_of(member)
    revoked = list(_of(sealed, records.RevokedKeyRecord))
    RevokedKey.objects.bulk_create(RevokedKey(**one.model_dump(exclude={"kind"})) for one in revoked)
    bulk.update_each(RevokedKey, ["revoked_at"], [(one.spki_sha256, [one.revoked_at]) for one in revoked])
    return notes


def _notes_of(member: records.MemberRecord) -> Iterator[str]:
    if member.lifecycle == "pending":
        yield f"Node {member.id} was waiting for its approval: approve it, or have it join again."
    ends = [pin.cert_not_after for pin in member.pins if pin.cert_not_after is not None]
    if member.lifecycle == APPROVED and ends and max(ends) < clock.now():
        yield f"The certificate of node {member.id} expired on {max(ends):%Y-%m-%d}: re-pair it."


def _write_models(configuration: list[records.ConfigurationRecord], sealed: Sealed) -> list[str]:
    env = {one.model_id: one.env for one in _of(sealed, records.ModelSecretsRecord)}
    running, notes = [], []
    for record in configuration:
        if not isinstance(record, records.ModelRecord):
            continue
        values = record.model_dump(mode="json", exclude={"kind", "sources", "placements"})
        model = ModelDefinition(**values, secret_env_sealed=specs.seal_env(record.id, env.get(record.id, {})))
        model.save(force_insert=True)
        ModelSource.objects.bulk_create(
            ModelSource(model=model, position=position, **source.model_dump())
            for position, source in enumerate(record.sources)
        )
        rows = [_placement(model, part) for part in record.placements]
        Placement.objects.bulk_create(rows)
        running += [row for row in rows if row.desired == RUNNING]
        if record.secret_env_names and not env.get(record.id):
            notes.append(f"The secret variables of model {record.id} are not in the backup: enter them again.")
    intents.ask(running, RunningIntent.ASKED)
    return notes


def _placement(model: ModelDefinition, part: records.PlacementPart) -> Placement:
    left_out = {"node_id", "node_uid", "gpus", "gpu_uuids", "running"}
    return Placement(
        **part.model_dump(exclude=left_out),
        model=model,
        node_id_text=part.node_id,
        gpu_uuids=list(part.gpu_uuids),
        desired=RUNNING if part.running else STOPPED,
    )


def _write_destinations(configuration: list[records.ConfigurationRecord], sealed: Sealed) -> list[str]:
    found = [record for record in configuration if isinstance(record, records.DestinationRecord)]
    secrets = {one.name: one for one in _of(sealed, records.DestinationSecretsRecord)}
    return restored_destinations.write(found, secrets)


def _write_people(sealed: Sealed) -> None:
    groups: dict[str, Group] = {group.name: group for group in ensure_groups().values()}
    for person in _of(sealed, records.PersonRecord):
        values = person.model_dump(exclude={"kind", "username", "groups"})
        user, _ = User.objects.update_or_create(username=person.username, defaults=values)
        user.groups.set([groups[name] for name in person.groups if name in groups])
    users = {user.get_username(): user for user in User.objects.all()}
    tokens = [
        AdminToken(**token.model_dump(exclude={"kind", "owner"}), owner=users.get(token.owner or ""))
        for token in _of(sealed, records.AdminTokenRecord)
    ]
    keys = [
        ApiKey(**key.model_dump(exclude={"kind", "allowed_models"}), allowed_models=list(key.allowed_models))
        for key in _of(sealed, records.ApiKeyRecord)
    ]
    _insert_with_dates(AdminToken, tokens)
    _insert_with_dates(ApiKey, keys)


def _insert_with_dates(model: type[AdminToken] | type[ApiKey], rows: list[Any]) -> None:
    """Insert rows whose `created_at` is kept; Django writes the present moment."""
    created = [row.created_at for row in rows]
    made = model.objects.bulk_create(rows)
    bulk.update_each(model, ["created_at"], [(row.pk, [at]) for row, at in zip(made, created, strict=True)])
