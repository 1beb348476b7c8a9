"""Gives up rights (user, groups, capabilities, files, sockets, network), then becomes the engine.

The agent runs this file as a script, ``python -I -S confine.py POLICY -- PROGRAM ARGUMENT…``, so it imports the
standard library only. POLICY is JSON, see `Policy` in `confinement`. Whatever cannot be given up ends the start with a
sentence.
"""

import contextlib
import ctypes
import json
import os
import stat
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_PR_CAPBSET_DROP, _PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 24, 8, 38, 47
_AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 2, 4
_CAPABILITY_VERSION = 0x20080522
_DAC_READ_SEARCH = 2
_LAST_CAPABILITY = 63
_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_BIND, _REC, _PRIVATE = 0x1000, 0x4000, 0x40000

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_READ = _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_CONNECT_TCP = 1 << 1
_FILES_SINCE = {1: (1 << 13) - 1, 2: 1 << 13, 3: _TRUNCATE, 5: _IOCTL}
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6
_SCOPES = 0b11
"""Abstract sockets of others, and signals to others."""

FAILED = 126

_libc = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """Return the version of Landlock in the running kernel, 0 without it."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))


def _checked(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(what: str, option: int, *values: int) -> None:
    _checked(what, _libc.prctl(option, *(ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4])))


def _handled(version: int) -> int:
    return sum(bits for since, bits in _FILES_SINCE.items() if version >= since)


class Ruleset:
    """A Landlock ruleset: whatever no rule allows is denied."""

    def __init__(self, version: int, *, connects: bool) -> None:
        self._handled = _handled(version)
        network = 0 if connects or version < _NETWORK_SINCE else _CONNECT_TCP
        fields = [self._handled, network, _SCOPES][: 1 + (version >= _NETWORK_SINCE) + (version >= _SCOPES_SINCE)]
        data = struct.pack(f"{len(fields)}Q", *fields)
        call = _libc.syscall(_CREATE_RULESET, data, ctypes.c_size_t(len(data)), 0)
        self._descriptor = _checked("landlock_create_ruleset", call)
        os.set_inheritable(self._descriptor, False)

    def allow(self, paths: Iterable[str], access: int) -> None:
        """Allow `access` to each of `paths` that exists, and below it."""
        for path in paths:
            try:
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                allowed = access & self._handled
                if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                    allowed &= _OF_FILES
                rule = struct.pack("=Qi", allowed, descriptor)
                call = _libc.syscall(_ADD_RULE, self._descriptor, _PATH_BENEATH, rule, 0)
                _checked(f"landlock_add_rule {path}", call)
            finally:
                os.close(descriptor)

    def enforce(self) -> None:
        """Restrict this process and its children for good."""
        _checked("landlock_restrict_self", _libc.syscall(_RESTRICT_SELF, self._descriptor, 0))


def _hide(paths: list[str], *, by_user_namespace: bool) -> None:
    """Cover sockets with a file that nobody listens on, in a mount namespace of this process's own."""
    uid, gid = os.geteuid(), os.getegid()
    _checked("unshare", _libc.unshare(_NEWNS | (_NEWUSER if by_user_namespace else 0)))
    if by_user_namespace:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    _checked("mount", _libc.mount(None, b"/", None, ctypes.c_ulong(_REC | _PRIVATE), None))
    for path in paths:
        call = _libc.mount(b"/dev/null", os.fsencode(path), None, ctypes.c_ulong(_BIND), None)
        _checked(f"mount over {path}", call)


def _drop_bounding(kept: int | None) -> None:
    """Take all capabilities but `kept` out of reach of this process's children; needs CAP_SETPCAP."""
    for capability in range(_LAST_CAPABILITY + 1):
        if capability != kept:
            with contextlib.suppress(OSError):
                _prctl("prctl", _PR_CAPBSET_DROP, capability)


def _set_capabilities(kept: int | None) -> None:
    _prctl("clear ambient capabilities", _PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    low = 0 if kept is None else 1 << kept
    data = struct.pack("=6I", low, low, low, 0, 0, 0)
    _checked("capset", _libc.capset(header, data))
    if kept is not None:
        _prctl("raise an ambient capability", _PR_CAP_AMBIENT, _AMBIENT_RAISE, kept)


def apply(policy: dict[str, Any]) -> None:
    """Give up everything that `policy` does not leave. Raises OSError."""
    version = landlock_version()
    if policy["groups"] is not None:
        os.setgroups(policy["groups"])  # before a namespace, in which it is refused
    if policy["hide"]:
        _hide(policy["hide"], by_user_namespace=policy["by_user_namespace"])
    rules = None
    if version and policy["landlock"]:
        rules = Ruleset(version, connects=policy["connects"])
        rules.allow(policy["programs"], _READ | _EXECUTE)
        rules.allow(policy["reads"], _READ)
        rules.allow(policy["devices"], _READ | _WRITE_FILE | _IOCTL)
        rules.allow(policy["writes"], _handled(version) & ~_EXECUTE)
    kept = _DAC_READ_SEARCH if policy["reads_any_owner"] and rules is not None else None
    _drop_bounding(kept)
    if policy["uid"] is not None:
        _prctl("keep capabilities", _PR_SET_KEEPCAPS, 1)
        os.setresgid(policy["uid"], policy["uid"], policy["uid"])
        os.setresuid(policy["uid"], policy["uid"], policy["uid"])
    _set_capabilities(kept)
    _prctl("set no_new_privs", _PR_SET_NO_NEW_PRIVS, 1)
    if rules is not None:
        rules.enforce()


def _end(text: str) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    sys.exit(FAILED)


def main(arguments: list[str]) -> NoReturn:
    """Apply the policy and become the program; `FAILED` is the exit code when either cannot be done."""
    policy, command = json.loads(arguments[0]), arguments[2:]
    try:
        apply(policy)
    except OSError as error:
        _end(f"The engine was not started: it cannot be confined on this machine ({error.strerror or error}).")
    try:
        os.execve(command[0], command, os.environ)  # noqa: S606  this is the purpose
    except OSError as error:
        _end(f"Cannot run {command[0]}: {error.strerror}.")


if __name__ == "__main__":
    main(sys.argv[1:])
