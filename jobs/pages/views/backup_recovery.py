"""The pages of the recovery mode: a backup is uploaded, shown, and installed on this empty master."""

from typing import Any

import structlog
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST, require_safe

from audit import log as audit_log
from jobs.backup import installation, recovery, recovery_preview, uploads
from jobs.errors import MasterNotEmpty, RecoveryMode
from mirbad.accounts import actors
from mirbad.accounts.permissions import require_reauthentication
from mirbad.api import problems
from mirbad.kernel.errors import InvalidRequest, MirbadError, NotFound
from mirbad.kernel.roles import OWNER
from mirbad.web.access import require_role
from mirbad.web.fragments import private
from nodes.errors import ConfirmationRequired

log = structlog.get_logger(__name__)

_PAGE = "jobs/backup_recovery.html"
_DONE = "jobs/backup_recovery_done.html"
_TEXT = (
    "The master is in recovery mode: it waits for a backup. Install one on the page /backup, or end the recovery mode."
)
_RETRY_SECONDS = 30


@require_GET
@require_role(OWNER)
def page(request: HttpRequest) -> HttpResponse:
    """Show the form of the upload, or with ``?upload=`` what the uploaded backup would install."""
    upload_id = request.GET.get("upload", "")
    try:
        return _render(request, uploads.find(upload_id, request.user.get_username()) if upload_id else None)
    except (NotFound, MirbadError) as error:
        return _render(request, None, error)


@require_POST
@require_role(OWNER)
def upload(request: HttpRequest) -> HttpResponse:
    """Keep an uploaded backup once it was verified, and show it."""
    try:
        file = request.FILES.get("file")
        if file is None:
            raise InvalidRequest("Choose the file of a backup.")
        passphrase = request.POST.get("passphrase", "")
        kept = uploads.keep(file.chunks(), file.name or "", passphrase, request.user.get_username())
        try:
            recovery.require_suitable(kept.manifest)
        except MirbadError:
            uploads.forget(kept.id)
            raise
    except MirbadError as error:
        return _render(request, None, error)
    return redirect(f"{reverse('backup-recovery')}?upload={kept.id}")


@require_POST
@require_role(OWNER)
def install(request: HttpRequest) -> HttpResponse:
    """Install the uploaded backup. The process ends afterwards, and starts again as the master of the backup."""
    person, upload_id = request.user.get_username(), request.POST.get("upload", "")
    found = None
    try:
        found = uploads.find(upload_id, person)
        with audit_log.refusals_recorded("restore", actors.of(request), target=found.name):
            require_reauthentication(request)
            if request.POST.get("stopped") != "yes":
                raise ConfirmationRequired("Confirm that the previous master is stopped. Nothing was changed.")
            done = installation.install(found.path, found.passphrase or "", f"{person} on the page", found.name)
    except MirbadError as error:
        if (earlier := installation.installed()) is not None:  # the same form, sent twice
            return private(render(request, _DONE, {"recovered": earlier, "name": earlier.backup}))
        return _render(request, found, error)
    uploads.forget(found.id)
    log.warning("a fleet was recovered", backup=found.name, by=person)
    return private(render(request, _DONE, {"recovered": done, "name": found.name}))


@require_GET
@never_cache
def restarting(request: HttpRequest) -> HttpResponse:
    """Respond to the page that waits for the restart, while this process has not ended yet."""
    return HttpResponse(status=204)


@csrf_exempt
@never_cache
def refuse(request: HttpRequest) -> HttpResponse:
    """Refuse what is for machines, with 503."""
    return problems.response(RecoveryMode(_TEXT, retry_after_seconds=_RETRY_SECONDS))


@csrf_exempt
@never_cache
def elsewhere(request: HttpRequest) -> HttpResponse:
    """Lead every other page to the page of the recovery."""
    to = reverse("backup-recovery")
    if request.headers.get("HX-Request") == "true":  # a part of a page that was open before
        return HttpResponse(status=204, headers={"HX-Redirect": to})
    response = HttpResponseRedirect(to)
    response.status_code = 303  # whatever the method was
    return response


@require_safe
@never_cache
def readyz(request: HttpRequest) -> HttpResponse:
    """Return 503: nothing that asks for readiness should send requests here."""
    headers = {"Retry-After": str(_RETRY_SECONDS)}
    return JsonResponse({"ready": False, "reasons": [_TEXT]}, status=503, headers=headers)


def _render(
    request: HttpRequest, found: uploads.UploadedBackup | None, error: MirbadError | None = None
) -> HttpResponse:
    uploads.remove_old()  # no other process does it in this mode
    context: dict[str, Any] = {"error": error, "upload": found, "blocks": _blocks()}
    if found is not None:
        context["preview"] = recovery_preview.read(found.path, found.passphrase or "")
    return private(render(request, _PAGE, context, status=error.http_status if error else 200))


def _blocks() -> MasterNotEmpty | None:
    try:
        recovery.require_empty()
    except MasterNotEmpty as error:
        return error
    return None
