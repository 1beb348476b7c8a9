"""Every error of /api is problem+json with a code; bodies are read strictly."""

import json

import pytest

pytestmark = [pytest.mark.app, pytest.mark.django_db]

PROBLEM = "application/problem+json"


def problem(response, status, code):
    assert response.status_code == status, response.content
    assert response["Content-Type"] == PROBLEM
    document = response.json()
    assert document["status"] == status
    assert document["code"] == code
    assert document["detail"]
    return document


def post(client, body, content_type="application/json", path="/api/tokens"):
    return client.post(path, body, content_type=content_type)


def test_who_is_not_signed_in_gets_401_that_names_the_scheme(anybody):
    response = anybody.get("/api/audit")
    problem(response, 401, "unauthenticated")
    assert response["WWW-Authenticate"].startswith("Bearer")


def test_who_has_too_small_a_role_gets_403_that_names_the_one_needed(viewer):
    assert "owner" in problem(viewer.client.get("/api/tokens"), 403, "forbidden")["detail"]


@pytest.mark.parametrize("path", ["/api/nothing", "/api/models/..%2f", "/api/keys/0", "/api/keys/99999999999999999999"])
def test_an_address_that_is_none_is_a_problem_document_too(owner, path):
    problem(owner.client.get(path), 404, "not_found")


def test_a_method_that_is_not_there_names_those_that_are(owner):
    response = owner.client.put("/api/audit", "{}", content_type="application/json")
    problem(response, 405, "method_not_allowed")
    assert "GET" in response["Allow"]


def test_another_media_type_is_refused(owner):
    problem(post(owner.client, "a=b", "application/x-www-form-urlencoded"), 415, "unsupported_media_type")


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "zstd", "br", "gzip, gzip", "identity, deflate", "\u00e9"])
def test_a_compressed_body_is_refused_with_what_is_read(owner, coding):
    answer = owner.client.post(
        "/api/tokens", b"\x1f\x8b", content_type="application/json", headers={"Content-Encoding": coding}
    )
    assert "only 'identity' is" in problem(answer, 415, "unsupported_media_type")["detail"]


@pytest.mark.parametrize("coding", ["identity", "", "Identity, identity"])
def test_a_body_that_is_not_compressed_is_read(owner, coding):
    body = json.dumps({"name": "ci", "role": "viewer"})
    answer = owner.client.post(
        "/api/tokens", body, content_type="application/json", headers={"Content-Encoding": coding}
    )
    assert answer.status_code == 201


def test_an_answer_that_cannot_be_given_is_refused(owner):
    problem(owner.client.get("/api/audit", headers={"Accept": "image/png"}), 406, "not_acceptable")


FOREIGN = [
    "text/html", "application/xml;q=0.9, text/*", "*", "garbage", "/", "a/b/c", ";;;", ",,,", "\x00/\x00", "é/é",
    "application/problem+json", "application/jsonp", "text/event-stream", "a" * 5000, "application/json;q=0",
    "application/json ; Q=0.000, text/html", "text/html, */*;q=0",
]  # fmt: skip
ROUTE_KINDS = ["/api/audit", "/api/nodes", "/api/nodes/none", "/api/status", "/api/schema", "/metrics"]


@pytest.mark.parametrize("path", ROUTE_KINDS)
@pytest.mark.parametrize("method", ["get", "options", "post", "put", "patch", "delete"])
def test_no_spelling_of_a_foreign_accept_is_a_fault(owner, path, method):
    answers = [getattr(owner.client, method)(path, headers={"Accept": accept}) for accept in FOREIGN]
    assert [(one.status_code, one.json()["code"]) for one in answers] == [(406, "not_acceptable")] * len(FOREIGN)
    assert all("Send it in Accept" in one.json()["detail"] for one in answers)


@pytest.mark.parametrize("accept", FOREIGN)
def test_a_token_and_a_head_get_it_too(with_token, accept):
    client = with_token("viewer")
    assert client.head("/api/audit", headers={"Accept": accept}).status_code == 406
    assert "application/json" in client.get("/api/audit", headers={"Accept": accept}).json()["detail"]


SATISFIED = ["", " ", "*/*", "application/*", "APPLICATION/JSON", "text/html, application/json;q=0.1"]


@pytest.mark.parametrize("accept", [*SATISFIED, "application/json; indent=x"])
def test_an_accept_that_json_satisfies_gets_json(owner, accept):
    response = owner.client.get("/api/audit", headers={"Accept": accept})
    assert (response.status_code, response["Content-Type"]) == (200, "application/json")


BAD_BODIES = {
    "nothing": b"",
    "half": b'{"name": ',
    "trailing": b'{"name": "x"} x',
    "constant": b'{"name": NaN}',
    "infinity": b'{"name": -Infinity}',
    "float over the top": b'{"name": 1e999}',
    "huge int": b'{"name": ' + b"9" * 5000 + b"}",
    "deep list": b"[" * 100_000,
    "deep object": b'{"a":' * 50_000,
    "nul": b'{"name": "a\\u0000b"}',
    "nul in a name": b'{"na\\u0000me": "x"}',
    "lone surrogate": b'{"name": "\\ud800"}',
    "lone surrogate in a name": b'{"\\udfff": "x"}',
    "twice the same": b'{"name": "a", "name": "b"}',
    "not utf-8": b'{"name": "\xff\xfe"}',
    "utf-16": '{"name": "a"}'.encode("utf-16"),
    "bom": b"\xef\xbb\xbf{}",
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "unknown member": b'{"name": "x", "role": "viewer", "admin": true}',
    "wrong types": b'{"name": {"a": 1}, "role": ["viewer"], "expiresAt": 12}',
    "raw control character": b'{"name": "a\nb"}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
@pytest.mark.parametrize("path", ["/api/tokens", "/api/keys", "/api/models"])
def test_a_body_that_breaks_a_rule_is_400_and_changes_nothing(owner, body, path):
    problem(post(owner.client, body, path=path), 400, "invalid_request")


def test_validation_names_every_member_that_is_wrong(owner):
    document = problem(post(owner.client, json.dumps({"role": "king", "x": 1})), 400, "invalid_request")
    assert {(item["field"], item["code"]) for item in document["problems"]} == {("x", "unknown_member")}
    document = problem(post(owner.client, json.dumps({"role": "king"})), 400, "invalid_request")
    assert {(item["field"], item["code"]) for item in document["problems"]} == {
        ("name", "required"),
        ("role", "invalid_choice"),
    }


def test_a_body_over_the_limit_is_413(owner):
    problem(post(owner.client, b'{"name": "' + b"x" * 1024 * 1024 + b'"}'), 413, "payload_too_large")


def test_a_session_without_its_csrf_token_may_not_write(owner):
    owner.client.handler.enforce_csrf_checks = True
    problem(post(owner.client, "{}"), 403, "csrf_failed")


def test_a_token_needs_no_csrf_token(with_token):
    client = with_token("owner")
    client.handler.enforce_csrf_checks = True
    assert post(client, json.dumps({"name": "ci", "role": "viewer"})).status_code == 201


def test_a_page_form_without_its_csrf_token_is_refused_as_a_page(anybody):
    anybody.handler.enforce_csrf_checks = True
    response = anybody.post("/login", {"username": "a", "password": "b"})
    assert response.status_code == 403
    assert "html" in response["Content-Type"]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "limit=-1", "offset=9" + "9" * 30, "limit=%00", "limit=%D9%A1"]
)
def test_a_page_that_cannot_be_is_400(owner, query):
    problem(owner.client.get(f"/api/tokens?{query}"), 400, "invalid_request")


@pytest.mark.parametrize(
    "query",
    [
        "max=0",
        "max=1001",
        "since=yesterday",
        "since=2027-01-31",
        "since=2027-99-99T00:00:00Z",
        "before=0",
        "nodeId=%00",
    ],
)
def test_an_audit_question_that_cannot_be_is_400(owner, query):
    problem(owner.client.get(f"/api/audit?{query}"), 400, "invalid_request")


def test_a_host_that_is_not_listed_says_which_setting_to_change(owner):
    response = owner.client.get("/api/audit", headers={"Host": "evil.example"})
    assert "MIRBAD_HOSTS" in problem(response, 400, "invalid_request")["detail"]


def test_a_fault_is_a_problem_document_without_its_insides(owner, monkeypatch):
    from audit import queries

    def broken(**_):
        raise RuntimeError("the secret is hunter2")

    monkeypatch.setattr(queries, "lines", broken)
    response = owner.client.get("/api/audit")
    problem(response, 500, "internal")
    assert "hunter2" not in response.content.decode()


def test_a_busy_database_is_503_with_a_time_to_come_back(owner, monkeypatch):
    from django.db import OperationalError

    from audit import queries

    def locked(**_):
        raise OperationalError("database is locked")

    monkeypatch.setattr(queries, "lines", locked)
    response = owner.client.get("/api/audit")
    problem(response, 503, "unavailable")
    assert response["Retry-After"] == "2"
