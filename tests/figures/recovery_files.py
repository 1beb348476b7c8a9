"""Damaged and forged backups uploaded to a live master; imports that are killed; 2,000 models on 200 nodes.

``MIRBAD_FIGURE_FILES`` (500) is how many files are uploaded, ``MIRBAD_FIGURE_KILLS`` (50) how many imports are killed.
"""

import hashlib
import http.client
import io
import json
import os
import random
import re
import secrets
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.e2e.fleet import ROOT, Fleet
from tests.figures.figure import Figure, exactly, under

_PASSPHRASE = "correct horse battery staple"
_MOST_MIB = 300.0
_BOMB_BYTES = 200 * 1024**2
_MANIFEST, _CONFIGURATION, _SECRETS = "manifest.json", "configuration.jsonl", "secrets.sealed"
Forge = Callable[[bytes, random.Random], bytes]


def measure() -> Iterator[Figure]:
    """Upload the files, kill imports, import a large fleet."""
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        fleet = Fleet(Path(folder))
        try:
            fleet.start(seconds=300)
            yield from _uploads(fleet, Path(folder))
        finally:
            fleet.close()
    yield from _imports()


def _parts_of(whole: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(whole)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def _archive(parts: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for name, text in parts.items():
            made.writestr(name, text)
        made.comment = b"0" * 64
    return _with_digest(target.getvalue())


def _with_digest(text: bytes) -> bytes:
    """Return an archive whose comment is the digest of all before it, as who knows the format writes it."""
    return text[:-64] + hashlib.sha256(text[:-64]).hexdigest().encode()


def _flip(whole: bytes, chance: random.Random) -> bytes:
    wrong = bytearray(whole)
    wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
    return bytes(wrong)


def _cut(whole: bytes, chance: random.Random) -> bytes:
    return whole[: chance.randrange(len(whole))]


def _flip_with_digest(whole: bytes, chance: random.Random) -> bytes:
    return _with_digest(_flip(whole[:-64], chance) + whole[-64:])


def _other_version(whole: bytes, chance: random.Random) -> bytes:
    return _with_manifest(whole, formatVersion=chance.choice((0, 1, 3, 99, -1)))


def _other_digest(whole: bytes, chance: random.Random) -> bytes:
    parts = json.loads(_parts_of(whole)[_MANIFEST])["parts"]
    chance.choice(parts)["sha256"] = f"{chance.getrandbits(256):064x}"
    return _with_manifest(whole, parts=parts)


def _with_manifest(whole: bytes, **changed: Any) -> bytes:
    parts = _parts_of(whole)
    parts[_MANIFEST] = json.dumps(json.loads(parts[_MANIFEST]) | changed).encode()
    return _archive(parts)


def _swapped(whole: bytes, _: random.Random) -> bytes:
    parts = _parts_of(whole)
    return _archive(parts | {_CONFIGURATION: parts[_SECRETS], _SECRETS: parts[_CONFIGURATION]})


def _other_names(whole: bytes, chance: random.Random) -> bytes:
    name = chance.choice(("../../etc/cron.d/x", "/etc/passwd", "a/../../b", "..\\x", "configuration.jsonl/../x"))
    return _archive(_parts_of(whole) | {name: b"x"})


def _bomb(whole: bytes, chance: random.Random) -> bytes:
    target, fill = io.BytesIO(), chance.choice((b" ", b"0\n", b"[", b"\0")) * 1024
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for name, text in _parts_of(whole).items():
            with made.open(name, "w") as part:
                part.write(text)
                for _ in range(_BOMB_BYTES // len(fill) if name == _CONFIGURATION else 0):
                    part.write(fill)
        made.comment = b"0" * 64
    return _with_digest(target.getvalue())


_FORGES: dict[str, tuple[int, Forge]] = {
    "a flipped bit": (8, _flip),
    "cut": (6, _cut),
    "a flipped bit with a right digest": (8, _flip_with_digest),
    "another version": (3, _other_version),
    "another digest of a part": (4, _other_digest),
    "swapped parts": (2, _swapped),
    "names with ..": (3, _other_names),
    "200 MB of nothing": (1, _bomb),
}


def _uploads(fleet: Fleet, folder: Path) -> Iterator[Figure]:
    count, chance = int(os.environ.get("MIRBAD_FIGURE_FILES", "500")), random.Random(11)
    fleet.define_sim("kept")
    word = folder / "passphrase"
    word.write_text(_PASSPHRASE)
    fleet.manage("backup", "create", str(folder / "fleet.backup"), "--passphrase-file", str(word))
    whole = (folder / "fleet.backup").read_bytes()
    status, shown = _upload(fleet, whole, _PASSPHRASE)
    yield exactly("the backup as it was made", status, 201)
    plan = shown["preview"]["digest"]
    kinds = [name for name, (share, _) in _FORGES.items() for _ in range(share)]
    found: Counter[str] = Counter()
    accepted: list[str] = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        text, passphrase = _FORGES[kind][1](whole, chance), _PASSPHRASE
        if number % 10 == 9:
            kind, text, passphrase = "another passphrase", whole, f"{_PASSPHRASE} {number}"
        status, shown = _upload(fleet, text, passphrase)
        found[str(status)] += 1
        # Dates and modes of an archive mean nothing: a file in which only they were hit is the same backup.
        if status < 400 and shown["preview"]["digest"] != plan:
            accepted.append(kind)
    value = "; ".join(f"{number} {name}" for name, number in sorted(found.items()))
    yield Figure(f"{count} damaged or forged backups", value, "400 each", found.keys() <= {"400", "201"})
    yield exactly("accepted with another content", len(accepted), 0)
    pid = fleet.processes()["web"].pid
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert peak is not None
    yield under("peak of web's memory", int(peak[1]) / 1024, _MOST_MIB, "MiB")
    yield exactly("models afterwards", len(fleet.api("GET", "models")["items"]), 1)


def _upload(fleet: Fleet, text: bytes, passphrase: str) -> tuple[int, dict[str, Any]]:
    edge = secrets.token_hex(12)
    head = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="x.zip"\r\n\r\n'.encode()
    tail = f'\r\n--{edge}\r\nContent-Disposition: form-data; name="passphrase"\r\n\r\n{passphrase}\r\n--{edge}--\r\n'
    headers = {"Authorization": f"Bearer {fleet.token}", "Content-Type": f"multipart/form-data; boundary={edge}"}
    with suppress(http.client.HTTPException, ConnectionError):
        status, _, said = fleet.request(
            "POST", "/api/backups/imports", head + text + tail.encode(), headers=headers, seconds=120
        )
        return status, json.loads(said)
    return 599, {}


def _imports() -> Iterator[Figure]:
    kills = os.environ.get("MIRBAD_FIGURE_KILLS", "50")
    name = f"{kills} imports killed at random moments"
    found = _tested("test_killed.py", MIRBAD_TEST_IMPORT_KILLS=kills)
    yield Figure(name, _words(found), "all or nothing", bool(found))
    found = _tested("scale.py")
    yield Figure("2 000 models on 200 nodes", _words(found), "for reading", bool(found))


def _tested(module: str, **environ: str) -> dict[str, Any]:
    """Run a module of tests and return its report; an empty one when a test failed."""
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        report = Path(folder) / "report"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", f"tests/jobs/backup/importing/{module}"],
            cwd=ROOT, env={**os.environ, **environ, "MIRBAD_TEST_IMPORT_REPORT": str(report)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode or not report.exists():
            print(done.stdout[-3000:], flush=True)
            return {}
        found: dict[str, Any] = json.loads(report.read_text())
        return found


def _words(found: dict[str, Any]) -> str:
    return "; ".join(f"{name} {value}" for name, value in found.items()).replace(",", "")
