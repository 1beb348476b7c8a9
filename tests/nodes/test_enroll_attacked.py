"""The enroll listener as a process under attack; `make figures ONLY=trust` sends many more."""

import pytest

from tests.bench.simfleet.master import SimMaster
from tests.bench.simfleet.site import LIMITS, RACERS, Site, bad_requests, changes, race

pytestmark = pytest.mark.e2e

BAD = 320
RACES = 4


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    master = SimMaster(tmp_path_factory.mktemp("attacked"), **LIMITS)
    yield Site(master, RACES)
    master.close()


def test_no_bad_request_is_accepted_breaks_anything_or_burns_a_token(site):
    before = site.state()
    outcome, _ = bad_requests(site, BAD)
    told = "\n".join(outcome.lines())
    assert sum(outcome.statuses.values()) == BAD
    assert outcome.count(200, 399) == 0, told
    assert outcome.count(500, 599) == 0, told
    assert outcome.count(0, 0) == 0, told
    assert changes(before, site.state()) == 0
    assert "Traceback" not in site.master.logs()


def test_of_many_keys_that_race_for_a_token_through_two_listeners_one_wins(site):
    won, statuses = race(site)
    pins = dict(site.state()["pins"])
    assert statuses == {200: RACES, 403: RACES * (RACERS - 1)}
    assert {node_id: [pins[node_id]] for node_id in won} == won
