"""Nothing outlives the supervisor, and the agent is told no secret of the master."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mirbad.up import parent_death
from tests.waiting import until

pytestmark = pytest.mark.unit
PARENT_DEATH = Path(parent_death.__file__)


def run(options, command, **environ):
    return subprocess.run(
        [sys.executable, "-I", "-S", PARENT_DEATH, *options, "--", *command],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_wrapped_process_ends_when_its_parent_is_killed():
    # parent → supervisor → its child: killing the first takes both
    chain = [sys.executable, "-I", "-S", str(PARENT_DEATH), "--"]
    inner = f"import signal, subprocess; subprocess.Popen({[*chain, 'sleep', '60']!r}); signal.pause()"
    outer = f"import signal, subprocess; subprocess.Popen({[*chain, sys.executable, '-c', inner]!r}); signal.pause()"
    environ = {name: text for name, text in os.environ.items() if name != parent_death.PARENT}
    parent = subprocess.Popen([sys.executable, "-c", outer], env=environ)
    try:
        family = _descendants(parent.pid, count=2)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    until(lambda: not any(map(is_alive, family)), "the children end with their parent", 10)


def _descendants(pid, count):
    def family():
        found, wave = [], [pid]
        while wave:
            wave = [
                int(child)
                for parent in wave
                for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            ]
            found += wave
        names = [Path(f"/proc/{child}/comm").read_text().strip() for child in found]
        return found if len(found) >= count and "sleep" in names else []

    return until(family, "the family starts")


def test_a_process_whose_parent_is_gone_already_does_not_start():
    done = run([], ["echo", "started"], MIRBAD_INTERNAL_PARENT="1")
    assert done.returncode != 0
    assert done.stdout == ""


def test_each_process_names_itself_as_the_parent_of_its_children():
    done = run([], ["sh", "-c", "echo $$ $MIRBAD_INTERNAL_PARENT"], MIRBAD_INTERNAL_PARENT=str(os.getpid()))
    own, stated = done.stdout.split()
    assert own == stated


def test_a_scrubbed_process_sees_no_setting_of_the_master():
    done = run(
        ["--scrub"],
        ["env"],
        MIRBAD_SECRET_KEY="hidden",
        DATABASE_URL="hidden",
        HARMLESS="seen",
        MIRBAD_INTERNAL_PARENT="",
    )
    assert "hidden" not in done.stdout
    assert "MIRBAD_" not in done.stdout
    assert "HARMLESS=seen" in done.stdout
