"""Exec a command that cannot outlive its parent: ``python -I -S parent_death.py [--scrub] -- command arguments``.

It asks the kernel for SIGKILL at the parent's death, then becomes the command. A program of its own instead of a
function between fork and exec, because almost nothing is allowed there in a process with threads. Standard library
alone: it runs before anything is importable.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
PARENT = "MIRBAD_INTERNAL_PARENT"
"""The process id that the command's parent must have; each process states its own id for its children."""


def die_with_parent() -> None:
    """Have this process killed when its parent ends. Exits at once when the parent is already gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    expected = os.environ.get(PARENT)
    if expected and os.getppid() != int(expected):
        sys.exit(f"the parent process {expected} has ended")


def scrub(environ: dict[str, str]) -> dict[str, str]:
    """Return `environ` without the master's settings, for a program that must not know its secrets."""
    return {name: text for name, text in environ.items() if not name.startswith("MIRBAD_") and name != "DATABASE_URL"}


def main(arguments: list[str]) -> None:
    """Become the command after ``--``."""
    options, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    die_with_parent()
    environ = dict(os.environ)
    environ[PARENT] = str(os.getpid())
    if "--scrub" in options:
        environ = scrub(environ)
    os.execvpe(command[0], command, environ)  # noqa: S606  no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
