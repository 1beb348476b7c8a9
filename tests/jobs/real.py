"""A real agent for the tests of operations: its own server in a thread, real mutual TLS, real engine processes."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509

from agent.config import AgentConfig
from agent.identity import Identity, IdentityStore, fleet_id
from agent.server.serve import Server, machine_probes
from nodes.link import client, health, pools
from nodes.models import Node
from nodes.pki import keys
from tests.bench.services import free_port
from tests.nodes.parts import Machine, local_machine

T = TypeVar("T")


class RealAgent:
    """The agent of one node. `begin` and `end` may follow each other; engines live on in between."""

    def __init__(self, folder: Path, node_id: str = "local", **config: Any) -> None:
        self.port = free_port()
        self.machine: Machine = local_machine(self.port, node_id)
        (folder / "models").mkdir(parents=True)
        self.config = AgentConfig(
            state_dir=folder / "state", models_root=folder / "models", bind="127.0.0.1", port=self.port, **config
        )
        self.config.state_dir.mkdir()
        answer = self.machine.answer
        self.store = IdentityStore(self.config.state_dir)
        self.store.install(
            Identity(
                node_id=self.machine.node_id,
                node_uid=answer.node_uid,
                fleet=fleet_id(x509.load_pem_x509_certificate(answer.ca_bundle[0].encode())),
                master=answer.master_spki,
                key_pem=keys.key_to_pem(self.machine.key),
                chain=answer.chain,
                ca_bundle=answer.ca_bundle,
            )
        )
        self.server: Server | None = None

    @property
    def node(self) -> Node:
        return Node.objects.get(pk=self.machine.node_id)

    def begin(self) -> "RealAgent":
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def start() -> Server:
            server = Server(self.config, self.store, machine_probes(self.config))
            await server.start()
            return server

        self.server = self._run(start())
        return self

    def end(self) -> None:
        """The agent ends, its engines do not."""
        if self.server is None:
            return
        self._run(self.server.stop())
        self.server = None
        # Both ends are in this process: let go of ours, and give the closing handshakes their turn.
        pools.loop_thread().run(client.close())
        self._run(asyncio.sleep(0.2))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def clear(self) -> None:
        """End the engines, too."""
        if self.server is None:
            self.begin()
        assert self.server is not None
        self._run(self.server._instances.stop_everything(2.0))
        self.end()
        pools.database_threads().release()

    def connect(self) -> None:
        """What the watcher does first."""
        health.connect(self.machine.node_id)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


def wait_until(look: Callable[[], Any], what: str, seconds: float = 30) -> Any:
    """The first true answer of `look`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := look():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come to pass within {seconds} s")
