"""``agent.json``: the settings of an agent by the owner of the machine."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agent import fabrics
from agent.common import image_rules
from agent.common.engine_settings import ENGINES
from agent.common.engine_settings.check import is_managed
from agent.wire.capability import MemoryModel

DEFAULT_CONFIG = Path("/etc/mirbad-agent/agent.json")
DEFAULT_STATE = Path("/var/lib/mirbad-agent")


Port = Annotated[int, Field(ge=1, le=65535)]


class BadAgentConfig(Exception):
    """``agent.json`` cannot be used; the text names the field and the fix."""


def _approved(text: str) -> str:
    try:
        image = image_rules.parse(text)
    except image_rules.BadImage as error:
        raise ValueError(str(error)) from error
    if image.digest is None or image.tag is not None:
        raise ValueError(f"'{text}' must be repository@sha256: and 64 hex digits, without a tag")
    return text


def _command(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a command line ({error})") from error
    if not words:
        raise ValueError("an empty command is not valid; remove the field")
    return text


def _allowed(names: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    for runtime, listed in names.items():
        if runtime not in ENGINES:
            raise ValueError(f"{runtime!r} is no engine; write {', '.join(ENGINES)}")
        if managed := [name for name in listed if is_managed(runtime, name)]:
            raise ValueError(f"{', '.join(managed)} is set by the agent and cannot be allowed")
    return names


Allowances = Annotated[dict[str, tuple[str, ...]], AfterValidator(_allowed)]

_NOT_NEEDED = {
    "download_helper_user": "downloads run in the agent as its own user; remove the field",
    "download_helper_image": "downloads run in the agent and need no image; remove the field",
    "use_container_network": "engines are always published on the loopback address; remove the field",
}
"""Fields that a file from elsewhere may contain, and why they have no effect here."""


class AgentConfig(BaseModel):
    """Every field of ``agent.json``; all have defaults. Paths are absolute or relative to the file's folder.

    `engine_env` is given to every engine that runs as a process, which may read `engine_paths` besides the system's
    libraries and its weights. `engine_internet` lets engines open connections to anywhere, `engine_writable_root` lets
    containers write the files of their image.
    `allowed_args` and `allowed_env` are names by engine that models may have on this machine beyond the common list,
    with any value: who may save a model can then do with this machine what these options can.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    state_dir: Path = DEFAULT_STATE
    models_root: Path = Path("/srv/mirbad/models")
    bind: str = "0.0.0.0"  # noqa: S104  the master dials the agent from another machine; mutual TLS guards the port
    port: Port = 9443
    allow_tag_pulls: bool = False
    approved_images: tuple[Annotated[str, AfterValidator(_approved)], ...] = ()
    memory_model: MemoryModel | None = None
    memory_reserve_gib: Annotated[float, Field(ge=0)] = 4.0
    max_concurrent_starts: Annotated[int, Field(ge=1)] | None = None
    docker_host: str | None = None
    nvidia_smi: str = "nvidia-smi"
    llama_server: str | None = None
    vllm_command: Annotated[str | None, AfterValidator(_command)] = None
    sim_engine: bool = True
    engine_env: dict[str, str] = {}
    engine_paths: tuple[Path, ...] = ()
    engine_internet: bool = False
    engine_writable_root: bool = False
    allowed_args: Allowances = {}
    allowed_env: Allowances = {}
    fabrics: tuple[str, ...] = ()
    sysfs_root: Path = Path("/sys")
    rendezvous_ports: tuple[Port, Port] = (29500, 29599)
    engine_threads: Annotated[int, Field(ge=1)] | None = None
    drain_seconds: Annotated[float, Field(ge=0, le=600)] = 8.0
    log_level: str = "info"


def read_config(path: Path) -> AgentConfig:
    """Return the configuration in `path`, or the defaults without a file. Raises BadAgentConfig, a line per problem."""
    try:
        data: Any = json.loads(path.read_text()) if path.exists() else {}
    except OSError as error:
        raise BadAgentConfig(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadAgentConfig(f"{path} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadAgentConfig(f"{path} must contain one JSON object")
    try:
        config = AgentConfig.model_validate(data)
    except ValidationError as error:
        lines = [f"{path}: {'.'.join(map(str, item['loc']))}: {_words(item)}" for item in error.errors()]
        raise BadAgentConfig("\n".join(lines)) from None
    if (problem := _contradiction(config)) is not None:
        raise BadAgentConfig(f"{path}: {problem}")
    base = path.resolve().parent
    return config.model_copy(update={"state_dir": base / config.state_dir, "models_root": base / config.models_root})


def _words(problem: Any) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        return _NOT_NEEDED.get(name, "unknown field; see agent.json.example")
    return str(problem["msg"]).removeprefix("Value error, ")


def _contradiction(config: AgentConfig) -> str | None:
    """Return the sentence for two settings that contradict each other, None without a contradiction."""
    first, last = config.rendezvous_ports
    if first > last:
        return f"rendezvous_ports: the first port ({first}) is above the last ({last})"
    try:
        fabrics.parse(config.fabrics)
    except fabrics.BadFabric as error:
        return f"fabrics: {error}"
    return None
