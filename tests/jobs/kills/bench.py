"""A master and the real servers of agents in one process, with places where the master's worker can be made to die.

The agents are real from the socket inwards: mutual TLS, guard, fence, journal. Their engines are remembered ones that
come up and end at once, so that each start and stop that was carried out can be counted.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from agent import clock as agent_clock
from agent.errors import AgentError
from agent.server.status import Probes
from agent.wire.capability import Capabilities, Delivery, Feature, Runtime, RuntimeCapability
from agent.wire.errors import AgentCode
from agent.wire.instances import LIVE_STATES, InstanceState, InstanceView, LaunchSpec
from agent.wire.status import GpuStatus, HostStatus, NodeStatus
from audit.models import AuditLine
from jobs import ledger, worker
from jobs.loops import ca_upkeep, reports
from jobs.loops.holds import release_stale_once
from jobs.loops.orphans import stop_orphans_once
from jobs.loops.resume import resume_once
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.requests import evacuation, model_runs, restore
from mirbad.kernel import clock
from mirbad.kernel.errors import MirbadError
from mirbad.tasking.tasks import TaskSignal
from models_app.models import Hold, ModelDefinition, OrphanInstance, Placement
from nodes.errors import NodeOffline
from nodes.link import client, health
from nodes.models import Node
from tests.bench.hub import Hub
from tests.models_app.things import PERSON, placed
from tests.standins.engines import RememberedEngines
from tests.trust.ca_fleet import Fleet, FleetAgent
from tests.waiting import pause

CALL = client.call


class Killed(BaseException):
    """The worker's process is gone: no handler of ours may see it."""


class PromptEngines(RememberedEngines):
    """Engines that are ready at the third look, and ended at the second after they were asked to stop."""

    async def launch(self, instance_id: str, operation_id: str, spec: LaunchSpec) -> InstanceView:
        known = self.held.get(instance_id)
        if known is not None and known.state in LIVE_STATES:
            raise AgentError(AgentCode.INSTANCE_EXISTS, "it lives already")
        return await super().launch(instance_id, operation_id, spec)

    async def stop(self, instance_id: str, grace_seconds: float) -> InstanceView:
        known = self.view(instance_id)
        if known.state not in LIVE_STATES or known.stop_requested:
            return known
        self.put(known.model_copy(update={"stop_requested": True}))
        return await super().stop(instance_id, grace_seconds)

    def view(self, instance_id: str) -> InstanceView:
        known = super().view(instance_id)
        after = {
            InstanceState.STARTING: {"state": InstanceState.LOADING},
            InstanceState.LOADING: {"state": InstanceState.READY, "start_seconds": 1.0},
            InstanceState.STOPPING: {"state": InstanceState.EXITED, "exit_code": 0},
        }.get(known.state, {})
        self.held[instance_id] = known.model_copy(update={"open_requests": 0, **after})
        return known.model_copy(update={"open_requests": 0})

    def views(self) -> tuple[InstanceView, ...]:
        return tuple(view.model_copy(update={"open_requests": 0}) for view in self.held.values())

    def lose(self) -> None:
        """The machine goes down under them."""
        for view in list(self.held.values()):
            if view.state in LIVE_STATES:
                ended = {"state": InstanceState.LOST, "reason": "The machine restarted while the engine was running."}
                self.held[view.instance_id] = view.model_copy(update={**ended, "reason_code": "lost"})

    @property
    def living(self) -> list[InstanceView]:
        """Those that run."""
        return [view for view in self.held.values() if view.state in LIVE_STATES]


async def _capabilities() -> Capabilities:
    return Capabilities(
        os="Debian 12",
        arch="x86_64",
        hostname="simulated",
        cpu_count=8,
        memory_bytes=2**35,
        memory_model="unified",  # type: ignore[arg-type] # read by pydantic
        memory_model_reason="no GPU",
        gpus=(),
        runtimes=(RuntimeCapability(runtime=Runtime.SIM, delivery=Delivery.PROCESS, available=True),),
        features=(Feature.PKI_ROTATE, Feature.DOWNLOADS),
        folders=(),
        models_root="/srv/models",
        allow_tag_pulls=False,
    )


async def _host() -> HostStatus:
    return HostStatus()


async def _gpus() -> tuple[GpuStatus, ...]:
    return ()


class Machine(FleetAgent):
    """One agent with prompt engines; they outlive its server."""

    engines: PromptEngines | None = None

    def probes(self) -> Probes:
        return Probes(_host, _gpus, _capabilities)

    def make_engines(self, _: Any, __: Any, changed: Callable[[InstanceView], None]) -> PromptEngines:
        if self.engines is None:
            self.engines = PromptEngines(changed)
        self.engines.changed = changed
        return self.engines


class Points:
    """The places between two of which a process can die, in the order in which it comes to them."""

    def __init__(self) -> None:
        self.met: list[str] = []
        self.armed: int | None = None
        self.act: Callable[[str], None] = lambda _: None
        self.at_work = ""
        self._busy = False

    def reset(self, armed: int | None, act: Callable[[str], None]) -> None:
        """Begin anew: `act` happens at point number `armed`, None is nowhere."""
        self.met, self.armed, self.act = [], armed, act

    def cross(self, name: str) -> None:
        """The worker is at `name`."""
        if self._busy:
            return
        self.met.append(name)
        if len(self.met) - 1 != self.armed:
            return
        self._busy = True
        try:
            self.act(name)
        finally:
            self._busy = False

    def claim(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """The claim of a step: from here on its operation is `at_work`."""

        def call(operation_id: str, owner: str) -> Any:
            step = real(operation_id, owner)
            if step is not None and not self._busy:
                self.at_work = operation_id
                self.cross("claimed")
            return step

        return call

    def around(self, real: Callable[..., Any], before: str = "", after: str = "") -> Callable[..., Any]:
        """`real` between two points."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if before:
                self.cross(before)
            answer = real(*args, **kwargs)
            if after:
                self.cross(after)
            return answer

        return call

    @contextlib.contextmanager
    def installed(self) -> Iterator["Points"]:
        """While the block runs, every worker of this process comes through."""
        places: tuple[tuple[Any, str, str, str], ...] = (
            (worker, "_effect", "before the effect", "after the effect"),
            (client, "call", "before a call", "after a call"),
            (ledger, "_update", "", "in the write"),
            (ledger, "write", "", "after the write"),
        )
        patches: list[AbstractContextManager[Any]] = [
            mock.patch.object(module, name, self.around(getattr(module, name), before, after))
            for module, name, before, after in places
        ]
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            stack.enter_context(mock.patch.object(ledger, "claim", self.claim(ledger.claim)))
            stack.enter_context(mock.patch.object(TaskSignal, "enqueue", return_value=False))
            yield self


class Bench:
    """Nodes ``a`` and ``b``; rows are wiped between runs, machines stay."""

    def __init__(self, folder: Path, forward: Callable[[float], None]) -> None:
        self.fleet = Fleet(folder, self.forward)
        self._forward, self._ahead = forward, 0.0
        self.boots = 0
        self._boot = mock.patch.object(agent_clock, "boot_id", self._boot_id)
        self._boot.start()
        self._made = 0
        self.folder = folder
        self.hub = Hub()
        self.hub.__enter__()
        self._endpoint = mock.patch.dict(os.environ, {"HF_ENDPOINT": self.hub.endpoint})
        self._endpoint.start()
        for node_id in ("a", "b"):
            self.add(node_id)

    def forward(self, seconds: float) -> None:
        """Move the master's clock."""
        self._forward(seconds)
        self._ahead += seconds

    def _boot_id(self) -> str:
        return f"boot-{self.boots}"

    def add(self, node_id: str) -> Machine:
        """One more machine that serves."""
        with mock.patch("tests.trust.ca_fleet.FleetAgent", Machine):
            made = self.fleet.add(node_id)
        assert isinstance(made, Machine)
        self.look()
        return made

    def machine(self, node_id: str) -> Machine:
        """By id."""
        made = self.fleet.nodes[node_id]
        assert isinstance(made, Machine)
        return made

    @property
    def machines(self) -> list[Machine]:
        """Those that are members."""
        members = set(Node.objects.approved().values_list("pk", flat=True))
        return [self.machine(node_id) for node_id in self.fleet.nodes if node_id in members]

    def close(self) -> None:
        """End the agents."""
        self.fleet.close()
        self._endpoint.stop()
        self.hub.__exit__(None, None, None)
        self._boot.stop()

    def wipe(self) -> None:
        """As if nothing had ever run; the nodes stay and are drained no more. The clock is the machine's again.

        Who runs ahead of it for more than an hour gives out certificates that no agent takes yet.
        """
        self.forward(-self._ahead)
        for rows in (Operation, Hold, OrphanInstance, Placement, ModelDefinition, AuditLine):
            rows.objects.all().delete()
        Node.objects.filter(lifecycle="approved").update(draining=False)
        for machine in self.machines:
            machine.engines.held.clear()
            machine.engines.launches.clear()
            machine.engines.stops.clear()
        self.look()

    def runs(self, model_id: str, node_id: str) -> Placement:
        """A model that serves on a node; the counters of effects are at 0 afterwards."""
        placement = placed(model_id, node_id)
        self.finish(model_runs.start(model_id, PERSON).pk)
        for machine in self.machines:
            machine.engines.launches.clear()
            machine.engines.stops.clear()
        return placement

    def look(self) -> None:
        """Read every node's status and write it down, as the watcher does."""
        for node_id in Node.objects.approved().values_list("pk", flat=True):
            try:
                if Node.objects.get(pk=node_id).reachability != "online":
                    health.connect(node_id)
                status = CALL(node_id, "GET", "status", None, answer=NodeStatus)
            except NodeOffline:
                continue
            reports.write({node_id: (status, clock.now())})

    def reboot(self) -> None:
        """Every machine goes down and comes back."""
        self.boots += 1
        for machine in self.machines:
            machine.end()
            machine.engines.lose()
            machine.begin()

    def turn(self) -> None:
        """One round of beat and of the workers. What is due is rung for by the sweep alone: no other bell is heard."""
        self.look()
        with contextlib.suppress(MirbadError):
            resume_once()
        stop_orphans_once()
        evacuation.open_all()
        restore.open_all()
        release_stale_once()
        ca_upkeep.tick()
        for operation_id in ledger.due_ids():
            worker.run(operation_id)
        if unfinished().filter(kind="download").exists():
            pause(0.02)  # bytes move by the real clock
        self.forward(6)

    def finish(self, operation_id: str, rounds: int = 80) -> Operation:
        """Turn until the operation is over."""
        for _ in range(rounds):
            if not unfinished().filter(pk=operation_id).exists():
                return Operation.objects.get(pk=operation_id)
            self.turn()
        raise AssertionError(f"not over: {Operation.objects.values().get(pk=operation_id)}")

    def settle(self, rounds: int = 80) -> None:
        """Turn until nothing is open, and once more for what only then begins."""
        quiet = 0
        for _ in range(rounds):
            self.turn()
            quiet = 0 if unfinished().exists() else quiet + 1
            if quiet > 1:
                return
        raise AssertionError(f"never quiet: {list(unfinished().values('kind', 'stage', 'progress', 'error'))}")

    def pass_lease(self) -> None:
        """So long that the lease of a worker that is gone has run out."""
        self.forward(timedelta(minutes=1).total_seconds())

    # -- what must hold, whatever happened -----------------------------------------------------------------------------

    def wrongs(self) -> list[str]:
        """List deviations from the rows: engines beside their place, twice, or missing; holds and rings left over."""
        told = []
        for machine in self.machines:
            wanted = {str(row.pk): row for row in Placement.objects.filter(node_id_text=machine.node_id).order_by("pk")}
            living = {view.instance_id: view for view in machine.engines.living}
            told += [
                f"an engine without a place runs on {machine.node_id}: {one}" for one in living.keys() - wanted.keys()
            ]
            for instance_id, row in wanted.items():
                if row.desired == "running" and instance_id not in living:
                    told.append(f"{row.model_id} should run on {machine.node_id} and does not")
                if row.desired == "stopped" and instance_id in living:
                    told.append(f"{row.model_id} should not run on {machine.node_id} and does")
        for model_id, count in _counted(Placement.objects.filter(routed=True).values_list("model_id", flat=True)):
            if count > 1:
                told.append(f"{model_id} stands {count} times")
        told += [f"a hold is left: {hold}" for hold in Hold.objects.all()]
        told += [f"an unrouted place is left: {row}" for row in Placement.objects.filter(routed=False)]
        for row in Operation.objects.all():
            if row.finished_at is None:
                told.append(f"{row.kind} is open at {row.stage}")
            finals = AuditLine.objects.filter(operation_id_text=row.pk).exclude(result__in=("accepted", "refused"))
            if finals.count() > 1:
                told.append(f"{row.kind} ended {finals.count()} times in the audit log")
        return told

    @property
    def launches(self) -> int:
        """Starts that agents carried out."""
        return sum(len(machine.engines.launches) for machine in self.machines)

    @property
    def stops(self) -> int:
        """Stops that agents carried out."""
        return sum(len(machine.engines.stops) for machine in self.machines)


def _counted(names: Any) -> list[tuple[str, int]]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return list(found.items())
