"""Fixtures of the tests of trust."""

import pytest
from structlog.testing import capture_logs


@pytest.fixture
def log_lines():
    """What is logged in this test, as sentences."""
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
