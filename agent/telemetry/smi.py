"""GPUs by ``nvidia-smi``, where the library cannot be used. A word where a number is expected is not reported."""

import csv
import shutil
import subprocess

from agent.telemetry.nvml import Card, Cards, NoDriver

_FIELDS = (
    "index", "uuid", "name", "memory.total", "memory.used", "utilization.gpu", "temperature.gpu", "power.draw",
    "compute_cap", "driver_version",
)  # fmt: skip
_TIMEOUT_SECONDS = 20.0
_MIB = 1024**2


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _word(text: str) -> str | None:
    return None if not text or text.startswith("[") or text in {"N/A", "Not Supported"} else text


def read_cards(program: str) -> Cards:
    """Every GPU now. NoDriver when the program is missing, hangs, or fails; blocking."""
    if shutil.which(program) is None:
        raise NoDriver(f"{program} is not found")
    command = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(  # noqa: S603  the owner of the machine names the program in agent.json
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise NoDriver(f"{program} did not answer in {_TIMEOUT_SECONDS:.0f} s") from error
    except OSError as error:
        raise NoDriver(f"{program} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NoDriver(f"{program} failed with exit code {done.returncode}: {said[0] if said else 'it said nothing'}")
    rows = [row for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True) if len(row) == len(_FIELDS)]
    driver = _word(rows[0][9]) if rows else None
    return Cards(tuple(_card(row) for row in rows), driver)


def _card(row: list[str]) -> Card:
    total, used = _number(row[3]), _number(row[4])
    return Card(
        uuid=row[1],
        index=int(_number(row[0]) or 0),
        name=_word(row[2]),
        total_bytes=None if not total else int(total * _MIB),
        used_bytes=None if used is None or not total else int(used * _MIB),
        utilization_percent=_number(row[5]),
        temperature_celsius=_number(row[6]),
        power_watts=_number(row[7]),
        compute_capability=_word(row[8]),
    )
