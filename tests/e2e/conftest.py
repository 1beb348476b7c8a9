"""Fleets for the tests of this folder."""

import pytest

from tests.e2e.fleet import fleets


@pytest.fixture
def make_fleet(tmp_path):
    """Makes complete masters; they are closed after the test."""
    yield from fleets(tmp_path)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """One running master without a model, for all tests of a module."""
    for make in fleets(tmp_path_factory.mktemp("fleet")):
        yield make().start()
