"""A wrong clock of the machine is said in the agent's log, whichever side notices it."""

import logging
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import aiohttp
import pytest

from agent import clock
from agent.common.keys import new_key
from agent.server.clocks import Clocks
from nodes.pki import certs
from tests.agent.core.conftest import Agent
from tests.agent.core.fleet import Leaf, now
from tests.waiting import until_async

pytestmark = pytest.mark.unit


def header(ahead: timedelta) -> str:
    return format_datetime(datetime.now(UTC) + ahead, usegmt=True)


@pytest.mark.parametrize(
    ("ahead", "says"),
    [
        (timedelta(hours=2), "is behind the master's"),
        (timedelta(days=400), "is behind the master's"),
        (timedelta(minutes=16), "is behind the master's"),
        (timedelta(minutes=-16), "is ahead of the master's"),
        (timedelta(days=-400), "is ahead of the master's"),
        (timedelta(minutes=14), ""),
        (timedelta(minutes=-14), ""),
        (timedelta(), ""),
    ],
)
def test_the_time_of_a_request_is_compared(caplog: pytest.LogCaptureFixture, ahead: timedelta, says: str) -> None:
    Clocks().note_date(header(ahead))
    assert (says in caplog.text) if says else caplog.text == ""


@pytest.mark.parametrize("text", [None, "", "soon", "Mon, 99 Foo 2026 25:61:61 GMT", "9" * 400, "2026-11-30T12:00:00Z"])
def test_a_time_that_is_none_says_nothing(caplog: pytest.LogCaptureFixture, text: str | None) -> None:
    Clocks().note_date(text)
    assert caplog.text == ""


def test_it_is_said_again_after_ten_minutes_and_once_the_clock_went_wrong_anew(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, moment = Clocks(), [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: moment[0])
    wrong, right = header(timedelta(hours=3)), header(timedelta())
    for seconds, text, lines in ((0, wrong, 1), (30, wrong, 1), (601, wrong, 2), (610, right, 2), (611, wrong, 3)):
        moment[0] = seconds
        clocks.note_date(text)
        assert len(caplog.records) == lines, seconds


async def test_an_agent_whose_clock_is_behind_says_that_in_its_log(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen from a clock that is behind, the master's certificate begins in the future."""
    key = new_key()
    young = Leaf(key, certs.issue_master_client(agent.fleet.issuer, key.public_key(), now() + timedelta(days=2)))
    master = agent.new_master(young)
    for _ in range(3):
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await master.get("/info")
    await until_async(lambda: "is not valid yet by this machine's clock" in caplog.text, "the line in the log")
    assert "timedatectl" in caplog.text
    assert len([one for one in caplog.records if "not valid yet" in one.getMessage()]) == 1


async def test_an_agent_whose_clock_is_ahead_says_that_in_its_log(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    key = new_key()
    old = Leaf(key, certs.issue_master_client(agent.fleet.issuer, key.public_key(), now() - timedelta(days=4000)))
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await agent.new_master(old).get("/info")
    await until_async(lambda: "has expired by this machine's clock" in caplog.text, "the line in the log")


async def test_a_stranger_says_nothing_about_clocks(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    from tests.agent.core.fleet import Fleet

    key = new_key()
    stranger = Leaf(key, certs.issue_master_client(Fleet().issuer, key.public_key(), now() + timedelta(days=2)))
    caplog.set_level(logging.INFO)
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await agent.new_master(stranger).get("/info")
    assert (await agent.new_master(agent.fleet.master).get("/info")).status == 200
    assert "clock" not in caplog.text


async def test_a_request_of_a_master_with_another_time_is_answered_and_said(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await agent.new_master(agent.fleet.master).send("GET", "/info", Date=header(timedelta(hours=1)))
    assert answer.status == 200
    assert "is behind the master's" in caplog.text
