"""Pages of a configuration import: the upload, and the preview with its choices and its confirmation."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from audit import log as audit_log
from jobs.backup import installation
from jobs.backup.importing.choices import ImportChoices
from jobs.errors import RestoreChanged
from jobs.pages.contexts import backup_imports as contexts
from jobs.pages.forms.backup_imports import ImportUploadForm, choices_of
from jobs.requests import imported_uploads, restore
from jobs.requests.imported_uploads import ImportedUpload
from mirbad.accounts import actors
from mirbad.accounts.permissions import require_reauthentication
from mirbad.kernel.errors import MirbadError, NotFound
from mirbad.kernel.roles import OWNER
from mirbad.web.access import require_role
from mirbad.web.fragments import done, is_fragment, page_or_fragment


@require_http_methods(["GET", "POST"])
@require_role(OWNER)
def upload(request: HttpRequest) -> HttpResponse:
    """Show the form of an upload, and keep one for its preview."""
    if request.method == "GET":
        return _upload_form(request, ImportUploadForm())
    form = ImportUploadForm(request.POST, request.FILES)
    if not form.is_valid():
        return _upload_form(request, form)
    actor = actors.of(request)
    file = form.cleaned_data["file"]
    try:
        with audit_log.refusals_recorded(restore.ACTION, actor, target=file.name or ""):
            kept = imported_uploads.keep(file.chunks(), file.name or "", form.cleaned_data["passphrase"] or None, actor)
    except MirbadError as error:
        return _upload_form(request, form, error)
    return redirect("jobs:backup-import-preview", kept.id)


def _upload_form(request: HttpRequest, form: ImportUploadForm, error: MirbadError | None = None) -> HttpResponse:
    context = {"form": form, "error": error, "is_recovered": installation.installed() is not None}
    # htmx shows an error in place of the form only with a success.
    status = error.http_status if error is not None and not is_fragment(request) else 200
    template = "jobs/_backup_import_upload.html"
    return page_or_fragment(request, "jobs/backup_import.html", template, context, status=status)


@require_http_methods(["GET", "POST"])
@require_role(OWNER)
def preview(request: HttpRequest, upload_id: str) -> HttpResponse:
    """Show the preview of an upload by the choices that were sent, without any at first."""
    found = _found(request, upload_id)
    if found is None:
        return _gone(request)
    choices = choices_of(request.POST) if request.method == "POST" else ImportChoices()
    return _preview(request, found, choices)


@require_POST
@require_role(OWNER)
def confirm(request: HttpRequest, upload_id: str) -> HttpResponse:
    """Import what was previewed; a plan that is another one by now is shown instead."""
    found = _found(request, upload_id)
    if found is None:
        return _gone(request)
    choices, actor = choices_of(request.POST), actors.of(request)
    try:
        require_reauthentication(request)
        operation = restore.request(found.content, choices, request.POST.get("digest", ""), actor)
    except RestoreChanged as error:
        return _preview(request, found, choices, error)
    except MirbadError as error:
        audit_log.record_refusal(restore.ACTION, actor, error, target=found.content.name)
        return _preview(request, found, choices, error)
    imported_uploads.forget(found.id, actor)
    to = reverse("jobs:detail", args=[operation.pk])
    return done(request, "Imported. Weights and starts go on here.", to=to, go=True)


def _found(request: HttpRequest, upload_id: str) -> ImportedUpload | None:
    try:
        return imported_uploads.find(upload_id, actors.of(request))
    except NotFound:
        return None


def _gone(request: HttpRequest) -> HttpResponse:
    error = NotFound("The uploaded backup is not there any more: uploads are kept for an hour. Upload it again.")
    return _upload_form(request, ImportUploadForm(), error)


def _preview(
    request: HttpRequest, found: ImportedUpload, choices: ImportChoices, error: MirbadError | None = None
) -> HttpResponse:
    try:
        plan = restore.preview(found.content, choices)
    except MirbadError as refusal:
        # A choice that names what is not there: the others are shown without it.
        error = error or refusal
        choices = ImportChoices(options=choices.options, others_unplaced=choices.others_unplaced)
        plan = restore.preview(found.content, choices)
    context = {"preview": contexts.preview(found, plan, choices), "error": error}
    status = error.http_status if error is not None and not is_fragment(request) else 200
    template = "jobs/_backup_import_preview.html"
    return page_or_fragment(request, "jobs/backup_import.html", template, context, status=status)
