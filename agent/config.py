"""``agent.json``: what the owner of a machine decides about its agent."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agent import fabrics
from agent.wire import images
from agent.wire.capability import MemoryModel

DEFAULT_CONFIG = Path("/etc/mirbad-agent/agent.json")
DEFAULT_STATE = Path("/var/lib/mirbad-agent")


Port = Annotated[int, Field(ge=1, le=65535)]


class BadConfig(Exception):
    """``agent.json`` cannot be used; the text says which field and what to change."""


def _approved(text: str) -> str:
    try:
        image = images.parse(text)
    except images.BadImage as error:
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
        raise ValueError("an empty text is no command; leave the field out")
    return text


_NOT_NEEDED = {
    "download_helper_user": "downloads run in the agent, as its own user, and belong to it; remove the field",
    "download_helper_image": "downloads run in the agent and need no image; remove the field",
    "use_container_network": "engines are always published on the loopback address; remove the field",
}
"""Fields that a file may carry from elsewhere, and why they mean nothing here."""


class AgentConfig(BaseModel):
    """Every field of ``agent.json``; all have defaults. Paths are absolute or relative to the file's folder."""

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
    fabrics: tuple[str, ...] = ()
    sysfs_root: Path = Path("/sys")
    rendezvous_ports: tuple[Port, Port] = (29500, 29599)
    engine_threads: Annotated[int, Field(ge=1)] | None = None
    drain_seconds: Annotated[float, Field(ge=0, le=600)] = 8.0
    log_level: str = "info"


def read_config(path: Path) -> AgentConfig:
    """The configuration in `path`, or the defaults when there is none. Raises BadConfig with one line a problem."""
    try:
        data: Any = json.loads(path.read_text()) if path.exists() else {}
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadConfig(f"{path} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadConfig(f"{path} must hold one JSON object")
    try:
        config = AgentConfig.model_validate(data)
    except ValidationError as error:
        lines = [f"{path}: {'.'.join(map(str, item['loc']))}: {_words(item)}" for item in error.errors()]
        raise BadConfig("\n".join(lines)) from None
    if (problem := _contradiction(config)) is not None:
        raise BadConfig(f"{path}: {problem}")
    base = path.resolve().parent
    return config.model_copy(update={"state_dir": base / config.state_dir, "models_root": base / config.models_root})


def _words(problem: Any) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        return _NOT_NEEDED.get(name, "there is no such field; see agent.json.example for those that there are")
    return str(problem["msg"]).removeprefix("Value error, ")


def _contradiction(config: AgentConfig) -> str | None:
    """What two fields, or two parts of one, cannot both mean."""
    first, last = config.rendezvous_ports
    if first > last:
        return f"rendezvous_ports: the first port ({first}) is above the last ({last})"
    try:
        fabrics.parse(config.fabrics)
    except fabrics.BadFabric as error:
        return f"fabrics: {error}"
    return None
