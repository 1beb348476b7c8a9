"""The order of the bootstrap, and what a person reads at its end."""

import json
import os
import shlex
from collections.abc import Callable

from jobs.loops import resume, takeover
from mirbad import checks
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError
from mirbad.up import folder
from mirbad.up.bootstrap import database, people, visitor, waiting
from mirbad.up.bootstrap.node import OwnNode
from mirbad.up.bootstrap.starter import StarterModel
from mirbad.up.errors import CannotStart
from mirbad.up.programs import Layout
from mirbad.up.progress import Progress
from mirbad.up.session import web_url
from nodes.pki import authority, store

_SERVICES_SECONDS = 90.0


def run(progress: Progress, report: Callable[[str], None]) -> bool:
    """Do everything that is not done yet; False when something failed after the services were up (it was said)."""
    layout = Layout(settings(), folder.runtime_dir(settings().data))
    environ = dict(os.environ)
    key = _prepare(progress)
    report("prepared")
    whole = True
    try:
        node = OwnNode(layout, environ, progress)
        if node.ensure(report):
            node.wait_until_online()
            words = _serve_starter(layout, progress, key)
        else:
            words = None
    except (CannotStart, MirbadError) as error:
        # the master itself is up: a person can log in and see to it
        progress.warn(str(error))
        words, whole = None, False
    _wait_for_services(progress)
    progress.plain(farewell(key, words))
    return whole


def _prepare(progress: Progress) -> str | None:
    for doubt in checks.environment():
        progress.warn(f"{doubt.msg} {doubt.hint}")
    applied = database.migrate(progress)
    # opened here, so that another secret key is said before processes fail of it
    store.client_identity(authority.ensure())
    people.ensure_password()
    key = people.ensure_first_key()
    resume.autostart()
    takeover.at_start()
    progress.done(f"Database ready{f' ({applied} migrations applied)' if applied else ''}")
    return key


def _serve_starter(layout: Layout, progress: Progress, key: str | None) -> str | None:
    if settings().starter_model == "none":
        progress.note("No starter model (MIRBAD_STARTER_MODEL=none).")
        return None
    starter = StarterModel(layout, progress)
    if not starter.ensure():
        return None
    starter.wait_until_ready()
    if key is None:
        progress.note("The first API key is revoked, so /v1 is not tried.")
        return None
    return starter.first_words(key)


def _wait_for_services(progress: Progress) -> None:
    def why_not() -> str:
        reasons = visitor.unready_reasons()
        return f"waiting for the services: {' '.join(reasons)}" if reasons else ""

    waiting.until(progress, why_not, seconds=_SERVICES_SECONDS, failure="The master is not ready")
    progress.done("All services are ready")


def farewell(key: str | None, words: str | None) -> str:
    """Where everything is, and a line to paste. `words` is the answer that was streamed, None when there was none."""
    url = web_url(settings())
    password = people.password_path() if settings().admin_password is None else "as MIRBAD_ADMIN_PASSWORD says"
    lines = ["", f"  Mirbad is up       {url}"]
    lines.append(
        "  Log-in             disabled (MIRBAD_ADMIN_PASSWORD is empty)"
        if settings().admin_password == ""
        else f"  Log in as admin    password: {password}"
    )
    shown_key = people.key_path() if key else "revoked; make another: manage.py api-key create NAME"
    lines.append(f"  First API key      {shown_key}")
    if words is not None:
        lines.append(f"  It answered        {words[:90]}")
    if key and words is not None:  # it answered a moment ago, so the line works
        chat = {"model": settings().starter_model, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
        read = f"$(cat {shlex.quote(str(people.key_path()))})"
        lines += ["  Try it:", "", f'curl -N {url}/v1/chat/completions -H "Authorization: Bearer {read}" \\']
        lines += [f"  -H 'Content-Type: application/json' -d '{json.dumps(chat)}'"]
    return "\n".join([*lines, "", "  Stop with Ctrl-C.", ""])
