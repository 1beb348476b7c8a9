"""What the tests of joining share: an enroll listener, a state folder, and an order for one of them."""

from pathlib import Path
from typing import Any

from agent.enrol import (
    JoinOrder,
    join,
)
from agent.identity import new_key
from tests.agent.core.listener import EnrollServer

KEY = new_key()
TOKEN = "aGVsbG8.c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldC1zZWNyZXQ"


def order_for(listener: EnrollServer, **changes: Any) -> JoinOrder:
    values: dict[str, Any] = {
        "enroll_url": listener.url,
        "ca_hash": listener.fleet.ca_hash,
        "node_id": "pc-1",
        "token": TOKEN,
    }
    return JoinOrder(**{**values, **changes})


def quick(order: JoinOrder, state: Path) -> Any:
    return join(order, state, lambda _: None)
