"""GPUs by ``nvidia-smi``, where the library cannot be used. A word in place of a number is unknown."""

import csv
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from agent.telemetry import faults
from agent.telemetry.cards import UNREADABLE, Card, Cards, NoDriver, Process, held_bytes, is_integrated
from agent.telemetry.pcie import DEVICES, kernel_address, read_link

_FIELDS = (
    "index", "uuid", "name", "memory.total", "memory.used", "utilization.gpu", "temperature.gpu", "power.draw",
    "compute_cap", "driver_version", "pci.bus_id", "power.limit", "mig.mode.current",
)  # fmt: skip
_OLD_FIELDS = tuple(field for field in _FIELDS if field not in {"compute_cap", "mig.mode.current"})
_LEVELS = ((*_FIELDS, "gpu_recovery_action"), _FIELDS, _OLD_FIELDS)
"""Fields by the age of the program, the newest first: one that does not know a field refuses all."""

_level: dict[str, int] = {}
"""The level that each program knows, so that an old one is asked once only."""

_TIMEOUT_SECONDS = 20.0
_MIB = 1024**2
_NO_PROCESS = 0xFFFFFFFF
_UNKNOWN_FIELD = re.compile(r"not a valid field", re.IGNORECASE)
_NO_HANDLE = re.compile(
    r"unable to determine the device handle for GPU *:? *(\d{1,3}(?=:? ))?:? *([0-9a-f:.]+)?", re.IGNORECASE
)
_LOST = re.compile(r"is lost|fallen off the bus", re.IGNORECASE)
_WANTS_RESET = re.compile(r"requires (?:a )?reset|reset required", re.IGNORECASE)
_ACTIONS = {"none": 0, "reset": 1, "gpu reset": 1, "reboot": 2, "node reboot": 2, "drain p2p": 3, "drain and reset": 4}
"""Words of the program for the driver's recovery actions."""
_LISTED = re.compile(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)")
_SLICE = re.compile(r"\s+MIG (\S+)\s+Device +\d+: \(UUID: (MIG-[^)]+)\)")
_UNSUPPORTED = frozenset({"[n/a]", "n/a", "[not supported]", "not supported"})


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def _word(text: str) -> str | None:
    return None if not text or text.startswith("[") or text.lower() in _UNSUPPORTED else text


def read_cards(program: str, devices: Path = DEVICES) -> Cards:
    """Read every GPU. NoDriver when the program is missing, hangs, or fails without reporting any; blocking."""
    if shutil.which(program) is None:
        raise NoDriver(f"{program} is not found")
    done, fields = _ask_for_cards(program)
    rows = _rows(done.stdout, fields)
    lost = _without_handle(done)
    if done.returncode != 0 and not rows:
        # One lost card may silence the program for all of them, so each is queried alone, by its address.
        rows = [row for address in _addresses(devices) for row in _rows(_one(program, fields, address), fields)]
        if not rows:
            raise NoDriver(_failure(program, done))
    cards = [_card(row, number, devices) for number, row in enumerate(rows)]
    if any(row.get("mig.mode.current") == "Enabled" for row in rows):
        cards = _in_slices(cards, rows, _run(program, "-L").stdout)
    known = {card.pci_address for card in cards}
    cards += [card for card in lost if card.pci_address is None or card.pci_address not in known]
    processes = _processes(program)
    driver = next((word for row in rows if (word := _word(row["driver_version"]))), None)
    return Cards(tuple(_with_processes(card, processes) for card in sorted(cards, key=lambda c: c.index)), driver)


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603  the owner of the machine names the program in agent.json
            [program, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise NoDriver(f"{program} did not answer in {_TIMEOUT_SECONDS:.0f} s", installed=True) from error
    except OSError as error:
        raise NoDriver(f"{program} cannot be run: {error.strerror}") from error


def _ask_for_cards(program: str) -> tuple[subprocess.CompletedProcess[str], tuple[str, ...]]:
    """Return the output, and the fields queried."""
    while True:
        level = _level.get(program, 0)
        fields = _LEVELS[level]
        done = _run(program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        refused = done.returncode != 0 and _UNKNOWN_FIELD.search(done.stdout + done.stderr)
        if not refused or level == len(_LEVELS) - 1:
            return done, fields
        _level[program] = level + 1


def _one(program: str, fields: Sequence[str], address: str) -> str:
    done = _run(program, f"--id={address}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    return done.stdout if done.returncode == 0 else ""


def _addresses(devices: Path) -> list[str]:
    """Return the addresses of NVIDIA displays; none without permission to list them, or with one card only."""
    try:
        found = sorted(device.name for device in devices.iterdir() if is_display(device))
    except OSError:
        return []
    return found if len(found) > 1 else []


def is_display(device: Path) -> bool:
    """Return whether a PCI device is an NVIDIA display."""
    try:
        is_one = (device / "class").read_text().startswith("0x03")
        return is_one and (device / "vendor").read_text().strip() == "0x10de"
    except OSError:
        return False


def _failure(program: str, done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr.strip() or done.stdout).splitlines() if line.strip()]
    text = f"{program} failed with exit code {done.returncode}: {lines[0] if lines else 'no output'}"
    if "version mismatch" in text:
        return f"{text}. The driver was updated while it was loaded. Reboot the machine."
    if "Unknown Error" in text:
        return f"{text}. In a container, recreate the container; on a machine, check the kernel log."
    return text


def _without_handle(done: subprocess.CompletedProcess[str]) -> list[Card]:
    """Return the cards that the program reports only as unreachable."""
    found: list[Card] = []
    for line in (done.stdout + "\n" + done.stderr).splitlines():
        match = _NO_HANDLE.search(line)
        if match is None:
            continue
        number = int(match[1]) if match[1] else None
        address = kernel_address((match[2] or "").rstrip(":"))
        label = str(number) if number is not None else address or "at an unknown address"
        name = str(number) if number is not None else address or str(len(found))
        card = Card(
            uuid=f"{UNREADABLE}{name}",
            index=number if number is not None else 0,
            pci_address=address,
            place=None if number is not None else label,
        )
        if _WANTS_RESET.search(line):
            found.append(faults.needs_reset(card))
        elif _LOST.search(line):
            found.append(faults.lost(card))
        else:
            # A card without a handle cannot be used by anybody, whatever the driver calls that.
            text = f"GPU {label} does not answer: {line.strip()}"
            found.append(replace(card, lost=True, code=faults.LOST, problem=text))
    return found


def _rows(output: str, fields: Sequence[str]) -> list[dict[str, str]]:
    """Return the output by field; a name may contain commas, and other lines are ignored."""
    found = []
    for row in csv.reader(output.splitlines(), skipinitialspace=True):
        place = fields.index("name")
        if len(row) <= place or not row[0].strip().isdecimal():
            continue
        # additional columns are a name with commas in it; missing ones are unknown
        extra = max(0, len(row) - len(fields))
        joined = [*row[:place], ", ".join(row[place : place + extra + 1]), *row[place + extra + 1 :]]
        found.append({field: text.strip() for field, text in zip_longest(fields, joined, fillvalue="")})
    return found


def _card(row: dict[str, str], number: int, devices: Path) -> Card:
    index = int(_number(row["index"]) or number)
    uuid = _word(row["uuid"])
    if any(_LOST.search(text) for text in row.values()):
        address = kernel_address(row["pci.bus_id"])
        return faults.lost(Card(uuid=uuid or f"{UNREADABLE}{index}", index=index, pci_address=address))
    total, used = _number(row["memory.total"]), _number(row["memory.used"])
    name = _word(row["name"])
    address = kernel_address(row["pci.bus_id"])
    link = read_link(address, devices)
    integrated: bool | None = False if total else None
    if not total and row["memory.total"].lower() in _UNSUPPORTED:
        integrated = is_integrated(name, has_bus=link is not None or None)
    card = Card(
        uuid=uuid or f"{UNREADABLE}{index}",
        index=index,
        name=name,
        total_bytes=None if not total else int(total * _MIB),
        used_bytes=None if used is None or not total else int(used * _MIB),
        utilization_percent=_number(row["utilization.gpu"]),
        temperature_celsius=_number(row["temperature.gpu"]),
        power_watts=_number(row["power.draw"]),
        power_limit_watts=_number(row["power.limit"]),
        compute_capability=_word(row.get("compute_cap", "")),
        integrated=integrated,
        pci_address=address,
        link=link,
        problem=None if uuid else f"GPU {index} does not report its UUID.",
    )
    if any(_WANTS_RESET.search(text) for text in row.values()):
        return faults.needs_reset(card)
    return faults.recovering(card, _ACTIONS.get(row.get("gpu_recovery_action", "").lower()))


def _in_slices(cards: list[Card], rows: list[dict[str, str]], listing: str) -> list[Card]:
    """Return the cards with the slices in place of each card in MIG mode; only their names are known."""
    parent, slices = "", dict[str, list[tuple[str, str]]]()
    for line in listing.splitlines():
        if match := _LISTED.match(line):
            parent = match[1]
        elif match := _SLICE.match(line):
            slices.setdefault(parent, []).append((match[1], match[2]))
    found: list[Card] = []
    for card, row in zip(cards, rows, strict=True):
        if row.get("mig.mode.current") != "Enabled" or card.uuid not in slices:
            found.append(card)
            continue
        blank = replace(
            card, total_bytes=None, used_bytes=None, utilization_percent=None, power_watts=None, power_limit_watts=None
        )
        found += [
            replace(blank, uuid=uuid, name=f"{card.name or 'GPU'} MIG {profile}", parent_uuid=card.uuid)
            for profile, uuid in slices[card.uuid]
        ]
    return found


def _processes(program: str) -> dict[str, list[Process]] | None:
    """Return processes by the UUID of their card; "" for an unknown card. None when they are not reported."""
    try:
        done = _run(
            program, "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits"
        )
    except NoDriver:
        return None
    if done.returncode != 0:
        return None
    found: dict[str, list[Process]] = {}
    for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True):
        if not row:
            continue
        if len(row) < 4 or not row[1].strip().isdecimal():
            return None  # output of another query
        if not 0 < int(row[1]) < _NO_PROCESS:
            continue
        used = _number(row[-1])
        name = Path(",".join(row[2:-1]).strip()).name
        process = Process(int(row[1]), None if used is None else int(used * _MIB), name)
        found.setdefault(_word(row[0].strip()) or "", []).append(process)
    return found


def _with_processes(card: Card, processes: dict[str, list[Process]] | None) -> Card:
    if processes is None or card.problem is not None:
        return card
    mine = tuple(processes.get(card.uuid, ()))
    if not mine and processes.get(""):
        return card  # processes of unknown cards may be of this one
    used = held_bytes(mine) if card.integrated else card.used_bytes
    return replace(card, processes=mine, used_bytes=used)
