"""The agent's unit for systemd: what its engines survive, and how much it exposes."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "agent" / "mirbad-agent.service"


def values(name: str) -> list[str]:
    lines = UNIT.read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]


def test_engines_outlive_the_agent_and_the_agent_an_engine_that_memory_ended():
    assert values("KillMode") == ["process"]
    assert values("OOMPolicy") == ["continue"]
    assert values("Restart") == ["always"]


def test_systemd_rates_its_exposure_as_ok():
    analyze = shutil.which("systemd-analyze")
    assert analyze is not None, "install systemd: its analysis runs without a running one"
    command = [analyze, "security", "--offline=true", "--threshold=45", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
    assert "OK" in done.stdout


def test_systemd_understands_every_line(tmp_path):
    program = tmp_path / "mirbad-agent"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = UNIT.read_text().replace("/usr/local/lib/mirbad-agent/current/bin/mirbad-agent", str(program))
    copy = tmp_path / UNIT.name
    copy.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False, timeout=60
    )
    assert UNIT.name not in done.stderr, done.stderr
