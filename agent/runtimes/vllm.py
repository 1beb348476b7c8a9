"""vLLM: in a container, or as a process when the owner of the machine names its command."""

import shlex
import shutil
from collections.abc import Iterable
from dataclasses import replace

from agent.config import AgentConfig
from agent.runtimes import vllm_shard
from agent.runtimes.base import Availability, Command, Seat, Source
from agent.runtimes.flags import check_args, check_env, given, rejected, values_of
from agent.runtimes.source import describe, files_of, find_folder
from agent.wire.budget import host_part_of
from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import LaunchSpec
from agent.wire.pickles import pickles_in, refusal_words

_OWN_SHARE = ("--gpu-memory-utilization", "--kv-cache-memory-bytes")
_PICKLE_FORMATS = frozenset({"pt", "npcache"})

_DENIED = (
    # what the agent sets
    "--model", "--host", "--port", "--uds", "--fd", "--api-key", "--served-model-name", "--root-path",
    "--tensor-parallel-size", "-tp",
    # addresses of other parts, and other processes
    "--data-parallel-address", "-dpa", "--data-parallel-rpc-port", "-dpp", "--master-addr", "--master-port",
    "--nnodes", "-n", "--node-rank", "-r", "--headless", "--grpc", "--otlp-traces-endpoint", "--kv-transfer-config",
    "--ec-transfer-config", "--kv-events-config",
    # files and code of the node
    "--config", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs", "--enable-ssl-refresh",
    "--allowed-local-media-path", "--allowed-media-domains", "--download-dir", "--tokenizer", "--hf-config-path",
    "--hf-token", "--chat-template", "--lora-modules", "--middleware", "--tool-parser-plugin",
    "--reasoning-parser-plugin", "--logits-processors", "--worker-cls", "--worker-extension-cls",
    "--log-config-file", "--quantization-param-path", "--model-loader-extra-config",
    "--tool-server", "--profiler-config", "--scheduler-cls", "--io-processor-plugin",
)  # fmt: skip


def _refuse_pickles(spec: LaunchSpec, names: list[str]) -> None:
    """With safetensors beside them vLLM leaves pickles alone, unless it is told to read them."""
    found = pickles_in(names)
    if found and not (_has_safetensors(names) and _PICKLE_FORMATS.isdisjoint(values_of(spec.args, "--load-format"))):
        folder = spec.source.folder if spec.source else ""
        raise rejected(refusal_words(f"the model folder '{folder}'", found))


def _refuse_code(spec: LaunchSpec) -> None:
    """Code beside the weights is what pickles are: it runs as the engine's user."""
    if values_of(spec.args, "--trust-remote-code"):
        raise rejected(
            "the argument --trust-remote-code runs Python that comes with the weights; remove it, or allow pickles for "
            "this model on purpose."
        )


def _has_safetensors(names: Iterable[str]) -> bool:
    """Whether vLLM finds safetensors: it looks in the folder itself and not below."""
    return any(name.endswith(".safetensors") and "/" not in name for name in names)


class Vllm:
    """`vllm serve`."""

    name = Runtime.VLLM
    health_path = "/health"
    key_variable = "VLLM_API_KEY"
    container_port = 8000

    def availability(self, config: AgentConfig, delivery: Delivery) -> Availability:
        """In a container always; as a process when `vllm_command` is set and found."""
        if delivery is Delivery.CONTAINER:
            return Availability(True)
        if not config.vllm_command:
            return Availability(
                False,
                problem="No vLLM command is set on this node: set vllm_command in agent.json, or use a container.",
            )
        program = shlex.split(config.vllm_command)[0]
        if shutil.which(program) is None:
            return Availability(False, problem=f"The vLLM command {program} (vllm_command) is not found on this node.")
        return Availability(True)

    def prepare(self, spec: LaunchSpec, config: AgentConfig) -> Source | None:
        """A checkpoint folder is needed."""
        check_args(spec.args, _DENIED, abbreviations=True)
        check_env((*spec.env, *spec.secret_env))
        if spec.rendezvous is not None:
            vllm_shard.check(spec)
        if spec.source is None:
            raise rejected("vLLM needs a model folder; choose one.")
        folder = find_folder(config.models_root, spec.source)
        files = list(files_of(folder))
        names = [file.relative_to(folder).as_posix() for file in files]
        if not spec.allow_pickle:
            _refuse_pickles(spec, names)
            _refuse_code(spec)
        return replace(describe(folder, folder, files), safetensors=_has_safetensors(names))

    def command(self, spec: LaunchSpec, config: AgentConfig, seat: Seat) -> Command:
        """`vllm serve FOLDER` with the agent's options, then the person's."""
        if seat.source is None:
            raise rejected("vLLM needs a model folder; choose one.")
        argv: tuple[str, ...] = (str(seat.source.path), "--host", seat.host, "--port", str(seat.port))
        argv = (*argv, "--served-model-name", *spec.served_names)
        if seat.meeting is not None:
            argv = (*argv, *vllm_shard.arguments(spec, seat.meeting))
        elif len(spec.gpu_uuids) > 1:
            argv = (*argv, "--tensor-parallel-size", str(len(spec.gpu_uuids)))
        if spec.context_length and not given(spec.args, "--max-model-len"):
            argv = (*argv, "--max-model-len", str(spec.context_length))
        if seat.source.safetensors and not spec.allow_pickle and not values_of(spec.args, "--load-format"):
            # Left to choose, it would read a pickle that came into the folder after `prepare` had looked.
            argv = (*argv, "--load-format", "safetensors")
        if seat.part_of_card is not None and not any(values_of(spec.args, flag) for flag in _OWN_SHARE):
            # Without a word it takes nine tenths of every card, whatever was admitted.
            argv = (*argv, "--gpu-memory-utilization", f"{seat.part_of_card:.3f}")
        argv = (*argv, *spec.args)
        env = {
            "VLLM_API_KEY": seat.api_key,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
        if seat.meeting is not None:
            env |= vllm_shard.environment(spec, seat.meeting)
        if spec.delivery is Delivery.CONTAINER:
            # the entry of images differs by age and maker (api_server or "vllm serve"); the program is in all of them
            return Command(argv=argv, env=env, entrypoint=("vllm", "serve"))
        return Command(argv=(*shlex.split(config.vllm_command or "vllm"), "serve", *argv), env=env)

    def answers(self, spec: LaunchSpec) -> bool:
        """Rank 0 alone has a server; the others are headless."""
        return spec.rendezvous is None or spec.rendezvous.rank == 0

    def host_memory_bytes(self, spec: LaunchSpec, source: Source | None) -> int | None:
        """For each GPU and the server; without GPUs, the weights and room for the cache."""
        return host_part_of(self.name, spec.args, len(spec.gpu_uuids), source.size_bytes if source else None)
