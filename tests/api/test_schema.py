"""The published schema: sound, without warnings, true of what the routes answer, and no request makes a fault."""

import json
from urllib.parse import urlencode

import pytest
import requests
import schemathesis
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core import NotSet
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = [pytest.mark.app, pytest.mark.django_db]

PUBLISHED = json.loads(json.dumps(SchemaGenerator().get_schema(request=None, public=True), default=str))
SCHEMA = schemathesis.openapi.from_dict(PUBLISHED)
OPERATIONS = {
    f"{operation.method.upper()} {operation.path}": operation
    for operation in (result.ok() for result in SCHEMA.get_all_operations())
}


def no_fault(ctx, response, case):
    """Nothing goes wrong inside: a 503 says that another machine is away, which here each one is."""
    if response.status_code != 503:
        not_a_server_error(ctx, response, case)


CHECKS = [no_fault, status_code_conformance, content_type_conformance, response_schema_conformance]


def test_the_schema_is_valid_and_describes_every_view_without_a_guess():
    with GENERATOR_STATS.silence():
        validate_schema(SchemaGenerator().get_schema(request=None, public=True))
        warnings = {**GENERATOR_STATS._warn_cache, **GENERATOR_STATS._error_cache}
    assert not warnings


def test_every_error_is_described_as_a_problem_document():
    assert len(PUBLISHED["paths"]) > 50
    for path, methods in PUBLISHED["paths"].items():
        for method, operation in methods.items():
            content = operation["responses"]["400"]["content"]
            assert list(content) == ["application/problem+json"], f"{method} {path}"


def test_the_schema_says_how_to_authenticate():
    assert PUBLISHED["components"]["securitySchemes"]["adminToken"]["scheme"] == "bearer"


def answer_of(client, case):
    query = f"?{urlencode(case.query, doseq=True)}" if case.query else ""
    sent = bool(case.media_type) and not isinstance(case.body, NotSet)
    body = json.dumps(case.body).encode() if sent else b""
    response = client.generic(
        case.method.upper(),
        f"{case.formatted_path}{query}",
        body,
        content_type=case.media_type or "application/json",
    )
    return Response(
        status_code=response.status_code,
        headers={name.lower(): [value] for name, value in response.headers.items()},
        content=response.content,
        request=requests.Request(case.method.upper(), f"http://testserver{case.formatted_path}{query}").prepare(),
        elapsed=0.0,
        verify=False,
    )


@pytest.mark.parametrize("name", OPERATIONS, ids=str)
def test_no_request_makes_a_fault_and_every_answer_is_as_published(name, with_token, fleet, identity):
    client = with_token("owner")
    seen = []

    @settings(
        max_examples=12,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[name].as_strategy())
    def attempt(case):
        answer = answer_of(client, case)
        seen.append(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    attempt()
    assert seen
