"""The simulated engine: for trying a fleet out without a model, and for tests of everything else."""

import sys
from pathlib import Path

from agent.config import AgentConfig
from agent.runtimes.base import Availability, Command, Seat, Source
from agent.runtimes.flags import check_args, check_env, rejected
from agent.wire.budget import host_part_of
from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import LaunchSpec

_ENGINE = Path(__file__).with_name("sim_engine.py")
_SHARD = Path(__file__).with_name("sim_shard.py")
_DENIED = (
    "--host", "--port", "--served-name", "--api-key", "--meeting", "--rank", "--world-size", "--rendezvous-host",
    "--rendezvous-port",
)  # fmt: skip


class Sim:
    """`agent/runtimes/sim_engine.py`, by this Python or in an image whose entry it is."""

    name = Runtime.SIM
    health_path = "/health"
    key_variable = "SIM_API_KEY"
    container_port = 8000

    def availability(self, config: AgentConfig, delivery: Delivery) -> Availability:
        """Available unless the owner of the machine switched it off."""
        if not config.sim_engine:
            return Availability(False, problem="The simulated engine is switched off on this node (sim_engine).")
        return Availability(True, version="1")

    def prepare(self, spec: LaunchSpec, config: AgentConfig) -> Source | None:
        """It needs no weights; a source that is named is ignored."""
        check_args(spec.args, _DENIED, abbreviations=False)
        check_env((*spec.env, *spec.secret_env))
        if spec.rendezvous is not None and spec.delivery is not Delivery.PROCESS:
            raise rejected("the simulated engine runs the shards of a replica as processes only.")
        return None

    def command(self, spec: LaunchSpec, config: AgentConfig, seat: Seat) -> Command:
        """The engine's own options first, the person's after them."""
        names = tuple(part for name in spec.served_names for part in ("--served-name", name))
        argv = ("--host", seat.host, "--port", str(seat.port), *names, *spec.args)
        if spec.context_length:
            argv = (*argv, "--context-length", str(spec.context_length))
        script = _ENGINE
        if (meeting := seat.meeting) is not None:
            script = _SHARD
            argv = (*argv, "--meeting", meeting.name, "--rank", str(meeting.rank))
            argv = (*argv, "--world-size", str(meeting.world_size), "--rendezvous-host", meeting.address)
            argv = (*argv, "--rendezvous-port", str(meeting.port))
        if spec.delivery is Delivery.PROCESS:
            # -P: the folder of the script must not come first on the import path, its neighbours have names of engines
            argv = (sys.executable, "-P", str(script), *argv)
        return Command(argv=argv, env={"SIM_API_KEY": seat.api_key})

    def answers(self, spec: LaunchSpec) -> bool:
        """Every shard says whether it has joined; rank 0 alone answers requests."""
        return True

    def host_memory_bytes(self, spec: LaunchSpec, source: Source | None) -> int | None:
        """A small Python process."""
        return host_part_of(self.name, spec.args, len(spec.gpu_uuids), None)
