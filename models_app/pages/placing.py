"""The placement of the editor as it is typed: whether the model fits, which GPUs go together, and the best place."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from mirbad.kernel.errors import InvalidRequest, NotFound
from mirbad.kernel.roles import OPERATOR
from mirbad.web.access import require_role
from mirbad.web.fragments import private
from models_app import queries
from models_app.models import ModelDefinition
from models_app.pages import contexts, places
from models_app.pages.forms import ModelForm
from models_app.placement.wanted import Wanted, of_input
from models_app.registry import ModelInput


@require_POST
@require_role(OPERATOR)
def fit(request: HttpRequest) -> HttpResponse:
    """What the form as it stands leads to; with ``choose`` the best place is put into it."""
    model = _edited(request.POST.get("editing", ""))
    form = ModelForm(request.POST, nodes=contexts.placeable_nodes(), model=model)
    wanted, lacking = _wanted(form)
    node_id, uuids = request.POST.get("node", ""), request.POST.getlist("gpu_uuids")
    seat = seat_of(model)
    chosen = None
    if wanted is not None and request.POST.get("choose") and not seat.standing:
        ranking = places.best(wanted)
        chosen = ranking.best
        if chosen is not None:
            node_id, uuids = chosen.node_id, list(chosen.gpu_uuids)
    found = places.of(wanted, node_id, uuids, seat=seat, lacking=lacking)
    context: dict[str, Any] = {"places": found, "asked": bool(request.POST.get("choose")), "placed": chosen}
    context["standing"] = seat.standing
    if chosen is not None:
        context["choice"] = contexts.node_choice(node_id)
        context |= {"folder": request.POST.get("folder", ""), "file": request.POST.get("file", "")}
    return private(render(request, "models/_fit_answer.html", context))


def seat_of(model: ModelDefinition | None) -> places.Seat:
    """Whose placement is edited; None is a new model's."""
    placement = queries.placement_of(model) if model is not None else None
    return places.Seat(placement.node_id_text if placement is not None else "", new=model is None)


def _edited(model_id: str) -> ModelDefinition | None:
    if not model_id:
        return None
    try:
        return queries.one_model(model_id)
    except NotFound:
        return None


def _wanted(form: ModelForm) -> tuple[Wanted | None, str]:
    """The model as far as it was typed, or what is still needed to say anything."""
    try:
        data: ModelInput = form.preview()
    except InvalidRequest as error:
        return None, error.problems[0]["message"] if error.problems else error.detail
    return of_input(data), ""
