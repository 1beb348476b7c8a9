"""Pages of downloads: the list, and the form of a new one."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from agent.common.formats.pickles import is_pickle
from jobs.pages.contexts.downloads import download_row
from jobs.pages.forms.downloads import DownloadForm
from jobs.requests import downloads
from mirbad.accounts import actors
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web import parts
from mirbad.web.access import require_role
from mirbad.web.fragments import done, is_fragment, page_or_fragment, perform, private, refused
from models_app.artifacts import selection

_SHOWN_FILES = 400


@require_GET
@require_role(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """Show downloads, newest first; one query."""
    context = {"downloads": [download_row(operation) for operation in downloads.recorded()]}
    return page_or_fragment(request, "jobs/downloads.html", "jobs/_downloads.html", context)


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def new(request: HttpRequest) -> HttpResponse:
    """Show the form, filled from the link, and request the download."""
    if request.method == "POST":
        return _begin(request)
    begin = {name: request.GET[name] for name in ("node", "repository", "revision", "folder") if name in request.GET}
    context = {"form": DownloadForm(initial=begin), "chosen": request.GET.getlist("files")}
    return page_or_fragment(request, "jobs/download_new.html", "jobs/_download_form.html", context)


def _begin(request: HttpRequest) -> HttpResponse:
    form = DownloadForm(request.POST)
    if not form.is_valid():
        context = {"form": form, "chosen": request.POST.getlist("files")}
        return page_or_fragment(request, "jobs/download_new.html", "jobs/_download_form.html", context)
    actor, wanted = actors.of(request), form.request(request.POST.getlist("files"))
    try:
        downloads.request(form.cleaned_data["node"], wanted, form.cleaned_data["token"] or None, actor)
    except MirbadError as error:
        # A button alone has no form to show the refusal in.
        if not is_fragment(request) or "brief" in request.POST:
            return refused(request, error, to=reverse("jobs:download-new"))
        context = {"form": form, "chosen": request.POST.getlist("files"), "error": error}
        return private(render(request, "jobs/_download_form.html", context))
    text = f"Downloading {wanted.repository} to {form.cleaned_data['node']}."
    return done(request, text, to=reverse("jobs:downloads"), go=True)


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def files(request: HttpRequest) -> HttpResponse:
    """Show the files of a repository, to choose from; a part of the form."""
    if request.method == "GET":
        return redirect("jobs:download-new")
    form = DownloadForm(request.POST)
    if not form.is_valid():
        problem = "; ".join(str(text) for errors in form.errors.values() for text in errors)
        return private(render(request, "jobs/_download_files.html", {"problem": problem}))
    try:
        _, found = downloads.inspect(form.cleaned_data["node"], form.request([]), form.cleaned_data["token"] or None)
    except MirbadError as error:
        return private(render(request, "jobs/_download_files.html", {"error": error}))
    usual, problem = selection.default_files(found.name, found.files)
    context = {
        "found": found,
        "problem": problem,
        "total": parts.size(sum(file.size_bytes for file in found.files if file.path in usual)),
        "files": [
            {"path": f.path, "size": f.size_bytes, "pickle": is_pickle(f.path), "usual": f.path in usual}
            for f in found.files[:_SHOWN_FILES]
        ],
        "more": max(len(found.files) - _SHOWN_FILES, 0),
    }
    return private(render(request, "jobs/_download_files.html", context))


@require_POST
@require_role(OPERATOR)
def forget(request: HttpRequest, operation_id: str) -> HttpResponse:
    """Remove the unfinished files of an ended download."""
    actor = actors.of(request)
    text = "The unfinished files are removed from the node."
    return perform(request, lambda: downloads.forget(operation_id, actor), text, to=reverse("jobs:downloads"))
