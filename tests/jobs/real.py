"""A real agent for the tests of operations: its own server in a thread, real mutual TLS, real engine processes."""

from pathlib import Path
from typing import Any

from agent.common import keys
from agent.config import AgentConfig
from nodes.link import health, pools
from nodes.models import Node
from tests.bench.services import free_port
from tests.nodes.parts import Machine, local_machine
from tests.standins.served import ServedAgent, install


class RealAgent(ServedAgent):
    """The agent of one approved node, with the probes and the engines of this machine."""

    def __init__(self, folder: Path, node_id: str = "local", **config: Any) -> None:
        self.port = free_port()
        self.machine: Machine = local_machine(self.port, node_id)
        (folder / "models").mkdir(parents=True)
        state = folder / "state"
        state.mkdir()
        super().__init__(
            node_id,
            AgentConfig(state_dir=state, models_root=folder / "models", bind="127.0.0.1", port=self.port, **config),
        )
        install(self.store, node_id, self.machine.answer, keys.key_to_pem(self.machine.key))

    @property
    def node(self) -> Node:
        return Node.objects.get(pk=self.node_id)

    def clear(self) -> None:
        """End the engines, too."""
        if self.server is None:
            self.begin()
        assert self.server is not None
        self.run(self.server._instances.stop_everything(2.0))
        self.end()
        pools.database_threads().release()

    def connect(self) -> None:
        """Connect as the watcher does first."""
        health.connect(self.node_id)
