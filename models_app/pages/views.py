"""Views of the models pages: look up, parse, one call, respond."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from audit import log as audit_log
from mirbad.accounts import actors
from mirbad.kernel.errors import InvalidRequest, MirbadError, NotFound
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import done, is_fragment, page_or_fragment, perform, private
from models_app import registry
from models_app.models import ModelDefinition
from models_app.pages import contexts, logs, places, placing
from models_app.pages.forms import ModelForm
from models_app.pages.strays import strays


def _model(model_id: str) -> ModelDefinition:
    try:
        return contexts.one(model_id)
    except NotFound as error:
        raise Http404(error.detail) from error


def _page(model_id: str) -> str:
    return reverse("models:detail", args=[model_id])


@require_GET
@require_role(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """All models."""
    return page_or_fragment(request, "models/list.html", "models/_list.html", {"models": contexts.models()})


@require_GET
@require_role(VIEWER)
def detail(request: HttpRequest, model_id: str) -> HttpResponse:
    """One model: what is wanted, what is seen."""
    context = {
        "model": contexts.detail(_model(model_id)),
        # Drawn by the app above, by URL name.
        "operations_url": reverse("jobs:of-model", args=[model_id]),
        "timeline_url": reverse("jobs:timeline", args=[model_id]),
        "chat_url": request.build_absolute_uri("/v1/chat/completions"),
    }
    return page_or_fragment(request, "models/detail.html", "models/_state.html", context)


@require_GET
@require_role(VIEWER)
def log(request: HttpRequest, model_id: str) -> HttpResponse:
    """The end of the engine's log."""
    model = _model(model_id)
    if not is_fragment(request):
        return redirect(_page(model_id))
    return private(render(request, "models/_log.html", {"log": logs.log(model, request.GET.get("node", ""))}))


@require_GET
@require_role(VIEWER)
def of_node(request: HttpRequest, node_id: str) -> HttpResponse:
    """The models of one node, for its page."""
    context = {"models": contexts.of_node(node_id), "strays": strays(node_id), "node_id": node_id}
    return private(render(request, "models/_of_node.html", context))


@require_GET
@require_role(VIEWER)
def node_cells(request: HttpRequest) -> HttpResponse:
    """The models column of the list of nodes, all rows at once."""
    return private(render(request, "models/_node_cells.html", {"cells": contexts.node_cells()}))


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def new(request: HttpRequest) -> HttpResponse:
    """Define a model."""
    form = ModelForm(request.POST or None, nodes=contexts.placeable_nodes(), begin=request.GET.dict())
    if request.method == "POST" and (data := form.read()) is not None:
        actor = actors.of(request)
        try:
            with audit_log.refusals_recorded("model.create", actor, model_id=data.id):
                registry.create(data, actor)
            return done(request, f"{data.id} is defined. Start it when you like.", to=_page(data.id), go=True)
        except InvalidRequest as error:
            form.refuse(error)
        except MirbadError as error:
            form.add_error(None, error.detail)
    return _form(request, form, None)


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def edit(request: HttpRequest, model_id: str) -> HttpResponse:
    """Change a definition; what runs keeps its own until it is restarted."""
    model = _model(model_id)
    form = ModelForm(request.POST or None, nodes=contexts.placeable_nodes(), model=model)
    if request.method == "POST" and (data := form.read()) is not None:
        actor = actors.of(request)
        try:
            with audit_log.refusals_recorded("model.update", actor, model_id=model_id):
                registry.update(model_id, data, actor)
            return done(
                request, "Saved. A running engine keeps its settings until a restart.", to=_page(model_id), go=True
            )
        except InvalidRequest as error:
            form.refuse(error)
        except MirbadError as error:
            form.add_error(None, error.detail)
    return _form(request, form, model)


def _form(request: HttpRequest, form: ModelForm, model: ModelDefinition | None) -> HttpResponse:
    node_id, seat = form.value_of("node"), placing.seat_of(model)
    context: dict[str, Any] = {"form": form, "editing": model, "choice": contexts.node_choice(node_id)}
    context |= {"folder": form.value_of("folder"), "file": form.value_of("file"), "standing": seat.standing}
    context["places"] = places.bare(node_id, form["gpu_uuids"].value() or [], seat)
    return page_or_fragment(request, "models/form.html", "models/_form.html", context)


@require_GET
@require_role(OPERATOR)
def node_fields(request: HttpRequest) -> HttpResponse:
    """The part of the form that depends on the node: its folders, files, GPUs and engines."""
    node_id = request.GET.get("node", "")
    context: dict[str, Any] = {"choice": contexts.node_choice(node_id)}
    context |= {name: request.GET.get(name, "") for name in ("folder", "file")}
    seat = places.Seat(request.GET.get("standing", ""))
    context["places"] = places.bare(node_id, request.GET.getlist("gpu_uuids"), seat)
    return private(render(request, "models/_node_fields.html", context))


@require_POST
@require_role(OPERATOR)
def delete(request: HttpRequest, model_id: str) -> HttpResponse:
    """Delete a definition that runs nowhere."""
    actor = actors.of(request)

    def run() -> None:
        with audit_log.refusals_recorded("model.delete", actor, model_id=model_id):
            registry.delete(model_id, actor)

    return perform(
        request, run, f"{model_id} is deleted. Its weights stay on the node.", to=reverse("models:list"), go=True
    )
