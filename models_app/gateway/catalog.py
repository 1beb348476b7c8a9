"""`/v1/models`: the models that a key may use now. Pure."""

import json
from typing import Any

from models_app.gateway import core, errors
from models_app.gateway.table import KeyEntry, ModelEntry, RoutingTable

_UNKNOWN_OWNER = "mirbad"


def listing(table: RoutingTable, key: KeyEntry) -> bytes:
    """Return the list of models that are ready now and that `key` may use, sorted by served name, as JSON."""
    found = [
        _entry(table, name, model)
        for name, model in sorted(table.models.items())
        if key.may_use(model) and core.is_ready(table, model)
    ]
    return json.dumps({"object": "list", "data": found}).encode()


def entry(table: RoutingTable, key: KeyEntry, name: str) -> bytes:
    """Return the model served as `name` as JSON. Raises GatewayError (404) if unknown or not allowed for `key`."""
    model = table.models.get(name)
    if model is None or not key.may_use(model):
        raise errors.unknown_model(name)
    return json.dumps(_entry(table, name, model)).encode()


def _entry(table: RoutingTable, name: str, model: ModelEntry) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": model.owner or _UNKNOWN_OWNER,
        "state": core.state_of(table, model),
    }
    if model.context_length is not None:
        # One number by the names that OpenRouter's clients and vLLM's look for.
        found |= {"context_length": model.context_length, "max_model_len": model.context_length}
    return found
