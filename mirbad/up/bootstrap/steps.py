"""The order of the bootstrap, and the summary at its end."""

import json
import os
import shlex
import sys
from collections.abc import Callable

import structlog

from jobs.backup import installation
from jobs.loops import configured_takeover, resume
from mirbad import checks
from mirbad.kernel import recovery_mode
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError
from mirbad.up import folder
from mirbad.up.bootstrap import database, people, smoke_test, waiting
from mirbad.up.bootstrap.node import OwnNode
from mirbad.up.bootstrap.starter import StarterModel
from mirbad.up.errors import CannotStart
from mirbad.up.programs import Layout
from mirbad.up.progress import ProgressDisplay
from mirbad.up.session import web_url
from nodes.pki import authority, store

_SERVICES_SECONDS = 90.0

log = structlog.get_logger(__name__)


def run(progress: ProgressDisplay, report: Callable[[str], None]) -> bool:
    """Do all missing steps; False when something failed after the services were up (it was printed)."""
    applied = _migrate(progress)
    if recovery_mode.is_on(settings()):
        return _recover(progress, report)
    layout = Layout(settings(), folder.runtime_dir(settings().data))
    environ = dict(os.environ)
    key = _prepare(progress, applied)
    report("prepared")
    words, problem, lacks_node = None, "", True
    try:
        node = OwnNode(layout, environ, progress)
        serves = node.ensure(report)
        if serves:
            node.wait_until_online()
        lacks_node = False
        words = _serve_starter(layout, progress, key) if serves else None
    except (CannotStart, MirbadError) as error:
        # the master itself is up: a person can log in and fix it
        problem = str(error)
        progress.warn(problem)
    _wait_for_services(progress, "The pages can be opened" if lacks_node else "All services are ready")
    progress.plain(summary(key, words, problem if lacks_node else ""))
    return not problem


def _migrate(progress: ProgressDisplay) -> int:
    """Make the tables, and settle an installation that was interrupted: it decides what this master is."""
    for doubt in checks.environment():
        progress.warn(f"{doubt.msg} {doubt.hint}")
    applied = database.migrate(progress)
    was_on = recovery_mode.is_on(settings())
    if installation.settle():
        progress.note("Settled the installation of a backup that was interrupted.")
    if was_on and not recovery_mode.is_on(settings()):
        # The settings of this process are those of the recovery mode.
        os.execv(sys.executable, (sys.executable, "-m", "mirbad.up.bootstrap"))  # noqa: S606  our own interpreter
    return applied


def _recover(progress: ProgressDisplay, report: Callable[[str], None]) -> bool:
    """Make nothing but the account of the admin, and wait for the pages of the recovery."""
    people.ensure_password()
    report("recovering")

    def why_not() -> str:
        return "" if smoke_test.is_alive() else "waiting for the pages"

    waiting.until(progress, why_not, seconds=_SERVICES_SECONDS, failure="The pages cannot be opened")
    progress.done("Recovery mode: the pages can be opened")
    lines = ["", f"  Recovery mode      {web_url(settings())}/backup", _log_in()]
    progress.plain("\n".join([*lines, "", "  Stop with Ctrl-C.", ""]))
    return True


def _prepare(progress: ProgressDisplay, applied: int) -> str | None:
    if recovery_mode.is_left_set(settings()):
        text = recovery_mode.left_set_text(settings())
        log.warning(text)
        progress.warn(text)
    # opened here, so that another secret key is reported before processes fail because of it
    store.client_identity(authority.ensure())
    people.ensure_password()
    key = people.ensure_first_key()
    resume.autostart()
    configured_takeover.at_start()
    progress.done(f"Database ready{f' ({applied} migrations applied)' if applied else ''}")
    return key


def _serve_starter(layout: Layout, progress: ProgressDisplay, key: str | None) -> str | None:
    if settings().starter_model == "none":
        progress.note("No starter model (MIRBAD_STARTER_MODEL=none).")
        return None
    starter = StarterModel(layout, progress)
    if not starter.ensure():
        return None
    starter.wait_until_ready()
    if key is None:
        progress.note("The first API key is revoked, so /v1 is not tested.")
        return None
    return starter.first_words(key)


def _wait_for_services(progress: ProgressDisplay, words: str) -> None:
    def why_not() -> str:
        reasons = smoke_test.unready_reasons()
        return f"waiting for the services: {' '.join(reasons)}" if reasons else ""

    waiting.until(progress, why_not, seconds=_SERVICES_SECONDS, failure="The master is not ready")
    progress.done(words)


def summary(key: str | None, words: str | None, problem: str = "") -> str:
    """Return the addresses, secrets and a command to paste.

    `words` is the streamed completion, None when there was none; `problem` is why this machine's node is not there.
    """
    url = web_url(settings())
    lines = ["", f"  Mirbad is up       {url}"]
    if problem:
        lines = ["", f"  Not ready          Node {settings().bootstrap_node} of this machine is missing. {problem}"]
        lines += ["  Next               fix this and run make up again; manage.py status shows the node"]
        lines += [f"  Pages              {url}"]
    lines.append(_log_in())
    shown_key = people.key_path() if key else "revoked; create another: manage.py api-key create NAME"
    lines.append(f"  First API key      {shown_key}")
    if words is not None:
        lines.append(f"  It answered        {words[:90]}")
    if key and words is not None:  # the model answered a moment ago, so the command works
        chat = {"model": settings().starter_model, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
        read = f"$(cat {shlex.quote(str(people.key_path()))})"
        lines += ["  Try it:", "", f'curl -N {url}/v1/chat/completions -H "Authorization: Bearer {read}" \\']
        lines += [f"  -H 'Content-Type: application/json' -d '{json.dumps(chat)}'"]
    return "\n".join([*lines, "", "  Stop with Ctrl-C.", ""])


def _log_in() -> str:
    if settings().admin_password == "":
        return "  Log-in             disabled (MIRBAD_ADMIN_PASSWORD is empty)"
    password = people.password_path() if settings().admin_password is None else "from MIRBAD_ADMIN_PASSWORD"
    return f"  Log in as admin    password: {password}"
