"""The simulated engine: for a trial of the fleet without a model, and for tests."""

import sys
from pathlib import Path
from typing import Any

from agent.common.budget import host_part_of
from agent.config import AgentConfig
from agent.runtimes.base import Allocation, Availability, EngineCommand, WeightsSource
from agent.runtimes.flags import check_settings, rejected
from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import LaunchSpec

_ENGINE = Path(__file__).with_name("sim_engine.py")
_SHARD = Path(__file__).with_name("sim_shard.py")


class Sim:
    """`agent/runtimes/sim_engine.py`, by this Python or in an image that has it as its entrypoint."""

    name = Runtime.SIM
    health_path = "/health"
    report_path = "/v1/models"
    key_variable = "SIM_API_KEY"
    closes_after_stream = False
    container_port = 8000

    def context_in(self, report: Any) -> object:
        """Return the tokens that one request may have."""
        return report["data"][0]["max_model_len"]

    def availability(self, config: AgentConfig, delivery: Delivery) -> Availability:
        """Return that it can run, unless the owner of the machine disabled it."""
        if not config.sim_engine:
            return Availability(False, problem="The simulated engine is disabled on this node (sim_engine).")
        return Availability(True, version="1")

    def prepare(self, spec: LaunchSpec, config: AgentConfig) -> WeightsSource | None:
        """Check the spec. It needs no weights; a source is ignored."""
        check_settings(spec, config)
        if spec.rendezvous is not None and spec.delivery is not Delivery.PROCESS:
            raise rejected("the simulated engine runs the shards of a replica as processes only.")
        return None

    def command(self, spec: LaunchSpec, config: AgentConfig, allocation: Allocation) -> EngineCommand:
        """Return the engine's own options, then those of the spec."""
        names = tuple(part for name in spec.served_names for part in ("--served-name", name))
        context = ("--context-length", str(spec.context_length)) if spec.context_length else ()
        argv = ("--host", allocation.host, "--port", str(allocation.port), *names, *context, *spec.args)
        script = _ENGINE
        if (rendezvous := allocation.rendezvous) is not None:
            script = _SHARD
            argv = (*argv, "--meeting", rendezvous.name, "--rank", str(rendezvous.rank))
            argv = (*argv, "--world-size", str(rendezvous.world_size), "--rendezvous-host", rendezvous.address)
            argv = (*argv, "--rendezvous-port", str(rendezvous.port))
        if spec.delivery is Delivery.PROCESS:
            # Isolated: neither variables nor the script's folder decide what is imported.
            argv = (sys.executable, "-I", str(script), *argv)
        return EngineCommand(argv=argv, env={"SIM_API_KEY": allocation.api_key})

    def has_health_endpoint(self, spec: LaunchSpec) -> bool:
        """Return True: every shard reports whether it has joined, though only rank 0 serves requests."""
        return True

    def uses_gpus(self, spec: LaunchSpec, config: AgentConfig) -> bool:
        """Return False."""
        return False

    def host_memory_bytes(self, spec: LaunchSpec, source: WeightsSource | None) -> int | None:
        """Return the memory of a small Python process."""
        return host_part_of(self.name, spec.args, len(spec.gpu_uuids), None)
