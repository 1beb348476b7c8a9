"""Creates ``.venv`` from the locked requirements: ``python3 install.py VENV base engine``. Standard library alone.

Each list is installed with hashes, and only when its lock (or the Python) has changed since the last time.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

_REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
_TITLES = {"base": "the master", "engine": "the starter engine and model", "dev": "the tests"}
# the engine's lock has no dependencies: one of them would be built from source and is not needed
_WITHOUT_DEPENDENCIES = frozenset({"engine"})
_COLLECTING = re.compile(r"^\s*Collecting ([A-Za-z0-9_.-]+)")
_DOWNLOADING = re.compile(r"^\s*Downloading (\S+)(?: \(([^)]*)\))?")


def digest(requirements: Path, venv: Path) -> str:
    """Return the digest of an installed list: of its lock, and of the interpreter that created `venv`."""
    return hashlib.sha256(requirements.read_bytes() + (venv / "pyvenv.cfg").read_bytes()).hexdigest()


def is_installed(venv: Path, name: str) -> bool:
    """Return whether requirements/`name`.txt is installed as it is now. With the interpreter gone it is not."""
    with contextlib.suppress(FileNotFoundError):
        stored = (venv / f".installed-{name}").read_text()
        return (venv / "bin" / "python").exists() and stored == digest(_REQUIREMENTS / f"{name}.txt", venv)
    return False


def make_venv(venv: Path) -> None:
    """Create `venv` unless a working one exists. Exits with a sentence when Python lacks venv."""
    python = venv / "bin" / "python"
    if python.exists() and _run([str(python), "-m", "pip", "--version"]).returncode == 0:
        return
    if venv.exists():
        shutil.rmtree(venv)
    _show(f"Creating .venv with Python {sys.version_info[0]}.{sys.version_info[1]}", last=True)
    made = _run([sys.executable, "-m", "venv", str(venv)])
    if made.returncode:
        shutil.rmtree(venv, ignore_errors=True)
        sys.exit(
            "Python could not create a virtual environment. On Debian and Ubuntu: apt install python3-venv.\n"
            + (made.stdout + made.stderr).strip()
        )


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  our own interpreter


def install(venv: Path, name: str) -> None:
    """Install requirements/`name`.txt into `venv` and leave a stamp. Exits when pip fails."""
    requirements = _REQUIREMENTS / f"{name}.txt"
    count = len(re.findall(r"^[A-Za-z0-9_.\[\]-]+==", requirements.read_text(), re.MULTILINE))
    arguments = ["install", "--require-hashes", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    if name in _WITHOUT_DEPENDENCIES:
        arguments.append("--no-deps")
    started = time.monotonic()
    lines = _run_pip([str(venv / "bin" / "python"), "-m", "pip", *arguments, "-r", str(requirements)], name, count)
    if lines is not None:
        sys.exit("\n".join(["Installing the libraries failed. Last lines of pip:", *lines[-12:]]))
    (venv / f".installed-{name}").write_text(digest(requirements, venv))
    _show(f"Installed {_TITLES[name]}: {count} packages in {time.monotonic() - started:.0f} s", last=True)


def _run_pip(command: list[str], name: str, count: int) -> list[str] | None:
    """Run pip and show its progress. None when it succeeded, else its output."""
    lines: list[str] = []
    seen = 0
    _show(f"Installing {_TITLES[name]} …", last=not sys.stdout.isatty())
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:  # noqa: S603  pip of our own environment
        for line in pip.stdout or ():
            lines.append(line.rstrip())
            if _COLLECTING.match(line):
                seen += 1
            if found := _DOWNLOADING.match(line):
                size = f", {found[2]}" if found[2] else ""
                _show(f"Installing {_TITLES[name]}: {seen} of {count} packages ({Path(found[1]).name[:40]}{size})")
            elif line.startswith("Installing collected packages"):
                _show(f"Installing {_TITLES[name]}: unpacking {count} packages")
    return lines if pip.returncode else None


def _show(text: str, *, last: bool = False) -> None:
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        sys.stdout.write(f"\r\x1b[K{text[: width - 1]}" + ("\n" if last else ""))
    elif last:
        sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Create the environment and install each list."""
    venv = Path(arguments[0])
    for name in ("PYTHONPATH", "PYTHONHOME"):
        os.environ.pop(name, None)
    missing = [name for name in arguments[1:] if not is_installed(venv, name)]
    if missing:
        make_venv(venv)
    for name in missing:
        install(venv, name)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
