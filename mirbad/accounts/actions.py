"""One audited action of a signed-in person on a page, and the response to it."""

from collections.abc import Callable
from typing import TypeVar

from django.http import HttpRequest, HttpResponse

from audit import log as audit_log
from mirbad.accounts import actors
from mirbad.accounts.permissions import require_reauthentication
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import MirbadError
from mirbad.web.fragments import done, refused

Result = TypeVar("Result")


def act(
    request: HttpRequest,
    action: str,
    call: Callable[[Actor], Result],
    text: str,
    *,
    to: str,
    then: Callable[[Result], str] | None = None,
    node_id: str = "",
    model_id: str = "",
    target: str = "",
    reauthenticate: bool = False,
    go: bool = False,
) -> HttpResponse:
    """Run `call` as the person who sent `request`, and report `text`, or the refusal where the person acted.

    A refusal is recorded under the audit `action`; `call` records its own success. `to` is the page for a browser
    without htmx, and `then` another one for after a success. With `reauthenticate` the action needs a signed-in
    session; with `go` the browser leaves for that page with htmx too.
    """
    actor = actors.of(request)
    try:
        with audit_log.refusals_recorded(action, actor, node_id=node_id, model_id=model_id, target=target):
            if reauthenticate:
                require_reauthentication(request)
            result = call(actor)
    except MirbadError as error:
        return refused(request, error, to=to)
    return done(request, text, to=then(result) if then else to, go=go)
