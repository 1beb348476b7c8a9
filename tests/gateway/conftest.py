"""Fleets for all tests of the gateway; each test begins with a ready model and an engine that says hello."""

import pytest

from tests.gateway.engine import hello
from tests.gateway.fleet import Fleet


def _fresh(fleet):
    fleet.engine.script = hello
    fleet.engine.seen.clear()
    fleet.pages_seen.clear()
    fleet.instances.restore()
    fleet.table()
    return fleet


@pytest.fixture(scope="session")
def _fleet():
    fleet = Fleet().start()
    yield fleet
    fleet.stop()


@pytest.fixture
def fleet(_fleet):
    return _fresh(_fleet)


@pytest.fixture(scope="session", params=["fast", "asgi"])
def _each_protocol(request):
    fleet = Fleet(protocol=request.param, max_body_bytes=64 * 1024 * 1024, max_in_flight=1200).start()
    yield fleet
    fleet.stop()


@pytest.fixture
def each_protocol(_each_protocol):
    """A fleet that takes large bodies and many requests, behind either door."""
    return _fresh(_each_protocol)
