"""Pages of downloads: what comes to which node, and how one is begun."""

from dataclasses import dataclass
from datetime import datetime

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from agent.wire.pickles import is_pickle
from jobs import downloads
from jobs.models import Operation
from jobs.pages.contexts import OperationRow, row
from mirbad.accounts import actors
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web import parts
from mirbad.web.access import require_role
from mirbad.web.fragments import done, is_fragment, page_or_fragment, perform, private, refused
from models_app.artifacts import choose
from models_app.artifacts.wishes import Wish
from nodes.models import Node

_SHOWN_FILES = 400
_CODE = {"spellcheck": "false", "autocapitalize": "none", "autocomplete": "off"}


class DownloadForm(forms.Form):
    """What to bring, and where to."""

    node = forms.ChoiceField(label="Node")
    repository = forms.RegexField(
        r"^[A-Za-z0-9._-]{1,120}/[A-Za-z0-9._-]{1,120}$",
        label="Repository",
        max_length=255,
        help_text="owner/name on Hugging Face.",
        error_messages={"invalid": "Give it as owner/name."},
        widget=forms.TextInput(attrs={**_CODE, "placeholder": "Qwen/Qwen2.5-0.5B-Instruct"}),
    )
    revision = forms.RegexField(
        r"^[A-Za-z0-9._/-]*$",
        label="Revision",
        max_length=80,
        required=False,
        help_text="A branch, a tag or a commit; empty: main.",
        widget=forms.TextInput(attrs=_CODE),
    )
    folder = forms.RegexField(
        r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        label="Folder",
        max_length=128,
        required=False,
        help_text="Empty: named by the repository.",
        widget=forms.TextInput(attrs=_CODE),
    )
    token = forms.CharField(
        label="Hugging Face token",
        max_length=500,
        required=False,
        help_text="For a gated or private repository. It goes to that node's memory and is written down nowhere.",
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
    )
    allow_pickle = forms.BooleanField(
        label="Allow Python pickles",
        required=False,
        help_text="They run whatever they hold when they are loaded.",
    )

    def __init__(self, data: object = None, *, initial: dict[str, str] | None = None) -> None:
        super().__init__(data, initial=initial)  # type: ignore[arg-type] # a QueryDict or None
        nodes = [(node.pk, node.name) for node in Node.objects.approved()]
        self.fields["node"].choices = nodes  # type: ignore[attr-defined]

    def wish(self, files: list[str]) -> Wish:
        """What was asked for; only of a valid form."""
        sent = self.cleaned_data
        return Wish(sent["repository"], sent["revision"], tuple(files), sent["folder"], sent["allow_pickle"])


@dataclass(frozen=True, slots=True)
class DownloadRow:
    """A download at a glance."""

    operation: OperationRow
    repository: str
    commit: str
    folder: str
    files: int
    size: str
    speed: str
    finished_at: datetime | None

    @property
    def may_forget(self) -> bool:
        """Whether unfinished bytes of it may lie on the node."""
        return not self.operation.open and self.operation.badge.tone != "ok"

    @property
    def is_there(self) -> bool:
        """Whether it ended well."""
        return not self.operation.open and self.operation.badge.tone == "ok"


def _row(operation: Operation) -> DownloadRow:
    spec = operation.input["spec"]
    speed = (operation.progress or {}).get("bytesPerSecond")
    return DownloadRow(
        operation=row(operation),
        repository=spec["repository"],
        commit=spec["commit"],
        folder=spec["folder"],
        files=len(spec["files"]),
        size=parts.size(sum(file["sizeBytes"] for file in spec["files"])),
        speed=f"{parts.size(speed)}/s" if speed is not None else "",
        finished_at=operation.finished_at,
    )


@require_GET
@require_role(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """What comes and what came, the newest first; one query."""
    context = {"downloads": [_row(operation) for operation in downloads.recorded()]}
    return page_or_fragment(request, "jobs/downloads.html", "jobs/_downloads.html", context)


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def new(request: HttpRequest) -> HttpResponse:
    """Ask for a set; a link may bring what the form begins with."""
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
    actor, wish = actors.of(request), form.wish(request.POST.getlist("files"))
    try:
        downloads.request(form.cleaned_data["node"], wish, form.cleaned_data["token"] or None, actor)
    except MirbadError as error:
        # A button alone has no form to show the refusal in.
        if not is_fragment(request) or "brief" in request.POST:
            return refused(request, error, to=reverse("jobs:download-new"))
        context = {"form": form, "chosen": request.POST.getlist("files"), "error": error}
        return private(render(request, "jobs/_download_form.html", context))
    words = f"{wish.repository} is coming to {form.cleaned_data['node']}."
    return done(request, words, to=reverse("jobs:downloads"), go=True)


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def files(request: HttpRequest) -> HttpResponse:
    """The files of a repository, to choose from; a part of the form."""
    if request.method == "GET":
        return redirect("jobs:download-new")
    form = DownloadForm(request.POST)
    if not form.is_valid():
        problem = "; ".join(str(text) for errors in form.errors.values() for text in errors)
        return private(render(request, "jobs/_download_files.html", {"problem": problem}))
    try:
        _, found = downloads.inspect(form.cleaned_data["node"], form.wish([]), form.cleaned_data["token"] or None)
    except MirbadError as error:
        return private(render(request, "jobs/_download_files.html", {"error": error}))
    usual, problem = choose.usual(found.name, found.files)
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
    """Remove what an ended download left unfinished."""
    actor = actors.of(request)
    words = "What it had not finished is removed from the node."
    return perform(request, lambda: downloads.forget(operation_id, actor), words, to=reverse("jobs:downloads"))
