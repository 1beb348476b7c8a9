"""The simulated engine: every option that the agent does not set."""

from agent.common.engine_settings.engine import EngineSettings
from agent.common.engine_settings.rules import NUMBER, SIGNED, SWITCH, TEXT, pattern, table
from agent.common.engine_settings.variables import EVERY_ENGINE

_MANAGED = """
    --host --port --api-key --served-name --meeting --rank --world-size --rendezvous-host --rendezvous-port
"""

SIM = EngineSettings(
    name="sim",
    managed=frozenset(_MANAGED.split()),
    managed_variables=frozenset({"SIM_API_KEY"}),
    arguments=table(
        (NUMBER, "--context-length --default-tokens --answer-status --cut-after-tokens --error-after-tokens"),
        (SIGNED, "--tokens-per-second --first-token-seconds --start-seconds --die-after-seconds --exit-code"),
        (NUMBER, "--unhealthy-after-seconds --log-bytes-per-second"),
        (SWITCH, "--loading-as-200 --keyed-health --hang-at-load --never-ready --ignore-sigterm --wrong-bytes"),
        (SWITCH, "--split-bytes"),
        (TEXT, "--die-at-start"),
    ),
    variables=EVERY_ENGINE,
    joins_values=True,
    open_variables=(pattern("SIM_…", r"SIM_[A-Z0-9_]{1,60}"), TEXT),
)
"""Variables that begin with SIM_ are read by nothing; they are for trials of secret values."""
