"""The rows of a backup, as its records, read in pieces. Call these inside of `consistent_read`."""

from collections.abc import Iterator
from uuid import UUID

from django.contrib.auth.models import User

from audit import checkpoints
from audit.models import ChainState, LogKey
from jobs.backup import records, storage
from jobs.models import BackupDestination
from mirbad.accounts.models import AdminToken
from mirbad.kernel.conf import settings
from mirbad.kernel.seal import unseal
from models_app.models import ApiKey, ModelDefinition, ModelSource, Placement
from models_app.registry import specs
from models_app.states import RUNNING
from nodes.models import Authority, Gpu, Node, NodePin, RevokedKey
from nodes.pki import store

_AT_ONCE = 200


def configuration() -> Iterator[records.ConfigurationRecord]:
    """Yield the nodes, the models and the destinations. Four queries for each 200 of them."""
    known: dict[str, tuple[UUID, dict[str, Gpu]]] = {}
    for node in Node.objects.not_revoked().prefetch_related("gpus").iterator(_AT_ONCE):
        known[node.pk] = node.uid, {gpu.uuid: gpu for gpu in node.gpus.all()}
        yield _node(node)
    models = ModelDefinition.objects.order_by("pk").prefetch_related("sources", "placements")
    for model in models.iterator(_AT_ONCE):
        placements = tuple(
            _placement(row, known) for row in sorted(model.placements.all(), key=lambda row: str(row.pk))
        )
        yield _model(model, placements)
    for destination in BackupDestination.objects.order_by("name"):
        values = _values(destination, records.DestinationRecord, "destination_kind")
        yield records.DestinationRecord(**values, destination_kind=destination.kind)


def _node(node: Node) -> records.NodeRecord:
    values = {name: getattr(node, name) for name in records.NodeRecord.model_fields if name not in ("kind", "gpus")}
    return records.NodeRecord(**values, gpus=tuple(map(records.GpuPart.model_validate, node.gpus.all())))


def _placement(row: Placement, known: dict[str, tuple[UUID, dict[str, Gpu]]]) -> records.PlacementPart:
    uid, gpus = known.get(row.node_id_text, (None, {}))
    return records.PlacementPart(
        id=row.pk,
        node_id=row.node_id_text,
        node_uid=uid,
        gpus=tuple(records.GpuPart.model_validate(gpus[uuid]) for uuid in row.gpu_uuids if uuid in gpus),
        gpu_uuids=tuple(row.gpu_uuids),
        generation=row.generation,
        desired_config_hash=row.desired_config_hash,
        replica=row.replica,
        shard=row.shard,
        shards=row.shards,
        routed=row.routed,
        running=row.desired == RUNNING,
        start_seconds=row.start_seconds,
    )


def _model(model: ModelDefinition, placements: tuple[records.PlacementPart, ...]) -> records.ModelRecord:
    others = ("kind", "sources", "placements")
    values = {name: getattr(model, name) for name in records.ModelRecord.model_fields if name not in others}
    sources: list[ModelSource] = sorted(model.sources.all(), key=lambda source: source.position)
    return records.ModelRecord(
        **values, sources=tuple(map(records.SourcePart.model_validate, sources)), placements=placements
    )


def secrets() -> Iterator[records.SecretRecord]:
    """Yield all that only the passphrase opens, but the binding. Raises SealBroken under another secret key."""
    yield from _master()
    pins: dict[str, list[NodePin]] = {}
    for pin in NodePin.objects.order_by("pk").iterator(_AT_ONCE):
        pins.setdefault(pin.node_id, []).append(pin)
    for node in Node.objects.order_by("pk").iterator(_AT_ONCE):
        yield _member(node, pins.get(node.pk, []))
    for key in RevokedKey.objects.order_by("pk").iterator(_AT_ONCE):
        yield records.RevokedKeyRecord(**_values(key, records.RevokedKeyRecord))
    for person in User.objects.order_by("pk").prefetch_related("groups").iterator(_AT_ONCE):
        groups = tuple(sorted(group.name for group in person.groups.all()))
        yield records.PersonRecord(**_values(person, records.PersonRecord, "groups"), groups=groups)
    for token in AdminToken.objects.order_by("pk").select_related("owner").iterator(_AT_ONCE):
        owner = token.owner.get_username() if token.owner is not None else None
        yield records.AdminTokenRecord(**_values(token, records.AdminTokenRecord, "owner"), owner=owner)
    for api_key in ApiKey.objects.order_by("pk").iterator(_AT_ONCE):
        yield records.ApiKeyRecord(**_values(api_key, records.ApiKeyRecord))
    for model in ModelDefinition.objects.order_by("pk").exclude(secret_env_sealed=None).iterator(_AT_ONCE):
        if env := specs.unseal_env(model):
            yield records.ModelSecretsRecord(model_id=model.pk, env=env)
    for place in BackupDestination.objects.order_by("name"):
        secret, passphrase = storage.secret_of(place), storage.kept_passphrase_of(place)
        if secret or passphrase is not None:
            yield records.DestinationSecretsRecord(name=place.name, secret=secret, passphrase=passphrase)


def issuing_ca() -> str:
    """Return the SHA-256 of the CA whose key is among the secrets, empty without one."""
    row = Authority.objects.filter(slot=Authority.CURRENT).first()
    return row.sha256 if row is not None and _has_key(row) else ""


def _has_key(row: Authority) -> bool:
    return settings().backup_include_ca and row.key_sealed is not None


def _master() -> Iterator[records.SecretRecord]:
    row = store.master()
    yield records.MasterRecord(
        **_values(row, records.MasterRecord, "client_key_pem", "enroll_key_pem"),
        client_key_pem=unseal(bytes(row.client_key_sealed), store.CLIENT_KEY).decode(),
        enroll_key_pem=unseal(bytes(row.enroll_key_sealed), store.ENROLL_KEY).decode(),
    )
    # During a rotation this is the CA that signs now: the old one until the master has its new certificates.
    authority = Authority.objects.get(slot=Authority.CURRENT)
    key = unseal(bytes(authority.key_sealed or b""), store.CA_KEY).decode() if _has_key(authority) else None
    yield records.AuthorityRecord(cert_pem=authority.cert_pem, key_pem=key, sha256=authority.sha256)
    log_key, chain = LogKey.objects.first(), ChainState.objects.first()
    if log_key is not None and chain is not None:
        yield records.AuditRecord(
            **_values(chain, records.AuditRecord, "public", "key_hex"),
            public=log_key.public,
            key_hex=checkpoints.signing_key().hex(),
        )


def _member(node: Node, pins: list[NodePin]) -> records.MemberRecord:
    return records.MemberRecord(
        **_values(node, records.MemberRecord, "pins"), pins=tuple(map(records.PinPart.model_validate, pins))
    )


def _values(row: object, record: type[records.Record], *others: str) -> dict[str, object]:
    """Return the columns of `row` that `record` has, but `others`."""
    return {name: getattr(row, name) for name in record.model_fields if name != "kind" and name not in others}
