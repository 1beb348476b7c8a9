"""The whole of trust with the real agent: join by token, approval by the printed key, claim, events, a new key."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirbad.kernel import clock
from mirbad.kernel.actor import CONFIG
from mirbad.kernel.conf import settings
from nodes import fencing, registry
from nodes.enrollment import tokens
from nodes.enrollment.join_command import JoinCommand
from nodes.enrollment.listener import EnrollListener
from nodes.errors import NodeOffline, NodePendingTakeover
from nodes.link import client, health, pools
from nodes.models import MasterIdentity, Node
from tests.nodes.parts import open_tokens

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("live_master")]

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def listening():
    """The enroll listener in a thread; gives its port."""
    loop, ready, port = asyncio.new_event_loop(), threading.Event(), []
    listener = EnrollListener(settings().model_copy(update={"enroll_port": free_port(), "enroll_rate_per_minute": 100}))

    def run():
        asyncio.set_event_loop(loop)
        loop.run_until_complete(listener.start())
        port.append(listener.port)
        ready.set()
        loop.run_forever()
        loop.run_until_complete(listener.stop())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(SECONDS)
    try:
        yield port[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SECONDS)


class Agent:
    """The real agent as its own process, with a state folder."""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, free_port()
        (folder / "models").mkdir()
        config = {"bind": "127.0.0.1", "port": self.port, "models_root": "models", "state_dir": "state"}
        (folder / "agent.json").write_text(json.dumps(config))
        self.process = None

    def run(self, *arguments, token="", check=True):
        environ = {**os.environ, "MIRBAD_JOIN_TOKEN": token}
        command = [sys.executable, "-m", "agent", *arguments, "--config", str(self.folder / "agent.json")]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def join(self, port, made, *more, check=True):
        url = f"https://127.0.0.1:{port}"
        arguments = ["--enroll-url", url, "--ca-hash", made.ca_hash, "--node-id", made.node_id]
        arguments += ["--address", "127.0.0.1", "--port", str(self.port)]
        return self.run("join", *arguments, *more, token=made.token, check=check)

    def spki(self):
        return json.loads(self.run("status", "--json").stdout)["spkiSha256"]

    def serve(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agent", "serve", "--config", str(self.folder / "agent.json")],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def end(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(SECONDS)
            self.process = None


@pytest.fixture
def agent(tmp_path):
    made = Agent(tmp_path)
    yield made
    made.end()
    pools.loop_thread().run(client.close())


def reached(work):
    """Try `work` until the agent answers."""
    until = clock.monotonic() + SECONDS
    while True:
        try:
            return work()
        except NodeOffline:
            if clock.monotonic() > until:
                raise
            threading.Event().wait(0.2)


def test_a_machine_joins_is_approved_obeys_and_gets_a_new_key(agent):
    with listening() as port:
        made = tokens.create("local", actor=CONFIG, purpose="bootstrap")
        told = agent.join(port, made)
        assert made.token not in told.stdout + told.stderr
        spki = agent.spki()
        agent.serve()
        assert reached(lambda: health.probe("local")).held_claim is None
        registry.approve("local", spki, CONFIG)
        connected = health.connect("local")
        assert connected.capabilities.cpu_count
        node = Node.objects.get()
        assert (node.reachability, node.protocol, node.host["memoryTotalBytes"] > 0) == ("online", 1, True)
        assert health.probe("local").held_claim == fencing.claim()

        async def first_event():
            stream = client.events("local", 0)
            event = await anext(stream)
            await stream.aclose()
            await client.close()
            return event

        event = asyncio.run(first_event())
        assert (event.kind, event.boot_id) == ("status", node.boot_id)

        again = tokens.create("local", actor=CONFIG, purpose="rekey")
        agent.end()
        agent.join(port, again, "--rekey")
        assert agent.spki() != spki
        agent.serve()
        assert reached(lambda: health.connect("local")).info.spki_sha256 == agent.spki()
        assert Node.objects.get().lifecycle == "approved"


def test_a_master_that_was_overtaken_is_refused_and_fences_itself(agent, live_master):
    with listening() as port:
        agent.join(port, tokens.create("local", actor=CONFIG, purpose="bootstrap"))
        agent.serve()
        reached(lambda: health.probe("local"))
        registry.approve("local", agent.spki(), CONFIG)
        MasterIdentity.objects.update(epoch=7)
        health.connect("local")
        MasterIdentity.objects.update(epoch=6)
        with pytest.raises(NodePendingTakeover):
            health.connect("local")
        assert fencing.is_fenced()
        assert Node.objects.get().reachability == "fenced"


def test_a_wrong_hash_in_the_command_sends_no_token(agent):
    with listening() as port:
        made = tokens.create("local", actor=CONFIG, purpose="bootstrap")
        wrong = JoinCommand(
            **{**{name: getattr(made, name) for name in made.__slots__}, "ca_hash": f"sha256:{'a' * 64}"}
        )
        refused = agent.join(port, wrong, check=False)
        assert refused.returncode == 1
        assert made.token not in refused.stderr
    assert not Node.objects.exists()
    assert len(open_tokens("local")) == 1
