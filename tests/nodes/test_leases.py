"""Leases and the master's claim."""

from datetime import timedelta

import pytest
import time_machine

from mirbad.kernel import clock
from mirbad.kernel.errors import Unavailable
from nodes import fencing, leases
from nodes.errors import MasterFenced
from nodes.models import Lease, MasterIdentity
from tests.nodes.test_join_races import together

pytestmark = pytest.mark.app

TTL = timedelta(seconds=30)


def test_one_owner_at_a_time_and_renewing_is_taking_again(db):
    assert leases.take("watcher", "a", TTL)
    assert leases.take("watcher", "a", TTL)
    assert not leases.take("watcher", "b", TTL)
    assert leases.take("another", "b", TTL)
    assert leases.holder("watcher") == "a"


def test_a_lease_that_ran_out_is_free(db):
    leases.take("watcher", "a", TTL)
    with time_machine.travel(clock.now() + TTL + timedelta(seconds=1)):
        assert leases.holder("watcher") is None
        assert leases.take("watcher", "b", TTL)
        assert not leases.take("watcher", "a", TTL)


def test_only_its_owner_gives_a_lease_back(db):
    leases.take("watcher", "a", TTL)
    assert not leases.release("watcher", "b")
    assert leases.release("watcher", "a")
    assert leases.take("watcher", "b", TTL)


def test_of_many_that_take_at_once_one_gets_it(transactional_db):
    for _ in range(3):
        taken = together([lambda n=n: leases.take("watcher", f"owner-{n}", TTL) for n in range(8)])
        assert sorted(taken) == [False] * 7 + [True]
        Lease.objects.all().delete()


def test_a_claim_is_epoch_and_instance(master):
    claim = fencing.claim()
    assert (claim.epoch, claim.instance_id) == (1, master.instance_id)
    assert fencing.is_current(claim)


def test_a_fenced_master_has_no_claim_and_keeps_its_first_reason(master):
    claim = fencing.claim()
    assert fencing.fence("First reason.")
    assert not fencing.fence("Second reason.")
    with pytest.raises(MasterFenced, match="First reason"):
        fencing.claim()
    assert fencing.is_fenced()
    assert not fencing.is_current(claim)


def test_a_claim_made_under_another_epoch_or_instance_does_not_stand(master):
    claim = fencing.claim()
    MasterIdentity.objects.update(epoch=2)
    assert not fencing.is_current(claim)
    MasterIdentity.objects.update(epoch=1, instance_id="another-instance")
    assert not fencing.is_current(claim)


def test_before_the_first_start_there_is_no_claim_and_no_fence(db):
    assert not fencing.is_fenced()
    with pytest.raises(Unavailable):
        fencing.claim()
