"""Fixtures of the tests of trust."""

import pytest
from structlog.testing import capture_logs

from nodes.link import health
from tests.trust import bench


@pytest.fixture
def table():
    """A master that commands three nodes; and the table on which others can be put."""
    with bench.playing() as make:
        made = make()
        made.first()
        for node_id in bench.NODES:
            health.connect(node_id)
        yield made


@pytest.fixture
def log_lines():
    """Yield the log lines of this test, as sentences."""
    with capture_logs() as entries:
        yield Sentences(entries)


class Sentences(list):
    """Reads the captured entries as they come."""

    def __init__(self, entries):
        super().__init__()
        self._entries = entries

    def __iter__(self):
        return iter([str(entry["event"]) for entry in self._entries])

    def __contains__(self, text):
        return text in list(iter(self))
