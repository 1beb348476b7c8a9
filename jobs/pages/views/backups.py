"""Pages of backups and their destinations, for owners."""

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from audit import log as audit_log
from jobs.pages.contexts import backups as contexts
from jobs.pages.forms.backups import DestinationForm, NewBackupForm
from jobs.requests import backup_destinations, backups
from mirbad.accounts import actors
from mirbad.accounts.actions import act
from mirbad.accounts.permissions import require_reauthentication
from mirbad.kernel.errors import MirbadError, NotFound
from mirbad.kernel.roles import OWNER
from mirbad.web.access import require_role
from mirbad.web.fragments import done, page_or_fragment


@require_GET
@require_role(OWNER)
def index(request: HttpRequest) -> HttpResponse:
    """Show backups and destinations."""
    return page_or_fragment(request, "jobs/backups.html", "jobs/_backups.html", {"page": contexts.read()})


@require_http_methods(["GET", "POST"])
@require_role(OWNER)
def new(request: HttpRequest) -> HttpResponse:
    """Show the form of a backup, and make one."""
    begin = {"destination": request.GET.get("destination", ""), "with_secrets": True}
    form = NewBackupForm(request.POST or None, initial=begin)
    context: dict[str, object] = {"form": form}
    if request.method == "POST" and form.is_valid():
        sent, actor = form.cleaned_data, actors.of(request)
        try:
            with audit_log.refusals_recorded(backups.ACTION, actor):
                require_reauthentication(request)
            backups.request(
                actor,
                passphrase=sent["passphrase"] or None,
                with_secrets=sent["with_secrets"],
                destination_id=sent["destination"],
            )
            return done(request, "The backup is being made. You can leave this page.", to=_page(), go=True)
        except MirbadError as error:
            context["error"] = error
    return _uncached(page_or_fragment(request, "jobs/backup_new.html", "jobs/_backup_form.html", context))


@require_POST
@require_role(OWNER)
def delete(request: HttpRequest, backup_id: int) -> HttpResponse:
    """Delete a backup."""
    return act(
        request,
        backups.DELETE,
        lambda actor: backups.delete(backup_id, actor),
        "The backup is being deleted.",
        to=_page(),
        target=str(backup_id),
        reauthenticate=True,
    )


@require_http_methods(["GET", "POST"])
@require_role(OWNER)
def destination_new(request: HttpRequest, kind: str) -> HttpResponse:
    """Show the form of a destination of one kind, and create it."""
    if kind not in contexts.KINDS:
        raise NotFound(f"There are no destinations of the kind {kind!r}.")
    return _destination(request, DestinationForm(kind, request.POST or None), None)


@require_http_methods(["GET", "POST"])
@require_role(OWNER)
def destination_edit(request: HttpRequest, destination_id: int) -> HttpResponse:
    """Show the form of a destination, and change it."""
    row = backups.require_destination(destination_id)
    return _destination(request, DestinationForm(row.kind, request.POST or None, row=row), destination_id)


def _destination(request: HttpRequest, form: DestinationForm, destination_id: int | None) -> HttpResponse:
    is_new = destination_id is None
    url = (
        reverse("jobs:backup-destination-new", args=[form.kind])
        if is_new
        else reverse("jobs:backup-destination", args=[destination_id])
    )
    context: dict[str, object] = {"form": form, "kinds": contexts.SHORT_KINDS, "url": url, "is_new": is_new}
    if request.method == "POST" and form.is_valid():
        actor = actors.of(request)
        try:
            with audit_log.refusals_recorded(backup_destinations.ACTION, actor):
                require_reauthentication(request)
            if destination_id is None:
                backup_destinations.create(form.entered(), actor)
            else:
                backup_destinations.update(destination_id, form.entered(), actor)
            return done(request, "Destination saved. Try it.", to=_page(), go=True)
        except MirbadError as error:
            context["error"] = error
    return _uncached(
        page_or_fragment(request, "jobs/backup_destination.html", "jobs/_backup_destination_form.html", context)
    )


@require_POST
@require_role(OWNER)
def destination_delete(request: HttpRequest, destination_id: int) -> HttpResponse:
    """Forget a destination."""
    return act(
        request,
        backup_destinations.ACTION,
        lambda actor: backup_destinations.delete(destination_id, actor),
        "The destination is deleted. The files there stay.",
        to=_page(),
        target=str(destination_id),
        reauthenticate=True,
    )


@require_POST
@require_role(OWNER)
def destination_try(request: HttpRequest, destination_id: int) -> HttpResponse:
    """Write, read and delete a small file at a destination."""
    return act(
        request,
        backup_destinations.ACTION,
        lambda actor: backup_destinations.try_out(destination_id, actor),
        "It works: a small file was written, read and deleted.",
        to=_page(),
        target=str(destination_id),
    )


def _page() -> str:
    return reverse("jobs:backups")


def _uncached(response: HttpResponse) -> HttpResponse:
    response["Cache-Control"] = "no-store"
    return response
