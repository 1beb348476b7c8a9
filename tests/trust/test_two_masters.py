"""A master and a copy of it, beside each other, each a process of its own, with real agents as processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.fence import held_claim
from agent.identity import IdentityStore
from agent.wire.enroll import EnrollResponse
from jobs.requests.takeover import PHRASE
from tests.bench.services import free_port
from tests.standins.served import install
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]


class Refused(Exception):
    """The master's refusal, in place of a value."""

    def __init__(self, code, detail):
        super().__init__(f"{code}: {detail}")
        self.code, self.detail = code, detail


class Master:
    """One master with a data folder."""

    def __init__(self, data: Path, **settings: str):
        self.data = data
        own = {name: text for name, text in os.environ.items() if not name.startswith("MIRBAD_")}
        own.pop("DATABASE_URL", None)
        self.environ = {
            **own,
            "MIRBAD_DATA": str(data),
            "MIRBAD_SECRET_KEY": "one secret of both masters, as in a copy of the data folder",
            **settings,
        }
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.trust.master_process"],
            cwd=ROOT,
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ask("prepare")
        return self

    def ask(self, order, **arguments):
        self.process.stdin.write(json.dumps([order, arguments]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "code" in answer:
            raise Refused(answer["code"], answer["detail"])
        return answer["value"]

    def refused(self, order, **arguments):
        with pytest.raises(Refused) as caught:
            self.ask(order, **arguments)
        return caught.value.code

    def stop(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait(30)
            self.process.stdout.close()
            self.process = None

    def node(self, node_id):
        return next(node for node in self.ask("view")["nodes"] if node["node_id"] == node_id)


class Agent:
    """One real agent process on this machine."""

    def __init__(self, folder: Path, node_id: str, master: Master):
        self.port, self.node_id, self.state = free_port(), node_id, folder / "state"
        (folder / "models").mkdir(parents=True)
        self.state.mkdir()
        self.config = folder / "agent.json"
        config = {"bind": "127.0.0.1", "port": self.port, "models_root": "models", "state_dir": "state"}
        self.config.write_text(json.dumps(config))
        made = master.ask("enroll", node_id=node_id, port=self.port)
        answer = EnrollResponse.model_validate(made["answer"])
        self.uid = answer.node_uid
        install(IdentityStore(self.state), node_id, answer, made["key"].encode())
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agent", "serve", "--config", str(self.config)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return self

    def kill(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(30)
            self.process = None

    @property
    def obeys(self):
        claim = held_claim(self.state, self.uid)
        return None if claim is None else claim.epoch


def connected(master, node_id):
    """Connect, once the agent listens."""

    def attempt():
        try:
            return [master.ask("connect", node_id=node_id)]
        except Refused as refusal:
            if refusal.code != "node_offline":
                raise
            return []

    return until(attempt, f"{node_id} to be reached", every=0.2)[0]


@pytest.fixture
def living(tmp_path):
    made = Master(tmp_path / "living")
    (made.data / "static").mkdir(parents=True)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def agents(tmp_path, living):
    made = [Agent(tmp_path / name, name, living).start() for name in ("pc-1", "pc-2")]
    for agent in made:
        connected(living, agent.node_id)
    yield made
    for agent in made:
        agent.kill()


@pytest.fixture
def copied(tmp_path, living, agents):
    """A master from a copy of the living one's data folder, which goes on living."""
    living.stop()
    shutil.copytree(living.data, tmp_path / "copied")
    living.start()
    made = Master(tmp_path / "copied").start()
    yield made
    made.stop()


def test_a_copy_beside_the_living_master_commands_nothing_until_it_takes_over(living, copied, agents):
    ours, theirs = living.ask("view"), copied.ask("view")
    assert (ours["state"], theirs["state"], ours["epoch"], theirs["epoch"]) == ("commanding", "fenced", 1, 1)
    assert ours["instance_id"] != theirs["instance_id"]
    for order, arguments in (
        ("command", {"node_id": "pc-1"}),
        ("connect", {"node_id": "pc-1"}),
        ("join", {"node_id": "pc-9"}),
    ):
        assert copied.refused(order, **arguments) == "master_fenced", order
    assert copied.ask("resume") == 0
    assert living.ask("command", node_id="pc-1")["held"]["epoch"] == 1

    assert copied.refused("takeOver", confirm="yes") == "confirmation_required"
    taken = copied.ask("takeOver", confirm=PHRASE)
    assert (taken["outcome"], taken["result"]["epoch"]) == ("succeeded", 2)
    assert sorted(taken["result"]["claimed"]) == ["pc-1", "pc-2"]
    assert [agent.obeys for agent in agents] == [2, 2]

    assert living.refused("command", node_id="pc-1") == "node_pending_takeover"
    assert living.ask("view")["state"] == "fenced"
    assert living.refused("join", node_id="pc-9") == "master_fenced"
    assert living.node("pc-1")["state"] == "PendingTakeover"
    assert copied.ask("command", node_id="pc-2")["held"]["epoch"] == 2
    connected(copied, "pc-1")
    assert copied.node("pc-1")["state"] in ("Online", "Degraded")

    back = living.ask("takeOver", confirm=PHRASE)
    assert (back["outcome"], back["result"]["epoch"]) == ("succeeded", 3)
    assert copied.refused("command", node_id="pc-2") == "node_pending_takeover"
    assert copied.ask("view")["state"] == "fenced"


def refusal_of_connecting(master, node_id):
    """Return the code with which the master refuses to connect, once the agent answers."""

    def answered():
        code = master.refused("connect", node_id=node_id)
        return code if code != "node_offline" else ""

    return until(answered, "an answer of the agent", every=0.2)


def continued(master, node_id, blocked):
    """Return the outcome of the takeover of a node that waits for a person, after every wrong request for it."""
    asked = {"node_id": node_id, "takeover_id": blocked["takeover_id"], "agent_epoch": 3, "confirm": node_id}
    assert master.refused("continue", **{**asked, "confirm": "pc-2"}) == "confirmation_required"
    assert master.refused("continue", **{**asked, "agent_epoch": 2}) == "invalid_state"
    assert master.refused("continue", **{**asked, "node_id": "pc-2", "confirm": "pc-2"}) == "invalid_state"
    return master.ask("continue", **asked)


def test_a_node_that_was_away_comes_back_by_itself_or_waits_for_a_person(living, copied, agents):
    first, second = agents
    second.kill()
    taken = copied.ask("takeOver", confirm=PHRASE)
    assert (taken["outcome"], taken["result"]["claimed"], taken["result"]["pending"]) == (
        "succeeded",
        ["pc-1"],
        ["pc-2"],
    )
    waiting = copied.node("pc-2")
    assert waiting["state"] == "PendingTakeover"
    assert taken["result"]["takeoverId"] in waiting["reasons"][0]
    assert not waiting["continuable"]

    # From below the new epoch it reconnects by itself.
    second.start()
    connected(copied, "pc-2")
    assert (second.obeys, copied.node("pc-2")["takeover_id"]) == (2, None)

    # The other master takes the first one back while it is all that it reaches, at an epoch that ours does not pass.
    second.kill()
    assert living.ask("takeOver", confirm=PHRASE)["result"] == {
        "takeoverId": living.ask("view")["takeover_id"],
        "epoch": 3,
        "claimed": ["pc-1"],
        "pending": ["pc-2"],
    }
    first.kill()
    again = copied.ask("takeOver", confirm=PHRASE)
    assert (again["result"]["epoch"], again["result"]["claimed"]) == (3, [])
    first.start()
    second.start()
    connected(copied, "pc-2")

    assert refusal_of_connecting(copied, "pc-1") == "node_pending_takeover"
    assert copied.ask("view")["state"] == "commanding", "a node that is known to be taken must not fence the master"
    blocked = copied.node("pc-1")
    assert (blocked["continuable"], blocked["agent_epoch"], first.obeys) == (True, 3, 3)

    done = continued(copied, "pc-1", blocked)
    assert (done["outcome"], done["result"]["claimed"], done["result"]["epoch"]) == ("succeeded", ["pc-1"], 4)
    connected(copied, "pc-1")
    connected(copied, "pc-2")
    assert (first.obeys, second.obeys) == (4, 4)
    assert living.refused("command", node_id="pc-1") == "node_pending_takeover"


def test_a_flag_file_takes_over_and_is_deleted(living, copied, agents):
    flag = copied.data / "takeover"
    flag.touch()
    assert copied.ask("wishes") == 1
    assert copied.ask("wishes") == 0, "asked once, not at each look"
    assert copied.ask("work")["outcome"] == "succeeded"
    assert copied.ask("wishes") == 0
    assert not flag.exists()
    assert [agent.obeys for agent in agents] == [2, 2]
