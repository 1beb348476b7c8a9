"""The schedule of a destination: a cron expression of five fields, in UTC. Pure."""

from datetime import UTC, datetime

from cronsim import CronSim, CronSimError

from mirbad.kernel.errors import InvalidRequest


def check(expression: str) -> None:
    """Raise InvalidRequest for an expression that is none, or that names no time."""
    try:
        if len(expression.split()) != 5:  # the library also takes a sixth one, of seconds
            raise CronSimError("five fields")
        next(CronSim(expression, datetime(2026, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration):
        text = f"{expression!r} is no schedule. Enter five fields like '30 2 * * *' (each day at 02:30 UTC)."
        raise InvalidRequest(
            text, problems=[{"code": "schedule_invalid", "message": text, "field": "schedule"}]
        ) from None


def next_after(expression: str, moment: datetime) -> datetime:
    """Return the first time of a checked expression after `moment`."""
    found: datetime = next(CronSim(expression, moment.astimezone(UTC)))
    return found


def words(expression: str) -> str:
    """Return a checked expression in words: ``At 02:30 every day``."""
    return str(CronSim(expression, datetime(2026, 1, 1, tzinfo=UTC)).explain())
