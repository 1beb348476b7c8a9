"""The weights of a launch on this machine."""

from agent import models_root, patience, unreadable
from agent.config import AgentConfig
from agent.errors import AgentError
from agent.runtimes import RUNTIMES
from agent.runtimes.base import WeightsSource
from agent.wire.capability import Runtime
from agent.wire.errors import AgentCode
from agent.wire.instances import LaunchSpec

_SECONDS = 60.0


async def find(spec: LaunchSpec, config: AgentConfig) -> WeightsSource | None:
    """Check the spec and find its weights, as `EngineRuntime.prepare` does.

    AgentError SOURCE_MISSING, with the reason, when the file system fails or does not answer; MODELS_ROOT_CHANGED when
    it is not the one that was there before.
    """
    runtime = RUNTIMES[spec.runtime]
    folder = config.models_root / (spec.source.folder if spec.source else "")

    def prepare() -> WeightsSource | None:
        # The simulated engine ignores its source.
        if spec.source is not None and spec.runtime is not Runtime.SIM:
            models_root.require(config, spec.source.folder)
        return runtime.prepare(spec, config)

    try:
        return await patience.answer(_SECONDS, f"weights in {folder}", prepare)
    except OSError as error:
        raise AgentError(AgentCode.SOURCE_MISSING, unreadable.why(folder, error)) from error
