"""The wait that a server asks for: in every form, without a try, by all files of its host, bounded and shown."""

import math
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from agent.common import requested_wait
from agent.downloads import fetch
from agent.downloads.hub import RetryPolicy
from agent.wire.downloads import DownloadState
from tests.agent.downloads.conftest import Node, noise, repository, spec_of
from tests.bench.hub import Hub

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
EPOCH = int(NOW.timestamp())
NO_TRIES = RetryPolicy(connect_seconds=2.0, read_seconds=2.0, pauses=())
"""Every try that is used up fails the download."""

FORMS: list[tuple[dict[str, str], float | None]] = [
    ({"Retry-After": "240"}, 240),
    ({"retry-after": " 240 "}, 240),
    ({"RETRY-AFTER": "0"}, 0),
    ({"Retry-After": "1.5"}, 1.5),
    ({"Retry-After": "Mon, 30 Nov 2026 12:04:00 GMT"}, 240),
    ({"Retry-After": "Monday, 30-Nov-26 12:04:00 GMT"}, 240),
    ({"Retry-After": "Mon Nov 30 12:04:00 2026"}, 240),
    ({"Retry-After": "Mon, 30 Nov 2026 13:04:00 +0100"}, 240),
    ({"Retry-After": "Mon, 30 Nov 2026 12:04:00 GMT", "Date": "Mon, 30 Nov 2026 12:03:00 GMT"}, 60),
    ({"Retry-After": "Mon, 30 Nov 2026 11:00:00 GMT"}, 0),
    ({"Retry-After": "2026-11-30T12:04:00Z"}, 240),
    ({"Retry-After": str(EPOCH + 240)}, 240),
    ({"Retry-After-Ms": "1500"}, 1.5),
    ({"Retry-After-Ms": "1500", "Retry-After": "2"}, 1.5),
    ({"Retry-After": "9" * 400}, float("inf")),
    ({"RateLimit": '"api";r=0;t=240'}, 240),
    ({"RateLimit": '"api";t=240;r=0'}, 240),
    ({"RateLimit": "api; r=0; t=240"}, 240),
    ({"RateLimit": "r=0;t=240"}, 240),
    ({"RateLimit": '"short";r=9;t=500, "long";r=0;t=240'}, 240),
    ({"RateLimit": '"a";r=0;t=10, "b";r=0;t=240'}, 240),
    ({"RateLimit": '"odd;t=999,r=0";r=0;t=240'}, 240),
    ({"RateLimit": '"api";r=0;t=240;pk=:dGVzdD0=:'}, 240),
    ({"RateLimit": '"api";r=3;t=240'}, 240),
    ({"RateLimit": "limit=100, remaining=0, reset=240"}, 240),
    ({"RateLimit": '"resolvers";r=0;t=240', "RateLimit-Policy": '"fixed window";"resolvers";q=3000;w=300'}, 240),
    ({"RateLimit": '"api";r=0;t=240', "Retry-After": "5"}, 5),
    ({"RateLimit": '"api";r=0;t=240', "Retry-After": "soon"}, 240),
    ({"RateLimit-Reset": "240"}, 240),
    ({"RateLimit-Reset": str(EPOCH + 240)}, 240),
    ({"X-RateLimit-Reset": "240"}, 240),
    ({"X-RateLimit-Reset": str(EPOCH + 240)}, 240),
    ({"X-RateLimit-Reset": f"{EPOCH + 240}.0"}, 240),
    ({"X-RateLimit-Reset": str((EPOCH + 240) * 1000)}, 240),
    ({"X-RateLimit-Reset": "Mon, 30 Nov 2026 12:04:00 GMT"}, 240),
    ({"X-RateLimit-Reset": "2026-11-30T12:04:00+00:00"}, 240),
    ({"X-RateLimit-Reset": str(EPOCH - 240)}, 0),
    ({"X-Rate-Limit-Reset": "240"}, 240),
    ({"x-ratelimit-reset-after": "240.25"}, 240.25),
    ({"x-ratelimit-reset-requests": "1m30s", "x-ratelimit-reset-tokens": "4m0s"}, 240),
    ({"x-ratelimit-reset-requests": "250ms"}, 0.25),
    ({}, None),
    ({"Retry-After": ""}, None),
    ({"Retry-After": "-5"}, None),
    ({"Retry-After": "²"}, None),
    ({"Retry-After": "١٢"}, None),
    ({"Retry-After": "1e9"}, None),
    ({"Retry-After": "Mon, 30 Feb 2026 12:04:00 GMT"}, None),
    ({"Retry-After": "x" * 5000}, None),
    ({"RateLimit": '"api";r=0'}, None),
    ({"RateLimit": "nonsense"}, None),
    ({"X-RateLimit-Reset": "later"}, None),
    ({"X-RateLimit-Remaining": "0", "X-RateLimit-Limit": "100"}, None),
]


@pytest.mark.parametrize(("headers", "seconds"), FORMS)
def test_every_form_of_a_wait_is_understood(headers: dict[str, str], seconds: float | None) -> None:
    assert requested_wait.seconds(headers, 429, NOW) == seconds


@pytest.mark.parametrize("status", [403, 408, 500, 502, 503, 504])
def test_limits_in_other_answers_are_no_wait_and_retry_after_is(status: int) -> None:
    limits = {"RateLimit": '"api";r=0;t=240', "X-RateLimit-Reset": "240"}
    assert requested_wait.seconds(limits, status, NOW) is None
    assert requested_wait.seconds({**limits, "Retry-After": "5"}, status, NOW) == 5


def in_form(form: str, left: float) -> dict[str, str]:
    whole = int(left) + 1
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=whole), usegmt=True)
    return {
        "seconds": {"Retry-After": str(whole)},
        "date": {"Retry-After": date},
        "ratelimit": {"RateLimit": f'"resolvers";r=0;t={whole}'},
        "reset": {"RateLimit-Reset": str(whole)},
        "epoch": {"X-RateLimit-Reset": str(math.ceil(time.time() + left))},
    }[form]


@pytest.mark.parametrize("form", ["seconds", "date", "ratelimit", "reset", "epoch"])
async def test_one_refusal_pauses_all_files_uses_up_no_try_and_is_shown_with_its_end(
    hub: Hub, node: Node, form: str
) -> None:
    files = {f"part-{number}.safetensors": noise(1000 + number, number) for number in range(8)}
    found = hub.add(repository(files=files))
    node.options["retry_policy"] = NO_TRIES
    await node.restart()
    hub.faults.limit = lambda left: in_form(form, left)
    hub.faults.limited_until = time.monotonic() + 0.8
    before = datetime.now(UTC)
    await node.downloads.begin("d1", spec_of(hub, found))
    view = await node.until("d1", lambda view: view.waits_until is not None)
    until = datetime.fromisoformat(view.waits_until or "")
    assert before < until < before + timedelta(seconds=4)
    assert "127.0.0.1 limits requests and asked to wait until" in view.text
    assert f"{until:%H:%M:%S} UTC" in view.text
    assert (view.state, view.done_bytes) == (DownloadState.DOWNLOADING, 0)
    refused = len(hub.seen)
    assert refused <= 3, "those that were under way together"
    view = await node.end("d1")
    assert (view.state, view.waits_until, view.text) == (DownloadState.READY, None, "")
    # A server whose clock has no fractions may be called a moment too early once more.
    assert len(hub.seen) <= refused + 3 + len(files)


async def test_sets_share_the_pause_of_a_host_and_another_host_goes_on(hub: Hub, node: Node) -> None:
    one, two = hub.add(repository()), hub.add(repository("acme/other", files={"config.json": b"{}"}))
    hub.faults.refusals = {"store": [(429, {"Retry-After": "3"})]}
    await node.downloads.begin("d1", spec_of(hub, one))
    view = await node.until("d1", lambda view: view.waits_until is not None)
    assert view.text.startswith("localhost limits requests")
    await node.downloads.begin("d2", spec_of(hub, two))
    assert (await node.end("d2")).state is DownloadState.READY, "the hub itself asked for no pause"
    assert node.downloads.view("d1").waits_until is not None
    assert (await node.end("d1")).state is DownloadState.READY
    hub.faults.refusals = {"hub": [(503, {"Retry-After": "1"})]}
    other = hub.add(repository("acme/third", files={"config.json": b"[]"}))
    last = hub.add(repository("acme/last", files={"config.json": b"[1]"}))
    await node.downloads.begin("d3", spec_of(hub, other))
    await node.until("d3", lambda view: view.waits_until is not None)
    asked = len(hub.seen)
    await node.downloads.begin("d4", spec_of(hub, last))
    await node.until("d4", lambda view: view.waits_until is not None)
    assert len(hub.seen) == asked, "the second set asked nothing"
    assert {(await node.end(name)).state for name in ("d3", "d4")} == {DownloadState.READY}


@pytest.mark.parametrize(
    "headers", [{"Retry-After": "86400"}, {"Retry-After": "9" * 300}, {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}]
)
async def test_a_wait_of_more_than_an_hour_is_a_failure_that_says_until_when(
    hub: Hub, node: Node, headers: dict[str, str]
) -> None:
    found = hub.add(repository())
    hub.faults.refusals = {"hub": [(429, headers)] * 9}
    await node.downloads.begin("d1", spec_of(hub, found))
    view = await node.end("d1")
    assert (view.state, view.reason_code) == (DownloadState.FAILED, "hub_rate_limited")
    assert "127.0.0.1 limits requests: it asks to wait until " in (view.reason or "")


async def test_a_server_that_asks_for_no_time_for_ever_is_given_up(
    hub: Hub, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MOST_WAIT_SECONDS", 0.4)
    found = hub.add(repository(files={"config.json": b"{}"}))
    hub.faults.refusals = {"hub": [(429, {"Retry-After": "0"})] * 1000}
    await node.downloads.begin("d1", spec_of(hub, found))
    assert (await node.end("d1")).reason_code == "hub_rate_limited"
    assert len(hub.seen) <= 10, "it is not asked at once each time"


async def test_a_cancel_does_not_wait(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.refusals = {"hub": [(429, {"Retry-After": "600"})] * 9}
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.until("d1", lambda view: view.waits_until is not None)
    began = time.monotonic()
    view = await node.downloads.cancel("d1")
    assert (view.state, view.waits_until) == (DownloadState.CANCELLED, None)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("status", [408, 425, 500, 502, 504])
async def test_other_temporary_refusals_are_tried_again(hub: Hub, node: Node, status: int) -> None:
    found = hub.add(repository(files={"config.json": b"{}"}))
    hub.faults.refusals = {"hub": [(status, {})]}
    await node.downloads.begin("d1", spec_of(hub, found))
    assert (await node.end("d1")).state is DownloadState.READY


@pytest.mark.parametrize(
    ("size", "free", "words"),
    [
        (3 << 20, 100 << 20, ("needs 3.0 MiB more", "leaves 256.0 MiB free", "has 100.0 MiB free", "Free 159.0 MiB")),
        (3 << 20, 0, ("needs 3.0 MiB more", "leaves 256.0 MiB free", "has 0.0 MiB free", "Free 259.0 MiB")),
        (3 << 20, 258 << 20, ("needs 3.0 MiB more", "has 258.0 MiB free", "Free 1.0 MiB")),
        (5 << 30, 2 << 30, ("needs 5.0 GiB more", "has 2.0 GiB free", "Free 3.2 GiB")),
    ],
)
async def test_a_refusal_for_space_says_needed_margin_free_and_missing(
    hub: Hub, config: Any, size: int, free: int, words: tuple[str, ...]
) -> None:
    node = Node(config, free=lambda _: free)
    await node.downloads.recover()
    spec = spec_of(hub, hub.add(repository(files={"config.json": b"{}"})))
    large = spec.files[0].model_copy(update={"size_bytes": size})
    await node.downloads.begin("d1", spec.model_copy(update={"files": (large,)}))
    view = await node.end("d1")
    assert (view.state, view.reason_code) == (DownloadState.FAILED, "disk_full")
    assert [word for word in words if word not in (view.reason or "")] == []
    assert hub.seen == []
    await node.downloads.close()


async def test_space_for_the_set_and_the_margin_suffices(hub: Hub, config: Any) -> None:
    found = hub.add(repository())
    total = sum(map(len, found.files.values()))
    node = Node(config, free=lambda _: total + (256 << 20))
    await node.downloads.recover()
    await node.downloads.begin("d1", spec_of(hub, found))
    assert (await node.end("d1")).state is DownloadState.READY
    await node.downloads.close()
