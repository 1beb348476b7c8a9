"""The limit of uploads, before Django, which stores a whole body before any view runs.

The paths of `PREFIXES` take a backup: a body above the usual limit, but of an owner alone, and a few at a time. All
else has the usual limit, so that nobody without a log-in can fill the disk.
"""

from importlib import import_module

from channels.db import database_sync_to_async
from django.conf import settings as django_settings
from django.contrib.auth import get_user
from django.http import HttpRequest
from django.http.cookie import parse_cookie

from mirbad.accounts import door, tokens
from mirbad.accounts.permissions import rank_of_token
from mirbad.api.bodylimit import MAX_BYTES, App, BodyLimit, Receive, Scope, Send, declared_bytes
from mirbad.api.problems import Forbidden
from mirbad.kernel.errors import Unavailable
from mirbad.kernel.roles import OWNER, has_role, rank_of_role

MOST_BYTES = 512 * 1024 * 1024
PREFIXES = ("/backup/import", "/backup/recover", "/api/backups")
_FORM_BYTES = 1024 * 1024
"""The boundaries and other fields of a form around a file."""

AT_ONCE = 2
_WAIT_SECONDS = 30


class UploadDoor:
    """An ASGI application around `app`: limits every body, those of uploads by an owner to `MOST_BYTES`."""

    def __init__(self, app: App) -> None:
        self._usual, self._large = BodyLimit(app), BodyLimit(app, MOST_BYTES + _FORM_BYTES)
        self._places = AT_ONCE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request. A large upload of anybody else is refused before its first byte is read."""
        if not _is_large_upload(scope):
            await self._usual(scope, receive, send)
        elif not await _is_of_owner(scope):
            error = Forbidden("Only an owner may upload a backup. Log in as one, and upload it again.")
            await door.refuse(scope, send, error)
        elif not self._places:
            text = "Other backups are being uploaded at the moment. Try again in a minute."
            await door.refuse(scope, send, Unavailable(text, retry_after_seconds=_WAIT_SECONDS))
        else:
            self._places -= 1
            try:
                await self._large(scope, receive, send)
            finally:
                self._places += 1


def is_upload(method: str, path: str) -> bool:
    """Return whether a request may carry a backup."""
    return method == "POST" and any(path == prefix or path.startswith(f"{prefix}/") for prefix in PREFIXES)


def _is_large_upload(scope: Scope) -> bool:
    if not is_upload(scope.get("method", ""), scope["path"]):
        return False
    count = declared_bytes(scope)
    return count is None or count > MAX_BYTES


async def _is_of_owner(scope: Scope) -> bool:
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    scheme, _, secret = headers.get(b"authorization", "").partition(" ")
    if scheme.lower() == "bearer" and scope["path"].startswith("/api/"):
        return bool(await database_sync_to_async(_is_owners_token)(secret.strip()))
    return bool(await database_sync_to_async(_is_owners_session)(headers.get(b"cookie", "")))


def _is_owners_token(secret: str) -> bool:
    token = tokens.find(secret)
    return token is not None and rank_of_token(token) >= rank_of_role(OWNER)


def _is_owners_session(cookies: str) -> bool:
    request = HttpRequest()
    key = parse_cookie(cookies).get(django_settings.SESSION_COOKIE_NAME)
    request.session = import_module(django_settings.SESSION_ENGINE).SessionStore(key)
    return has_role(get_user(request), OWNER)
