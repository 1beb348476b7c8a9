"""llama.cpp: the owner's own `llama-server`, the one in the `xllamacpp` wheel, or a container image."""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from agent.common import llama_args
from agent.common.budget import host_part_of
from agent.config import AgentConfig
from agent.runtimes import gguf_source
from agent.runtimes.base import Allocation, Availability, EngineCommand, WeightsSource
from agent.runtimes.flags import check_settings, given, rejected
from agent.runtimes.llama_runner import BadOption, read_options
from agent.runtimes.source import find_folder
from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import LaunchSpec

_RUNNER = Path(__file__).with_name("llama_runner.py")

_LOAD_SECONDS = 60


_loads: set[str] = set()
"""Python executables in which the wheel was loaded once; a failure is retried, since it may have been repaired."""


def _load_problem() -> str | None:
    """Return why the wheel cannot be loaded. Tried in another process: it is large, and needs system libraries."""
    if sys.executable in _loads:
        return None
    command = [sys.executable, "-I", "-c", "import xllamacpp"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LOAD_SECONDS, check=False)  # noqa: S603  no input
    except subprocess.TimeoutExpired:
        return f"The llama.cpp engine did not load within {_LOAD_SECONDS} s on this node."
    if done.returncode == 0:
        _loads.add(sys.executable)
        return None
    lines = done.stderr.strip().splitlines()
    hint = " (install the system package libgomp1)" if "libgomp" in done.stderr else ""
    return f"The llama.cpp engine cannot be loaded on this node: {lines[-1] if lines else done.returncode}{hint}."


def _program(name: str) -> str:
    """Return the path of a program: engines do not have the agent's PATH."""
    return shutil.which(name) or name


class LlamaCpp:
    """llama.cpp's server."""

    name = Runtime.LLAMA_CPP
    health_path = "/health"
    report_path = "/props"
    key_variable = "LLAMA_API_KEY"
    closes_after_stream = True  # cpp-httplib ends a chunked body so, and announces Keep-Alive
    container_port = 8080

    def context_in(self, report: Any) -> object:
        """Return the tokens that one request may have."""
        return report["default_generation_settings"]["n_ctx"]

    def availability(self, config: AgentConfig, delivery: Delivery) -> Availability:
        """Return whether it can run: always in a container; as a process by `llama_server` or the wheel."""
        if delivery is Delivery.CONTAINER:
            return Availability(True)
        if config.llama_server:
            if shutil.which(config.llama_server) is None:
                return Availability(
                    False, problem=f"{config.llama_server} (llama_server in agent.json) does not exist on this node."
                )
            return Availability(True)
        if importlib.util.find_spec("xllamacpp") is None:
            return Availability(
                False,
                problem="llama.cpp is not installed on this node. Install the package xllamacpp in the agent's "
                "environment, or set llama_server in agent.json.",
            )
        problem = _load_problem()
        return Availability(problem is None, version=importlib.metadata.version("xllamacpp"), problem=problem)

    def prepare(self, spec: LaunchSpec, config: AgentConfig) -> WeightsSource | None:
        """Check the spec and find its GGUF file: the one named, or the only one in the folder."""
        check_settings(spec, config)
        if spec.rendezvous is not None:
            raise rejected("llama.cpp runs on one node only. Give the replica one node, or choose another engine.")
        if self._by_wheel(spec, config):
            try:
                read_options(spec.args)
            except BadOption as error:
                raise rejected(f"{error} Set llama_server in agent.json for a full llama-server.") from error
        if spec.source is None:
            raise rejected("llama.cpp needs a model folder with a GGUF file. Choose one.")
        folder = find_folder(config.models_root, spec.source)
        return gguf_source.find(folder, spec.source)

    def command(self, spec: LaunchSpec, config: AgentConfig, allocation: Allocation) -> EngineCommand:
        """Return the same options for a binary, an image and the wheel's runner."""
        if allocation.source is None:
            raise rejected("llama.cpp needs a model folder with a GGUF file. Choose one.")
        # One alias only: llama.cpp accepts any name, and reports itself by the alphabetically first.
        argv: tuple[str, ...] = (
            "--model",
            str(allocation.source.path),
            "--host",
            allocation.host,
            "--port",
            str(allocation.port),
        )
        argv = (*argv, "--alias", spec.served_names[0], "--metrics")
        if not given(spec.args, "-t", "--threads"):
            argv = (*argv, "--threads", str(allocation.threads))
        if spec.context_length and not given(spec.args, "-c", "--ctx-size"):
            # The engine splits its context among the requests that it takes at a time.
            context = spec.context_length * llama_args.context_shares(spec.args)
            argv = (*argv, "--ctx-size", str(context))
        if allocation.source.projector is not None and llama_args.uses_projector(spec.args):
            argv = (*argv, "--mmproj", str(allocation.source.projector))
        argv = (*argv, *spec.args)
        env = {"LLAMA_API_KEY": allocation.api_key}
        if spec.delivery is Delivery.CONTAINER:
            return EngineCommand(argv=argv, env=env)
        if self._by_wheel(spec, config):
            return EngineCommand(argv=(sys.executable, "-I", str(_RUNNER), *argv), env=env)
        return EngineCommand(argv=(_program(config.llama_server or "llama-server"), *argv), env=env)

    def has_health_endpoint(self, spec: LaunchSpec) -> bool:
        """Return True."""
        return True

    def uses_gpus(self, spec: LaunchSpec, config: AgentConfig) -> bool:
        """Return whether it is another program than the wheel, which computes on the CPU alone."""
        return not self._by_wheel(spec, config)

    def host_memory_bytes(self, spec: LaunchSpec, source: WeightsSource | None) -> int | None:
        """Return the size of the weights, a tenth more for buffers and cache, and the server."""
        return host_part_of(self.name, spec.args, len(spec.gpu_uuids), source.size_bytes if source else None)

    def _by_wheel(self, spec: LaunchSpec, config: AgentConfig) -> bool:
        return spec.delivery is Delivery.PROCESS and not config.llama_server
