"""Rules for the extra arguments and environment variables of a launch."""

from collections.abc import Iterable

from agent.common.engine_flags import spelling
from agent.common.engine_settings.check import Allowed, refused_args, refused_env
from agent.config import AgentConfig
from agent.errors import AgentError
from agent.wire.errors import AgentCode
from agent.wire.instances import LaunchSpec

_SHOWN = 5


def rejected(why: str) -> AgentError:
    """Return the refusal of a launch whose spec cannot be accepted."""
    return AgentError(AgentCode.SPEC_REJECTED, f"Launch spec rejected: {why}")


def check_settings(spec: LaunchSpec, config: AgentConfig) -> None:
    """Raise AgentError SPEC_REJECTED for an argument or a variable that this node does not allow the engine."""
    allowed = Allowed(config.allowed_args, config.allowed_env)
    secrets = {name: value.get_secret_value() for name, value in spec.secret_env.items()}
    problems = (
        *refused_args(spec.runtime, spec.args, allowed),
        *refused_env(spec.runtime, {**spec.env, **secrets}, allowed),
    )
    if problems:
        raise rejected(" ".join(problem.message for problem in problems[:_SHOWN]))


def given(args: Iterable[str], *flags: str) -> bool:
    """Return whether one of `flags` is among the arguments."""
    return any(argument.startswith("-") and spelling(argument) in flags for argument in args)
