"""Shared parts of the join tests: an enroll listener, a state folder, and a join request."""

from pathlib import Path
from typing import Any

from agent.common.keys import new_key
from agent.enroll import (
    JoinRequest,
    join,
)
from tests.agent.core.listener import EnrollServer

KEY = new_key()
TOKEN = "aGVsbG8.c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldC1zZWNyZXQ"


def order_for(listener: EnrollServer, **changes: Any) -> JoinRequest:
    values: dict[str, Any] = {
        "enroll_url": listener.url,
        "ca_hash": listener.fleet.ca_hash,
        "node_id": "pc-1",
        "token": TOKEN,
    }
    return JoinRequest(**{**values, **changes})


def quick(order: JoinRequest, state: Path) -> Any:
    return join(order, state, lambda _: None)
