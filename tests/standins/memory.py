"""An agent in memory, at the seam `nodes.link.client.call`: it keeps a journal, counts its effects, and can be cut off.

It stands where a test stops the master between two statements; whole runs against the real agent are in
`test_real_agent.py`.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent.wire.base import WireModel
from agent.wire.errors import HTTP_STATUS, AgentCode
from agent.wire.instances import LIVE_STATES, InstanceForgotten, InstanceState, InstanceView, LaunchSpec
from agent.wire.status import HostStatus, NodeStatus
from nodes.errors import AgentRefused, NodeOffline


@dataclass
class ScriptedInstance:
    """One instance: `script` are the states that the next looks will show, the last one stays."""

    view: InstanceView
    script: list[dict[str, Any]]

    def advance(self) -> None:
        if self.script:
            self.view = self.view.model_copy(update=self.script.pop(0))


READY = {"state": InstanceState.READY, "start_seconds": 2.5}
DIES = {
    "state": InstanceState.EXITED,
    "reason": "The engine ended with exit code 1 before it was ready.",
    "reason_code": "engine_exited",
    "exit_code": 1,
    "last_lines": ("loading", "CUDA out of memory"),
}


@dataclass
class MemoryAgent:
    """Effects are counted where they happen: a repeat under the same operation id has none."""

    plan: list[dict[str, Any]] = field(default_factory=lambda: [READY])
    offline: bool = False
    stubborn: bool = False
    refusals: list[AgentRefused] = field(default_factory=list)
    seq: int = 0
    boot: str = "boot-1"
    engines: dict[str, ScriptedInstance] = field(default_factory=dict)
    journal: dict[tuple[str, str], tuple[str, Any]] = field(default_factory=dict)
    launches: list[LaunchSpec] = field(default_factory=list)
    stops: int = 0
    calls: list[str] = field(default_factory=list)
    open_requests: dict[str, int | None] = field(default_factory=dict)
    before_answer: Callable[[str], None] = lambda route: None

    def call(
        self,
        node_id: str,
        method: str,
        path: str,
        body: WireModel | None = None,
        *,
        answer: type[Any],
        operation_id: str | None = None,
        timeout_seconds: float = 10.0,
    ) -> Any:
        route = f"{method} {path.split('/', maxsplit=1)[0]}{'/stop' if path.endswith('/stop') else ''}"
        self.calls.append(route)
        if self.offline:
            raise NodeOffline(f"Node {node_id} is unreachable at 127.0.0.1 port 9443: timed out.")
        given = self._mutate(route, path, body, operation_id) if method != "GET" else self._read(path)
        # The effect has happened; a test may lose the answer on its way.
        self.before_answer(route)
        return given

    def _read(self, path: str) -> Any:
        if path == "status":
            self.seq += 1
            views = tuple(engine.view for engine in self.engines.values())
            return NodeStatus(
                boot_id=self.boot,
                seq=self.seq,
                capabilities_seq=1,
                time="2026-01-01T00:00:00Z",
                held_claim=None,
                host=HostStatus(),
                instances=views,
            )
        engine = self.engines.get(path.split("/")[1])
        if engine is None:
            raise refusal(AgentCode.NOT_FOUND, "no such instance")
        engine.advance()
        return engine.view.model_copy(update={"open_requests": self.open_requests.get(path.split("/")[1], 0)})

    def _mutate(self, route: str, path: str, body: WireModel | None, operation_id: str | None) -> Any:
        assert operation_id is not None
        assert len(operation_id) <= 128
        digest = hashlib.sha256(body.model_dump_json().encode() if body else b"").hexdigest()
        known = self.journal.get((operation_id, path))
        if known is not None:
            if known[0] != digest:
                raise refusal(AgentCode.INVALID_REQUEST, "came before with another body")
            if isinstance(known[1], AgentRefused):
                raise known[1]
            return known[1]
        try:
            if route.startswith("DELETE"):
                done = self._forget(path)
            else:
                done = self._stop(path) if route.endswith("/stop") else self._launch(path, body, operation_id)
        except AgentRefused as refused:
            self.journal[operation_id, path] = (digest, refused)
            raise
        self.journal[operation_id, path] = (digest, done)
        return done

    def _launch(self, path: str, spec: Any, operation_id: str) -> InstanceView:
        instance_id = path.split("/")[1]
        engine = self.engines.get(instance_id)
        if engine is not None and engine.view.state in LIVE_STATES:
            raise refusal(AgentCode.INSTANCE_EXISTS, "it lives already")
        if self.refusals:
            raise self.refusals.pop(0)
        self.launches.append(spec)
        view = InstanceView(
            instance_id=instance_id,
            model_id=spec.model_id,
            generation=spec.generation,
            config_hash=spec.config_hash,
            operation_id=operation_id,
            runtime=spec.runtime,
            delivery=spec.delivery,
            state=InstanceState.STARTING,
        )
        self.engines[instance_id] = ScriptedInstance(view, list(self.plan))
        return view

    def _forget(self, path: str) -> InstanceForgotten:
        instance_id = path.split("/")[1]
        engine = self.engines.get(instance_id)
        if engine is not None and engine.view.state in LIVE_STATES:
            raise refusal(AgentCode.INSTANCE_EXISTS, "it lives")
        self.engines.pop(instance_id, None)
        return InstanceForgotten(instance_id=instance_id)

    def _stop(self, path: str) -> InstanceView:
        engine = self.engines.get(path.split("/")[1])
        if engine is None:
            raise refusal(AgentCode.NOT_FOUND, "no such instance")
        if engine.view.state in LIVE_STATES and not engine.view.stop_requested:
            self.stops += 1
            engine.view = engine.view.model_copy(update={"state": InstanceState.STOPPING, "stop_requested": True})
            engine.script = [] if self.stubborn else [{"state": InstanceState.EXITED, "exit_code": 0}]
        return engine.view

    @property
    def running(self) -> int:
        """The number of live engines."""
        return sum(engine.view.state in LIVE_STATES for engine in self.engines.values())


def refusal(code: AgentCode, detail: str, **fields: Any) -> AgentRefused:
    return AgentRefused(code.value, HTTP_STATUS[code], detail, fields)
