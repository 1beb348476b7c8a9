"""Background measurement of memory bandwidth. It keeps the best: a busy moment does not describe the machine."""

import asyncio
import json
import logging
import os
import platform
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import agent
from agent.state import read_json, write_json
from agent.telemetry import cores
from agent.telemetry.bandwidth import BandwidthRates

_FIRST_SECONDS = (10.0, 120.0)
"""Agents on one host that start together wait differently, or they would measure each other."""

_EVERY_SECONDS = 3600.0
_LIMIT_SECONDS = 120.0
_TOO_LITTLE_MEMORY = 3
_FILE = "bandwidth.json"
_ROOT = Path(agent.__file__).resolve().parent.parent
_COMMAND = (sys.executable, "-P", "-m", "agent.telemetry.bandwidth")

_log = logging.getLogger("mirbad.agent.bandwidth")


class BandwidthMeter:
    """The best rates of this machine so far, kept over restarts; None before the first measurement."""

    def __init__(self, state_dir: Path, command: tuple[str, ...] = _COMMAND) -> None:
        self._path = state_dir / _FILE
        self._command = command
        self.best: BandwidthRates | None = self._read()

    async def run(self) -> None:
        """Measure after a while and then every hour, until cancelled."""
        await asyncio.sleep(random.uniform(*_FIRST_SECONDS))  # noqa: S311 - spreads the load, guards nothing
        while True:
            await self.measure()
            await asyncio.sleep(_EVERY_SECONDS)

    async def measure(self) -> None:
        """Measure once, in a process of its own; a failure keeps the known rates."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        try:
            async with asyncio.timeout(_LIMIT_SECONDS):
                output, _ = await process.communicate()
        except TimeoutError:
            _log.info("measuring memory bandwidth took longer than %g s", _LIMIT_SECONDS)
            return
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode == _TOO_LITTLE_MEMORY:
            _log.info("memory bandwidth is not measured: too little free memory")
            return
        rates = _parse(output)
        if rates is None:
            _log.warning("memory bandwidth could not be measured (exit code %s)", process.returncode)
            return
        self._keep(rates)

    def _keep(self, rates: BandwidthRates) -> None:
        before = self.best
        self.best = (
            rates
            if before is None
            else BandwidthRates(max(before.machine, rates.machine), max(before.core, rates.core))
        )
        if self.best == before:
            return
        try:
            write_json(self._path, {"of": _machine(), "machine": self.best.machine, "core": self.best.core})
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._path, error.strerror)

    def _read(self) -> BandwidthRates | None:
        try:
            value = read_json(self._path)
        except (OSError, ValueError):
            return None
        # A state folder may move to another machine, or the machine get another processor.
        return _rates(value) if isinstance(value, dict) and value.get("of") == _machine() else None


def _parse(output: bytes) -> BandwidthRates | None:
    try:
        value = json.loads(output)
    except ValueError:
        return None
    return _rates(value) if isinstance(value, dict) else None


def _rates(value: dict[str, Any]) -> BandwidthRates | None:
    machine, core = value.get("machine"), value.get("core")
    if not isinstance(machine, int) or not isinstance(core, int) or not 0 < core <= machine < 2**62:
        return None
    return BandwidthRates(machine, core)


def _machine() -> str:
    """Return the processor and the number of them that may be used, to which the rates belong."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name} x {cores.usable_cpus()}"
