"""A simulated engine with an OpenAI-compatible API: configured speed and start time, and faults on demand.

Run as a script by the agent or in a container; it imports the standard library and aiohttp only. The key is read from
SIM_API_KEY; without it every route is open. ``--help`` lists the faults.
"""

import argparse
import asyncio
import hashlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

_WORDS = (
    "This", " is", " the", " simulated", " engine", ":", " it", " answers", " at", " a", " set", " speed", ",",
    " café", " naïve", " 東京", " 🚀", ".",
)  # fmt: skip
_DIMENSIONS = 16


@dataclass
class Counters:
    """Counters behind ``/metrics``."""

    running: int = 0
    requests: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    started: float = field(default_factory=time.monotonic)


Blocked = Callable[[], tuple[int, str] | None]
"""Returns the status and message of a refusal while the engine cannot serve, else None."""

BLOCKED: web.AppKey[Blocked] = web.AppKey("blocked")
OPTIONS = web.AppKey("options", argparse.Namespace)
COUNTERS = web.AppKey("counters", Counters)


def parser() -> argparse.ArgumentParser:
    """Return the parser of every option of the engine."""
    parse = argparse.ArgumentParser("sim-engine", allow_abbrev=False)
    parse.add_argument("--host", default="127.0.0.1")
    parse.add_argument("--port", type=int, default=8000)
    parse.add_argument("--served-name", action="append", default=[])
    parse.add_argument("--context-length", type=int, default=8192)
    parse.add_argument("--tokens-per-second", type=float, default=50.0, help="0 is unlimited")
    parse.add_argument("--first-token-seconds", type=float, default=0.0)
    parse.add_argument("--default-tokens", type=int, default=16, help="length of a completion without max_tokens")
    parse.add_argument("--start-seconds", type=float, default=0.0, help="time in which /health reports loading")
    parse.add_argument("--loading-as-200", action="store_true", help="/health returns 200 with a body while loading")
    parse.add_argument("--keyed-health", action="store_true", help="/health requires the key too")
    fault = parse.add_argument_group("faults")
    fault.add_argument("--die-at-start", metavar="TEXT", help="write TEXT to stderr and exit at once")
    fault.add_argument("--exit-code", type=int, default=1)
    fault.add_argument("--die-after-seconds", type=float)
    fault.add_argument("--hang-at-load", action="store_true", help="accept connections, never answer /health")
    fault.add_argument("--never-ready", action="store_true", help="/health reports loading for ever")
    fault.add_argument("--unhealthy-after-seconds", type=float, help="/health returns 500 from then on")
    fault.add_argument("--ignore-sigterm", action="store_true")
    fault.add_argument("--wrong-bytes", action="store_true", help="streams contain bytes that are no UTF-8 and no JSON")
    fault.add_argument("--split-bytes", action="store_true", help="streams are split inside characters and events")
    fault.add_argument("--cut-after-tokens", type=int, help="the connection drops in the middle of a stream")
    fault.add_argument("--error-after-tokens", type=int, help="a stream ends with an error event")
    fault.add_argument("--answer-status", type=int, help="every completion returns this status and an error body")
    fault.add_argument("--log-bytes-per-second", type=int, default=0)
    return parse


def _error(status: int, message: str, kind: str, code: str | None = None, param: str | None = None) -> web.Response:
    return web.json_response({"error": {"message": message, "type": kind, "code": code, "param": param}}, status=status)


@web.middleware
async def _guard(request: web.Request, handler: Any) -> web.StreamResponse:
    """Refuse a request without the key with 401, as engines do; health is open unless ``--keyed-health``."""
    options = request.app[OPTIONS]
    key = os.environ.get("SIM_API_KEY")
    is_open = request.path in {"/health", "/metrics"} and not options.keyed_health
    if key and not is_open and request.headers.get("Authorization") != f"Bearer {key}":
        return _error(401, "Invalid API key", "authentication_error", "invalid_api_key")
    answer: web.StreamResponse = await handler(request)
    return answer


async def health(request: web.Request) -> web.StreamResponse:
    """Return 200 when ready, 503 (or 200 with a body that says loading) before."""
    options, age = request.app[OPTIONS], time.monotonic() - request.app[COUNTERS].started
    if options.hang_at_load:
        await asyncio.sleep(86_400)
    if refusal := request.app[BLOCKED]():
        return _error(refusal[0], refusal[1], "server_error")
    if options.unhealthy_after_seconds is not None and age >= options.unhealthy_after_seconds:
        return _error(500, "the engine is unhealthy", "server_error")
    if options.never_ready or age < options.start_seconds:
        return web.json_response({"status": "loading model"}, status=200 if options.loading_as_200 else 503)
    return web.json_response({"status": "ok"})


async def models(request: web.Request) -> web.StreamResponse:
    """Return the served names."""
    options = request.app[OPTIONS]
    data = [
        {"id": name, "object": "model", "created": 0, "owned_by": "sim", "max_model_len": options.context_length}
        for name in options.served_name
    ]
    return web.json_response({"object": "list", "data": data})


async def metrics(request: web.Request) -> web.StreamResponse:
    """Return the counters in the text format of Prometheus."""
    counters = request.app[COUNTERS]
    lines = [
        f"sim:num_requests_running {counters.running}",
        f"sim:requests_total {counters.requests}",
        f"sim:requests_aborted_total {counters.aborted}",
        f"sim:prompt_tokens_total {counters.prompt_tokens}",
        f"sim:generation_tokens_total {counters.generated_tokens}",
    ]
    return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")


async def _body(request: web.Request) -> dict[str, Any] | web.Response:
    try:
        body = await request.json()
    except ValueError:
        return _error(400, "The body is not valid JSON", "invalid_request_error")
    if not isinstance(body, dict):
        return _error(400, "The body must be a JSON object", "invalid_request_error")
    options = request.app[OPTIONS]
    if refusal := request.app[BLOCKED]():
        return _error(503, refusal[1], "server_error")
    if options.answer_status:
        return _error(options.answer_status, "the engine was configured to refuse", "server_error")
    if options.served_name and body.get("model") not in options.served_name:
        return _error(
            404, f"The model `{body.get('model')}` does not exist.", "NotFoundError", "model_not_found", "model"
        )
    return body


def _prompt_text(body: dict[str, Any]) -> str:
    if "messages" in body:
        parts = [str(message.get("content", "")) for message in body["messages"] if isinstance(message, dict)]
        return " ".join(parts)
    return str(body.get("prompt", ""))


def _requested_tokens(body: dict[str, Any], options: argparse.Namespace) -> int | web.Response:
    requested = body.get("max_completion_tokens") or body.get("max_tokens") or options.default_tokens
    if not isinstance(requested, int) or requested < 1:
        return _error(400, "max_tokens must be a positive integer", "invalid_request_error", param="max_tokens")
    if requested > options.context_length:
        return _error(
            400,
            f"max_tokens ({requested}) is larger than the context of {options.context_length} tokens",
            "BadRequestError",
            param="max_tokens",
        )
    return requested


async def _tokens(options: argparse.Namespace, requested: int) -> AsyncIterator[str]:
    """Yield words at the configured rate; due times are absolute, so that a slow reader does not change the rate."""
    await asyncio.sleep(options.first_token_seconds)
    begin = asyncio.get_running_loop().time()
    for number in range(requested):
        if options.tokens_per_second > 0 and number:
            due = begin + number / options.tokens_per_second
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        yield _WORDS[number % len(_WORDS)]


class SimResponse:
    """The bodies of one response: chat or text, complete or in chunks."""

    def __init__(self, body: dict[str, Any], *, chat: bool, prompt_tokens: int) -> None:
        self.chat = chat
        self.prompt_tokens = prompt_tokens
        self.head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex[:24],
            "created": int(time.time()),
            "model": body.get("model", ""),
        }

    def usage(self, generated: int) -> dict[str, Any]:
        """Return the token counts."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self.prompt_tokens + generated,
        }

    def chunk(self, text: str | None, finish: str | None = None) -> dict[str, Any]:
        """Return one event of a stream; `text` None opens a chat."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        if self.chat:
            choice["delta"] = (
                {"role": "assistant", "content": ""} if text is None else ({"content": text} if text else {})
            )
        else:
            choice["text"] = text or ""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self.head, "object": kind, "choices": [choice]}

    def whole(self, text: str, generated: int) -> dict[str, Any]:
        """Return the response to a request that does not stream."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
        choice.update({"message": {"role": "assistant", "content": text}} if self.chat else {"text": text})
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self.head, "object": kind, "choices": [choice], "usage": self.usage(generated)}


async def _complete(request: web.Request, *, chat: bool) -> web.StreamResponse:
    body = await _body(request)
    if isinstance(body, web.Response):
        return body
    options, counters = request.app[OPTIONS], request.app[COUNTERS]
    requested = _requested_tokens(body, options)
    if isinstance(requested, web.Response):
        return requested
    reply = SimResponse(body, chat=chat, prompt_tokens=max(1, len(_prompt_text(body).split())))
    counters.requests += 1
    counters.running += 1
    counters.prompt_tokens += reply.prompt_tokens
    try:
        if body.get("stream"):
            return await _stream(request, body, reply, requested)
        parts: list[str] = []
        async for word in _tokens(options, requested):
            parts.append(word)
            counters.generated_tokens += 1
        return web.json_response(reply.whole("".join(parts), len(parts)))
    except (asyncio.CancelledError, ConnectionError):
        counters.aborted += 1
        sys.stderr.write(f"request {reply.head['id']} aborted by its client\n")
        sys.stderr.flush()
        raise
    finally:
        counters.running -= 1


async def _send(response: web.StreamResponse, data: bytes, *, split: bool) -> None:
    if not split:
        await response.write(data)
        return
    for start in range(0, len(data), 7):
        await response.write(data[start : start + 7])
        await asyncio.sleep(0)


async def _stream(request: web.Request, body: dict[str, Any], reply: SimResponse, requested: int) -> web.StreamResponse:
    options, counters = request.app[OPTIONS], request.app[COUNTERS]
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    await response.prepare(request)

    async def event(value: Any) -> None:
        data = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        await _send(response, b"data: " + data.encode() + b"\n\n", split=options.split_bytes)

    if reply.chat:
        await event(reply.chunk(None))
    count = 0
    async for word in _tokens(options, requested):
        if options.cut_after_tokens is not None and count >= options.cut_after_tokens:
            if request.transport is not None:
                request.transport.abort()
            return response
        if options.error_after_tokens is not None and count >= options.error_after_tokens:
            await event({"error": {"message": "the engine failed", "type": "server_error", "code": 500}})
            await event("[DONE]")
            return response
        if options.wrong_bytes:
            await response.write(b"data: {\xff\xfe not json \xc3\n\n")
        else:
            await event(reply.chunk(word))
        count += 1
        counters.generated_tokens += 1
    await event(reply.chunk("", "length"))
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {**reply.chunk(""), "choices": [], "usage": reply.usage(count)}
        await event(usage)
    await event("[DONE]")
    await response.write_eof()
    return response


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Handle ``POST /v1/chat/completions``."""
    return await _complete(request, chat=True)


async def completions(request: web.Request) -> web.StreamResponse:
    """Handle ``POST /v1/completions``."""
    return await _complete(request, chat=False)


async def embeddings(request: web.Request) -> web.StreamResponse:
    """Handle ``POST /v1/embeddings``: the vector is made from the text's digest, so equal texts are equal."""
    body = await _body(request)
    if isinstance(body, web.Response):
        return body
    inputs = body.get("input")
    texts = inputs if isinstance(inputs, list) else [inputs]
    data = []
    for index, text in enumerate(texts):
        digest = hashlib.sha256(str(text).encode()).digest()
        vector = [byte / 127.5 - 1 for byte in digest[:_DIMENSIONS]]
        data.append({"object": "embedding", "index": index, "embedding": vector})
    count = sum(max(1, len(str(text).split())) for text in texts)
    usage = {"prompt_tokens": count, "total_tokens": count}
    request.app[COUNTERS].requests += 1
    return web.json_response({"object": "list", "model": body.get("model"), "data": data, "usage": usage})


def application(options: argparse.Namespace, blocked: Blocked = lambda: None) -> web.Application:
    """Return the engine as an aiohttp application."""
    app = web.Application(middlewares=[_guard], client_max_size=256 * 1024 * 1024)
    app[OPTIONS] = options
    app[COUNTERS] = Counters()
    app[BLOCKED] = blocked
    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat_completions)
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/embeddings", embeddings)
    return app


Companion = Callable[[asyncio.Event], AbstractAsyncContextManager[None]]  # it may set the event that stops the server


async def _serve(options: argparse.Namespace, blocked: Blocked, companion: Companion | None) -> int:
    # handler_cancellation: an engine notices that its client has disconnected and frees the slot
    runner = web.AppRunner(application(options, blocked), handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, options.host, options.port).start()
    sys.stderr.write(f"sim engine serving {options.served_name} on {options.host}:{options.port}\n")
    sys.stderr.flush()
    stop = asyncio.Event()
    if options.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    noise = asyncio.create_task(_make_noise(options.log_bytes_per_second))
    try:
        async with companion(stop) if companion else nullcontext(), asyncio.timeout(options.die_after_seconds):
            await stop.wait()
        code = 0
    except TimeoutError:
        sys.stderr.write("the engine was configured to exit now\n")
        code = options.exit_code
    noise.cancel()
    await runner.cleanup()
    return int(code)


async def _make_noise(bytes_per_second: int) -> None:
    number = 0
    while bytes_per_second > 0:
        number += 1
        line = f"line {number} "
        sys.stderr.write(line + "." * max(0, bytes_per_second // 10 - len(line) - 1) + "\n")
        sys.stderr.flush()
        await asyncio.sleep(0.1)


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or a requested fault."""
    return run(parser().parse_args(arguments))


def run(options: argparse.Namespace, blocked: Blocked = lambda: None, companion: Companion | None = None) -> int:
    """Run `main` with parsed options. Returns the exit code."""
    if options.die_at_start is not None:
        sys.stderr.write(f"{options.die_at_start}\n")
        return int(options.exit_code)
    try:
        return asyncio.run(_serve(options, blocked, companion))
    except OSError as error:
        sys.stderr.write(f"sim engine cannot listen: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
