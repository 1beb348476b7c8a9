"""The rule for node ids."""

import re

NODE_ID_RULE = "1-40 lower-case letters, digits and hyphens, starting with a letter or digit"
RESERVED_NODE_IDS = frozenset({"join-tokens"})
"""Names of API routes in the position of a node id."""

_NODE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


def is_node_id(text: str) -> bool:
    """Return whether `text` is a valid node id (`NODE_ID_RULE`) and not reserved."""
    return _NODE_ID.fullmatch(text) is not None and text not in RESERVED_NODE_IDS
