"""One rule for node ids: the master's tokens, its settings and the agent's join command refuse the same."""

from datetime import timedelta
from pathlib import Path

import pytest

from agent.common.node_ids import is_node_id
from agent.enroll import JoinFailed, JoinRequest, join
from mirbad.kernel.errors import InvalidRequest
from nodes.enrollment import tokens

pytestmark = pytest.mark.unit

BAD = ("", "-a", "A", "a_b", "a.b", "a" * 41, "ä", "a b", "a\n", "a/b", "join-tokens", "\uff11")


@pytest.mark.parametrize("node_id", ["a", "0", "gpu-box-1", "a-", "a" * 40])
def test_a_good_id_is_taken_by_all(node_id: str) -> None:
    assert is_node_id(node_id)
    tokens._check_shape(node_id, "", timedelta(hours=1))


@pytest.mark.parametrize("node_id", BAD)
def test_a_bad_id_is_refused_by_all(node_id: str, tmp_path: Path) -> None:
    assert not is_node_id(node_id)
    with pytest.raises(InvalidRequest):
        tokens._check_shape(node_id, "", timedelta(hours=1))
    with pytest.raises(JoinFailed, match="1-40 lower-case"):
        join(JoinRequest("https://192.0.2.1:8443", f"sha256:{'0' * 64}", node_id, "token"), tmp_path)
