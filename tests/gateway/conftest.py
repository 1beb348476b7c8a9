"""One fleet for all tests of the gateway; each test begins with a ready model and an engine that says hello."""

import pytest

from tests.gateway.engine import hello
from tests.gateway.fleet import Fleet


@pytest.fixture(scope="session")
def _fleet():
    fleet = Fleet().start()
    yield fleet
    fleet.stop()


@pytest.fixture
def fleet(_fleet):
    _fleet.engine.script = hello
    _fleet.engine.seen.clear()
    _fleet.instances.ready, _fleet.instances.port, _fleet.instances.generation = True, None, 1
    _fleet.table()
    return _fleet
