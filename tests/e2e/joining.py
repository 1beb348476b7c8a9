"""The command of "Add node", pasted on a second machine."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.fleet import Fleet
from tests.e2e.host import Host
from tests.waiting import until


@dataclass(frozen=True)
class Pasted:
    """The command, and its results on the second machine."""

    token: str
    command: str
    said: str
    fingerprint: str
    state_before_approval: str
    left_by_a_wrong_token: str


def join(fleet: Fleet, host: Host, wheels: Path, node_id: str, model: str) -> Pasted:
    """Make `host` the node `node_id` and have it serve the simulated `model`; a wrong token is tried first."""
    made = fleet.api("POST", "nodes/join-tokens", {"nodeId": node_id, "displayName": "The PC"}, expect=201)
    command = made["commands"]["linux"]
    if host.run("command -v sudo").returncode:
        host.run("printf '#!/bin/sh\\nshift; exec \"$@\"\\n' > /usr/local/bin/sudo; chmod 755 /usr/local/bin/sudo")
    # a browser on the LAN asks by the master's address, which is in MIRBAD_HOSTS
    line = f"bash -c {shlex.quote(command.replace('127.0.0.1', host.master_address))}"
    environ = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": "/dev/null"}
    wrong = host.run(line, MIRBAD_JOIN_TOKEN=f"{made['token'][:-4]}AAAA", **environ)
    assert wrong.returncode != 0
    left = host.run("ls -d /usr/local/lib/mirbad-agent /usr/local/bin/mirbad-agent").stdout
    done = host.run(line, MIRBAD_JOIN_TOKEN=made["token"], **environ)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    fingerprint = re.search(r"Key fingerprint \(SPKI SHA-256\): ([0-9a-f ]+)", done.stdout)[1].replace(" ", "")
    host.spawn(re.search(r"^ +(runuser .+)$", done.stdout, re.MULTILINE)[1])
    before = fleet.api("GET", f"nodes/{node_id}")["state"]
    fleet.api("POST", f"nodes/{node_id}/approve", {"expectedSpkiSha256": "0" * 64}, expect=409)
    fleet.api("POST", f"nodes/{node_id}/approve", {"expectedSpkiSha256": fingerprint})
    until(lambda: is_online(fleet, node_id), seconds=40, what=node_id)
    fleet.define_sim(model, node_id)
    fleet.api("POST", f"models/{model}/start")
    assert fleet.wait_for_answer(model)
    return Pasted(made["token"], command, said, fingerprint, before, left)


def is_online(fleet: Fleet, node_id: str) -> bool:
    """Return whether the master uses the node."""
    return fleet.api("GET", f"nodes/{node_id}")["state"] in {"Online", "Degraded"}
