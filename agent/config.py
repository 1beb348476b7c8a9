"""``agent.json``: what the owner of a machine decides about its agent."""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent.wire.capability import MemoryModel

DEFAULT_CONFIG = Path("/etc/mirbad-agent/agent.json")
DEFAULT_STATE = Path("/var/lib/mirbad-agent")


class BadConfig(Exception):
    """``agent.json`` cannot be used; the text says which field and what to change."""


class AgentConfig(BaseModel):
    """Every field of ``agent.json``; all have defaults. Paths are absolute or relative to the file's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state_dir: Path = DEFAULT_STATE
    models_root: Path = Path("/srv/mirbad/models")
    bind: str = "0.0.0.0"  # noqa: S104  the master dials the agent from another machine; mutual TLS guards the port
    port: Annotated[int, Field(ge=1, le=65535)] = 9443
    allow_tag_pulls: bool = False
    approved_images: tuple[str, ...] = ()
    memory_model: MemoryModel | None = None
    memory_reserve_gib: Annotated[float, Field(ge=0)] = 4.0
    max_concurrent_starts: Annotated[int, Field(ge=1)] | None = None
    docker_host: str | None = None
    nvidia_smi: str = "nvidia-smi"
    llama_server: str | None = None
    vllm_command: str | None = None
    sim_engine: bool = True
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
        lines = [f"{path}: {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise BadConfig("\n".join(lines)) from None
    base = path.resolve().parent
    return config.model_copy(update={"state_dir": base / config.state_dir, "models_root": base / config.models_root})
