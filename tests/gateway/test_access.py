"""The access log: one line a request, no secret in it."""

import json

import pytest

from models_app.gateway.access import AccessLog
from tests.gateway.client import ask, refused
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
