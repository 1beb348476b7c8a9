"""Readiness of an engine by the response of its health endpoint."""

import json
from types import SimpleNamespace

import pytest
from aiohttp import web

from agent.running import probe
from agent.running.health import Prober, ProbeResult, judge
from agent.runtimes.llama_cpp import LlamaCpp
from agent.runtimes.vllm import Vllm
from tests.bench.services import free_port

pytestmark = pytest.mark.unit

READY, LOADING = ProbeResult.READY, ProbeResult.LOADING


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (b"", READY),
        (b"OK", READY),
        (b'{"status": "ok"}', READY),
        (b'{"status": "ok", "model": "org/loading-dock-7b"}', READY),
        (b'{"status": "ok", "slots": [{"state": "loading"}]}', READY),
        (b'{"status": "ok", "note": "No model is loading."}', READY),
        (b"<html>loading...</html>", READY),
        (b'{"status": "loading', READY),
        (b"[" * 50_000, READY),
        (b"9" * 50_000, READY),
        (b"\xff\xfe", READY),
        (b"null", READY),
        (b'["loading"]', READY),
        (b'{"loading": false}', READY),
        (b'{"loading": true}', LOADING),
        (b'{"status": "loading model"}', LOADING),
        (b'{"status": " Loading"}', LOADING),
        (b'{"state":"LOADING"}', LOADING),
        (b'{"status": "loa\\u0064ing model"}', LOADING),
        (b'"loading"', LOADING),
    ],
)
def test_loading_is_read_as_json_and_not_as_a_word(body: bytes, result: ProbeResult) -> None:
    assert judge(200, body) is result


@pytest.mark.parametrize("status", [201, 204, 302, 401, 404, 500, 503])
def test_only_200_is_ready(status: int) -> None:
    assert judge(status, b'{"status": "ok"}') is LOADING


async def test_a_body_that_arrives_in_pieces_is_read_whole() -> None:
    body = json.dumps({"padding": "x" * 20_000, "status": "loading model"}).encode()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(body), 1000):
            await response.write(body[start : start + 1000])
        return response

    app = web.Application()
    app.router.add_get("/health", answer)
    runner, port, prober = web.AppRunner(app), free_port(), Prober()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        assert await prober.probe("127.0.0.1", port, "/health", "key") is LOADING
    finally:
        await prober.close()
        await runner.cleanup()


LLAMA, VLLM = LlamaCpp(), Vllm()
REPORTS = [
    (LLAMA, 200, b'{"default_generation_settings": {"n_ctx": 4096}, "chat_template": "' + b"x" * 100_000 + b'"}', 4096),
    (VLLM, 200, b'{"data": [{"id": "m", "max_model_len": 131072}]}', 131072),
    (VLLM, 200, b'{"data": [{"id": "m", "max_model_len": null}]}', None),
    (VLLM, 200, b'{"data": [{"id": "m", "max_model_len": 0}]}', None),
    (VLLM, 200, b'{"data": [{"id": "m", "max_model_len": true}]}', None),
    (VLLM, 200, b'{"data": [{"id": "m", "max_model_len": "4096"}]}', None),
    (VLLM, 200, b'{"data": [{"id": "m", "max_model_len": 4294967296}]}', None),
    (VLLM, 200, b'{"data": []}', None),
    (VLLM, 200, b'{"data": {}}', None),
    (VLLM, 200, b'["data"]', None),
    (VLLM, 200, b"null", None),
    (VLLM, 200, b"[" * 100_000, None),
    (VLLM, 200, b"\xff", None),
    (VLLM, 200, b"x" * 1_000_000, None),
    (VLLM, 500, b'{"data": [{"id": "m", "max_model_len": 4096}]}', None),
]


@pytest.mark.parametrize(("runtime", "status", "body", "tokens"), REPORTS)
async def test_the_context_is_what_the_engine_reports_and_otherwise_unknown(runtime, status, body, tokens) -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer key"
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_get(runtime.report_path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    context = SimpleNamespace(prober=Prober())
    record = SimpleNamespace(spec=SimpleNamespace(runtime=runtime.name, rendezvous=None), address=("127.0.0.1", port))
    record.api_key = "key"
    assert await probe.context_length(context, record) == tokens
    await runner.cleanup()
    assert await probe.context_length(context, record) is None
    await context.prober.close()
