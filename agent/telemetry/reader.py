"""``python -m agent.telemetry.reader``: reads the GPU driver in a process of its own, one JSON line a request.

A driver that hangs or crashes its caller costs this process and not the agent. The process exits when its input ends.
"""

import json
import re
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.telemetry import faults, nvml, smi
from agent.telemetry.cards import Cards, NoDriver

_VERSION = re.compile(r"Kernel Module\s.*?\b(\d+\.\d+(?:\.\d+)?)\b")


def driver_version(text: str) -> str | None:
    """Return the driver's version in the text of /proc/driver/nvidia/version, of any kernel module."""
    match = _VERSION.search(text)
    return match[1] if match else None


def read_cards(nvidia_smi: str, devices: Path, version: Path) -> Cards:
    """Read by the library, else by nvidia-smi. NoDriver with both errors; blocking."""
    try:
        found = nvml.read_cards(devices)
    except NoDriver as by_library:
        try:
            found = smi.read_cards(nvidia_smi, devices)
        except NoDriver as by_program:
            raise NoDriver(
                f"NVML: {by_library}; {by_program}", installed=by_library.installed or by_program.installed
            ) from by_program
    if found.driver_version is None:
        with suppress(OSError):
            found = replace(found, driver_version=driver_version(version.read_text(errors="replace")))
    return faults.note_xids(found)


def answer(question: dict[str, str]) -> dict[str, Any]:
    """Return the cards, or why there are none."""
    try:
        found = read_cards(question["nvidiaSmi"], Path(question["devices"]), Path(question["version"]))
    except NoDriver as error:
        return {"problem": str(error), "installed": error.installed}
    return found.to_json()


def main() -> None:
    """Serve requests until the input ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
