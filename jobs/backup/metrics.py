"""Metrics of backups for Prometheus, from their rows. What never happened has no line."""

from collections.abc import Iterator

from jobs.backup import freshness
from jobs.states import SUCCEEDED


def render() -> bytes:
    """Render the text exposition; six statements at most."""
    return "".join(_lines()).encode()


def _lines() -> Iterator[str]:
    if (at := freshness.last_good_at()) is not None:
        yield from _gauge(
            "mirbad_backup_last_success_timestamp_seconds", "Moment of the newest good backup.", at.timestamp()
        )
    last = freshness.last_finished()
    if last is not None and last.finished_at is not None:
        good = float(last.outcome == SUCCEEDED)
        yield from _gauge("mirbad_backup_last_result", "1 when the last backup succeeded, 0 otherwise.", good)
        seconds = (last.finished_at - last.created_at).total_seconds()
        yield from _gauge("mirbad_backup_last_duration_seconds", "Duration of the last backup.", seconds)
        if last.bytes is not None:
            yield from _gauge("mirbad_backup_last_bytes", "Size of the last backup.", float(last.bytes))
    ages = freshness.ages()
    if ages:
        name = "mirbad_backup_destination_last_success_timestamp_seconds"
        yield from _head(name, "Moment of the newest good backup at a destination.")
        for age in ages:
            if age.last_good_at is not None:
                yield _sample(name, _label(age.destination.name), age.last_good_at.timestamp())
        yield from _head(
            "mirbad_backup_destination_stale", "1 when the newest backup at a destination is older than it should be."
        )
        for age in ages:
            yield _sample("mirbad_backup_destination_stale", _label(age.destination.name), float(age.is_stale))


def _head(name: str, words: str) -> Iterator[str]:
    yield f"# HELP {name} {words}\n# TYPE {name} gauge\n"


def _sample(name: str, labels: str, value: float) -> str:
    return f"{name}{f'{{{labels}}}' if labels else ''} {value!r}\n"


def _gauge(name: str, words: str, value: float) -> Iterator[str]:
    yield from _head(name, words)
    yield _sample(name, "", value)


def _label(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return f'destination="{escaped}"'
