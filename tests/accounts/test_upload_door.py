"""Large bodies: on the paths of backups, of owners, and nowhere else before a byte of them was read."""

import asyncio
import json

import pytest
from asgiref.sync import sync_to_async

from mirbad.accounts import upload_door
from mirbad.accounts.upload_door import AT_ONCE, MOST_BYTES, UploadDoor
from mirbad.api.bodylimit import MAX_BYTES

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True)]

LARGE = MAX_BYTES + 1


async def counts(scope, receive, send):
    total, more = 0, True
    while more:
        message = await receive()
        total, more = total + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(total).encode()})


async def ask(path="/backup/recover/upload", *, count=LARGE, declared=True, method="POST", headers=(), app=None):
    sent, left = [], [count]

    async def receive():
        size = min(left[0], 1024 * 1024)
        left[0] -= size
        return {"type": "http.request", "body": b"0" * size, "more_body": left[0] > 0}

    async def send(message):
        sent.append(message)

    length = [(b"content-length", str(count).encode())] if declared else []
    scope = {"type": "http", "method": method, "path": path, "headers": [*length, *headers]}
    await (app or UploadDoor(counts))(scope, receive, send)
    return sent[0]["status"], sent[1]["body"], count - left[0]


def cookie(person):
    return [(b"cookie", f"a=b; sessionid={person.client.cookies['sessionid'].value}".encode())]


@pytest.mark.parametrize("path", ["/backup/import/upload", "/backup/recover", "/api/backups/upload"])
async def test_an_owner_may_upload_a_large_backup(owner, path):
    assert await ask(path, headers=cookie(owner)) == (200, str(LARGE).encode(), LARGE)
    assert await ask(path, headers=cookie(owner), declared=False) == (200, str(LARGE).encode(), LARGE)


@pytest.mark.parametrize("name", ["operator", "viewer", "stranger"])
async def test_of_anybody_else_no_byte_is_read(people, name):
    assert (await ask(headers=cookie(people[name])))[::2] == (403, 0)
    assert (await ask(headers=cookie(people[name]), declared=False))[::2] == (403, 0)


@pytest.mark.parametrize(
    "headers",
    [(), [(b"cookie", b"sessionid=0123456789abcdef0123456789abcdef")], [(b"cookie", b"\xff=;;"),
     (b"authorization", b"Bearer mbt_unknown")]],
)  # fmt: skip
async def test_without_a_log_in_no_byte_is_read(headers):
    for path in ("/backup/import", "/api/backups"):
        status, body, taken = await ask(path, headers=[*headers, (b"accept", b"application/json")])
        assert (status, json.loads(body)["code"], taken) == (403, "forbidden", 0)


@pytest.mark.parametrize(("role", "status"), [("owner", 200), ("operator", 403)])
async def test_a_token_counts_on_the_api_alone(with_token, role, status):
    client = await sync_to_async(with_token)(role)
    headers = [(b"authorization", client.defaults["HTTP_AUTHORIZATION"].encode())]
    assert (await ask("/api/backups/upload", headers=headers))[0] == status
    assert (await ask("/backup/recover", headers=headers))[0] == 403


@pytest.mark.parametrize(
    ("path", "method"),
    [("/backup", "POST"), ("/backup/importer", "POST"), ("/api/models", "POST"), ("/backup/recover", "PUT")],
)
async def test_any_other_request_has_the_usual_limit_for_owners_too(owner, path, method):
    status, body, taken = await ask(path, method=method, headers=cookie(owner))
    assert (status, json.loads(body)["code"], taken) == (413, "payload_too_large", 0)


async def test_a_body_beyond_the_limit_is_refused_unread(owner):
    assert (await ask(count=2 * MOST_BYTES, headers=cookie(owner)))[::2] == (413, 0)


async def test_a_small_form_needs_no_look_at_the_session():
    assert await ask(count=100) == (200, b"100", 100)


async def test_more_than_a_few_uploads_at_once_are_refused_until_one_ends(owner):
    free, places = asyncio.Event(), asyncio.Semaphore(0)

    async def holds(scope, receive, send):
        places.release()
        await free.wait()
        await counts(scope, receive, send)

    app = UploadDoor(holds)
    running = [asyncio.create_task(ask(headers=cookie(owner), app=app)) for _ in range(AT_ONCE)]
    for _ in range(AT_ONCE):
        await places.acquire()
    assert (await ask(headers=cookie(owner), app=app))[::2] == (503, 0)
    free.set()
    assert {(await one)[0] for one in running} == {200}
    assert (await ask(headers=cookie(owner), app=app))[0] == 200


def test_the_prefixes_have_no_slash_at_their_end():
    assert all(prefix.startswith("/") and not prefix.endswith("/") for prefix in upload_door.PREFIXES)
