"""A Docker Engine and an image registry of the tests' own: real ones, beside whatever else runs on this machine.

The engine has its own data folder, unix socket and bridge, and touches no firewall rule; the registry listens on
127.0.0.1. Images are built from this machine's Python (`images`), pushed, and removed again, so that a launch by digest
really pulls.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import docker
import docker.errors

from tests.bench import images
from tests.bench.images import Recipe
from tests.bench.services import free_port
from tests.waiting import until, until_no

_START_SECONDS = 40.0
_PROGRAMS = {
    "dockerd": "docker.io",
    "containerd": "containerd",
    "runc": "runc",
    "docker-registry": "docker-registry",
    "ip": "iproute2",
}
_NAMES = {"containerd": ("containerd",), "docker-registry": ("docker-registry", "registry")}


class CannotRun(Exception):
    """This machine cannot run a Docker Engine of its own; the text says why."""


@dataclass(frozen=True)
class BenchImage:
    """An image in the registry."""

    repository: str
    digest: str

    @property
    def reference(self) -> str:
        """`repository@sha256:…`"""
        return f"{self.repository}@{self.digest}"


def _program(name: str) -> str:
    for candidate in _NAMES.get(name, (name,)):
        if (path := shutil.which(candidate, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")) is not None:
            return path
    raise CannotRun(f"{name} is not installed (apt package {_PROGRAMS[name]})")


class DockerBench:
    """`start`, use `host` as docker_host, `image` for an image by digest, `close`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mb-dock-"))
        self.host = f"unix://{self.folder}/docker.sock"
        self.registry = ""
        self._bridge = f"mbt{os.getpid() % 100_000}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._images: dict[str, BenchImage] = {}
        self._client: docker.DockerClient | None = None

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> "DockerBench":
        """Start both. CannotRun when this machine does not let us."""
        if os.geteuid() != 0:
            raise CannotRun("a Docker Engine needs root")
        programs = {name: _program(name) for name in _PROGRAMS}
        try:
            self._make_bridge(programs["ip"])
            self.start_engine()
            self._start_registry(programs["docker-registry"])
        except BaseException:
            self.close()
            raise
        return self

    def _make_bridge(self, ip: str) -> None:
        number = os.getpid()
        address = f"10.{100 + number % 100}.{number // 100 % 250}.1/24"
        for command in (
            [ip, "link", "add", self._bridge, "type", "bridge"],
            [ip, "address", "add", address, "dev", self._bridge],
            [ip, "link", "set", self._bridge, "up"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise CannotRun(f"no network bridge can be made: {done.stderr.strip()}")

    def start_engine(self, *, gpus: bool = False) -> None:
        """Start the engine; also after `stop_engine`, on the same data. With `gpus` it takes GPU requests.

        The engine looks for NVIDIA's hook by name and runs it before a container starts; ours does nothing, so that a
        request sets NVIDIA_VISIBLE_DEVICES and no card is needed.
        """
        hook = self.folder / "bin" / "nvidia-container-runtime-hook"
        hook.parent.mkdir(exist_ok=True)
        hook.unlink(missing_ok=True)
        if gpus:
            hook.write_text("#!/bin/sh\nexit 0\n")
            hook.chmod(0o755)
        command = [
            _program("dockerd"),
            "--data-root", str(self.folder / "data"),
            "--exec-root", str(self.folder / "exec"),
            "--pidfile", str(self.folder / "pid"),
            "--host", self.host,
            "--bridge", self._bridge,
            "--iptables=false", "--ip-forward=false", "--ip-masq=false",
            "--shutdown-timeout", "3",
            "--log-level", "warn",
        ]  # fmt: skip
        process = self._run(command, "dockerd.log")

        def answers() -> bool:
            if process.poll() is not None:
                raise CannotRun(f"dockerd ended with {process.returncode}: {self._last_line('dockerd.log')}")
            return self._answers()

        try:
            until(answers, "dockerd", _START_SECONDS, every=0.2)
        except AssertionError:
            raise CannotRun(f"dockerd did not start: {self._last_line('dockerd.log')}") from None

    def _answers(self) -> bool:
        if not (self.folder / "docker.sock").exists():
            return False
        try:
            client = docker.DockerClient(base_url=self.host, version="auto", timeout=120)
        except (docker.errors.DockerException, OSError):
            return False
        if self._client is not None:
            self._client.close()
        self._client = client
        return True

    def stop_engine(self) -> None:
        """Stop the engine and its containers, keep the data."""
        for process in [one for one in self._processes if "--data-root" in one.args]:
            self._processes.remove(process)
            _end(process)

    def _start_registry(self, program: str) -> None:
        port = free_port()
        self.registry = f"127.0.0.1:{port}"
        config = self.folder / "registry.yml"
        config.write_text(
            "version: 0.1\nlog: {level: error}\n"
            f"storage: {{filesystem: {{rootdirectory: {self.folder}/registry}}}}\n"
            f"http: {{addr: '{self.registry}'}}\n"
        )
        self._run([program, "serve", str(config)], "registry.log")
        try:
            until_no(OSError, lambda: socket.create_connection(("127.0.0.1", port), 1).close(), _START_SECONDS)
        except OSError:
            raise CannotRun(f"the registry did not start: {self._last_line('registry.log')}") from None

    def _run(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
        with (self.folder / log).open("ab") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environment)
        self._processes.append(process)
        return process

    def _last_line(self, log: str) -> str:
        lines = (self.folder / log).read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"

    def close(self) -> None:
        """End everything and remove the data."""
        if self._client is not None:
            for container in self._client.containers.list(all=True):
                container.remove(force=True)
            self._client.close()
        for process in reversed(self._processes):
            _end(process)
        for mount in sorted(_mounts_under(self.folder), reverse=True):
            subprocess.run(["umount", "-l", mount], capture_output=True, check=False)
        subprocess.run(
            [shutil.which("ip") or "/usr/sbin/ip", "link", "delete", self._bridge], capture_output=True, check=False
        )
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- images --------------------------------------------------------------------------------------------------------

    @property
    def client(self) -> docker.DockerClient:
        """A client of the engine."""
        if self._client is None:
            raise CannotRun("the engine was not started")
        return self._client

    def image(self, recipe: Recipe) -> BenchImage:
        """The image of `recipe` in the registry, made once; the engine itself does not have it afterwards."""
        if recipe.name not in self._images:
            repository = f"{self.registry}/mirbad/{recipe.name}"
            # JSON form: an image without a shell
            entry = "ENTRYPOINT [" + ", ".join(f'"{part}"' for part in images.entrypoint(recipe)) + "]"
            self.client.api.import_image_from_data(
                images.build(recipe), repository=repository, tag="1", changes=[entry]
            )
            for event in self.client.images.push(repository, tag="1", stream=True, decode=True):
                if "error" in event:
                    raise CannotRun(f"the image could not be pushed: {event['error']}")
            digest = self.client.images.get(f"{repository}:1").attrs["RepoDigests"][0].partition("@")[2]
            self.forget(f"{repository}:1")
            self._images[recipe.name] = BenchImage(repository, digest)
        return self._images[recipe.name]

    def forget(self, reference: str) -> None:
        """Remove an image from the engine (not from the registry), so that the next launch pulls it."""
        try:
            image = self.client.images.get(reference)
        except docker.errors.ImageNotFound:
            return
        self.client.images.remove(image.id, force=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _mounts_under(folder: Path) -> list[str]:
    lines = Path("/proc/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines if line.split()[1].startswith(f"{folder}/")]
