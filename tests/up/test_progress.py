"""Lines that a person reads while Mirbad comes up."""

import io

import pytest

from mirbad.up.progress import ProgressDisplay

pytestmark = pytest.mark.unit


def test_away_from_a_terminal_a_state_is_a_line_when_it_changes():
    stream = io.StringIO()
    progress = ProgressDisplay(stream, started=0)
    for text in ("waiting (1 MB)", "waiting (2 MB)", "loading", "loading"):
        progress.now(text)
    progress.done("ready")
    lines = [line.split(" s  ")[1] for line in stream.getvalue().splitlines()]
    assert lines == ["… waiting (1 MB)", "… loading", "✓ ready"]


def test_seconds_count_from_one_moment_for_all_processes(monkeypatch):
    monkeypatch.setenv("MIRBAD_INTERNAL_STARTED", "1000.5")
    assert ProgressDisplay(io.StringIO()).started == 1000.5
