"""The agent's own server in this process: real TLS, guard, fence, journal and routes; a test chooses its engines."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from cryptography import x509

from agent.config import AgentConfig
from agent.identity import Identity, IdentityStore, fleet_id
from agent.server.serve import Server, machine_probes, make_instances
from agent.server.status import Probes
from agent.wire.enroll import EnrollResponse
from nodes.link import client, pools
from tests.waiting import pause_async

T = TypeVar("T")
MakeEngines = Callable[..., Any]
"""Engines from an agent's config, its identity, and a function to call with every view that changed."""


def install(store: IdentityStore, node_id: str, answer: EnrollResponse, key_pem: bytes) -> None:
    """Give an agent the identity that the master issued, as the end of a join does."""
    store.install(
        Identity(
            node_id=node_id,
            node_uid=answer.node_uid,
            fleet=fleet_id(x509.load_pem_x509_certificate(answer.ca_bundle[0].encode())),
            master=answer.master_spki,
            key_pem=key_pem,
            chain=answer.chain,
            ca_bundle=answer.ca_bundle,
        )
    )


class AgentLoop:
    """An event loop in a thread of its own, in which agents serve."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def end(self) -> None:
        self.run(pause_async(0.1))  # the closing handshakes of TLS have their turn
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class ServedAgent:
    """One agent over a state folder. `begin` and `end` may follow each other; real engines live on in between.

    Without `probes` and `engines` it is the real agent but for the process. Agents that share `loop` serve in one
    thread, as a fleet of many needs it.
    """

    def __init__(
        self,
        node_id: str,
        config: AgentConfig,
        *,
        loop: AgentLoop | None = None,
        probes: Probes | None = None,
        engines: MakeEngines = make_instances,
    ) -> None:
        self.node_id, self.config = node_id, config
        self.store = IdentityStore(config.state_dir)
        self.server: Server | None = None
        self._shared, self._loop = loop, loop
        self._probes, self._engines = probes, engines

    @property
    def up(self) -> bool:
        return self.server is not None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return self._loop.run(work)

    def begin(self) -> Self:
        """Serve from what is on disk."""
        self._loop = self._shared or AgentLoop()

        async def start() -> Server:
            server = Server(self.config, self.store, self._probes or machine_probes(self.config), self._engines)
            await server.start()
            return server

        self.server = self.run(start())
        return self

    def end(self) -> None:
        """The agent ends, its engines do not."""
        if self.server is None:
            return
        self.run(self.server.stop())
        self.server = None
        if self._shared is None and self._loop is not None:
            pools.loop_thread().run(client.close())  # both ends are in this process: let go of ours
            self._loop.end()
