"""Arguments and environment variables that a model may have, by engine; whatever is not listed is refused.

One list for the master when a model is saved and for the agent at every start: an option that loads a file, code or a
program would run it as the engine's user. `check` reads the list, `rules` has the rules of values.
"""

from agent.common.engine_settings.engine import EngineSettings
from agent.common.engine_settings.llama_cpp import LLAMA_CPP
from agent.common.engine_settings.sim import SIM
from agent.common.engine_settings.vllm import VLLM

# By the values of `agent.wire.capability.Runtime`, which shared code does not import.
ENGINES: dict[str, EngineSettings] = {"vllm": VLLM, "llama.cpp": LLAMA_CPP, "sim": SIM}

__all__ = ["ENGINES", "EngineSettings"]
