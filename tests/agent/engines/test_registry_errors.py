"""Refusals of registries, told apart by what Docker says of them: unauthorized, forbidden, rate limit, and others."""

import base64
import json
import os
import pwd
from pathlib import Path

import pytest

from agent.deliveries import registry_errors, registry_login
from agent.deliveries.base import DeliveryFailed
from agent.deliveries.docker_pull import _explained
from agent.deliveries.images import parse
from agent.deliveries.registry_login import RegistryLogin
from agent.wire.images import PullFailure

pytestmark = pytest.mark.unit

DIGEST = "sha256:" + "4290403401" * 6 + "abcd"
IMAGE = parse(f"registry.local:5000/forbidden/unauthorized@{DIGEST}")
COMMAND = "sudo -u mirbad-agent docker --config /home/a/.docker login registry.local:5000"
NOBODY = RegistryLogin("registry.local:5000", "mirbad-agent", "", COMMAND)
SOMEBODY = RegistryLogin("registry.local:5000", "mirbad-agent", "bob", COMMAND)
UNSEEN = RegistryLogin("registry.local:5000", "mirbad-agent", None, COMMAND)

UNAUTHORIZED, FORBIDDEN = PullFailure.REGISTRY_UNAUTHORIZED, PullFailure.REGISTRY_FORBIDDEN
LIMITED, ABSENT = PullFailure.REGISTRY_RATE_LIMITED, PullFailure.IMAGE_NOT_FOUND
UNTRUSTED, UNREACHABLE = PullFailure.REGISTRY_UNTRUSTED, PullFailure.REGISTRY_UNREACHABLE

SURE = [
    (UNAUTHORIZED, 'Head "https://registry.local:5000/v2/forbidden/manifests/1": no basic auth credentials'),
    (UNAUTHORIZED, "unauthorized"),
    (UNAUTHORIZED, "unauthorized: authentication required"),
    (UNAUTHORIZED, "Get https://r/v2/: unauthorized: incorrect username or password"),
    (UNAUTHORIZED, "unauthorized: authentication required, visit https://aka.ms/acr/authorization"),
    (UNAUTHORIZED, "denied: Your authorization token has expired. Reauthenticate and try again."),
    (UNAUTHORIZED, ("failed to authorize: failed to fetch oauth token: unexpected status from POST request to "
     "https://auth.docker.io/token: 401 Unauthorized")),
    (UNAUTHORIZED, ('denied: Unauthenticated request. Unauthenticated requests do not have permission '
     '"artifactregistry.repositories.downloadArtifacts" on resource "projects/p" (or it may not exist)')),
    (UNAUTHORIZED, "Credentials store error: StoreError('docker-credential-pass not installed')"),
    (FORBIDDEN, "failed to resolve reference: unexpected status from HEAD request to https://r/v2/x: 403 Forbidden"),
    (FORBIDDEN, "error parsing HTTP 403 response body: invalid character '<' looking for beginning of value"),
    (FORBIDDEN, "denied: access forbidden"),
    (FORBIDDEN, 'denied: Permission "artifactregistry.repositories.downloadArtifacts" denied on resource "projects/p"'),
    (FORBIDDEN, ("failed to authorize: failed to fetch anonymous token: unexpected status from GET request to "
     "https://ghcr.io/token?scope=x: 403 Forbidden")),
    (LIMITED, ("toomanyrequests: You have reached your pull rate limit. You may increase the limit by logging in and "
     "upgrading: https://www.docker.com/increase-rate-limit")),
    (LIMITED, "toomanyrequests: You have reached your unauthenticated pull rate limit."),
    (LIMITED, "error from registry: You have reached your unauthenticated pull rate limit."),
    (LIMITED, "received unexpected HTTP status: 429 Too Many Requests"),
    (LIMITED, "toomanyrequests: retry-after: 2.5ms, allowed: 44000/minute"),
    (LIMITED, "denied: Quota exceeded for quota metric 'Requests per project per region'"),
    (LIMITED, "toomanyrequests: Rate exceeded"),
    (ABSENT, "manifest unknown"),
    (ABSENT, f"manifest for {IMAGE.reference} not found: manifest unknown: manifest unknown"),
    (ABSENT, "name unknown: repository name not known to registry"),
    (ABSENT, f'failed to resolve reference "{IMAGE.reference}": {IMAGE.reference}: not found'),
    (ABSENT, "unexpected status from HEAD request: 404 Not Found"),
    (UNTRUSTED, 'Get "https://r/v2/": tls: failed to verify certificate: x509: unknown authority'),
    (UNTRUSTED, 'Get "https://r/v2/": x509: certificate has expired or is not yet valid'),
    (UNTRUSTED, 'Get "https://r/v2/": http: server gave HTTP response to HTTPS client'),
    (UNTRUSTED, "remote error: tls: handshake failure"),
    (UNREACHABLE, 'Get "https://r/v2/": dial tcp: lookup r on 127.0.0.53:53: no such host'),
    (UNREACHABLE, 'Get "https://r/v2/": dial tcp 192.0.2.1:443: connect: connection refused'),
    (UNREACHABLE, ('Get "https://r/v2/": net/http: request canceled while waiting for connection '
     "(Client.Timeout exceeded while awaiting headers)")),
    (UNREACHABLE, 'Get "https://r/v2/": net/http: TLS handshake timeout'),
    (UNREACHABLE, ("failed to authorize: failed to fetch anonymous token: Get https://auth.docker.io/token: "
     "dial tcp: lookup auth.docker.io: i/o timeout")),
    (UNREACHABLE, "received unexpected HTTP status: 503 Service Unavailable"),
    (UNREACHABLE, "proxyconnect tcp: dial tcp 10.0.0.1:3128: connect: no route to host"),
    (PullFailure.PULL_FAILED, "write /var/lib/docker/tmp/GetImageBlob1: no space left on device"),
    (PullFailure.PULL_FAILED, "no matching manifest for linux/arm64/v8 in the manifest list entries"),
    (PullFailure.PULL_FAILED, "failed to resolve: no match for platform in manifest: not found"),
    (PullFailure.PULL_FAILED, "something that nobody has seen before"),
]  # fmt: skip
AMBIGUOUS = [
    (
        "pull access denied for forbidden/unauthorized, repository does not exist or may require 'docker login': "
        "denied: requested access to the resource is denied"
    ),
    (
        "pull access denied, repository does not exist or may require authorization: server message: "
        "insufficient_scope: authorization failed"
    ),
    "denied: denied",
    "unauthorized: access to the requested resource is not authorized",
    "unauthorized: unauthorized to access repository: forbidden/unauthorized, action: pull",
    "repository forbidden/unauthorized not found: does not exist or no pull access",
]


@pytest.mark.parametrize("login", [NOBODY, SOMEBODY, UNSEEN], ids=["nobody", "somebody", "unseen"])
@pytest.mark.parametrize(("code", "text"), SURE)
def test_a_message_that_leaves_no_doubt_has_its_code_for_every_log_in(
    code: PullFailure, text: str, login: RegistryLogin
) -> None:
    for spelled in (text, text.upper(), f"Error response from daemon: {text}"):
        assert registry_errors.explain(spelled, IMAGE, login).code is code


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_a_message_for_both_cases_is_told_apart_by_the_log_in(text: str) -> None:
    assert registry_errors.explain(text, IMAGE, NOBODY).code is UNAUTHORIZED
    for login in (SOMEBODY, UNSEEN):
        assert registry_errors.explain(text, IMAGE, login).code is FORBIDDEN


@pytest.mark.parametrize("text", ["denied", "403 Forbidden", "toomanyrequests", "authentication required"])
def test_the_sentence_has_the_command_the_user_and_the_account(text: str) -> None:
    for login in (NOBODY, SOMEBODY):
        hint = registry_errors.explain(text, IMAGE, login).hint
        assert COMMAND in hint
        assert "registry.local:5000" in hint
        assert ("'bob'" in hint) is (login is SOMEBODY)
    assert "mirbad-agent has n" in registry_errors.explain("denied", IMAGE, NOBODY).hint


@pytest.mark.parametrize("name", ["forbidden", "denied", "rate-limit", "not-found", "unauthorized", "x509"])
def test_the_name_of_an_image_decides_nothing(name: str) -> None:
    image = parse(f"registry.local/{name}/{name}@{DIGEST}")
    for text in (
        f"failed to copy {image.reference}: odd",
        f"pulling {name}/{name}: odd",
        f'Get "https://registry.local/v2/{name}/{name}/manifests/{name}": odd',
    ):
        assert registry_errors.explain(text, image, NOBODY).code is PullFailure.PULL_FAILED


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path


def configured(folder: Path, content: object) -> None:
    (folder / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))


def auth(user: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:a-secret".encode()).decode()}


def test_the_account_is_that_of_dockers_client_and_its_password_is_nowhere(folder: Path) -> None:
    configured(folder, {"auths": {"registry.local:5000": auth("bob"), "https://index.docker.io/v1/": auth("carol")}})
    me = pwd.getpwuid(os.geteuid()).pw_name
    found = registry_login.of("registry.local:5000/team/engine")
    assert (found.registry, found.user, found.account) == ("registry.local:5000", me, "bob")
    assert found.command.endswith(f"docker --config {folder} login registry.local:5000")
    assert registry_login.of("vllm/vllm-openai").account == "carol"
    assert registry_login.of("vllm/vllm-openai").command.endswith("login")
    assert registry_login.of("other.local/engine").account == ""
    failed = _explained(IMAGE, "denied: https://bob:a-secret@registry.local token=abcdefgh12345678")
    assert failed.code == "registry_forbidden"
    assert "abcdefgh12345678" not in str(failed)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{half",
        "[]",
        {"auths": {"registry.local:5000": {}}},
        {"auths": {"registry.local:5000": {"identitytoken": "x"}}},
        {"credHelpers": {"registry.local:5000": "not-there"}},
        {"credsStore": "not-there"},
    ],
)
def test_a_configuration_that_says_no_account_leaves_it_unknown_or_none(folder: Path, content: object) -> None:
    configured(folder, content)
    assert registry_login.of("registry.local:5000/team/engine").account in ("", None)


def test_a_user_without_a_name_is_shown_by_number(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    found = registry_login.of("registry.local/engine")
    assert found.user == "#54321"
    assert found.command.startswith("sudo -u '#54321' docker --config ")


def test_the_failure_of_a_pull_has_the_code_and_quotes_docker(folder: Path) -> None:
    failed = _explained(parse(f"registry.local/engine@{DIGEST}"), "toomanyrequests: slow down")
    assert isinstance(failed, DeliveryFailed)
    assert failed.code == "registry_rate_limited"
    assert "Docker says: toomanyrequests: slow down" in str(failed)
