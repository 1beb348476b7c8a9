"""Fixtures of the nodes tests."""

import pytest

from nodes.link import pools
from nodes.pki import authority


@pytest.fixture
def master(db):
    """A master with its authority."""
    return authority.ensure()


@pytest.fixture
def live_master(transactional_db):
    """The same where other threads must see the rows."""
    yield authority.ensure()
    pools.database_threads().release()
