"""The simulated engine itself: the shapes of its answers, its speed, its faults."""

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web

from agent.runtimes import sim_engine
from agent.wire.instances import InstanceState
from tests.agent.engines.conftest import Node, spec
from tests.waiting import until, until_async

Start = Any


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Start the engine in this loop; the address of its API."""
    monkeypatch.setenv("SIM_API_KEY", "k")
    runners: list[web.AppRunner] = []

    async def begin(*arguments: str) -> str:
        options = sim_engine.parser().parse_args(["--served-name", "org/m", "--tokens-per-second", "0", *arguments])
        runner = web.AppRunner(sim_engine.application(options), handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    yield begin
    for runner in runners:
        await runner.cleanup()


def client(url: str, key: str = "k") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0)


MESSAGES: Any = [{"role": "user", "content": "hello there"}]


async def test_a_client_of_openai_gets_a_stream_with_usage(start: Start) -> None:
    async with client(await start()) as api:
        stream = await api.chat.completions.create(
            model="org/m", messages=MESSAGES, max_tokens=20, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "simulated engine" in text
    assert "東京" in text
    assert chunks[-1].choices == []
    assert chunks[-1].usage
    assert (chunks[-1].usage.completion_tokens, chunks[-1].usage.prompt_tokens) == (20, 2)
    assert chunks[-2].choices[0].finish_reason == "length"


async def test_usage_is_not_sent_unless_asked_for(start: Start) -> None:
    async with client(await start()) as api:
        stream = await api.chat.completions.create(model="org/m", messages=MESSAGES, stream=True)
        assert all(chunk.usage is None for chunk in [chunk async for chunk in stream])


async def test_text_completions_embeddings_and_models_have_their_shapes(start: Start) -> None:
    async with client(await start()) as api:
        text = await api.completions.create(model="org/m", prompt="hi", max_tokens=4)
        assert text.usage
        assert text.usage.completion_tokens == 4
        vectors = await api.embeddings.create(model="org/m", input=["a", "b", "a"], encoding_format="float")
        assert vectors.data[0].embedding == vectors.data[2].embedding != vectors.data[1].embedding
        assert [model.id async for model in await api.models.list()] == ["org/m"]


async def test_refusals_are_those_of_an_engine(start: Start) -> None:
    url = await start("--context-length", "100")
    async with client(url, "wrong") as api:
        with pytest.raises(openai.AuthenticationError):
            await api.models.list()
    async with client(url) as api:
        with pytest.raises(openai.NotFoundError):
            await api.chat.completions.create(model="other", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as refused:
            await api.chat.completions.create(model="org/m", messages=MESSAGES, max_tokens=101)
    assert refused.value.param == "max_tokens"


async def test_tokens_come_at_the_set_rate(start: Start) -> None:
    async with client(await start("--tokens-per-second", "40", "--first-token-seconds", "0.2")) as api:
        begun = time.monotonic()
        await api.completions.create(model="org/m", prompt="hi", max_tokens=17)
        assert 0.59 <= time.monotonic() - begun < 2.0


async def raw(url: str, *, stream: bool = True) -> bytes:
    body = {"model": "org/m", "messages": MESSAGES, "max_tokens": 20, "stream": stream}
    headers = {"Authorization": "Bearer k"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}/chat/completions", json=body) as answer,
    ):
        return await answer.read()


async def test_a_stream_that_is_cut_small_is_the_same_stream(start: Start) -> None:
    events = [json.loads(line[6:]) for line in (await raw(await start("--split-bytes"))).split(b"\n\n")[:-2]]
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert "東京" in text


async def test_wrong_bytes_are_wrong(start: Start) -> None:
    with pytest.raises(UnicodeDecodeError):
        (await raw(await start("--wrong-bytes"))).decode()


async def test_a_stream_can_break_off_and_can_end_in_an_error(start: Start) -> None:
    with pytest.raises(aiohttp.ClientError):
        await raw(await start("--cut-after-tokens", "3"))
    events = (await raw(await start("--error-after-tokens", "3"))).split(b"\n\n")
    assert b'"error"' in events[-3]
    assert events[-2] == b"data: [DONE]"


async def test_a_client_that_leaves_frees_the_engine(start: Start) -> None:
    url = await start("--tokens-per-second", "5")
    request = asyncio.create_task(raw(url, stream=False))

    def metric(name: str) -> str:
        with urllib.request.urlopen(url.replace("/v1", "/metrics")) as response:
            values = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines())
        return str(values[f"sim:{name}"])

    await asyncio.to_thread(until, lambda: metric("num_requests_running") == "1", "the request to run")
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await asyncio.to_thread(until, lambda: metric("num_requests_running") == "0", "the slot to be free")
    assert await asyncio.to_thread(metric, "requests_aborted_total") == "1"


async def test_an_engine_told_to_refuse_answers_with_that_status(start: Start) -> None:
    async with client(await start("--answer-status", "503")) as api:
        with pytest.raises(openai.InternalServerError) as refused:
            await api.chat.completions.create(model="org/m", messages=MESSAGES)
    assert refused.value.status_code == 503


async def test_a_log_that_grows_past_its_limit_is_rotated_and_read_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.logs.LIMIT_BYTES", 20_000)
    await node.instances.launch("i1", "op1", spec(args=("--log-bytes-per-second", "40000")))
    await node.until("i1", InstanceState.READY)
    place, numbers = 0, []
    log = node.instances._supervisors["i1"].log
    while place < 60_000:
        await until_async(lambda: log.file.base + log.file.size() > place, "more of the log")  # noqa: B023
        part = await node.instances.log("i1", 1000, place)
        numbers += [int(line.split()[1]) for line in part.lines if line.startswith("line ")]
        place = part.next
    assert log.file.base > 0
    folder = node.config.state_dir / "instances"
    assert sum(path.stat().st_size for path in folder.glob("i1*.log")) < 3 * 20_000
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 8
