"""Two nodes whose engines are containers by digest: the master's own, and a second agent with its own address."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.bench.docker import DockerBench
from tests.bench.images import SIM
from tests.bench.services import free_port
from tests.e2e.fleet import ROOT, Fleet
from tests.waiting import until


class ContainerFleet:
    """A master whose node `local` and a second agent `pc-2` share a Docker Engine, as `with` block."""

    def __init__(self, folder: Path, bench: DockerBench) -> None:
        self.bench = bench
        self.fleet = Fleet(folder)
        self._folder = folder
        self._port = free_port()
        self._link = f"mbd{os.getpid() % 100_000}"
        self.address = f"10.230.{os.getpid() % 250}.1"
        self._agent: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        config = {
            "state_dir": "state",
            "models_root": "models",
            "bind": "127.0.0.1",
            "allow_tag_pulls": True,
            "docker_host": self.bench.host,
        }
        (self.fleet.data / "agent").mkdir(parents=True)
        (self.fleet.data / "agent" / "agent.json").write_text(json.dumps(config))
        for command in (
            f"ip link add {self._link} type bridge",
            f"ip address add {self.address}/32 dev {self._link}",
            f"ip link set {self._link} up",
        ):
            subprocess.run(command.split(), check=True)
        self.fleet.start()
        self._join()
        return self

    def __exit__(self, *_: object) -> None:
        if self._agent is not None:
            self._agent.terminate()
            self._agent.wait(20)
            self._command("stop-all", check=False)
        self.fleet.close()
        subprocess.run(["ip", "link", "delete", self._link], check=False, capture_output=True)

    def _command(self, *arguments: str, check: bool = True, **environ: str) -> str:
        command = [sys.executable, "-m", "agent", *arguments, "--config", str(self._folder / "pc-2" / "agent.json")]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _join(self) -> None:
        own = self._folder / "pc-2"
        own.mkdir()
        config = {
            "state_dir": "state",
            "models_root": "models",
            "port": self._port,
            "docker_host": self.bench.host,
            "approved_images": [self.bench.image(SIM).reference],
        }
        (own / "agent.json").write_text(json.dumps(config))
        made = self.fleet.api("POST", "nodes/join-tokens", {"nodeId": "pc-2"}, expect=201)
        said = self._command(
            *("join", "--enroll-url", made["enrollUrl"], "--ca-hash", made["caHash"], "--node-id", "pc-2"),
            *("--address", self.address),
            MIRBAD_JOIN_TOKEN=made["token"],
        )
        pin = re.search(r"SPKI SHA-256\): ([0-9a-f ]+)", said)
        assert pin is not None, said
        with (self._folder / "pc-2.log").open("wb") as log:
            self._agent = subprocess.Popen(
                [sys.executable, "-m", "agent", "serve", "--config", str(own / "agent.json")],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        self.fleet.api("POST", "nodes/pc-2/approve", {"expectedSpkiSha256": pin[1].replace(" ", "")})
        until(lambda: self.fleet.api("GET", "nodes/pc-2")["state"] in {"Online", "Degraded"}, seconds=40, what="pc-2")

    def restart_agent(self) -> None:
        """``kill -9`` of the second agent, and a fresh one."""
        assert self._agent is not None
        self._agent.kill()
        self._agent.wait()
        with (self._folder / "pc-2.log").open("ab") as log:
            self._agent = subprocess.Popen(self._agent.args, cwd=ROOT, stdout=log, stderr=log)

    def define(self, model: str, node: str, *, digest: bool = True, **more: object) -> None:
        """A simulated model as a container on a node; the image is pulled from the registry."""
        image = self.bench.image(SIM)
        body = {"id": model, "runtime": "sim", "delivery": "container", "placement": {"nodeId": node}, **more}
        body |= (
            {"image": image.repository, "imageDigest": image.digest} if digest else {"image": f"{image.repository}:1"}
        )
        self.fleet.api("POST", "models", body)

    def containers(self) -> dict[str, str]:
        """Container ids by model, of those that run."""
        rows = self.bench.client.containers.list()
        return {row.labels["mirbad.model"]: row.id for row in rows if "mirbad.model" in row.labels}
