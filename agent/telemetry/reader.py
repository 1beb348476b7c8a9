"""``python -m agent.telemetry.reader``: asks the GPU driver from a process of its own, one JSON line a question.

A driver that hangs or takes its caller down with it costs this process and not the agent. It ends with its input.
"""

import json
import re
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.telemetry import nvml, smi
from agent.telemetry.cards import Cards, NoDriver

_VERSION = re.compile(r"Kernel Module\s.*?\b(\d+\.\d+(?:\.\d+)?)\b")


def driver_version(text: str) -> str | None:
    """The driver's version in what /proc/driver/nvidia/version says, whichever module wrote it."""
    match = _VERSION.search(text)
    return match[1] if match else None


def read_cards(nvidia_smi: str, devices: Path, version: Path) -> Cards:
    """By the library, else by nvidia-smi. NoDriver with both answers; blocking."""
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
    return found


def answer(question: dict[str, str]) -> dict[str, Any]:
    """One answer: the cards, or why there are none."""
    try:
        found = read_cards(question["nvidiaSmi"], Path(question["devices"]), Path(question["version"]))
    except NoDriver as error:
        return {"problem": str(error), "installed": error.installed}
    return found.to_json()


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
