"""Files that are no backup, or not any more: each is refused with a sentence, and none costs memory."""

import io
import json
import random
import tracemalloc
import zipfile
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from jobs.backup import container, records, sealed, verification
from jobs.backup.container import CONFIGURATION, MANIFEST, SECRETS, BackupManifest, BackupWriter
from jobs.errors import BackupUnsuitable
from tests.jobs.backup.fleet import PASSPHRASE

pytestmark = pytest.mark.unit
AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 8)
    monkeypatch.setattr(sealed, "_PASSES", 1)
    monkeypatch.setattr(sealed, "_LANES", 1)


def node(name: str) -> records.NodeRecord:
    texts = dict.fromkeys(
        ("default_image", "default_image_digest", "default_llama_image", "default_llama_image_digest"), ""
    )
    return records.NodeRecord(
        id=name, uid="00000000-0000-0000-0000-000000000001", display_name="", is_bootstrap=False, labels={},
        memory_reserve_bytes=None, max_concurrent_starts=None, gpus=(), **texts,
    )  # fmt: skip


def backup(*names: str, version: int = 2) -> bytes:
    """Return a whole backup of nodes, with one secret."""
    target = io.BytesIO()
    with BackupWriter(target, AT) as writer:
        _fill(writer, names, version)
    return target.getvalue()


def _fill(writer: BackupWriter, names: tuple[str, ...], version: int) -> None:
    with writer.part(CONFIGURATION) as part:
        for name in names:
            part.write(records.to_line(node(name)))
    binding = records.BindingRecord(configuration_sha256=writer.parts[0].sha256, instance_id="master-1", created_at=AT)
    with writer.part(SECRETS) as part:
        sealing = sealed.SealingWriter(part, PASSPHRASE)
        sealing.write(records.to_line(binding))
        sealing.write(records.to_line(records.ModelSecretsRecord(model_id="m", env={"HF_TOKEN": "secret"})))
        sealing.finish()
    counts = {"node": len(names), "binding": 1, "model-secrets": 1}
    writer.finish(
        BackupManifest(
            format_version=version, mirbad_version="0", instance_id="master-1", created_at=AT, counts=counts,
            parts=tuple(writer.parts),
        )
    )  # fmt: skip


def parts_of(text: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(text)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive(parts: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return parts as an archive with a right digest, as an attacker writes it."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as made:
        for name, text in parts.items():
            made.writestr(name, text)
        made.comment = b"0" * 64
    return with_digest(target.getvalue())


def with_digest(text: bytes) -> bytes:
    file = io.BytesIO(text)
    return text[:-64] + container._digest_before_comment(file)


def verify(tmp_path, text: bytes, passphrase: str | None = PASSPHRASE) -> BackupManifest:
    path = tmp_path / "some.backup"
    path.write_bytes(text)
    return verification.verify(path, passphrase)


def test_a_whole_backup_is_read(tmp_path):
    assert verify(tmp_path, backup("a", "b")).counts == {"node": 2, "binding": 1, "model-secrets": 1}
    assert verify(tmp_path, archive(parts_of(backup("a")))).counts["node"] == 1


def test_500_files_that_were_damaged_are_refused(tmp_path):
    whole, chance = backup(*map(str, range(50))), random.Random(5)

    def flip(text: bytearray) -> bytearray:
        text[chance.randrange(len(text))] ^= 1 << chance.randrange(8)
        return text

    def cut(text: bytearray) -> bytearray:
        return text[: chance.randrange(len(text))]

    def drop(text: bytearray) -> bytearray:
        start = chance.randrange(len(text))
        del text[start : start + chance.randrange(1, 200)]
        return text

    def double(text: bytearray) -> bytearray:
        start = chance.randrange(len(text))
        return text[:start] + text[start : start + 40] + text[start:]

    def zero(text: bytearray) -> bytearray:
        start = chance.randrange(len(text) - 64)
        text[start : start + 32] = chance.randbytes(32)
        return text

    for number in range(500):
        act = (flip, cut, drop, double, zero)[number % 5]
        with pytest.raises(BackupUnsuitable):
            verify(tmp_path, bytes(act(bytearray(whole))))


def test_500_files_that_were_changed_by_somebody_who_knows_the_format_are_refused(tmp_path):
    """The digest at the end is right in each; what is left are the archive, the manifest and the seal."""
    whole, chance = backup(*map(str, range(50))), random.Random(6)
    read = []
    for _ in range(500):
        wrong = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            wrong[chance.randrange(len(wrong) - 64)] ^= 1 << chance.randrange(8)
        text = with_digest(bytes(wrong))
        with suppress(BackupUnsuitable):
            verify(tmp_path, text)
            read.append(parts_of(text))
    # Dates and modes of the archive mean nothing: where only they were hit, every part is what it was.
    assert [parts for parts in read if parts != parts_of(whole)] == []
    assert len(read) < 100


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda parts: parts | {"../../etc/passwd": b"x"}, "other names"),
        (lambda parts: parts | {"/etc/passwd": b"x"}, "other names"),
        (lambda parts: {MANIFEST: parts[MANIFEST]}, "not those that its manifest names"),
        (lambda parts: {k: v for k, v in parts.items() if k != MANIFEST}, "other names"),
        (lambda parts: {k: v for k, v in parts.items() if k != SECRETS}, "not those that its manifest names"),
        (lambda parts: parts | {MANIFEST: b"{"}, "manifest of this backup is not valid"),
        (lambda parts: parts | {MANIFEST: b"[" * 500_000}, "manifest of this backup is not valid"),
        (lambda parts: parts | {MANIFEST: b"\xff\xfe"}, "manifest of this backup is not valid"),
        (lambda parts: parts | {MANIFEST: b" " * (2 * 1024**2)}, "which is too many"),
        (lambda parts: parts | {CONFIGURATION: parts[CONFIGURATION] + b"\n"}, "not those that its manifest names"),
        (lambda parts: parts | {SECRETS: parts_of(backup("a"))[SECRETS]}, "not the one that its manifest names"),
        (lambda parts: {}, "other names"),
    ],
)
def test_what_is_not_as_a_backup_is_named(tmp_path, change, said):
    with pytest.raises(BackupUnsuitable, match=said):
        verify(tmp_path, archive(change(parts_of(backup("a", "b")))))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"formatVersion": 3}, "format version 3; this Mirbad reads version 2"),
        ({"formatVersion": 3, "more": {}}, "format version 3; this Mirbad reads version 2"),
        ({"formatVersion": 1}, "format version 1"),
        ({"format": "other"}, "format"),
        ({"counts": {"node": 1}}, "the records that its manifest counts"),
        ({"instanceId": "master-2"}, "was changed"),
        ({"createdAt": "2031-01-02T03:04:05Z"}, "was changed"),
        ({"more": 1}, "more"),
        ({"parts": []}, "not those that its manifest names"),
        ({"caSha256": "x"}, "caSha256"),
    ],
)
def test_a_manifest_that_was_changed_is_refused(tmp_path, change, said):
    parts = parts_of(backup("a", "b"))
    parts[MANIFEST] = json.dumps(json.loads(parts[MANIFEST]) | change).encode()
    with pytest.raises(BackupUnsuitable, match=said):
        verify(tmp_path, archive(parts))


def test_a_configuration_that_was_exchanged_with_its_manifest_is_found_by_the_secrets(tmp_path):
    mine, other = parts_of(backup("a")), parts_of(backup("evil"))
    mixed = {MANIFEST: other[MANIFEST], CONFIGURATION: other[CONFIGURATION], SECRETS: mine[SECRETS]}
    manifest = json.loads(other[MANIFEST])
    own = next(part for part in json.loads(mine[MANIFEST])["parts"] if part["name"] == SECRETS)
    manifest["parts"] = [part for part in manifest["parts"] if part["name"] != SECRETS] + [own]
    mixed[MANIFEST] = json.dumps(manifest).encode()
    assert verify(tmp_path, archive(mixed), None).counts["node"] == 1
    with pytest.raises(BackupUnsuitable, match="of another backup"):
        verify(tmp_path, archive(mixed))


def _with_configuration(text: bytes) -> bytes:
    parts = parts_of(backup("a"))
    manifest = json.loads(parts[MANIFEST])
    entry = next(part for part in manifest["parts"] if part["name"] == CONFIGURATION)
    entry |= {"bytes": len(text), "sha256": container.hashlib.sha256(text).hexdigest()}
    return archive(parts | {MANIFEST: json.dumps(manifest).encode(), CONFIGURATION: text})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{}\n", "kind"),
        (b'{"kind":"person"}\n', "kind"),
        (b"[" * 100_000 + b"\n", "cannot be read"),
        (b'{"kind":"node","id":1}\n', "node"),
        (b'{"kind":"node"}', "cut off"),
        (b"\n", "cannot be read"),
        (b"\xff\n", "cannot be read"),
    ],
)
def test_a_line_that_is_no_record_is_named_without_its_value(tmp_path, text, said):
    with pytest.raises(BackupUnsuitable, match=said):
        verify(tmp_path, _with_configuration(text), None)


@pytest.mark.parametrize("fill", [b" ", b"0\n", b"x"])
def test_200_mb_of_nothing_in_a_small_file_cost_no_memory(tmp_path, fill):
    text = _with_configuration(fill * (200 * 1024**2 // len(fill)))
    assert len(text) < 2 * 1024**2
    tracemalloc.start()
    try:
        with pytest.raises(BackupUnsuitable):
            verify(tmp_path, text, None)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024**2
    finally:
        tracemalloc.stop()


def test_a_part_that_is_longer_than_it_says_is_not_read_on(tmp_path):
    parts = parts_of(backup("a"))
    manifest = json.loads(parts[MANIFEST])
    text = archive(parts | {CONFIGURATION: b"x" * 1024**3, MANIFEST: json.dumps(manifest).encode()})
    with pytest.raises(BackupUnsuitable):
        verify(tmp_path, text, None)


@pytest.mark.parametrize("text", [b"", b"x", b"PK\x05\x06" + b"\0" * 18, b"\0" * 1000, b"PK\x03\x04" * 100])
def test_other_files_are_no_backup(tmp_path, text):
    for given in (text, with_digest(text + b"0" * 64)):
        with pytest.raises(BackupUnsuitable, match="is not a backup"):
            verify(tmp_path, given)


def test_an_archive_that_zip_encrypted_is_refused(tmp_path):
    text = bytearray(archive(parts_of(backup("a"))))
    place = text.index(b"PK\x01\x02") + 8  # the flags in the central directory
    text[place] |= 1
    with pytest.raises(BackupUnsuitable, match="is encrypted by ZIP"):
        verify(tmp_path, with_digest(bytes(text)))
