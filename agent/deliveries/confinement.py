"""The confinement of engines that run as processes: which of the kernel's means this machine has, and the policy.

A process engine reads the system's libraries, its program and its weights, writes its own scratch folder, uses the
GPUs, and nothing else. Landlock keeps it from files. Another user, or other groups, keep it from Docker's socket;
where the agent may change neither, a mount namespace hides the socket. `confine` gives it all up before it becomes the
engine.
"""

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agent.config import AgentConfig
from agent.deliveries import confine

_SCRIPT = Path(confine.__file__)
_ENGINE_ID = 64_733
"""User and group of engines where the agent is root. No account needs it; no file should belong to it."""

_CAPABILITIES = {"CHOWN": 0, "DAC_READ_SEARCH": 2, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8, "SYS_PTRACE": 19}
_SYS_ADMIN = 21
_HELPERS = "/usr/bin:/usr/sbin:/bin:/sbin"
_TRY_SECONDS = 20

_PROGRAMS = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/nix/store", "/gnu/store", "/run/opengl-driver",
    "/opt/nvidia", "/opt/rocm", "/opt/amdgpu", "/opt/intel",
)  # fmt: skip
_READS = (
    "/proc", "/sys", "/run/systemd/resolve", "/run/resolvconf", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
    "/etc/host.conf", "/etc/hosts", "/etc/resolv.conf", "/etc/gai.conf", "/etc/protocols", "/etc/services",
    "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/ca-trust", "/etc/ca-certificates",
    "/etc/mime.types", "/etc/alternatives", "/etc/OpenCL", "/etc/vulkan", "/etc/glvnd", "/etc/nvidia",
    "/etc/cufile.json", "/etc/nv_tegra_release", "/etc/os-release",
)  # fmt: skip
_DEVICES = (
    "null", "zero", "full", "random", "urandom", "nvidia*", "nvhost*", "nvmap",
    "nvgpu", "nvsciipc", "dri", "kfd", "dxg", "infiniband", "accel", "gdrdrv",
)  # fmt: skip
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  memory that the processes of one engine share
_SOCKETS = ("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock")


@dataclass(frozen=True)
class Policy:
    """Everything that is left to an engine. `groups` and `uid` None keep those of the agent.

    `programs` may be read and run, `reads` read, `devices` used, `writes` changed. `reads_any_owner` ignores the owner
    of files that the other lists allow. `hide` are sockets to cover. Without `connects` no TCP connection is opened.
    """

    uid: int | None = None
    groups: tuple[int, ...] | None = None
    reads_any_owner: bool = False
    landlock: bool = True
    connects: bool = True
    by_user_namespace: bool = False
    hide: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    def command(self, argv: Iterable[str]) -> tuple[str, ...]:
        """Return the command line that applies the policy and then runs `argv`."""
        return (sys.executable, "-I", "-S", str(_SCRIPT), json.dumps(asdict(self)), "--", *argv)


@dataclass(frozen=True)
class Means:
    """The means of this machine and this agent: the policy that all engines share, and the problems with it."""

    policy: Policy
    problems: tuple[str, ...]


_found: dict[tuple[Policy, tuple[str, ...]], Means] = {}


def means(config: AgentConfig) -> Means:
    """Return the means of this machine, each tried until it works. Blocking."""
    # Each time, because a driver or a container engine may be loaded while the agent runs.
    create_cuda_devices()
    shared = _shared(tuple(map(str, config.engine_paths)))
    wanted = shared, _reachable(shared, config.docker_host or os.environ.get("DOCKER_HOST"))
    if wanted not in _found:
        found = _against(*wanted)
        if found.problems:
            return found  # tried again the next time: a busy machine may have been the reason
        _found[wanted] = found
    return _found[wanted]


def create_cuda_devices(devices: Path = Path("/dev"), path: str = _HELPERS) -> None:
    """Have the driver's helper create CUDA's devices. Engines cannot: it is setuid, and they get no new privileges."""
    if not (devices / "nvidiactl").exists() or (devices / "nvidia-uvm").exists():
        return
    helper = shutil.which("nvidia-modprobe", path=path)
    if helper is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([helper, "-u", "-c", "0"], env={}, capture_output=True, timeout=_TRY_SECONDS, check=False)  # noqa: S603  the driver's own program


def _shared(engine_paths: tuple[str, ...]) -> Policy:
    programs = (*_own_programs(), *engine_paths)
    return replace(_identity(), programs=programs, reads=_READS, devices=_devices(), writes=(_SHARED_MEMORY,))


def _against(policy: Policy, sockets: tuple[str, ...]) -> Means:
    """Return the means with `sockets` hidden, or the problem that they cannot be."""
    problems = []
    if sockets:
        hidden = replace(policy, hide=sockets, by_user_namespace=not _has(_SYS_ADMIN))
        if _works(hidden):
            policy = hidden
        else:
            problems.append(
                f"Engines that run as processes can reach a container engine's socket ({', '.join(sockets)}), and so "
                "everything on this machine. Install the agent with install.sh, which lets it drop the docker group "
                "for engines, or take its user out of that group."
            )
    if not confine.landlock_version():
        problems.append(
            "Engines that run as processes can read the agent's files: this kernel has no Landlock. Use Linux 5.13 or "
            "newer with landlock in its lsm= list, or run models in containers."
        )
    elif not _works(policy):
        problems.append("Engines cannot be confined on this machine, so models do not start as processes.")
    return Means(policy, tuple(problems))


def _own_programs() -> tuple[str, ...]:
    """Return the folders of this Python, its packages, and the runners."""
    runners = Path(__file__).parent.parent / "runtimes"
    own = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, str(runners)}
    real = {str(Path(sys.executable).resolve().parent.parent)}
    return (*_PROGRAMS, *sorted((own | real) - {"/"}))


def _devices() -> tuple[str, ...]:
    return tuple(str(path) for pattern in _DEVICES for path in sorted(Path("/dev").glob(pattern)))


def _has(*capabilities: int) -> bool:
    """Return whether the agent has all of `capabilities`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
            return all(effective >> capability & 1 for capability in capabilities)
    return False


def _identity() -> Policy:
    """Return user and groups of engines: those of the devices, never the one that may use Docker."""
    groups = tuple(sorted(_device_groups()))
    if os.geteuid() == 0 and _has(*_CAPABILITIES.values()) and confine.landlock_version():
        return Policy(uid=_ENGINE_ID, groups=groups, reads_any_owner=True)
    if _has(_CAPABILITIES["SETGID"]):
        mine = set(os.getgroups())
        return Policy(groups=tuple(group for group in groups if group in mine or os.geteuid() == 0))
    return Policy()


def _device_groups() -> set[int]:
    found = set()
    below = (path for name in ("dri", "infiniband") for path in Path("/dev", name).glob("*"))
    for path in (*map(Path, _devices()), *below):
        try:
            found.add(path.stat().st_gid)
        except OSError:
            continue
    return found - {0}


def _reachable(policy: Policy, docker_host: str | None) -> tuple[str, ...]:
    """Return the sockets of container engines that an engine with this identity could connect to."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    asked = docker_host.removeprefix("unix://") if docker_host and docker_host.startswith("unix://") else None
    own = (f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock") if runtime else ()
    uid = os.geteuid() if policy.uid is None else policy.uid
    gids = {os.getegid(), *os.getgroups()} if policy.groups is None else {*policy.groups, *_gid(policy)}
    found: dict[str, None] = {}
    for path in filter(None, (asked, *_SOCKETS, *own)):
        try:
            status = Path(path).stat()
        except OSError:
            continue
        bit = stat.S_IWUSR if status.st_uid == uid else stat.S_IWGRP if status.st_gid in gids else stat.S_IWOTH
        if status.st_mode & bit:
            found[os.path.realpath(path)] = None
    return tuple(found)


def _gid(policy: Policy) -> set[int]:
    return {os.getegid() if policy.uid is None else policy.uid}


def _works(policy: Policy) -> bool:
    try:
        done = subprocess.run(  # noqa: S603  our own script, which runs this Python
            policy.command((sys.executable, "-I", "-S", "-c", "")),
            env={}, capture_output=True, timeout=_TRY_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def program_folders(program: str) -> tuple[str, ...]:
    """Return the folders that `program` may be run from: its own, and those of the environment it is installed in."""
    found = {program, str(Path(program).resolve())}
    for path in list(found):
        folder = Path(path).parent
        if folder.name == "bin" and folder.parent != folder.parent.parent:
            found.add(str(folder.parent))
            found |= _python_home(folder.parent)
        elif path == str(Path(program).resolve()):
            found.add(str(folder))
    return tuple(sorted(found))


def _python_home(prefix: Path) -> set[str]:
    """Return the folders of the Python that a virtual environment was made from."""
    try:
        lines = (prefix / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return set()
    settings: Mapping[str, str] = dict(line.replace(" ", "").split("=", 1) for line in lines if "=" in line)
    home = settings.get("home")
    if home is None:
        return set()
    real = (prefix / "bin" / "python").resolve().parent.parent
    return {str(Path(home).parent), str(real)} - {"/"}


def prepare_scratch(folder: Path, policy: Policy) -> None:
    """Create the folder that an engine may write, and give it to the engine's user."""
    for path in (folder.parent, folder, folder / "tmp", folder / "cache"):
        path.mkdir(mode=0o700, exist_ok=True)
        if policy.uid is not None and path != folder.parent:
            os.chown(path, policy.uid, policy.uid)
