"""The desired (`DESIRED`) and observed (`OBSERVED`) states of a placement. Diagrams: docs/states/."""

from mirbad.kernel.states import StateTable

RUNNING = "running"
STOPPED = "stopped"

DESIRED = StateTable("desired placement state", {STOPPED: frozenset({RUNNING}), RUNNING: frozenset({STOPPED})})

UNKNOWN = "unknown"
STARTING = "starting"
READY = "ready"
UNHEALTHY = "unhealthy"
STOPPING = "stopping"
FAILED = "failed"

_SEEN = frozenset({UNKNOWN, STOPPED, STARTING, READY, UNHEALTHY, STOPPING, FAILED})
OBSERVED = StateTable(
    "observed placement state",
    {
        UNKNOWN: _SEEN,
        STOPPED: _SEEN,
        STARTING: _SEEN,
        READY: _SEEN,
        UNHEALTHY: _SEEN,
        STOPPING: _SEEN,
        FAILED: _SEEN,
    },
)
"""Machines report as they find: any state may follow any other between two observations."""
