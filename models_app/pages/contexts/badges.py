"""Badges of the desired and observed state of a model or a placement."""

from mirbad.web.parts import Badge
from models_app import queries
from models_app.states import FAILED, READY, RUNNING, STARTING, STOPPED, STOPPING, UNHEALTHY, UNKNOWN

_SEEN: dict[str, Badge] = {
    READY: Badge("Ready", "ok", "circle-check", "Serves requests"),
    STARTING: Badge("Starting", "busy", "hourglass"),
    STOPPING: Badge("Stopping", "busy", "hourglass"),
    UNHEALTHY: Badge("Unhealthy", "warn", "triangle-alert", "Running, but its health check fails"),
    FAILED: Badge("Failed", "bad", "circle-x"),
    STOPPED: Badge("Stopped", "idle", "circle-stop"),
    UNKNOWN: Badge("Not reported", "unknown", "circle-help", "Its node is not reporting"),
    queries.UNPLACED: Badge("Not placed", "idle", "circle-dashed", "Not placed on any node"),
}
WANTED = {
    RUNNING: Badge("Running", "ok", "circle-play", "Desired state"),
    STOPPED: Badge("Stopped", "idle", "circle-stop", "Desired state"),
}
_AWAITED = Badge("Waiting to start", "busy", "hourglass", "Should be running, not started yet")


def of(state: str, *, desired_running: bool) -> Badge:
    """Return the badge of a shown state."""
    return _AWAITED if state == STOPPED and desired_running else _SEEN[state]
