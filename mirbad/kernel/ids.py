"""Identifiers: their creation, and the rules for ids that people choose."""

import re
import secrets
import time
import uuid

MODEL_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def new_uid() -> uuid.UUID:
    """Return a random identity for a row that never changes it."""
    return uuid.uuid4()


def new_operation_id() -> str:
    """Return an id that sorts by creation: ``op-`` and 24 hex digits (milliseconds, then 48 random bits)."""
    return f"op-{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"


def is_model_id(text: str) -> bool:
    """Return whether `text` is a valid model id: 1-64 of ``a-z0-9._-``, first a letter or digit."""
    return MODEL_ID.fullmatch(text) is not None
