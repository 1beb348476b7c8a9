"""The fleet's authority: made once, sealed, renewed without a new key, bound to one installation."""

import threading
from datetime import timedelta

import pytest
import time_machine
from django.db import connection

from agent.common import keys
from agent.wire.base import ENROLL_SERVER_NAME
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Unavailable
from mirbad.kernel.seal import SealBroken, unseal
from nodes import fencing
from nodes.models import Authority, MasterIdentity
from nodes.pki import authority, certs, store
from tests.nodes.parts import approved

pytestmark = pytest.mark.app


def test_it_is_made_once(db):
    first = authority.ensure()
    second = authority.ensure()
    assert (first.instance_id, first.client_spki) == (second.instance_id, second.client_spki)
    assert Authority.objects.count() == MasterIdentity.objects.count() == 1


def test_processes_that_start_together_agree_on_one(transactional_db):
    found, barrier = [], threading.Barrier(6)

    def start():
        barrier.wait()
        try:
            found.append(authority.ensure().instance_id)
        finally:
            connection.close()

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1
    assert store.issuer().cert.subject == certs.from_pem(store.trust().bundle[0]).subject


def test_private_keys_are_sealed_each_for_its_own_use(master):
    row = Authority.objects.get()
    sealed = bytes(row.key_sealed)
    assert b"PRIVATE" not in sealed
    assert unseal(sealed, store.CA_KEY).startswith(b"-----BEGIN PRIVATE KEY-----")
    with pytest.raises(SealBroken):
        unseal(sealed, store.CLIENT_KEY)
    assert keys.spki_of(store.issuer().key.public_key()) == keys.spki_of(store.issuer().cert.public_key())


def test_the_hash_in_a_join_command_is_that_of_the_root(master):
    root = certs.from_pem(store.trust().bundle[0])
    assert authority.ca_hashes() == (f"sha256:{certs.fingerprint(root)}",)


def test_certificates_of_the_master_are_renewed_in_time_and_their_keys_stay(master):
    with time_machine.travel(clock.now() + timedelta(days=300), tick=False):
        renewed = authority.ensure()
    assert renewed.client_cert_pem != master.client_cert_pem
    assert renewed.enroll_cert_pem != master.enroll_cert_pem
    assert renewed.client_spki == master.client_spki
    for pem in (renewed.client_cert_pem, renewed.enroll_cert_pem):
        assert certs.from_pem(pem).not_valid_after_utc > clock.now() + timedelta(days=600)
    assert keys.spki_of(certs.from_pem(renewed.client_cert_pem).public_key()) == master.client_spki
    assert certs.hosts_of(certs.from_pem(renewed.enroll_cert_pem)) == certs.hosts_of(
        certs.from_pem(master.enroll_cert_pem)
    )


def test_an_authority_that_expired_signs_nothing_more_and_says_so(master):
    with time_machine.travel(clock.now() + timedelta(days=3651), tick=False):
        authority.ensure()
        with pytest.raises(Unavailable, match="expired on"):
            store.issuer()


def test_the_enroll_certificate_follows_the_hosts_that_an_operator_lists(master, monkeypatch):
    wider = settings().model_copy(update={"hosts": ("Master.LAN", "192.0.2.7", "*", ".example.org", "bad host")})
    monkeypatch.setattr(authority, "settings", lambda: wider)
    hosts = certs.hosts_of(certs.from_pem(authority.ensure_for_listener().enroll_cert_pem))
    assert {ENROLL_SERVER_NAME, "localhost", "127.0.0.1", "master.lan", "192.0.2.7"} <= hosts
    assert not {"*", ".example.org", "bad host"} & hosts


def test_processes_that_do_not_listen_leave_the_listener_s_names_alone(master, monkeypatch):
    wider = settings().model_copy(update={"hosts": ("elsewhere.lan",)})
    monkeypatch.setattr(authority, "settings", lambda: wider)
    assert authority.ensure().enroll_cert_pem == master.enroll_cert_pem


def test_data_that_was_copied_gets_a_new_instance_id(master):
    MasterIdentity.objects.update(bound_to="somewhere else")
    moved = authority.ensure()
    assert moved.instance_id != master.instance_id
    assert moved.bound_to == fencing.installation()
    assert not fencing.is_fenced()
    assert authority.ensure().instance_id == moved.instance_id


def test_copied_data_with_approved_nodes_needs_a_takeover_before_it_commands(master):
    approved()
    MasterIdentity.objects.update(bound_to="somewhere else")
    authority.ensure()
    assert fencing.is_fenced()
    assert "takes over" in fencing.fenced_reason()


def test_the_installation_is_told_apart_by_folder_or_database(db, monkeypatch, tmp_path):
    here = fencing.installation()
    assert here == fencing.installation()
    other = settings().model_copy(update={"data": tmp_path})
    monkeypatch.setattr(fencing, "settings", lambda: other)
    assert (fencing.installation() != here) == (connection.vendor == "sqlite")
