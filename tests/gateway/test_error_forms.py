"""Errors in the form of each API, whole and in a stream, and token limits that no client can leave."""

import json

import pytest

from models_app.gateway import errors
from models_app.gateway.limits import tokens_spent
from models_app.gateway.table import KeyEntry
from models_app.gateway.usage import TokenUsage, usage_of
from models_app.keys import digest
from tests.gateway.downstream import Raw, ask, refused
from tests.gateway.fleet import SECRET

ERROR = errors.unknown_model("m")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_messages_have_errors_of_anthropics_api(status, kind):
    error = errors.GatewayError(status, "code", "Words.")
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        found = {"type": "error", "error": {"type": kind, "message": "Words.", "code": "code"}}
        assert json.loads(error.body(path)) == found
        assert error.event(path) == b"event: error\ndata: " + error.body(path) + b"\n\n"


@pytest.mark.unit
def test_other_apis_have_openais_and_streams_of_responses_their_own_event():
    assert set(json.loads(ERROR.body("/v1/responses"))["error"]) == {"message", "type", "param", "code"}
    assert ERROR.event("/v1/chat/completions") == b"data: " + ERROR.body() + b"\n\n"
    kind, data = ERROR.event("/v1/responses").split(b"\n")[:2]
    assert kind == b"event: error"
    assert json.loads(data.removeprefix(b"data: ")) == {
        "type": "error", "code": "model_not_found", "message": ERROR.message, "param": "model"
    }  # fmt: skip


@pytest.mark.e2e
def test_a_stream_of_messages_that_breaks_ends_with_its_error_event(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(b"event: ping\ndata: {}\n\n")
        seen.writer.transport.abort()

    fleet.engine.script = script
    with Raw(fleet) as client:
        client.post({"model": "m", "stream": True}, path="/v1/messages")
        body = client.read_until(b"0\r\n\r\n")
    assert b'event: error\ndata: {"type": "error", "error": {"type": "api_error"' in body
    _, data = ask(fleet, {"model": "x"}, "/v1/messages")
    assert json.loads(data)["error"]["type"] == "not_found_error"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"prompt_tokens": 10**23, "completion_tokens": 1}, TokenUsage(None, 1)),
        ({"prompt_tokens": -1, "completion_tokens": "7"}, None),
        ({"prompt_tokens": 1.5, "completion_tokens": True}, None),
        ({"prompt_tokens": [1], "completion_tokens": {"a": 1}}, None),
        ({"prompt_tokens": 100_000_000, "completion_tokens": 100_000_001}, TokenUsage(100_000_000, None)),
        ({"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 90}, TokenUsage(95, 2)),
        ({"input_tokens": 5, "cache_creation_input_tokens": 8, "cache_read_input_tokens": None}, TokenUsage(13, None)),
        ({"input_tokens": 5, "cache_read_input_tokens": 10**30}, TokenUsage(5, None)),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 1}, TokenUsage(9, 1)),
    ],
)
def test_absurd_reports_count_as_none_and_cached_prompts_count(found, expected):
    assert usage_of({"usage": found}) == expected


@pytest.mark.unit
@pytest.mark.parametrize(
    ("used", "sent", "events", "left", "spent"),
    [
        (TokenUsage(3, 4), 4000, 100, False, 7),
        (TokenUsage(3, 4), 4000, 100, True, 103),
        (None, 400, 7, True, 107),
        (None, 400, 7, False, 107),
        (None, 4_000_000, 0, True, 1000),  # a debt of a minute at most
        (None, None, 0, True, 0),  # no engine worked on it
        (TokenUsage(3, None), 400, 9, False, 12),
    ],
)
def test_what_is_not_reported_is_estimated(used, sent, events, left, spent):
    key = KeyEntry(1, "k", None, None, tokens_per_minute=1000)
    assert tokens_spent(used, key, sent, events, left=left) == spent


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("key_id", "options"),
    [(83, {}), (84, {"stream_options": None}), (85, {"stream_options": {"include_usage": False}})],
)
def test_a_stream_counts_its_tokens_whatever_its_options_say(fleet, key_id, options):
    fleet.table(keys={digest(SECRET): KeyEntry(key_id, "limited", None, None, tokens_per_minute=50)})
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":20}}\n\n'

    async def script(seen):
        await seen.events(b'data: {"choices":[1]}\n\n', usage, b"data: [DONE]\n\n")

    fleet.engine.script = script
    _, data = ask(fleet, {"model": "m", "stream": True, **options})
    assert data == b'data: {"choices":[1]}\n\ndata: [DONE]\n\n'
    assert fleet.engine.seen[-1].json["stream_options"] == {"include_usage": True}
    assert refused(fleet, {"model": "m"}) == (429, "rate_limit_exceeded")


@pytest.mark.e2e
def test_leaving_early_does_not_save_tokens(fleet):
    fleet.table(keys={digest(SECRET): KeyEntry(82, "limited", None, None, tokens_per_minute=50)})

    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        for _ in range(60):
            await seen.chunk(b'data: {"choices":[1]}\n\n')
        await seen.left.wait()

    fleet.engine.script = script
    with Raw(fleet) as client:
        client.post({"model": "m", "stream": True})
        seen = client.read_until(b"[1]")
        while seen.count(b"[1]") < 60:
            seen += client.socket.recv(65536)
    assert fleet.wait_for(lambda: fleet.gateway.places.taken == 0, 2)
    assert refused(fleet, {"model": "m"}) == (429, "rate_limit_exceeded")


@pytest.mark.e2e
@pytest.mark.parametrize("coding", ["gzip", "zstd", "br", "identity, gzip"])
def test_a_compressed_body_is_refused_by_name(fleet, coding):
    status, code = refused(fleet, b"\x1f\x8b", Content_Encoding=coding)
    assert (status, code) == (415, "unsupported_content_encoding")
    assert ask(fleet, b"\x1f", Content_Encoding=coding)[0].getheader("accept-encoding") == "identity"
    assert ask(fleet, {"model": "m"}, Content_Encoding="Identity")[0].status == 200
