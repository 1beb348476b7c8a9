"""llama.cpp: the owner's own `llama-server`, the one in the `xllamacpp` wheel, or a container image."""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from agent.config import AgentConfig
from agent.runtimes.base import Availability, Command, Seat, Source
from agent.runtimes.flags import check_args, check_env, given, rejected
from agent.runtimes.llama_runner import BadOption, read_options
from agent.runtimes.source import describe, find_file, find_folder, shards_of
from agent.wire.budget import host_part_of
from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import LaunchSpec

_RUNNER = Path(__file__).with_name("llama_runner.py")

_LOAD_SECONDS = 60

_DENIED = (
    # what the agent sets
    "-m", "--model", "--host", "--port", "--reuse-port", "-a", "--alias", "--api-key", "--api-key-file",
    "--api-prefix",
    # other weights, and other places to take them from
    "-mu", "--model-url", "-dr", "--docker-repo", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-hft",
    "--hf-token", "-hfv", "--hf-repo-v", "-hffv", "--hf-file-v", "-hfd", "-hfrd", "--hf-repo-draft", "-mv",
    "--model-vocoder", "-md", "--model-draft", "--models-dir", "--models-preset", "--models-max",
    # files of the node
    "--ssl-key-file", "--ssl-cert-file", "--path", "--log-file", "--slot-save-path", "--media-path", "-f", "--file",
    "-bf", "--binary-file", "--in-file", "--grammar-file", "-jf", "--json-schema-file", "--chat-template-file",
    "--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled", "-mm", "--mmproj", "-mmu",
    "--mmproj-url", "-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic", "--rpc", "--prompt-cache",
    "--tools", "--webui-config-file", "--ui-config-file", "--mcp-servers-config",
)  # fmt: skip


_loads: set[str] = set()
"""Pythons in which the wheel has been loaded once; a failure is tried again, since a person may have repaired it."""


def _load_problem() -> str | None:
    """Why the wheel cannot be loaded. Tried in another process: it is large, and wants libraries of the system."""
    if sys.executable in _loads:
        return None
    command = [sys.executable, "-P", "-c", "import xllamacpp"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LOAD_SECONDS, check=False)  # noqa: S603  no input
    except subprocess.TimeoutExpired:
        return f"The llama.cpp engine did not load in {_LOAD_SECONDS} s on this node."
    if done.returncode == 0:
        _loads.add(sys.executable)
        return None
    said = done.stderr.strip().splitlines()
    hint = " (the system package libgomp1 has it)" if "libgomp" in done.stderr else ""
    return f"The llama.cpp engine cannot be loaded on this node: {said[-1] if said else done.returncode}{hint}."


class LlamaCpp:
    """llama.cpp's server."""

    name = Runtime.LLAMA_CPP
    health_path = "/health"
    key_variable = "LLAMA_API_KEY"
    container_port = 8080

    def availability(self, config: AgentConfig, delivery: Delivery) -> Availability:
        """In a container always; as a process by `llama_server` or the wheel."""
        if delivery is Delivery.CONTAINER:
            return Availability(True)
        if config.llama_server:
            if shutil.which(config.llama_server) is None:
                return Availability(
                    False, problem=f"{config.llama_server} (llama_server in agent.json) is not a program on this node."
                )
            return Availability(True)
        if importlib.util.find_spec("xllamacpp") is None:
            return Availability(
                False,
                problem="llama.cpp is not installed on this node: install the package xllamacpp into the agent's "
                "environment, or set llama_server in agent.json.",
            )
        problem = _load_problem()
        return Availability(problem is None, version=importlib.metadata.version("xllamacpp"), problem=problem)

    def prepare(self, spec: LaunchSpec, config: AgentConfig) -> Source | None:
        """A GGUF file is needed: the one named, or the only one in the folder."""
        check_args(spec.args, _DENIED, abbreviations=False)
        check_env((*spec.env, *spec.secret_env))
        if spec.rendezvous is not None:
            raise rejected("llama.cpp runs on one node; give the replica one node, or choose another engine.")
        if self._by_wheel(spec, config):
            try:
                read_options(spec.args)
            except BadOption as error:
                raise rejected(f"{error} Set llama_server in agent.json to use a full llama-server.") from error
        if spec.source is None:
            raise rejected("llama.cpp needs a model folder with a GGUF file; choose one.")
        folder = find_folder(config.models_root, spec.source)
        file = find_file(folder, spec.source, ".gguf")
        return describe(file, folder, shards_of(file))

    def command(self, spec: LaunchSpec, config: AgentConfig, seat: Seat) -> Command:
        """The same options for a binary, an image and the wheel's runner."""
        if seat.source is None:
            raise rejected("llama.cpp needs a model folder with a GGUF file; choose one.")
        # one alias only: llama.cpp answers to any name, and calls itself by the first in the alphabet
        argv: tuple[str, ...] = ("--model", str(seat.source.path), "--host", seat.host, "--port", str(seat.port))
        argv = (*argv, "--alias", spec.served_names[0], "--metrics")
        if not given(spec.args, "-t", "--threads"):
            argv = (*argv, "--threads", str(seat.threads))
        if spec.context_length and not given(spec.args, "-c", "--ctx-size"):
            argv = (*argv, "--ctx-size", str(spec.context_length))
        argv = (*argv, *spec.args)
        env = {"LLAMA_API_KEY": seat.api_key}
        if spec.delivery is Delivery.CONTAINER:
            return Command(argv=argv, env=env)
        if self._by_wheel(spec, config):
            return Command(argv=(sys.executable, "-P", str(_RUNNER), *argv), env=env)
        return Command(argv=(config.llama_server or "llama-server", *argv), env=env)

    def answers(self, spec: LaunchSpec) -> bool:
        """Always."""
        return True

    def host_memory_bytes(self, spec: LaunchSpec, source: Source | None) -> int | None:
        """The weights, a tenth for buffers and cache, and the server."""
        return host_part_of(self.name, spec.args, len(spec.gpu_uuids), source.size_bytes if source else None)

    def _by_wheel(self, spec: LaunchSpec, config: AgentConfig) -> bool:
        return spec.delivery is Delivery.PROCESS and not config.llama_server
