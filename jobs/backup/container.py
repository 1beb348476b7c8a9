"""The file of a backup: a ZIP archive of a manifest, the configuration, and the sealed secrets.

The manifest names every other part with its length and SHA-256; it is readable without the passphrase. The comment of
the archive, its last bytes, is the SHA-256 of all before it: a file that was damaged anywhere is refused before it is
read. The parts are read as streams, within limits that no file can widen, and nothing is ever unpacked to a path.
"""

import errno
import hashlib
import os
import secrets
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from agent.common.files import sync_dir
from jobs.errors import BackupUnsuitable

FORMAT_VERSION = 2
PartName = Literal["configuration.jsonl", "secrets.sealed"]
MANIFEST = "manifest.json"
CONFIGURATION: Final = "configuration.jsonl"
SECRETS: Final = "secrets.sealed"
PART = ".part-"
"""The mark of a file that is being written: ``.{name}.part-{random}``."""

_MOST_BYTES = {MANIFEST: 1024**2, CONFIGURATION: 1024**3, SECRETS: 256 * 1024**2}
_PIECE_BYTES = 256 * 1024
_DIGEST_BYTES = 64
_MOST_LINE_BYTES = 8 * 1024**2
# All that the standard library raises for archives that are not what they say.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, OverflowError)
_ENCRYPTED = 0x1


class _Document(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class _Version(_Document):
    model_config = ConfigDict(extra="ignore")

    format: Literal["mirbad-backup"]
    format_version: int


class PartEntry(_Document):
    """A part as the manifest names it."""

    name: PartName
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class BackupManifest(_Document):
    """The content of a backup. `counts` are of records by kind; `ca_sha256` is empty without the key of a CA."""

    format: Literal["mirbad-backup"] = "mirbad-backup"
    format_version: int = FORMAT_VERSION
    mirbad_version: str = Field(max_length=80)
    instance_id: str = Field(max_length=64)
    created_at: datetime
    counts: dict[str, int] = Field(max_length=64)
    ca_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    parts: tuple[PartEntry, ...] = Field(max_length=2)

    @property
    def has_secrets(self) -> bool:
        """Return whether there is a part with secrets."""
        return any(part.name == SECRETS for part in self.parts)


class Writable(Protocol):
    """The end of a part that is written."""

    def write(self, data: bytes, /) -> object:
        """Append bytes."""


class _Measured:
    """Counts and digests bytes on their way to `target`."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self.digest, self.bytes = hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.bytes += len(data)
        return self._target.write(data)


class BackupWriter:
    """Writes the parts of one backup, one after another, and at the end the manifest. Leaving it closes the archive."""

    def __init__(self, target: BinaryIO, at: datetime) -> None:
        self._target = target
        self._archive = zipfile.ZipFile(target, "w")
        self._date = at.timetuple()[:6]
        self.parts: list[PartEntry] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, ValueError):  # what was interrupted is no backup, whatever its archive lacks
            self._archive.close()

    @contextmanager
    def part(self, name: PartName) -> Iterator[BinaryIO]:
        """Open the next part for writing. Sealed bytes do not compress."""
        method = zipfile.ZIP_STORED if name == SECRETS else zipfile.ZIP_DEFLATED
        with self._archive.open(self._info(name, method), "w", force_zip64=True) as opened:
            measured = _Measured(opened)  # type: ignore[arg-type]  # an IO[bytes] that is written alone
            yield measured  # type: ignore[misc]  # the same
        self.parts.append(PartEntry(name=name, sha256=measured.digest.hexdigest(), bytes=measured.bytes))

    def finish(self, manifest: BackupManifest) -> None:
        """Write the manifest and close the archive."""
        text = manifest.model_dump_json(by_alias=True, indent=1)
        self._archive.writestr(self._info(MANIFEST, zipfile.ZIP_DEFLATED), text)
        self._archive.comment = b"0" * _DIGEST_BYTES
        self._archive.close()
        digest = _digest_before_comment(self._target)
        self._target.seek(-_DIGEST_BYTES, os.SEEK_END)
        self._target.write(digest)

    def _info(self, name: str, method: int) -> zipfile.ZipInfo:
        info = zipfile.ZipInfo(name, self._date)
        info.compress_type = method
        info.external_attr = 0o600 << 16
        return info


class BackupFile:
    """A backup that was opened for reading. Every read raises BackupUnsuitable for what is damaged."""

    def __init__(self, archive: zipfile.ZipFile, manifest: BackupManifest) -> None:
        self._archive = archive
        self.manifest = manifest

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield a part in pieces; after the last one its length and digest were right."""
        entry = next((part for part in self.manifest.parts if part.name == name), None)
        if entry is None:
            raise BackupUnsuitable("This backup was made without secrets.")
        digest, count = hashlib.sha256(), 0
        with _damage_reported(f"The part {name} of this backup is damaged"), self._archive.open(name) as opened:
            while piece := opened.read(_PIECE_BYTES):
                digest.update(piece)
                count += len(piece)
                if count > entry.bytes:
                    break
                yield piece
        if count != entry.bytes or digest.hexdigest() != entry.sha256:
            raise BackupUnsuitable(f"The part {name} of this backup is not the one that its manifest names.")

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the configuration."""
        return split_lines(self.pieces(CONFIGURATION))

    @contextmanager
    def secrets(self) -> Iterator[BinaryIO]:
        """Open the sealed secrets as a stream."""
        stream = _Stream(self.pieces(SECRETS))
        yield stream  # type: ignore[misc]  # read alone


class _Stream:
    """Pieces as a file that is read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._held = pieces, b""

    def read(self, count: int) -> bytes:
        while len(self._held) < count and (piece := next(self._pieces, b"")):
            self._held += piece
        found, self._held = self._held[:count], self._held[count:]
        return found


@contextmanager
def opened(path: Path) -> Iterator[BackupFile]:
    """Open a backup and read its manifest. Raises BackupUnsuitable, OSError."""
    with path.open("rb") as file:
        if _digest_before_comment(file) != file.read(_DIGEST_BYTES):
            raise BackupUnsuitable(f"{path.name} is not a backup of Mirbad, or it was damaged on its way.")
        with _damage_reported(f"{path.name} is not a backup of Mirbad, or it is damaged"):
            archive = zipfile.ZipFile(file)
            manifest = _manifest(archive)
        with archive:
            yield BackupFile(archive, manifest)


def _digest_before_comment(file: BinaryIO) -> bytes:
    """Return the hex SHA-256 of a file but its last 64 bytes, where it is positioned afterwards."""
    left = max(file.seek(0, os.SEEK_END) - _DIGEST_BYTES, 0)
    file.seek(0)
    digest = hashlib.sha256()
    while left and (piece := file.read(min(left, _PIECE_BYTES))):
        digest.update(piece)
        left -= len(piece)
    return digest.hexdigest().encode()


def _manifest(archive: zipfile.ZipFile) -> BackupManifest:
    found = {info.filename: info for info in archive.infolist()}
    if len(found) != len(archive.infolist()) or MANIFEST not in found or found.keys() - _MOST_BYTES.keys():
        raise BackupUnsuitable("This is not a backup of Mirbad: its parts have other names.")
    for name, info in found.items():
        if info.flag_bits & _ENCRYPTED:
            raise BackupUnsuitable(f"The part {name} is encrypted by ZIP, which no backup of Mirbad is.")
        if info.file_size > _MOST_BYTES[name]:
            raise BackupUnsuitable(f"The part {name} says that it has {info.file_size} bytes, which is too many.")
    with archive.open(MANIFEST) as opened_part:
        text = opened_part.read(_MOST_BYTES[MANIFEST])
    try:
        # First the version alone: another one may have other members.
        version = _Version.model_validate_json(text).format_version
        if version != FORMAT_VERSION:
            raise BackupUnsuitable(
                f"This backup has format version {version}; this Mirbad reads version {FORMAT_VERSION}."
            )
        manifest = BackupManifest.model_validate_json(text)
    except ValidationError as error:
        raise BackupUnsuitable(f"The manifest of this backup is not valid: {_first(error)}.") from None
    if {part.name: part.bytes for part in manifest.parts} != {
        name: info.file_size for name, info in found.items() if name != MANIFEST
    } or CONFIGURATION not in found:
        raise BackupUnsuitable("The parts of this backup are not those that its manifest names.")
    return manifest


def _first(error: ValidationError) -> str:
    """Return the first problem in words, without the value: it may be of any size."""
    problem = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, problem['loc'])) or 'the text'}: {problem['msg']}"


def split_lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text that arrives in pieces. Raises BackupUnsuitable for a line without an end."""
    held = b""
    for piece in pieces:
        *whole, held = (held + piece).split(b"\n")
        yield from whole
        if len(held) > _MOST_LINE_BYTES:
            raise BackupUnsuitable("A line of this backup is too long.")
    if held:
        raise BackupUnsuitable("The last line of this backup is cut off.")


@contextmanager
def _damage_reported(text: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise BackupUnsuitable(f"{text} ({error or type(error).__name__}).") from error
    except OSError as error:
        # An offset in the archive that no file has; a fault of the disk is not the file's.
        if error.errno != errno.EINVAL:
            raise
        raise BackupUnsuitable(f"{text} (it has places outside of the file).") from error


def write_new(path: Path, fill: Callable[[BinaryIO], None], check: Callable[[Path], None]) -> None:
    """Create the file `path` (mode 0600) as `fill` writes it, once `check` has read it back; or leave nothing.

    FileExistsError when there is one; OSError from the disk.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "this folder does not exist", str(path.parent))
    # A name of its own: two workers that make the same backup must not write into one file.
    part = path.with_name(f".{path.name}{PART}{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        check(part)
        _put(part, path)
    finally:
        part.unlink(missing_ok=True)


def _put(part: Path, path: Path) -> None:
    try:
        os.link(part, path)  # refuses to replace a file
    except FileExistsError:
        raise
    except OSError:
        # A share without links. Two backups under one name at the same moment are not told apart here.
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        part.rename(path)
    sync_dir(path.parent)
