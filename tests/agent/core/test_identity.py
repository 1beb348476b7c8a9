"""The identity on disk: whole or not there, private, and never lost to a crash."""

import dataclasses
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from agent import identity as identity_module
from agent.common.keys import new_key, spki_of
from agent.identity import (
    AgentIdentityBroken,
    Identity,
    IdentityStore,
    MissingIdentity,
    PendingKey,
    in_groups,
    make_csr,
)
from tests.agent.core.fleet import UID, Fleet
from tests.waiting import pause

pytestmark = pytest.mark.unit


@pytest.fixture
def store(tmp_path: Path) -> IdentityStore:
    return IdentityStore(tmp_path)


def test_before_a_join_there_is_none(store: IdentityStore) -> None:
    assert store.load_if_any() is None
    assert store.current_name() is None
    with pytest.raises(MissingIdentity, match="join"):
        store.load()


def test_what_is_installed_is_read_back_whole(store: IdentityStore, identity: Identity) -> None:
    store.install(identity)
    assert store.load() == identity


def test_nobody_but_the_owner_reads_the_key(store: IdentityStore, identity: Identity) -> None:
    store.install(identity)
    found = [path for path in (store.folder, *store.folder.rglob("*")) if not path.is_symlink()]
    assert len([path for path in found if path.is_file()]) > 1
    assert [path for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def test_a_staged_identity_is_not_in_use_until_it_is_promoted(store: IdentityStore, fleet: Fleet) -> None:
    old, new = fleet.identity(), fleet.identity()
    store.install(old)
    store.stage(new)
    assert store.load() == old
    assert IdentityStore(store.folder.parent).promote() == new
    assert store.load() == new
    assert len(list(store.folder.glob("id-*"))) == 1
    with pytest.raises(MissingIdentity):
        store.promote()


def test_the_secret_parts_are_in_no_representation(identity: Identity) -> None:
    assert "PRIVATE" not in repr(identity)
    assert "BEGIN" not in repr(identity)


@pytest.mark.parametrize(
    "name", ["key.pem", "chain.pem", "ca.pem", "about.json"], ids=lambda name: name.removesuffix(".pem")
)
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{}", None], ids=["empty", "bytes", "other", "missing"])
def test_a_torn_file_is_a_broken_identity_and_nothing_else(
    store: IdentityStore, identity: Identity, name: str, content: bytes | None
) -> None:
    store.install(identity)
    path = store.folder / str(store.current_name()) / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(AgentIdentityBroken):
        store.load()


def test_a_key_of_another_certificate_is_a_broken_identity(store: IdentityStore, fleet: Fleet) -> None:
    store.install(fleet.identity())
    folder = store.folder / str(store.current_name())
    (folder / "key.pem").write_bytes(fleet.identity().key_pem)
    with pytest.raises(AgentIdentityBroken, match="another key"):
        store.load()


@pytest.mark.parametrize(
    "changes",
    [
        {"node_id": "../x"},
        {"node_uid": "not a uid"},
        {"chain": ()},
        {"ca_bundle": ()},
        {"chain": ("no certificate",)},
        {"key_pem": b"no key"},
        {"master": identity_module.MasterSpki(current="short")},
    ],
)
def test_an_identity_without_sense_cannot_be_made(identity: Identity, changes: dict[str, object]) -> None:
    with pytest.raises(AgentIdentityBroken):
        dataclasses.replace(identity, **changes)  # type: ignore[arg-type]


def test_the_hash_of_the_bundle_does_not_know_an_order(identity: Identity) -> None:
    other = Fleet().ca_pem
    one = dataclasses.replace(identity, ca_bundle=(*identity.ca_bundle, other))
    two = dataclasses.replace(identity, ca_bundle=(other, *identity.ca_bundle))
    assert one.trust_bundle_hash == two.trust_bundle_hash != identity.trust_bundle_hash


def test_the_signing_request_names_the_node_and_proves_the_key() -> None:
    key = new_key()
    request = x509.load_pem_x509_csr(make_csr(key, "pc-1").encode())
    assert request.is_signature_valid
    assert request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "pc-1"
    assert spki_of(request.public_key()) == spki_of(key)  # type: ignore[arg-type]


def test_a_fingerprint_is_shown_in_groups_of_four() -> None:
    assert in_groups("0123456789ab") == "0123 4567 89ab"


def test_the_key_of_a_join_stays_until_the_join_is_done(tmp_path: Path) -> None:
    pending = PendingKey(tmp_path)
    first = spki_of(pending.take("id.secret"))
    assert spki_of(PendingKey(tmp_path).take("id.secret")) == first
    assert "id.secret" not in pending.path.read_text()
    assert stat.S_IMODE(pending.path.stat().st_mode) == 0o600
    assert spki_of(pending.take("id.another")) != first
    pending.drop()
    pending.drop()
    assert not pending.path.exists()


def test_a_torn_key_of_a_join_gives_way_to_a_fresh_one(tmp_path: Path) -> None:
    pending = PendingKey(tmp_path)
    pending.take("id.secret")
    pending.path.write_text('{"token":')
    assert pending.take("id.secret")


INSTALLING = """
import sys
from pathlib import Path
from agent.identity import IdentityStore
from tests.agent.core.fleet import Fleet
fleet, store = Fleet(), IdentityStore(Path(sys.argv[1]))
fresh = [fleet.identity() for _ in range(20)]
print("ready", flush=True)
while True:
    for identity in fresh:
        store.install(identity)
        print(".", flush=True)
"""


def test_kill_9_at_any_moment_leaves_an_identity_that_works(tmp_path: Path, fleet: Fleet) -> None:
    store = IdentityStore(tmp_path)
    store.install(fleet.identity())
    names = set()
    for round_number in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", INSTALLING, str(tmp_path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )
        assert child.stdout is not None
        for _ in range(round_number + 2):
            child.stdout.readline()
        pause(0.0007 * round_number)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert store.load().node_uid == UID
        names.add(store.current_name())
    assert len(names) > 1
    store.install(fleet.identity())
    assert len(list(store.folder.glob("id-*"))) == 1, "what a crash left behind goes with the next install"
