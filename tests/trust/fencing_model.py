"""Fencing as a state machine: masters and their copies, cut links, killed agents, late calls, takeovers, a lying node.

What must hold is said from outside: by effects that agents admitted (`bench.Bench.note`), and by the rules below.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, precondition, rule

from agent.wire.fence import Claim
from agent.wire.instances import InstanceView, LaunchSpec, StopRequest
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.requests import stand_down, takeover
from jobs.states import FAILED, SUCCEEDED
from mirbad.kernel.actor import admin
from mirbad.kernel.errors import Conflict, MirbadError
from mirbad.kernel.ids import new_operation_id
from nodes import fencing
from nodes import queries as node_queries
from nodes.errors import AgentRefused, MasterFenced, NodeIncompatible, NodeOffline, NodePendingTakeover
from nodes.link import client, health, pools
from nodes.models import Node
from nodes.states import FENCED, INCOMPATIBLE
from tests.agent.core.conftest import launch_spec
from tests.trust.bench import NODES, Bench, Violation
from tests.trust.machines import Lie

NODE = st.sampled_from(NODES)
OWNER = admin("a session", "ada", "owner", "192.0.2.7")
LIAR = "c"
"""The one node that may say what is not so."""
EPOCHS = st.sampled_from(
    (-1, 0, 1, 2, 3, 4, 9, 2**24 - 1, 2**24 + 1, 2**24 + 99, 2**53 - 2, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 10**30,
     1.5, None, True, "9", "x", [7])
)  # fmt: skip
HELD = st.builds(lambda epoch, name: {"epoch": epoch, "instanceId": name}, EPOCHS, st.sampled_from(("lie" * 4, "x")))
LIES = st.none() | st.builds(
    Lie, HELD | st.sampled_from((None, {}, 7, "claim")), st.sampled_from(("", "stale_master", "competing_master")),
    st.booleans(),
)  # fmt: skip
SPEC = LaunchSpec.model_validate(launch_spec())


def require(holds: bool, words: str) -> None:
    """Raise Violation with `words` unless it holds."""
    if not holds:
        raise Violation(words)


class Fencing(RuleBasedStateMachine):
    """Set `make` before it runs."""

    make: Any = None
    masters = Bundle("masters")
    backups = Bundle("backups")
    flights = Bundle("flights")

    def __init__(self) -> None:
        super().__init__()
        self.bench: Bench = type(self).make()
        self.began: dict[str, int] = {}

    # -- beginnings ----------------------------------------------------------------------------------------------------

    @initialize(target=masters)
    def begin(self) -> str:
        """One master that commands all."""
        name = self.bench.first()
        for node_id in NODES:
            health.connect(node_id)
            client.call(node_id, "PUT", "instances/x", SPEC, answer=InstanceView, operation_id=new_operation_id())
        return name

    @rule(target=backups, master=masters)
    def back_up(self, master: str) -> Any:
        """A backup, or a copy of the disk."""
        self.bench.act(master)
        return (master, self.bench.dump())

    @rule(target=masters, backup=backups)
    @precondition(lambda self: len(self.bench.masters) < 4)
    def restore_elsewhere(self, backup: Any) -> str:
        """An old copy begins beside the living master."""
        name = self.bench.restore(backup[1])
        require(fencing.is_fenced(), f"{name} was copied from {backup[0]} and commands without a takeover")
        return name

    @rule(backup=backups)
    def restore_in_place(self, backup: Any) -> None:
        """The master itself goes back to an older state."""
        self.bench.restore(backup[1], over=backup[0])

    # -- the world -----------------------------------------------------------------------------------------------------

    @rule(master=masters, cut=st.sets(NODE))
    def weather(self, master: str, cut: set[str]) -> None:
        """Change which nodes a master reaches."""
        self.bench.masters[master].cut = cut

    @rule(lie=LIES)
    def lie(self, lie: Lie | None) -> None:
        """One node begins to lie, lies otherwise, or comes back to what is so."""
        self.bench.machines[LIAR].lie = lie
        for nodes in self.bench.heard.values():
            # It may take back what it said before.
            nodes.discard(LIAR)

    @rule(master=masters, above=st.sampled_from((0, 1, 2**24, 2**50)))
    def lie_to(self, master: str, above: int) -> None:
        """The liar refuses an order for the sake of a master that nobody else knows."""
        self._lie_above(master, above)
        self.command(master, LIAR, True)

    @rule(master=masters, above=st.sampled_from((1, 2**50)))
    def lie_during_a_takeover(self, master: str, above: int) -> None:
        """The liar refuses a takeover, which must succeed for the others all the same."""
        self._lie_above(master, above)
        self.bench.masters[master].cut.discard(LIAR)
        self.take_over(master)

    def _lie_above(self, master: str, above: int) -> None:
        self.bench.act(master)
        self.lie(Lie({"epoch": fencing.present().epoch + above, "instanceId": "nobody-else"}, "stale_master"))

    @rule(node_id=NODE)
    def kill_agent(self, node_id: str) -> None:
        """``kill -9``, and a start from what is on disk."""
        self.bench.machines[node_id].boot()

    # -- commands ------------------------------------------------------------------------------------------------------

    @rule(master=masters, node_id=NODE)
    def connect(self, master: str, node_id: str) -> None:
        """The watcher makes a line. A node that came back taken must stay as it is."""
        self.bench.act(master)
        if self._lies(node_id):
            self._hear_out(node_id, lambda: health.connect(node_id))
            return
        node, held = Node.objects.get(pk=node_id), self.bench.machines[node_id].held
        taken = fencing.returned_under_another_master(node.takeover_epoch, held, fencing.present())
        was_fenced = fencing.is_fenced()
        try:
            health.connect(node_id)
        except NodeIncompatible:
            require(held is not None and held.epoch > fencing.present().epoch + fencing.EPOCH_REACH,
                    f"{node_id} obeys {held}, which can be believed, and {master} does not")  # fmt: skip
            return
        except (NodeOffline, NodePendingTakeover, MasterFenced):
            self._require_fenced_by_two()
            if was_fenced or taken:
                require(self.bench.machines[node_id].held == held, f"{node_id} was claimed though it must not be")
            return
        require(not was_fenced, f"{master} is fenced and connected to {node_id}")
        require(not taken, f"{node_id} was under another master and {master} took it without being told to")
        require(self.bench.machines[node_id].held == fencing.present(), f"{node_id} is online and obeys someone else")

    @rule(master=masters, node_id=NODE, stop=st.booleans())
    def command(self, master: str, node_id: str, stop: bool) -> None:
        """A worker gives an order; a node that refuses it is held, and two of them fence the master."""
        self.bench.act(master)

        def order() -> None:
            if stop:
                client.call(
                    node_id, "POST", "instances/x/stop", StopRequest(grace_seconds=1.0),
                    answer=InstanceView, operation_id=new_operation_id(),
                )  # fmt: skip
            else:
                client.call(node_id, "PUT", "instances/x", SPEC, answer=InstanceView, operation_id=new_operation_id())

        self._hear_out(node_id, order)

    @rule(target=flights, master=masters, node_id=NODE, arrived=st.booleans())
    def send_slowly(self, master: str, node_id: str, arrived: bool) -> Any:
        """A call leaves; it, or its answer, stays on the way."""
        self.bench.act(master)
        try:
            prepared = client._prepare(node_id, "PUT", "instances/x", SPEC, new_operation_id(), 10.0)
        except MasterFenced:
            return multiple()
        received = self._deliver(prepared, master) if arrived else None
        return (master, prepared, received)

    @rule(flight=consumes(flights))
    def arrive(self, flight: Any) -> None:
        """A late answer comes in. It counts for the claim that it was asked under, and for no other."""
        master, prepared, received = flight
        self.bench.act(master)
        if received is None:
            received = self._deliver(prepared, master)
        stands, fenced = fencing.is_current(prepared.claim), fencing.is_fenced()
        if stands:
            self.bench.hear(prepared, received)
        try:
            client._conclude(prepared, received, InstanceView)
        except (NodePendingTakeover, NodeIncompatible):
            require(stands, f"{master} took a refusal of its former claim for one of the present")
            require(self._is_held(prepared.endpoint.node_id), f"{master} was refused and the node is not held")
            self._require_fenced_by_two()
        except MasterFenced:
            require(not stands, f"{master} dropped an answer that counts")
            require(fencing.is_fenced() == fenced, f"{master} was fenced by an answer to its former claim")
        except AgentRefused:
            pass
        else:
            require(stands, f"{master} took an answer to its former claim")

    def _hear_out(self, node_id: str, ask: Callable[[], object]) -> None:
        """Ask a node; whatever it says is about that node alone, unless another one says the same."""
        try:
            ask()
        except (NodePendingTakeover, NodeIncompatible):
            require(self._is_held(node_id), f"{node_id} refused {self.bench.acting} and is not held")
        except (NodeOffline, MasterFenced, AgentRefused):
            pass
        self._require_fenced_by_two()

    def _lies(self, node_id: str) -> bool:
        return self.bench.machines[node_id].lie is not None

    def _is_held(self, node_id: str) -> bool:
        return Node.objects.filter(pk=node_id, reachability__in=(FENCED, INCOMPATIBLE)).exists()

    def _require_fenced_by_two(self) -> None:
        """Two honest refusals of the claim fence its master; without any, it is not fenced by what nodes say."""
        ours, reason = fencing.present(), fencing.fenced_reason()
        honest = self.bench.heard.get((self.bench.here().name, ours), set())
        require(bool(reason) or len(honest) < 2, f"{self.bench.acting} was refused by {sorted(honest)} and goes on")
        by_nodes = reason.startswith("Node") and (self.bench.here().name, ours) not in self.bench.inherited
        require(not by_nodes or bool(honest), f"{self.bench.acting} is fenced by the word of one node: {reason}")
        require(ours.epoch < 2**40, f"{self.bench.acting} took an epoch from a report that nobody can believe")

    def _deliver(self, prepared: Any, master: str) -> Any:
        return pools.loop_thread().run(self.bench.deliver(prepared, master))

    # -- a master stands down ------------------------------------------------------------------------------------------

    @rule(master=masters)
    def stand_down(self, master: str) -> None:
        """An owner has a master stand down, whatever it is doing; only an owner can have it return."""
        self.bench.act(master)
        stand_down.request(stand_down.PHRASE, OWNER)
        require(fencing.is_fenced(), f"{master} stands down and commands")
        require(not unfinished().exists(), f"{master} stands down and its takeover goes on")
        for node_id in NODES:
            self.command(master, node_id, False)
        try:
            takeover.request_by_configuration("option", "start:again")
        except MasterFenced:
            return
        raise Violation(f"{master} stands down and a setting has it take over")

    # -- takeovers -----------------------------------------------------------------------------------------------------

    @rule(master=masters)
    def ask_for_takeover(self, master: str) -> None:
        """Someone types the phrase."""
        self.bench.act(master)
        try:
            operation = takeover.request(takeover.PHRASE, OWNER)
        except Conflict:
            return
        self.began.setdefault(operation.pk, len(self.bench.effects))

    @rule(master=masters, steps=st.integers(min_value=1, max_value=4))
    def work(self, master: str, steps: int) -> None:
        """A worker does some steps of what is open; a killed one would do no other."""
        self.bench.act(master)
        for _ in range(steps):
            operation = unfinished().first()
            if operation is None:
                return
            self._step(operation)

    @rule(master=masters)
    def take_over(self, master: str) -> None:
        """A whole takeover while nobody else acts: it must succeed, whatever was before."""
        self.bench.act(master)
        try:
            operation = takeover.request(takeover.PHRASE, OWNER)
        except Conflict:
            return
        self.began.setdefault(operation.pk, len(self.bench.effects))
        for _ in range(12):
            self._step(operation)
            operation.refresh_from_db()
            if operation.finished_at:
                break
        require(bool(operation.finished_at), f"the takeover of {master} does not end: {operation.stage}")

    @rule(one=masters, other=masters, side=st.sets(NODE, min_size=1, max_size=2))
    def split(self, one: str, other: str, side: set[str]) -> None:
        """The network parts, and a master takes over on either side; it heals, and each gives orders to all."""
        for master, cut in ((one, side), (other, set(NODES) - side)):
            self.bench.masters[master].cut = cut
            self.take_over(master)
            self.bench.masters[master].cut = set()
        for master in (one, other):
            for node_id in NODES:
                self.command(master, node_id, False)

    @rule(master=masters, node_id=NODE)
    def carry_on(self, master: str, node_id: str) -> None:
        """Someone types a node's id, if it waits for that."""
        self.bench.act(master)
        node = Node.objects.get(pk=node_id)
        if not node_queries.waits_for_continuation(node):
            return
        try:
            operation = takeover.resume(node_id, node.takeover_id, node.held_epoch or 0, node_id, OWNER)
        except Conflict:
            return
        self.began.setdefault(operation.pk, len(self.bench.effects))

    def _step(self, operation: Operation) -> None:
        before = len(self.bench.effects)
        try:
            self.bench.step(operation.pk)
        except MirbadError as error:
            raise Violation(f"a step of {operation.kind} let {error.code} out") from error
        self._require_fenced_by_two()
        operation.refresh_from_db()
        if operation.outcome == SUCCEEDED:
            self._require_obeyed(operation)
        if operation.outcome == FAILED and operation.kind == "takeover":
            others = {
                effect.master
                for effect in self.bench.effects[self.began.get(operation.pk, before) :]
                if effect.master != self.bench.acting
            }
            copied = operation.input["installation"] != fencing.bound_to()
            code = "invalid_state" if copied else "master_fenced"
            require(operation.error["code"] == code, f"the takeover failed otherwise than it may: {operation.error}")
            require(copied or bool(others), f"nobody else acted and the takeover failed: {operation.error}")

    def _require_obeyed(self, operation: Operation) -> None:
        ours = fencing.present()
        require(not fencing.is_fenced(), "the takeover is done and its master is fenced")
        require(operation.result["epoch"] == ours.epoch, "the takeover is done and its epoch is not the master's")
        for node_id in operation.result["claimed"]:
            if self._lies(node_id):
                continue
            held: Claim | None = self.bench.machines[node_id].held
            require(held == ours, f"the takeover is done, and {node_id} obeys {held} and not {ours}")

    def teardown(self) -> None:
        """Leave no rows behind."""
        self.bench._clear()
