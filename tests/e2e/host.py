"""A second machine on this one: a network namespace with its own address, and system folders of its own.

Its ``/etc``, ``/usr/local``, ``/var/lib``, ``/srv`` and ``/run`` are overlays that end with it, so a real installation
can be made in it. It reaches the master over a virtual cable; the cable can be pulled.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

_OVERLAYS = ("/etc", "/usr/local", "/var/lib", "/srv", "/run", "/root")
_NEEDED = ("ip", "unshare", "mount", "nsenter")


def require_root_and_tools() -> None:
    """Skip where no second machine can be made."""
    if os.geteuid() != 0:
        pytest.skip("a second machine needs root (network namespaces)")
    for tool in _NEEDED:
        if shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin") is None:
            pytest.skip(f"{tool} is not installed (apt packages iproute2, util-linux, mount)")


class Host:
    """`run` runs a shell line in it; `address` is its own, `master_address` the master's side of the cable."""

    def __init__(self, number: int = 1) -> None:
        tag = f"{os.getpid() % 100_000}{number}"
        self.name = f"mb{tag}"
        self._cable = f"mbc{tag}"
        net = f"10.{200 + number}.{os.getpid() % 250}"
        self.master_address, self.address = f"{net}.1", f"{net}.2"
        self.folder = Path(tempfile.mkdtemp(prefix="mb-host-"))
        self._keeper: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> "Host":
        """Lay the cable and mount the folders."""
        inner = f"{self._cable}p"
        for command in (
            f"ip netns add {self.name}",
            f"ip link add {self._cable} type veth peer name {inner}",
            f"ip link set {inner} netns {self.name}",
            f"ip address add {self.master_address}/24 dev {self._cable}",
            f"ip link set {self._cable} up",
            f"ip -n {self.name} address add {self.address}/24 dev {inner}",
            f"ip -n {self.name} link set {inner} up",
            f"ip -n {self.name} link set lo up",
        ):
            subprocess.run(shlex.split(command), check=True, capture_output=True)
        lines = [f"mount -t tmpfs tmpfs {self.folder}"]
        for number, path in enumerate(_OVERLAYS):
            base = f"{self.folder}/{number}"
            lines.append(f"mkdir -p {base}/upper {base}/work")
            lines.append(
                f"mount -t overlay overlay -o lowerdir={path},upperdir={base}/upper,workdir={base}/work {path}"
            )
        # systemd does not run in here, whatever runs outside
        # and a Python below /root may be run by the agent's user (only in here: the folder is an overlay)
        last = ["rm -rf /run/systemd/system", "chmod 755 /root", "echo mounted", "exec sleep infinity"]
        script = " && ".join([*lines, *last])
        self._keeper = subprocess.Popen(
            ["ip", "netns", "exec", self.name, "unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        said = self._keeper.stdout.readline()
        if said != b"mounted\n":
            self.close()
            pytest.skip(f"this machine does not let us mount overlays: {said.decode(errors='replace').strip()}")
        return self

    def _enter(self, line: str) -> list[str]:
        assert self._keeper is not None
        return ["nsenter", "-t", str(self._keeper.pid), "-m", "-n", "sh", "-c", line]

    def run(self, line: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        """Run a shell line to its end."""
        return subprocess.run(
            self._enter(line),
            env={**_environ(), **environ},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def spawn(self, line: str, **environ: str) -> "subprocess.Popen[bytes]":
        """Run a shell line in the background; its output goes to `log`."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self._enter(line), env={**_environ(), **environ}, stdout=log, stderr=log, start_new_session=True
            )
        self._started.append(process)
        return process

    @property
    def log(self) -> Path:
        """The log of background programs (outside the machine's own folders)."""
        return self.folder.with_suffix(".log")

    def pull_cable(self) -> None:
        """No packet goes through any more; nobody is told."""
        subprocess.run(["ip", "link", "set", self._cable, "down"], check=True)

    def plug_cable(self) -> None:
        """Packets go through again."""
        subprocess.run(["ip", "link", "set", self._cable, "up"], check=True)

    def pids(self) -> set[int]:
        """Every process that lives in it."""
        done = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False)
        return {int(pid) for pid in done.stdout.split()}

    def close(self) -> None:
        """End everything in it and take it away."""
        for pid in self.pids():
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        for process in [*self._started, *([self._keeper] if self._keeper else [])]:
            process.wait(10)
        if self._keeper is not None and self._keeper.stdout is not None:
            self._keeper.stdout.close()
        subprocess.run(["ip", "link", "delete", self._cable], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "delete", self.name], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.log.unlink(missing_ok=True)


def _environ() -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("MIRBAD_", "DATABASE_URL"))}
    return {**kept, "PATH": f"{kept.get('PATH', '')}:/usr/sbin:/sbin", "PYTHON": sys.executable}
