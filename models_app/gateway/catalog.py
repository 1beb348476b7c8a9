"""`/v1/models`: what a key may use now. Pure."""

import json
from typing import Any

from models_app.gateway import core, refusals
from models_app.gateway.table import Key, Model, Table


def listing(table: Table, key: Key) -> bytes:
    """The models that would answer now and that `key` may use, by served name."""
    found = [
        _entry(name, model)
        for name, model in sorted(table.models.items())
        if key.may_use(model, name) and core.is_ready(table, model)
    ]
    return json.dumps({"object": "list", "data": found}).encode()


def entry(table: Table, key: Key, name: str) -> bytes:
    """The model served as `name`. Raises Refusal (404) when there is none, or the key may not use it."""
    model = table.models.get(name)
    if model is None or not key.may_use(model, name):
        raise refusals.unknown_model(name)
    return json.dumps(_entry(name, model)).encode()


def _entry(name: str, model: Model) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": model.created, "owned_by": "mirbad"}
