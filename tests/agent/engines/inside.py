"""A program that an agent starts as an engine: it tries to leave its confinement and prints each result as JSON.

Arguments: a JSON object with the paths, process and addresses to try.
"""

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)


def attempt(call: Callable[[], Any]) -> str:
    """Return "done", or the name of the refusal."""
    try:
        call()
    except OSError as error:
        return type(error).__name__
    return "done"


def system(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def connect(address: Any) -> None:
    family = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
    with socket.socket(family, socket.SOCK_STREAM) as line:
        line.settimeout(5)
        line.connect(address)


def open_by_handle(path: str, mount: str) -> None:
    handle = ctypes.create_string_buffer(8 + 128)
    ctypes.c_uint.from_buffer(handle).value = 128
    mount_id = ctypes.c_int()
    system(_libc.name_to_handle_at(-100, path.encode(), handle, ctypes.byref(mount_id), 0))
    base = os.open(mount, os.O_RDONLY)
    descriptor = _libc.open_by_handle_at(base, handle, os.O_RDONLY)
    system(descriptor)
    os.read(descriptor, 1)


def run_from(folder: str) -> None:
    program = Path(folder, "program")
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    if (pid := os.fork()) == 0:
        try:
            os.execv(program, [str(program)])
        except OSError:
            os._exit(9)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise PermissionError


def tried(asked: dict[str, Any]) -> dict[str, str]:
    agent = asked["agent"]
    results = {f"read {path}": attempt(lambda path=path: Path(path).read_bytes()) for path in asked["read"]}
    results |= {f"list {path}": attempt(lambda path=path: os.listdir(path)) for path in asked["list"]}  # noqa: PTH208
    results |= {
        f"write {path}": attempt(lambda path=path: Path(path, "new").write_text("x")) for path in asked["write"]
    }
    results |= {f"socket {path}": attempt(lambda path=path: connect(path)) for path in asked["sockets"]}
    results["abstract socket"] = attempt(lambda: connect("\0" + asked["abstract"]))
    results["tcp"] = attempt(lambda: connect(("127.0.0.1", asked["port"])))
    results["signal"] = attempt(lambda: os.kill(agent, signal.SIGCONT))
    results["environ"] = attempt(Path(f"/proc/{agent}/environ").read_bytes)
    results["memory"] = attempt(lambda: Path(f"/proc/{agent}/mem").open("rb").close())
    results["root"] = attempt(lambda: os.listdir(f"/proc/{agent}/root/"))  # noqa: PTH208
    results["descriptor"] = attempt(Path(f"/proc/{agent}/fd/0").readlink)
    results["ptrace"] = attempt(lambda: system(_libc.ptrace(16, agent, None, None)))
    results["setuid"] = attempt(lambda: os.setresuid(0, 0, 0)) if os.geteuid() else "already"
    results["setgroups"] = attempt(lambda: os.setgroups([0]))
    results["mount"] = attempt(lambda: system(_libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)))
    results["unmount"] = attempt(lambda: system(_libc.umount2(asked["sockets"][0].encode(), 2)))
    results["handle"] = attempt(lambda: open_by_handle(asked["read"][0], "/usr"))
    results["execute"] = attempt(lambda: run_from(os.environ["HOME"]))
    return results


def main() -> None:
    """Print what could be done, who this is, and what is left."""
    asked = json.loads(sys.argv[1])
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    own = {
        "weights": attempt(Path(asked["weights"]).read_bytes),
        "scratch": attempt(lambda: Path(os.environ["TMPDIR"], "x").write_text("x")),
        "shared memory": attempt(lambda: Path(asked["shared"]).write_text("x")),
        "listen": attempt(lambda: socket.create_server(("127.0.0.1", 0)).close()),
        "pair": attempt(lambda: [one.close() for one in socket.socketpair()]),
    }
    found = {
        "tried": tried(asked),
        "own": own,
        "status": {name: status[name].split()[0] for name in ("Uid", "CapEff", "CapPrm", "NoNewPrivs")},
        "groups": sorted(os.getgroups()),
        "environment": sorted(os.environ),
    }
    sys.stdout.write(json.dumps(found) + "\n")


main()
