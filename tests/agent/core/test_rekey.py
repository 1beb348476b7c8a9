"""Re-pairing: a node that the master knows gets a new key, and keeps the old one when that fails."""

from pathlib import Path

import pytest

from agent.enroll import (
    BadEnrollResponse,
    EnrollRefused,
    JoinFailed,
)
from agent.identity import IdentityStore
from tests.agent.core.fleet import UID, Fleet
from tests.agent.core.joining import order_for, quick
from tests.agent.core.listener import EnrollServer, enroll_server

pytestmark = pytest.mark.unit


def test_a_rekey_keeps_uid_and_fleet_and_takes_a_new_key(listener: EnrollServer, state: Path) -> None:
    before = quick(order_for(listener), state)
    after = quick(order_for(listener, rekey=True, token="id.rekey-secret"), state)
    assert (after.node_uid, after.fleet) == (before.node_uid, before.fleet)
    assert after.spki != before.spki
    assert (listener.asked[-1].path, listener.asked[-1].body["nodeUid"]) == ("/enroll/rekey", UID)


def test_the_fleet_keeps_its_name_when_its_ca_was_rotated(listener: EnrollServer, state: Path, tmp_path: Path) -> None:
    """Engines that run carry it in their labels."""
    before = quick(order_for(listener), state)
    with enroll_server(Fleet(), tmp_path) as rotated:
        after = quick(order_for(rotated, rekey=True, token="id.rekey-secret"), state)
    assert after.fleet == before.fleet


def test_a_rekey_that_fails_leaves_the_old_identity(listener: EnrollServer, state: Path) -> None:
    before = quick(order_for(listener), state)
    listener.answers = [(403, {"code": "enrollment_refused", "detail": ""}, {})]
    with pytest.raises(EnrollRefused):
        quick(order_for(listener, rekey=True, token="id.wrong"), state)
    assert IdentityStore(state).load() == before


def test_a_rekey_without_state_needs_the_uid(listener: EnrollServer, state: Path) -> None:
    with pytest.raises(JoinFailed, match="--node-uid"):
        quick(order_for(listener, rekey=True), state)
    assert quick(order_for(listener, rekey=True, node_uid=UID), state).node_uid == UID


def test_a_rekey_answered_for_another_node_is_refused(listener: EnrollServer, state: Path) -> None:
    listener.uid = "99999999-0000-0000-0000-000000000000"
    with pytest.raises(BadEnrollResponse, match="not 7a1f"):
        quick(order_for(listener, rekey=True, node_uid=UID), state)
