"""vLLM: in a container, or as a process when the owner of the machine configures its command."""

import shlex
import shutil
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from agent.common import engine_flags
from agent.common.budget import host_part_of
from agent.common.engine_flags import values_of
from agent.common.formats.pickles import pickles_in, refusal_words
from agent.config import AgentConfig
from agent.runtimes import vllm_shard
from agent.runtimes.base import Allocation, Availability, EngineCommand, WeightsSource
from agent.runtimes.flags import check_settings, given, rejected
from agent.runtimes.source import describe, files_of, find_folder
from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import LaunchSpec

_OWN_SHARE = ("--gpu-memory-utilization", "--kv-cache-memory-bytes")
_PICKLE_FORMATS = frozenset({"pt", "npcache"})


def _refuse_pickles(spec: LaunchSpec, names: list[str]) -> None:
    """Refuse pickles that vLLM would load: with safetensors next to them it does so only on request."""
    found = pickles_in(names)
    if found and not (_has_safetensors(names) and _PICKLE_FORMATS.isdisjoint(values_of(spec.args, "--load-format"))):
        folder = spec.source.folder if spec.source else ""
        raise rejected(refusal_words(f"the model folder '{folder}'", found))


def _refuse_adapter(spec: LaunchSpec, names: list[str]) -> None:
    """Refuse a folder that holds an adapter alone: vLLM would look for a model in it until it gives up."""
    if "adapter_config.json" in names and "config.json" not in names:
        folder = spec.source.folder if spec.source else ""
        raise rejected(
            f"the model folder '{folder}' holds an adapter (LoRA) and no model. Merge it into its model and choose the "
            "result."
        )


def _refuse_code(spec: LaunchSpec) -> None:
    """Refuse code that comes with the weights: like a pickle, it runs as the engine's user."""
    if engine_flags.runs_code(spec.runtime, spec.args):
        raise rejected(
            "the argument --trust-remote-code runs Python code that comes with the weights. Remove it, or allow "
            "pickles for this model."
        )


def _has_safetensors(names: Iterable[str]) -> bool:
    """Return whether vLLM finds safetensors: it reads the folder itself and not those below."""
    return any(name.endswith(".safetensors") and "/" not in name for name in names)


class Vllm:
    """`vllm serve`."""

    name = Runtime.VLLM
    health_path = "/health"
    report_path = "/v1/models"
    key_variable = "VLLM_API_KEY"
    closes_after_stream = False
    container_port = 8000

    def context_in(self, report: Any) -> object:
        """Return the tokens that one request may have."""
        return report["data"][0]["max_model_len"]

    def availability(self, config: AgentConfig, delivery: Delivery) -> Availability:
        """Return whether it can run: always in a container; as a process when `vllm_command` exists."""
        if delivery is Delivery.CONTAINER:
            return Availability(True)
        if not config.vllm_command:
            return Availability(
                False,
                problem="vLLM is not configured on this node. Set vllm_command in agent.json, or use a container.",
            )
        program = shlex.split(config.vllm_command)[0]
        if shutil.which(program) is None:
            return Availability(False, problem=f"{program} (vllm_command in agent.json) does not exist on this node.")
        return Availability(True)

    def prepare(self, spec: LaunchSpec, config: AgentConfig) -> WeightsSource | None:
        """Check the spec and find its checkpoint folder."""
        check_settings(spec, config)
        if spec.rendezvous is not None:
            vllm_shard.check(spec)
        if spec.source is None:
            raise rejected("vLLM needs a model folder. Choose one.")
        folder = find_folder(config.models_root, spec.source)
        files = list(files_of(folder))
        names = [file.relative_to(folder).as_posix() for file in files]
        _refuse_adapter(spec, names)
        if not spec.allow_pickle:
            _refuse_pickles(spec, names)
            _refuse_code(spec)
        return replace(describe(folder, folder, files), safetensors=_has_safetensors(names))

    def command(self, spec: LaunchSpec, config: AgentConfig, allocation: Allocation) -> EngineCommand:
        """Return `vllm serve FOLDER` with the agent's options, then those of the spec."""
        if allocation.source is None:
            raise rejected("vLLM needs a model folder. Choose one.")
        argv: tuple[str, ...] = (str(allocation.source.path), "--host", allocation.host, "--port", str(allocation.port))
        argv = (*argv, "--served-model-name", *spec.served_names)
        if allocation.rendezvous is not None:
            argv = (*argv, *vllm_shard.arguments(spec, allocation.rendezvous))
        elif len(spec.gpu_uuids) > 1:
            argv = (*argv, "--tensor-parallel-size", str(len(spec.gpu_uuids)))
        if spec.context_length and not given(spec.args, "--max-model-len"):
            argv = (*argv, "--max-model-len", str(spec.context_length))
        if allocation.source.safetensors and not spec.allow_pickle and not values_of(spec.args, "--load-format"):
            # By default vLLM would load a pickle that was added to the folder after the check in `prepare`.
            argv = (*argv, "--load-format", "safetensors")
        if allocation.card_fraction is not None and not any(values_of(spec.args, flag) for flag in _OWN_SHARE):
            # By default vLLM takes nine tenths of every card, whatever was admitted.
            argv = (*argv, "--gpu-memory-utilization", f"{allocation.card_fraction:.3f}")
        argv = (*argv, *spec.args)
        env = {
            "VLLM_API_KEY": allocation.api_key,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
        if allocation.rendezvous is not None:
            env |= vllm_shard.environment(spec, allocation.rendezvous)
        if spec.delivery is Delivery.CONTAINER:
            # Images differ in their entrypoint by age and vendor (api_server or "vllm serve"); the program is in all.
            return EngineCommand(argv=argv, env=env, entrypoint=("vllm", "serve"))
        program, *words = shlex.split(config.vllm_command or "vllm")
        return EngineCommand(argv=(shutil.which(program) or program, *words, "serve", *argv), env=env)

    def has_health_endpoint(self, spec: LaunchSpec) -> bool:
        """Return whether this is rank 0, which alone has a server; the others are headless."""
        return spec.rendezvous is None or spec.rendezvous.rank == 0

    def uses_gpus(self, spec: LaunchSpec, config: AgentConfig) -> bool:
        """Return True."""
        return True

    def host_memory_bytes(self, spec: LaunchSpec, source: WeightsSource | None) -> int | None:
        """Return a share for each GPU and the server; without GPUs, the weights and memory for the cache."""
        return host_part_of(self.name, spec.args, len(spec.gpu_uuids), source.size_bytes if source else None)
