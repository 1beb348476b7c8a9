"""The access log: one line a request, no secret in it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models_app.gateway import access, core
from models_app.gateway.access import AccessLog, AccessLogLine
from tests.gateway.downstream import ask, refused
from tests.gateway.fleet import SECRET, Fleet

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    fleet = Fleet()
    path = tmp_path_factory.mktemp("logs") / "v1-access.log"
    fleet.access = AccessLog(path)
    fleet.start()
    yield fleet, path
    fleet.stop()


def test_each_request_is_one_line_without_keys_and_prompts(logged):
    fleet, path = logged
    parent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    ask(fleet, {"model": "m", "messages": "the prompt"}, x_request_id="mine", traceparent=parent)
    refused(fleet, {"model": "nothing"})
    refused(fleet, {"model": "m"}, key="ssk_" + "z" * 43)
    refused(fleet, None, "/v1/models/ssk_" + "y" * 43, method="GET")
    fleet.run(fleet.gateway.recorder.write())
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["status"] for line in lines] == [200, 404, 401, 404]
    assert [line["outcome"] for line in lines] == ["ok", "refused", "refused", "refused"]
    first = lines[0]
    assert (first["request_id"], first["trace_id"], first["key_id"]) == ("mine", "a" * 32, 1)
    assert (first["model"], first["node"], first["path"]) == ("m", "n1", "/v1/chat/completions")
    assert (first["prompt_tokens"], first["completion_tokens"]) == (3, 2)
    assert 0 <= first["own_seconds"] <= first["seconds"]
    for secret in (SECRET, "z" * 43, "y" * 43, "the prompt"):
        assert secret not in text


def line_of(**changes):
    plain = AccessLogLine(
        1764439200.25, "req-" + "0a" * 12, "ab" * 16, None, "POST", "/v1/embeddings", "m", "n", 200, "ok",
        1.5, None, 0.25, None, 0,
    )  # fmt: skip
    return plain._replace(**changes)


def test_a_line_is_json_with_a_time_that_anyone_reads():
    assert json.loads(access.render(line_of())) == {
        "time": "2025-11-29T18:00:00.250+00:00",
        "request_id": "req-" + "0a" * 12,
        "trace_id": "ab" * 16,
        "key_id": None,
        "method": "POST",
        "path": "/v1/embeddings",
        "model": "m",
        "node": "n",
        "status": 200,
        "outcome": "ok",
        "seconds": 1.5,
        "first_byte_seconds": None,
        "own_seconds": 0.25,
        "prompt_tokens": None,
        "completion_tokens": 0,
    }


@given(st.text(max_size=40), st.text(max_size=20), st.from_regex(core._REQUEST_ID.pattern.decode(), fullmatch=True))
def test_whatever_a_client_sends_a_line_stays_a_line(path, method, request_id):
    text = access.render(line_of(path=path, method=method, request_id=request_id))
    assert "\n" not in text
    assert set(json.loads(text)) >= {"time", "path", "request_id"}


@pytest.mark.parametrize("secret", ["ssk_" + "q" * 20, "hf_" + "q" * 20, "Q" * 43])
def test_a_secret_in_place_of_an_id_or_a_path_is_not_written(secret):
    assert secret not in access.render(line_of(request_id=secret, path=f"/v1/{secret}"))


def test_thousands_of_lines_are_written_whole_and_in_order(tmp_path):
    log = AccessLog(tmp_path / "a.log")
    log.write([line_of(key_id=number) for number in range(2500)])
    log.close()
    found = [json.loads(text)["key_id"] for text in (tmp_path / "a.log").read_text().splitlines()]
    assert found == list(range(2500))
