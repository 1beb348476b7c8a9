"""The runtimes: one module per engine, all behind the Protocol in `base`. None of them starts a process."""

from agent.runtimes.base import EngineRuntime
from agent.runtimes.llama_cpp import LlamaCpp
from agent.runtimes.sim import Sim
from agent.runtimes.vllm import Vllm
from agent.wire.capability import Runtime

RUNTIMES: dict[Runtime, EngineRuntime] = {
    Runtime.VLLM: Vllm(),
    Runtime.LLAMA_CPP: LlamaCpp(),
    Runtime.SIM: Sim(),
}
"""Every runtime that an agent knows."""
