"""The one typed settings model of the master. Every value comes from the environment; see docs/operations/settings.md.

Each secret may also be given as a file (``MIRBAD_SECRET_KEY_FILE``). An unknown ``MIRBAD_*`` name or a bad value
stops the start with a sentence that names the variable.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agent.common.listening import EVERY_ADDRESS
from agent.common.node_ids import NODE_ID_RULE, is_node_id
from mirbad.kernel import values

_SECRETS = ("admin_password", "secret_key", "database_url", "redis_url")
# Read by the agent or by another tool, not by the master; allowed in the environment.
_FOREIGN = frozenset({"MIRBAD_JOIN_TOKEN", "MIRBAD_ENROLL_CA_HASH"})
_FOREIGN_PREFIXES = ("MIRBAD_TEST_", "MIRBAD_FIGURE_", "MIRBAD_INTERNAL_")


class BadSettings(Exception):
    """The environment contains an unusable value; the text names it and the fix."""


Duration = Annotated[timedelta, BeforeValidator(values.parse_duration)]
Wait = Annotated[Duration, Field(ge=timedelta(seconds=1))]
Pause = Annotated[Duration, Field(gt=timedelta(0))]
Names = Annotated[tuple[str, ...], BeforeValidator(values.split)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Settings(BaseModel):
    """All settings of an operator. Field ``x_y`` is read from ``MIRBAD_X_Y`` (but ``DATABASE_URL`` as it is)."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    data: Path = Path("data")
    bind: Annotated[str, AfterValidator(values.bind)] = "127.0.0.1"
    port: Port = 8080
    enroll_port: Port = 8443
    agent_port: Port = 9443
    keep_alive: Wait = timedelta(seconds=75)
    max_connections_per_address: Annotated[int, Field(ge=8)] = 1024
    hosts: Annotated[Names, AfterValidator(values.hosts)] = ()
    trusted_proxies: Annotated[Names, AfterValidator(values.proxies)] = ()
    admin_password: Annotated[str | None, Field(repr=False)] = None
    secret_key: Annotated[str, Field(repr=False), AfterValidator(values.secret_key)] = ""
    database_url: Annotated[str, Field(repr=False), AfterValidator(values.database_url)] = ""
    redis_url: Annotated[str, Field(repr=False), AfterValidator(values.redis_url)] = ""
    starter_model: Literal["smollm2-135m", "none"] = "smollm2-135m"
    bootstrap_node: Annotated[str, Field(min_length=1)] = "local"
    enroll_url: Annotated[str, AfterValidator(values.enroll_url)] = ""
    agent_bundle_url: Annotated[str, AfterValidator(values.bundle_url)] = ""
    default_join_token_lifetime: Annotated[Duration, Field(ge=timedelta(minutes=10), le=timedelta(hours=24))] = (
        timedelta(hours=1)
    )
    join_token_retention: Duration = timedelta(days=30)
    enroll_rate_per_minute: Annotated[int, Field(ge=1)] = 5
    enroll_global_rate_per_minute: Annotated[int, Field(ge=1)] = 120
    engine_image: Annotated[str, AfterValidator(values.image)] = ""
    v1_max_body: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    v1_max_buffered: Annotated[int | None, Field(ge=1024)] = None
    v1_max_inflight: Annotated[int, Field(ge=1)] = 512
    v1_door: Literal["fast", "asgi"] = "fast"
    v1_origins: Annotated[Names, AfterValidator(values.origins)] = ()
    v1_sticky: Literal["none", "session", "prefix"] = "none"
    v1_access_log: bool = True
    maintenance_node_scoped: Literal["true", "false"] | None = None
    backup_include_ca: bool = True
    recovery_mode: Literal["none", "fleet-restore"] = "none"
    fencing_takeover: bool = False
    fencing_takeover_id: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9._:-]*$")] = ""
    pki_ca_cert_file: Path | None = None
    pki_ca_key_file: Path | None = None
    pki_flag_interval: Duration = timedelta(minutes=5)
    agent_certificate_life: Annotated[Duration, Field(ge=timedelta(seconds=10))] = timedelta(days=90)
    revoke_stop_timeout: Duration = timedelta(seconds=30)
    moves_poll_interval: Pause = timedelta(seconds=1)
    moves_retry_interval: Pause = timedelta(seconds=2)
    moves_sweep_interval: Pause = timedelta(seconds=5)
    moves_stop_timeout: Pause = timedelta(minutes=2)
    moves_start_target_timeout: Pause = timedelta(minutes=10)
    moves_resume_node_wait: Pause = timedelta(minutes=1)
    moves_drain_timeout: Pause = timedelta(minutes=10)
    operation_retention: Annotated[Duration, Field(ge=timedelta(0))] = timedelta(days=90)
    operation_lease: Wait = timedelta(seconds=30)
    launch_timeout: Wait = timedelta(minutes=30)
    engine_restarts: Annotated[int, Field(ge=0)] = 5
    engine_restart_window: Wait = timedelta(minutes=15)
    stop_timeout: Wait = timedelta(minutes=2)
    telemetry_interval: Annotated[Duration, Field(ge=timedelta(seconds=5), le=timedelta(seconds=60))] = timedelta(
        seconds=15
    )
    telemetry_raw: Annotated[Duration, Field(ge=timedelta(minutes=10))] = timedelta(hours=2)
    telemetry_minutes: Annotated[Duration, Field(ge=timedelta(hours=2))] = timedelta(days=2)
    telemetry_hours: Annotated[Duration, Field(ge=timedelta(days=1))] = timedelta(days=90)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    debug: bool = False

    @property
    def listens_everywhere(self) -> bool:
        """True for all addresses of this machine, of one kind or both."""
        return self.bind in {"0.0.0.0", EVERY_ADDRESS}  # noqa: S104  compared, not bound

    @property
    def local_host(self) -> str:
        """The host at which processes and people on this machine reach the master, without brackets."""
        return "127.0.0.1" if self.listens_everywhere else self.bind

    @property
    def names(self) -> tuple[str, ...]:
        """The names and addresses that requests may be for, IPv6 in brackets: of this machine, then the listed ones."""
        own = f"[{self.bind}]" if ":" in self.bind else self.bind
        return ("127.0.0.1", "localhost", "[::1]", *(() if self.listens_everywhere else (own,)), *self.hosts)

    @property
    def secrets_dir(self) -> Path:
        """The folder of the master's secrets, mode 0700."""
        return self.data / "secrets"

    @property
    def logs_dir(self) -> Path:
        """The folder of the rotated logs, one file per process."""
        return self.data / "logs"


def _variable(field: str) -> str:
    return "DATABASE_URL" if field == "database_url" else f"MIRBAD_{field.upper()}"


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Parse the settings in `environ`. Raises BadSettings with one line per problem."""
    given: dict[str, Any] = {}
    known = {_variable(field): field for field in Settings.model_fields}
    problems: list[str] = []
    if environ.get("MIRBAD_DATA") == "":
        problems.append("MIRBAD_DATA is set but empty; set it to a folder, or unset it")
    for name, text in environ.items():
        if name in known:
            given[known[name]] = text
        elif name.endswith("_FILE") and known.get(name[:-5]) in _SECRETS:
            if name[:-5] in environ:
                problems.append(f"{name} and {name[:-5]} are both set; keep one of them")
                continue
            try:
                given[known[name[:-5]]] = _read_secret(Path(text))
            except ValueError as error:
                problems.append(f"{name}: {error}")
        elif name.startswith("MIRBAD_") and name not in _FOREIGN and not name.startswith(_FOREIGN_PREFIXES):
            problems.append(f"{name} is not a setting of Mirbad; check the spelling in docs/operations/settings.md")
    problems.extend(_split_bind(given))
    try:
        settings = Settings.model_validate(given)
    except ValidationError as error:
        problems.extend(
            f"{_variable(str(item['loc'][0]))}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors(include_url=False, include_input=False)
        )
        raise BadSettings("\n".join(problems)) from None
    if not is_node_id(settings.bootstrap_node):
        problems.append(f"MIRBAD_BOOTSTRAP_NODE: give {NODE_ID_RULE}")
    if problems:
        raise BadSettings("\n".join(problems))
    if not settings.secret_key:
        settings = settings.model_copy(update={"secret_key": _stored_secret_key(settings)})
    return settings.model_copy(update={"data": settings.data.absolute()})


def _split_bind(given: dict[str, Any]) -> list[str]:
    """Take the port out of MIRBAD_BIND, if it has one. Return what is wrong with the two together."""
    if "bind" not in given:
        return []
    given["bind"], port = values.bind_and_port(given["bind"])
    if not port:
        return []
    if given.setdefault("port", port).strip() != port:
        return [f"MIRBAD_BIND has the port {port} and MIRBAD_PORT is {given['port']}; keep one of them"]
    return []


def given_secret_key(environ: Mapping[str, str]) -> str:
    """Return the secret key that the environment gives, "" when it gives none. Raises BadSettings."""
    if path := environ.get("MIRBAD_SECRET_KEY_FILE"):
        try:
            return _read_secret(Path(path))
        except ValueError as error:
            raise BadSettings(f"MIRBAD_SECRET_KEY_FILE: {error}") from None
    return environ.get("MIRBAD_SECRET_KEY", "")


def _stored_secret_key(settings: Settings) -> str:
    path = settings.secrets_dir / "secret-key"
    try:
        return _read_secret(path) if path.is_file() else ""
    except PermissionError:
        reason = "Permission denied"
    except ValueError as error:
        reason = str(error)
    raise BadSettings(f"{path}: {reason}. Run as the user that Mirbad runs as.")


def _read_secret(path: Path) -> str:
    """Return the file's content without surrounding white space. Raises ValueError with the reason."""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise ValueError(f"the file cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        raise ValueError("the file is not text") from None


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the settings of this process, read once. Raises BadSettings."""
    return read_settings(os.environ)
