"""Reasons why a master is not ready, as a person reads them."""

import pytest
from django.db import DatabaseError

from mirbad import health
from mirbad.kernel import disk
from mirbad.tasking import heartbeat

pytestmark = pytest.mark.app


def test_a_silent_process_is_named_without_a_time_that_nobody_measured(db, monkeypatch):
    signs = {name: 1.0 for name in heartbeat.PROCESSES if name != "watcher"}
    monkeypatch.setattr(heartbeat, "alive", lambda: signs)
    assert health.unready_reasons() == ["Process watcher sends no heartbeat."]


def test_a_database_that_is_away_is_one_line(monkeypatch):
    class Away:
        def cursor(self):
            raise DatabaseError("connection failed\n\tIs the server running?")

    monkeypatch.setattr(health, "connection", Away())
    monkeypatch.setattr(heartbeat, "alive", lambda: dict.fromkeys(heartbeat.PROCESSES, 1.0))
    assert health.unready_reasons() == ["The database does not respond: connection failed Is the server running?"]


def test_a_disk_that_takes_nothing_more_is_a_reason(db, client, monkeypatch):
    monkeypatch.setattr(heartbeat, "alive", lambda: dict.fromkeys(heartbeat.PROCESSES, 1.0))
    monkeypatch.setattr(disk, "unwritable_reason", lambda folder, name: f"The disk of {name} is full.")
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {
        "ready": False,
        "reasons": ["The disk of the data folder is full."],
        "warnings": [],
    }
