"""Identifiers: how they are made and what a person may type."""

import re
import secrets
import time
import uuid

NODE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
MODEL_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
RESERVED_NODE_IDS = frozenset({"join-tokens"})


def new_uid() -> uuid.UUID:
    """A random identity for a row that never changes it."""
    return uuid.uuid4()


def new_operation_id() -> str:
    """An id that sorts by creation: ``op-`` and 24 hex digits (milliseconds, then 48 random bits)."""
    return f"op-{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"


def is_node_id(text: str) -> bool:
    """Whether `text` may name a node: 1-40 of ``a-z0-9-``, first a letter or digit, not reserved."""
    return NODE_ID.fullmatch(text) is not None and text not in RESERVED_NODE_IDS


def is_model_id(text: str) -> bool:
    """Whether `text` may name a model: 1-64 of ``a-z0-9._-``, first a letter or digit."""
    return MODEL_ID.fullmatch(text) is not None
