"""Automatic restarts of engines that ended: who asks for them, and which failures are tried again."""

from agent.wire.errors import AgentCode
from mirbad.kernel.actor import system

ENGINE_RESTARTS = system("restart")

RETRIED = frozenset(
    {
        "engine_exited",
        "out_of_memory",
        "start_timeout",
        "instance_lost",
        "lost",
        "docker_restarted",
        "internal",
        "state_unwritable",
        AgentCode.ADMISSION_REFUSED.value,
        AgentCode.START_CONFLICT.value,
        AgentCode.PORT_UNAVAILABLE.value,
        AgentCode.DELIVERY_FAILED.value,
        AgentCode.RUNTIME_UNAVAILABLE.value,
    }
)
"""Codes of failed starts that may pass by themselves: the memory of the ended engine may not be free yet."""
