"""Settings that the owners of the fleet's machines allow models beyond the common list of engine settings."""

from collections import defaultdict
from collections.abc import Mapping

from agent.common.engine_settings.check import Allowed, Refused
from models_app.models import ModelDefinition
from models_app.registry.inputs import refused_settings
from nodes.models import Node


def of_fleet() -> Allowed:
    """Return the settings that at least one approved node allows. The node of a launch has the last word."""
    args: dict[str, set[str]] = defaultdict(set)
    env: dict[str, set[str]] = defaultdict(set)
    rows = Node.objects.approved().values_list("capabilities__allowedArgs", "capabilities__allowedEnv")
    for row in rows:
        for found, into in zip(row, (args, env), strict=True):
            _add(found, into)
    return Allowed(args, env)


def _add(found: object, into: dict[str, set[str]]) -> None:
    if isinstance(found, Mapping):
        for runtime, names in found.items():
            into[str(runtime)].update(names)


def refused_of(model: ModelDefinition) -> tuple[Refused, ...]:
    """Return the settings of a stored model that would be refused today; values of secrets are not judged."""
    secrets: dict[str, str | None] = dict.fromkeys(model.secret_env_names)
    found = refused_settings(model.runtime, model.args, model.env, secrets)
    return refused_settings(model.runtime, model.args, model.env, secrets, of_fleet()) if found else ()
