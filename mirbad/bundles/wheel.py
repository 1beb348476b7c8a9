"""The agent's code as a wheel, built from its source with the standard library: the same bytes for the same source."""

import base64
import hashlib
import io
import zipfile
from pathlib import Path

DISTRIBUTION = "mirbad_agent"
_EPOCH = (2020, 1, 1, 0, 0, 0)
_ENTRY_POINTS = "[console_scripts]\nmirbad-agent = agent.cli:main\n"


def file_name(version: str) -> str:
    """Return the wheel's file name."""
    return f"{DISTRIBUTION}-{version}-py3-none-any.whl"


def build(package: Path, version: str, requirements: list[str]) -> bytes:
    """Build a wheel of the package folder `package` (``agent/``), with a command ``mirbad-agent``."""
    info = f"{DISTRIBUTION}-{version}.dist-info"
    members = {
        str(path.relative_to(package.parent)): path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    members[f"{info}/METADATA"] = _metadata(version, requirements).encode()
    members[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: mirbad\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members[f"{info}/entry_points.txt"] = _ENTRY_POINTS.encode()
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return buffer.getvalue()


def _metadata(version: str, requirements: list[str]) -> str:
    lines = [
        "Metadata-Version: 2.1",
        "Name: mirbad-agent",
        f"Version: {version}",
        "Summary: The agent of a Mirbad node.",
    ]
    lines += ["Requires-Python: >=3.11", *(f"Requires-Dist: {name}" for name in requirements)]
    return "\n".join([*lines, ""])


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
