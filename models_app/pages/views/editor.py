"""The form of a model: pages to create and to edit one, and its placement as it is typed."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from audit import log as audit_log
from mirbad.accounts import actors
from mirbad.kernel.errors import InvalidRequest, MirbadError, NotFound
from mirbad.kernel.roles import OPERATOR
from mirbad.web.access import require_role
from mirbad.web.fragments import done, page_or_fragment, private
from models_app import queries, registry
from models_app.models import ModelDefinition
from models_app.pages.contexts import editor, placement
from models_app.pages.forms.models import ModelForm
from models_app.placement.workload import Workload, of_input
from models_app.registry import ModelInput

_WEIGHTS = ("folder", "file", "projector")


def _model_page(model_id: str) -> str:
    return reverse("models:detail", args=[model_id])


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def new(request: HttpRequest) -> HttpResponse:
    """Create a model."""
    form = ModelForm(request.POST or None, nodes=editor.placeable_nodes(), begin=request.GET.dict())
    if request.method == "POST" and (data := form.read()) is not None:
        actor = actors.of(request)
        try:
            with audit_log.refusals_recorded("model.create", actor, model_id=data.id):
                registry.create(data, actor)
            return done(request, f"{data.id} is created. You can start it now.", to=_model_page(data.id), go=True)
        except InvalidRequest as error:
            form.refuse(error)
        except MirbadError as error:
            form.add_error(None, error.detail)
    return _form(request, form, None)


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def edit(request: HttpRequest, model_id: str) -> HttpResponse:
    """Edit a definition; a running engine keeps its configuration until a restart."""
    model = queries.one_model(model_id)
    form = ModelForm(request.POST or None, nodes=editor.placeable_nodes(), model=model)
    if request.method == "POST" and (data := form.read()) is not None:
        actor = actors.of(request)
        try:
            with audit_log.refusals_recorded("model.update", actor, model_id=model_id):
                registry.update(model_id, data, actor)
            return done(
                request,
                "Saved. Restart the model to apply changes to a running engine.",
                to=_model_page(model_id),
                go=True,
            )
        except InvalidRequest as error:
            form.refuse(error)
        except MirbadError as error:
            form.add_error(None, error.detail)
    return _form(request, form, model)


def _form(request: HttpRequest, form: ModelForm, model: ModelDefinition | None) -> HttpResponse:
    node_id, edited = form.value_of("node"), _edited_placement(model)
    context: dict[str, Any] = {"form": form, "editing": model, "choice": editor.node_choice(node_id)}
    context["refused"] = registry.refused_of(model) if model is not None and not form.errors else ()
    context |= {name: form.value_of(name) for name in _WEIGHTS} | {"placed_on": edited.placed_on}
    context["placement"] = placement.bare(node_id, form["gpu_uuids"].value() or [], edited)
    return page_or_fragment(request, "models/form.html", "models/_form.html", context)


@require_GET
@require_role(OPERATOR)
def node_fields(request: HttpRequest) -> HttpResponse:
    """Show the part of the form that depends on the node: its folders, files, GPUs and engines."""
    node_id = request.GET.get("node", "")
    context: dict[str, Any] = {"choice": editor.node_choice(node_id)}
    context |= {name: request.GET.get(name, "") for name in _WEIGHTS}
    edited = placement.EditedPlacement(request.GET.get("placed_on", ""))
    context["placement"] = placement.bare(node_id, request.GET.getlist("gpu_uuids"), edited)
    return private(render(request, "models/_node_fields.html", context))


@require_POST
@require_role(OPERATOR)
def fit(request: HttpRequest) -> HttpResponse:
    """Show the fit of the form as typed; with ``choose`` fill in the best node."""
    model = _edited(request.POST.get("editing", ""))
    form = ModelForm(request.POST, nodes=editor.placeable_nodes(), model=model)
    workload, missing = _workload_of(form)
    node_id, uuids = request.POST.get("node", ""), request.POST.getlist("gpu_uuids")
    edited = _edited_placement(model)
    chosen = None
    if workload is not None and request.POST.get("choose") and not edited.placed_on:
        ranking = placement.best(workload)
        chosen = ranking.best
        if chosen is not None:
            node_id, uuids = chosen.node_id, list(chosen.gpu_uuids)
    found = placement.of(workload, node_id, uuids, edited=edited, missing=missing)
    context: dict[str, Any] = {"placement": found, "choose": bool(request.POST.get("choose")), "placed": chosen}
    context["placed_on"] = edited.placed_on
    if chosen is not None:
        context["choice"] = editor.node_choice(node_id)
        context |= {name: request.POST.get(name, "") for name in _WEIGHTS}
    return private(render(request, "models/_fit_answer.html", context))


def _edited_placement(model: ModelDefinition | None) -> placement.EditedPlacement:
    """Return the placement that is edited; None is a new model's."""
    primary = queries.primary(model) if model is not None else None
    return placement.EditedPlacement(primary.node_id_text if primary is not None else "", new=model is None)


def _edited(model_id: str) -> ModelDefinition | None:
    if not model_id:
        return None
    try:
        return queries.one_model(model_id)
    except NotFound:
        return None


def _workload_of(form: ModelForm) -> tuple[Workload | None, str]:
    """Return the model as far as typed, or the sentence that names the missing value."""
    try:
        data: ModelInput = form.preview()
    except InvalidRequest as error:
        return None, error.problems[0]["message"] if error.problems else error.detail
    return of_input(data), ""
