"""The badges of what is wanted and seen of a model or a placement."""

from mirbad.web.parts import Badge
from models_app import queries
from models_app.states import FAILED, READY, RUNNING, STARTING, STOPPED, STOPPING, UNHEALTHY, UNKNOWN

_SEEN: dict[str, Badge] = {
    READY: Badge("Ready", "ok", "circle-check", "It answers requests"),
    STARTING: Badge("Starting", "busy", "hourglass"),
    STOPPING: Badge("Stopping", "busy", "hourglass"),
    UNHEALTHY: Badge("Unhealthy", "warn", "triangle-alert", "It runs but does not answer its health check"),
    FAILED: Badge("Failed", "bad", "circle-x"),
    STOPPED: Badge("Stopped", "idle", "circle-stop"),
    UNKNOWN: Badge("Not reported", "unknown", "circle-help", "Its node does not report now"),
    queries.UNPLACED: Badge("Unplaced", "idle", "circle-dashed", "It stands on no node"),
}
WANTED = {
    RUNNING: Badge("Running", "ok", "circle-play", "What was asked for"),
    STOPPED: Badge("Stopped", "idle", "circle-stop", "What was asked for"),
}
_AWAITED = Badge("Waiting to start", "busy", "hourglass", "It should run and does not yet")


def of(state: str, *, wanted_running: bool) -> Badge:
    """The badge of a shown state."""
    return _AWAITED if state == STOPPED and wanted_running else _SEEN[state]
