"""The lines of a backup: each a JSON object whose `kind` says which of these it is.

Names of columns are those of the rows. Anybody may read a `ConfigurationRecord`; a `SecretRecord` is sealed. A column
that is added to a row is either added here or named in `tests/jobs/backup/test_records.py` as left out.
"""

from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from jobs.errors import BackupUnsuitable

R = TypeVar("R")


class _BackupPart(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        from_attributes=True,
        hide_input_in_errors=True,
    )


class GpuPart(_BackupPart):
    """A GPU of a node. The memory is the card's, the reserve the setting."""

    uuid: str
    index: int | None
    name: str
    memory_bytes: int | None
    reserve_bytes: int | None


class NodeRecord(_BackupPart):
    """The settings of a node. Nothing here makes a machine a member: keys and addresses are in `MemberRecord`."""

    kind: Literal["node"] = "node"
    id: str
    uid: UUID
    display_name: str
    is_bootstrap: bool
    labels: dict[str, Any]
    memory_reserve_bytes: int | None
    max_concurrent_starts: int | None
    default_image: str
    default_image_digest: str
    default_llama_image: str
    default_llama_image_digest: str
    gpus: tuple[GpuPart, ...]


class SourcePart(_BackupPart):
    """A source of weights."""

    kind: str
    folder: str
    file: str
    projector: str
    repository: str
    revision: str


class PlacementPart(_BackupPart):
    """A model on a node. `gpus` are the cards that it had, with their memory, so that equal ones can be found.

    `id` is that of its engine on the node, which a recovery takes up again.
    """

    id: UUID
    node_id: str
    node_uid: UUID | None
    gpus: tuple[GpuPart, ...]
    gpu_uuids: tuple[str, ...]
    generation: int
    desired_config_hash: str
    replica: UUID
    shard: int
    shards: int
    routed: bool
    running: bool
    start_seconds: float | None


class ModelRecord(_BackupPart):
    """A model with its sources and placements. Values of `secret_env_names` are in `ModelSecretsRecord`."""

    kind: Literal["model"] = "model"
    id: str
    display_name: str
    runtime: str
    delivery: str
    image: str
    image_digest: str
    served_names: tuple[str, ...]
    args: tuple[str, ...]
    env: dict[str, str]
    secret_env_names: tuple[str, ...]
    context_length: int | None
    gpu_memory_budget_bytes: int | None
    host_memory_budget_bytes: int | None
    start_timeout_seconds: int
    first_byte_timeout_seconds: int
    idle_timeout_seconds: int
    wait_when_starting_seconds: int
    tags: tuple[str, ...]
    auto_start: bool
    restart_policy: str
    keep_serving: bool
    allow_pickle: bool
    sources: tuple[SourcePart, ...]
    placements: tuple[PlacementPart, ...]


class DestinationRecord(_BackupPart):
    """A destination of backups, without its password and the passphrase of its schedule."""

    kind: Literal["destination"] = "destination"
    name: str
    destination_kind: str
    settings: dict[str, str]
    schedule: str
    keep_count: int | None
    keep_days: int | None
    warn_after_hours: int | None


class BindingRecord(_BackupPart):
    """The first sealed line: the configuration that the secrets belong to, which nobody else can exchange."""

    kind: Literal["binding"] = "binding"
    configuration_sha256: str
    instance_id: str
    created_at: datetime


class PinPart(_BackupPart):
    """A key by which the master knows a node."""

    slot: str
    spki_sha256: str
    cert_pem: str
    cert_not_after: datetime | None


class MemberRecord(_BackupPart):
    """A node as a member of the fleet: where it is reached, and the keys by which it is known."""

    kind: Literal["member"] = "member"
    id: str
    uid: UUID
    address: str
    port: int
    lifecycle: str
    draining: bool
    machine: dict[str, Any]
    machine_id_hash: str
    request_address: str
    enrolled_at: datetime | None
    approved_at: datetime | None
    revoked_at: datetime | None
    cert_not_after: datetime | None
    pins: tuple[PinPart, ...]


class RevokedKeyRecord(_BackupPart):
    """A key that is never accepted again."""

    kind: Literal["revoked-key"] = "revoked-key"
    spki_sha256: str
    node_id_text: str
    revoked_at: datetime


class MasterRecord(_BackupPart):
    """The identity under which the master commands: its epoch, and the keys that agents and joining nodes know."""

    kind: Literal["master"] = "master"
    epoch: int
    instance_id: str
    client_cert_pem: str
    client_key_pem: str
    client_spki: str
    enroll_cert_pem: str
    enroll_key_pem: str


class AuthorityRecord(_BackupPart):
    """The CA that issues now, with its key unless the backup leaves it out or its files are the operator's."""

    kind: Literal["authority"] = "authority"
    cert_pem: str
    key_pem: str | None
    sha256: str


class AuditRecord(_BackupPart):
    """The head of the audit log, so that a recovered master continues it, and the key that signs heads."""

    kind: Literal["audit"] = "audit"
    head_seq: int
    head_digest: str
    head_peaks: tuple[str, ...]
    public: str
    key_hex: str


class PersonRecord(_BackupPart):
    """An account. `password` is Django's hash; `groups` are the roles."""

    kind: Literal["person"] = "person"
    username: str
    password: str
    first_name: str
    last_name: str
    email: str
    is_active: bool
    is_staff: bool
    is_superuser: bool
    date_joined: datetime
    last_login: datetime | None
    groups: tuple[str, ...]


class AdminTokenRecord(_BackupPart):
    """A token of `/api`, as its digest. `owner` is a name."""

    kind: Literal["admin-token"] = "admin-token"
    name: str
    prefix: str
    digest: str
    role: str
    owner: str | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class ApiKeyRecord(_BackupPart):
    """A key of `/v1`, as its digest."""

    kind: Literal["api-key"] = "api-key"
    name: str
    prefix: str
    digest: str
    allowed_models: tuple[str, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    max_parallel: int | None
    rotated_at: datetime | None
    previous_digest: str
    previous_until: datetime | None


class ModelSecretsRecord(_BackupPart):
    """The secret environment of a model, in clear below the seal."""

    kind: Literal["model-secrets"] = "model-secrets"
    model_id: str
    env: dict[str, str]


class DestinationSecretsRecord(_BackupPart):
    """The password of a destination and the passphrase of its scheduled backups, in clear below the seal."""

    kind: Literal["destination-secrets"] = "destination-secrets"
    name: str
    secret: str
    passphrase: str | None


ConfigurationRecord = NodeRecord | ModelRecord | DestinationRecord
SecretRecord = (
    BindingRecord
    | MasterRecord
    | AuthorityRecord
    | AuditRecord
    | MemberRecord
    | RevokedKeyRecord
    | PersonRecord
    | AdminTokenRecord
    | ApiKeyRecord
    | ModelSecretsRecord
    | DestinationSecretsRecord
)
Record = ConfigurationRecord | SecretRecord

_CONFIGURATION: TypeAdapter[ConfigurationRecord] = TypeAdapter(
    Annotated[ConfigurationRecord, Field(discriminator="kind")]
)
_SECRET: TypeAdapter[SecretRecord] = TypeAdapter(Annotated[SecretRecord, Field(discriminator="kind")])


def to_line(record: Record) -> bytes:
    """Return a record as its line."""
    return record.model_dump_json(by_alias=True).encode() + b"\n"


def configuration_record(line: bytes) -> ConfigurationRecord:
    """Return the record of a line of the configuration. Raises BackupUnsuitable."""
    return _parsed(_CONFIGURATION, line, "configuration")


def secret_record(line: bytes) -> SecretRecord:
    """Return the record of a line of the secrets. Raises BackupUnsuitable, which names fields and never a value."""
    return _parsed(_SECRET, line, "secrets")


def _parsed(adapter: "TypeAdapter[R]", line: bytes, part: str) -> R:
    try:
        return adapter.validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, problem["loc"])) or "a line"
        raise BackupUnsuitable(f"The {part} of this backup cannot be read: {where}: {problem['msg']}.") from None
